"""A KV-cache subscriber of a real play: a process of its own, so that it can be stopped, killed, or too slow.

    lab --fork server--> keeper --fork--> subscriber.k, and subscriber.k@1 if that is killed

Promises
- A subscriber that is killed is started again, once, as whoever runs one would do: without a memory, under its old
  name. One that was told to stop, or that left by itself, is not.
- The keeper is no node of the play: it opens no ports, starts no thread, and ends with its subscriber.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import traceback
from collections.abc import Callable
from functools import partial
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from engine.kv_events.reports import Report
from engine.kv_events.subscriber.follow import LOOK_S, mirror_data, observed
from engine.kv_events.subscriber.process import KVEventSubscriber, run_life
from engine.process.children import set_process_title
from engine.process.entry import open_ports
from engine.process.identity import own_identity
from engine.topology import Mark, subscriber
from scenarios.lab.follower import Following, UntilCaughtUp, follow, polled
from scenarios.lab.script import DONE, UP


class ListenerRecipe(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    what: Following
    ports_factory: str
    ports_argument: bytes


def main(recipe: bytes, connection: Connection) -> None:
    """Entry point of the process that the lab starts: the keeper."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle; it ends its processes
    play = msgspec.msgpack.decode(recipe, type=ListenerRecipe)
    set_process_title(f"keeper-{play.index}")
    killed, stopping = _keep(play, 0, connection)
    if killed and not stopping:
        _keep(play, 1, connection)


def _keep(play: ListenerRecipe, life: int, connection: Connection) -> tuple[bool, bool]:
    """Start one life and see it to its end, handing on the lab's word. -> (it was killed, the lab had said stop)"""
    heard, word = Pipe(duplex=False)
    pid = os.fork()
    if not pid:
        word.close()
        _live(play, life, heard, connection)
    heard.close()
    gone, stopping = os.pidfd_open(pid), False
    while gone not in wait([gone] if stopping else [gone, connection]):
        stopping = True
        word.close()  # silence means stop, so the keeper's own end does, too
    os.close(gone)
    word.close()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, stopping


def _live(play: ListenerRecipe, life: int, heard: Connection, connection: Connection) -> None:
    """The subscriber itself, in a process that never returns to its caller."""
    try:
        _follow(play, life, heard, connection)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _hearing(heard: Connection) -> Callable[[], bool]:
    """-> whether the lab has said stop, or is silent for good: asked without a wait"""
    stop = threading.Event()

    def listen() -> None:
        wait([heard])
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    return stop.is_set


def _follow(play: ListenerRecipe, life: int, heard: Connection, connection: Connection) -> None:
    set_process_title(f"subscriber-{play.index}")
    ports = open_ports(subscriber(play.index, life), play.ports_factory, play.ports_argument)
    told, is_ready = _hearing(heard), partial(connection.send_bytes, UP)
    if play.what.polls:
        _poll(play.what, ports, UntilCaughtUp(told, is_ready))
    else:
        run_life(ports, follow(play.what, life, told, is_ready))
    with contextlib.suppress(BrokenPipeError):  # the lab was interrupted: it has ended without that word
        connection.send_bytes(DONE)


async def _some(following: KVEventSubscriber) -> list[Report]:
    found: list[Report] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):
            async for report in following:
                found.append(report)
    return found


def _poll(what: Following, ports: Any, until: UntilCaughtUp) -> None:
    """As a program follows a publisher: it polls, or iterates with or without an event loop, and goes on otherwise."""
    recipe, identity = what.recipe, own_identity()
    ports.observe("born", pid=identity.pid, ppid=identity.ppid, start_time=identity.start_time, segments=[], paths=[])
    ports.mark(Mark.BORN)
    with asyncio.Runner() as runner, KVEventSubscriber(
            recipe.endpoint, recipe.replay_endpoint, recipe.topic, poll_s=recipe.poll_s, answer_s=recipe.answer_s,
            tries=recipe.tries, hwm=recipe.hwm, socket_buffer_bytes=recipe.socket_buffer_bytes, identity=what.identity,
            core_index=recipe.core_index, ports=ports) as following:
        runner.get_loop()  # what it opens is there from the beginning
        while not until(following.follower):
            began = ports.clock.monotonic()
            reports = following.poll(LOOK_S)
            ports.observe("polled", **polled(len(reports), ports.clock.monotonic() - began))
            if following.follower.gaps:  # they are asked for: an answer comes, or word that there is none
                reports += islice(following, 1)
            for report in reports + runner.run(_some(following)):
                if (told := observed(report)) is not None:
                    ports.observe(told.name, **told.data)
        ports.observe("kv-mirror", **mirror_data(following.mirror))
    ports.observe("bye", reason="done")
    ports.close()
