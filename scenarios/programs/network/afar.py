"""A program whose queue's readers are on another host, as far as the queue knows."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from engine.errors import PeerDeadError, QueueDecodeError, QueueError, QueueTimeoutError
from engine.ipc.message_queue import MessageQueue
from scenarios.programs.asking import LATE_S, PATIENCE_S, Asking, has_ipv6, held, no_more, sleeps, until
from scenarios.programs.queues.opening import (
    CHUNK_BYTES,
    LARGE,
    LOOPBACK,
    SOON_S,
    WAIT_S,
    after,
    all_of,
    beside,
    lateness,
    nothing,
    opened,
)

#: So many are more than may wait on their way; so often one is refused until no more go.
TOO_MANY, REFUSALS = 20_000, 3


def ask_from_afar(ask: Asking) -> None:
    with opened(0, 1) as (writer, reader):  # what ZMQ keeps for a process, from its first large frame on
        writer.enqueue(b"x" * LARGE, PATIENCE_S)
        reader.dequeue(PATIENCE_S)
    before = held()
    for ip in (None, LOOPBACK, "::1") if has_ipv6() else (None, LOOPBACK):
        with opened(0, 1, ip=ip) as (writer, reader):
            _goes(ask, writer, reader, ip)
    with opened(0, 1) as (writer, reader):
        ask("whether a reader rests that waits for a network", lambda: sleeps(
            lambda: nothing(reader, WAIT_S), WAIT_S), True)
        ask.took("waking one that waits for a network", lateness(writer, reader), LATE_S)
        _is_bounded(ask, writer, reader)
    _is_left(ask)
    _is_not_let_in(ask)
    gc.collect()
    ask("what is left of all who were afar", lambda: no_more(before), True)


def _goes(ask: Asking, writer: MessageQueue, reader: MessageQueue, ip: str | None) -> None:
    """By this host's address, or another one of it; a second reader of the rank is told so, and the first reads on."""
    handle = writer.export_handle()
    ask(f"the address by {ip}", lambda: [handle.remote_addr_ipv6, handle.buffer_handle is None,
                                         handle.remote_subscribe_addr.startswith("tcp://")], [ip == "::1", True, True])
    for size in (0, 3, CHUNK_BYTES, LARGE):
        writer.enqueue(b"x" * size, PATIENCE_S)
        ask(f"{size} bytes by {ip}", lambda: reader.dequeue(PATIENCE_S) == b"x" * size, True)
    ask("what both count", lambda: [writer.position, reader.position, writer.stats().depth, reader.stats().depth],
        [4, 4, 0, 0])
    ask("what is wrong with either", lambda: writer.check_integrity() + reader.check_integrity(), [])
    second = MessageQueue.create_from_handle(handle, 0)
    with _putting(writer):
        ask.raised("a second reader of that rank", lambda: _first_word(second), QueueError, "refused", "there already")
    second.shutdown()
    all_of(reader)
    ask("what is put in while it leaves", lambda: _is_read_on(writer, reader), True)
    writer.enqueue("last")
    with after(SOON_S, writer.shutdown):
        ask("what a writer from afar has put in", lambda: until(lambda: reader.dequeue(PATIENCE_S) == "last"), True)
        ask("a wait for a writer from afar that leaves", reader.dequeue, PeerDeadError)


def _is_read_on(writer: MessageQueue, reader: MessageQueue) -> bool:
    """For as long as it takes to hear of somebody who leaves."""
    end = time.monotonic() + SOON_S
    while time.monotonic() < end:
        writer.enqueue("on", PATIENCE_S)
        if reader.dequeue(PATIENCE_S) != "on":
            return False
    return True


def _first_word(second: MessageQueue) -> None:
    """What was put in before it came is lost to it, and what is put in before it is seen still reaches it."""
    for _ in range(TOO_MANY):
        with contextlib.suppress(QueueDecodeError):
            second.dequeue(PATIENCE_S)


def _is_bounded(ask: Asking, writer: MessageQueue, reader: MessageQueue) -> None:
    """A writer waits for a reader that is far behind; nothing is lost."""
    count = refused = 0
    rested: list[bool] = []

    def put(seconds: float) -> bool:
        nonlocal count
        try:
            writer.enqueue((count, b"x" * CHUNK_BYTES), seconds)
        except QueueTimeoutError:
            return False
        count += 1
        return True

    while refused < REFUSALS and count < TOO_MANY:  # some may still go on their way
        if not put(0.05):
            room: list[bool] = []
            rests = sleeps(lambda: room.append(put(WAIT_S)), WAIT_S, naps=True)
            refused += not room[0]
            rested += [] if room[0] else [rests]
    ask("whether more is refused than may be on their way", lambda: count < TOO_MANY, True)
    ask("whether a writer rests that waits for a network", lambda: rested, [True] * REFUSALS)
    ask("whether all comes that was put in", lambda: [
        reader.dequeue(PATIENCE_S)[0] for _ in range(count)] == list(range(count)), True)
    writer.enqueue("room", PATIENCE_S)
    ask("what comes behind them", lambda: reader.dequeue(PATIENCE_S), "room")


def _is_left(ask: Asking) -> None:
    """By the one of its readers that is afar."""
    with opened(1, 1) as (writer, near, far):
        writer.enqueue(["to both", b"y" * CHUNK_BYTES], PATIENCE_S)
        ask("what both are told", lambda: [near.dequeue(PATIENCE_S)[0], far.dequeue(PATIENCE_S)[0]],
            ["to both", "to both"])
        far.shutdown()
        ask("to put something in when one from afar has left", lambda: until(lambda: _fails_with(
            lambda: (near.try_dequeue(), writer.enqueue(1, 0.1)), PeerDeadError)), True)


def _is_not_let_in(ask: Asking) -> None:
    """Who has another key than the handle's."""
    writer = MessageQueue(1, 0, connect_ip=LOOPBACK)
    stranger = MessageQueue.create_from_handle(_with_another_key(writer.export_handle()), 0)
    ask("who has another key", lambda: stranger.wait_until_ready(PATIENCE_S), PeerDeadError)
    ask.raised("to wait for one that was not let in", lambda: writer.wait_until_ready(0.2), QueueTimeoutError, "[0]")
    stranger.shutdown()
    writer.shutdown()
    without_keys = msgspec.structs.replace(writer.export_handle(), remote_keys=None)
    ask.raised("a handle without keys", lambda: MessageQueue.create_from_handle(without_keys, 0), QueueError, "CURVE")
    before = held()
    ask("an address that is not this host's", lambda: MessageQueue(1, 0, connect_ip="192.0.2.1"), "ConfigError")
    ask("what is left of it", lambda: no_more(before), True)


@contextlib.contextmanager
def _putting(writer: MessageQueue) -> Iterator[None]:
    """Objects are put in meanwhile."""
    over = threading.Event()

    def put() -> None:
        while not over.is_set():
            writer.enqueue("more", PATIENCE_S)
            time.sleep(0.01)

    with beside(put):
        try:
            yield
        finally:
            over.set()


def _fails_with(work: Callable[[], Any], error: type[Exception]) -> bool:
    try:
        work()
    except error:
        return True
    return False


def _with_another_key(handle: Any) -> Any:
    import zmq

    public, secret = (key.decode() for key in zmq.curve_keypair())
    return msgspec.structs.replace(handle, remote_keys=(handle.remote_keys[0], public, secret))
