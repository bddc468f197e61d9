"""How the ends of a program's queue wait: in each way, and on machines of other kinds."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from unittest.mock import patch

from engine.errors import QueueTimeoutError
from engine.ipc.message_queue import MessageQueue
from engine.ipc.wait import FutexDoorbell
from scenarios.programs.asking import LATE_S, PATIENCE_S, Asking, sleeps
from scenarios.programs.queues.opening import (
    CHUNKS,
    SOON_S,
    WAIT_S,
    WAYS,
    after,
    all_of,
    lasts,
    lateness,
    nothing,
    opened,
)


def ask_how_it_waits(ask: Asking) -> None:
    """In each way an end waits as long as it may, wakes when there is something, and rests meanwhile."""
    for way in WAYS:
        with opened(way=way) as (writer, reader):
            if way != "spins":
                ask(f"whether a reader rests that {way}",
                    lambda: sleeps(lambda: nothing(reader, WAIT_S), WAIT_S, naps=way == "naps"), True)
            ask.took(f"waking one that {way}", lateness(writer, reader), LATE_S)
            ask.took(f"the end of a wait in vain of one that {way}", _lateness_of_an_end(reader), LATE_S)
            if way != "spins":
                ask(f"whether one rests that was woken, and {way}",
                    lambda: sleeps(lambda: nothing(reader, WAIT_S), WAIT_S, naps=way == "naps"), True)
            for number in range(CHUNKS):
                writer.enqueue(number)
            ask.raised(f"to put one more into a full queue that {way}", lambda: writer.enqueue(9, 0.0),
                       QueueTimeoutError)
            if way not in ("spins", "naps"):
                ask(f"whether a writer rests that {way}", lambda: sleeps(lambda: _full(writer, WAIT_S), WAIT_S), True)
            ask.took(f"waking a writer that {way}", _lateness_of_room(writer, reader), LATE_S)
            ask(f"what is there then, of one that {way}", lambda: all_of(reader)[-1], "room")


def ask_of_bells(ask: Asking) -> None:
    """Where the system wakes nobody by an address, and where loads overtake stores; of two that count alike."""
    for words, changes in (("the system wakes nobody", {"_futex": None}),
                           ("loads overtake stores", {"_LOCK_IS_FULL_FENCE": False})):
        with patch.multiple("engine.ipc.wait", **changes), opened() as (writer, reader):
            ask(f"whether a reader rests where {words}",
                lambda: sleeps(lambda: nothing(reader, WAIT_S), WAIT_S, naps=True), True)
            ask.took(f"waking one where {words}", lateness(writer, reader), LATE_S)
            ask(f"how long it waits where {words}", lambda: lasts(lambda: nothing(reader, SOON_S)), True)
    memory = bytearray(8)
    first = FutexDoorbell(memory, 0)
    first.ring()
    other = FutexDoorbell(memory, 0)
    for step in (1, 2, 0, 1, -1):  # the word stands where the first will put it, or beside that
        word = int.from_bytes(memory[:4], sys.byteorder) + step & 0xFFFFFFFF
        memory[:4] = word.to_bytes(4, sys.byteorder)
        seen = other.seen()
        first.ring()
        ask("whether a bell was rung that stood at its next number", lambda: other.seen() != seen, True)
    first.close()
    other.close()


def _full(writer: MessageQueue, seconds: float) -> None:
    with contextlib.suppress(QueueTimeoutError):
        writer.enqueue(0, seconds)


def _lateness_of_an_end(reader: MessageQueue) -> float:
    """How long after it was to end a wait in vain is over: the middle of some."""
    late = []
    for _ in range(5):
        began = time.monotonic()
        nothing(reader, SOON_S)
        late.append(time.monotonic() - began - SOON_S)
    return statistics.median(late)


def _lateness_of_room(writer: MessageQueue, reader: MessageQueue) -> float:
    """The same of a writer whose ring is full."""
    late = []
    for _ in range(5):
        took: list[float] = []

        def take() -> None:
            took.append(time.monotonic())
            reader.dequeue(PATIENCE_S)

        with after(0.02, take):
            writer.enqueue("room", PATIENCE_S)
            late.append(time.monotonic() - took[0])
    return statistics.median(late)
