"""A KV-cache subscriber of a real play: a process of its own, so that it can be stopped, killed, or too slow."""

from __future__ import annotations

import signal
import threading
from multiprocessing.connection import Connection

import msgspec

from engine.errors import QueueCancelledError
from engine.kv_follow import subscriber_loop
from engine.kv_mirror import KVCacheMirror
from engine.kv_subscriber import KVEventFollower
from engine.launch import open_ports, set_process_title
from engine.shell import Process
from engine.topology import Mark, subscriber
from engine.wiring import identity_of, subscriber_sockets
from engine.worker.worker_proc import process_identity

STOP = b"stop"
READY = b"ready"
DONE = b"done"


class ListenerRecipe(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    endpoint: str
    replay_endpoint: str | None
    hwm: int
    buffer_bytes: int
    replay_s: float
    ports_factory: str
    ports_argument: bytes


class _Until:
    """Told to stop, the subscriber still catches up: it leaves once nothing is missing any more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stop = threading.Event()
        self._asked_at_stop: int | None = None
        self._said_ready = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            self._connection.recv_bytes()
        except (EOFError, OSError):
            pass
        self._stop.set()

    def __call__(self, follower: KVEventFollower) -> bool:
        if not self._said_ready and (not follower.replay or follower.answers):
            self._said_ready = True
            self._connection.send_bytes(READY)
        if not self._stop.is_set():
            return False
        if not follower.replay:
            return True
        if self._asked_at_stop is None:
            self._asked_at_stop = follower.answers
        return follower.answers > self._asked_at_stop and follower.caught_up


def main(recipe: bytes, connection: Connection) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle; it ends its processes
    play = msgspec.msgpack.decode(recipe, type=ListenerRecipe)
    set_process_title(f"subscriber-{play.index}")
    ports = open_ports(subscriber(play.index), play.ports_factory, play.ports_argument)
    ports.observe("born", **process_identity(), segments=[], paths=[])
    ports.mark(Mark.BORN)
    process = Process(ports)
    for spec in subscriber_sockets(play.endpoint, play.replay_endpoint, hwm=play.hwm, buffer_bytes=play.buffer_bytes,
                                   identity=identity_of(play.index)):
        process.sockets[spec.name] = ports.open_socket(spec)
    follower = KVEventFollower(replay=play.replay_endpoint is not None, poll_s=play.replay_s, answer_s=play.replay_s)
    try:
        process.run(subscriber_loop(follower, KVCacheMirror(), until=_Until(connection)))
    except QueueCancelledError:
        pass
    ports.observe("bye", reason="done")
    connection.send_bytes(DONE)
    process.close()
    ports.close()
