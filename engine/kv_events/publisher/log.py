"""The publisher's half of the KV-event path: numbers, a bounded queue, a window for replay. Pure.

Promises
- Batches are numbered 0, 1, 2, ... when they are handed over. One that finds the queue full, or that cannot be
  encoded, keeps its number, is told (`kv-lost`) and is never sent: subscribers see a hole that no replay fills.
- Handing over never waits, whatever becomes of publisher and subscribers.
- The last `buffer_steps` sent batches can be replayed, byte for byte as they were sent. What was sent can be
  replayed: a batch enters the window before it leaves the process.
- An answer is one moment of the window. Live batches go on meanwhile; a subscriber joins both by number.
- What all sent batches amount to is kept as well (state.py), for whoever fell out of the window.
- What is lost and who cannot be answered is told to whoever runs it, and never by the thread that hands over.

    step loop            publish_loop                 replay_loop (replays.py)
    hand_over --queue--> encode, window, state, send  request -> a copy of the window or of the state, in chunks

Each counter below is written by one thread only, so the three loops share the log without a lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

from engine.effects import Loop, MarkPoint, Now, Observe, Put, Send, Take, Warn
from engine.errors import BadFrameError, QueueCancelledError
from engine.kv_events.codec import (
    LARGEST,
    EndReport,
    ReplayRequest,
    encode_batch,
    end_frames,
    number_frame,
)
from engine.kv_events.publisher.state import PublishedState
from engine.messages import EventBatch
from engine.topology import Mark

#: So many batches that wait are encoded before the first of them is sent: libzmq's own thread is woken less often.
BURST = 32


class KVEventLog:
    """One life of a publisher.

    `epoch` must differ between lives of the same publisher; None sends vLLM's bytes exactly. Raises ValueError where
    it does not lie between 0 and 2**63-1.
    `max_queue_size`: batches that may wait; 0: any number. `wall_offset_s`: what a core adds to its own clock for the
    time of a batch, which is the wall clock's.
    """

    def __init__(self, *, buffer_steps: int = 10_000, max_queue_size: int = 100_000, topic: str = "",
                 data_parallel_rank: int | None = 0, epoch: int | None = None,
                 wall_offset_s: float = 0.0) -> None:
        if epoch is not None and not 0 <= epoch <= LARGEST:
            raise ValueError(f"an epoch lies between 0 and 2**63 - 1, got {epoch}")
        self.epoch = epoch
        self.wall_offset_s = wall_offset_s
        self.topic = topic.encode()
        self.max_queue_size = max_queue_size if max_queue_size > 0 else LARGEST
        self.data_parallel_rank = data_parallel_rank
        self._window: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        # Written by whoever hands over. `_accepted` goes first: who reads `_numbered` before it misses none.
        self._accepted = 0
        self._numbered = 0
        self.lost_at_full_queue = 0
        # Written by whoever publishes.
        self._processed = 0
        self._processed_next = 0
        self.lost_unencodable = 0
        self.state = PublishedState()
        self.stopped = False

    @property
    def waiting(self) -> int:
        """Batches handed over and not yet published."""
        return self._accepted - self._processed

    @property
    def numbered(self) -> int:
        """How many batches were handed over: the next one gets this number."""
        return self._numbered

    def stop(self) -> None:
        """The publisher gives up what still waits. From any thread."""
        self.stopped = True

    def number(self) -> tuple[int, bool]:
        """The next batch's number, and whether it may enter the queue. If not, it is lost."""
        number = self._numbered
        room = self._accepted - self._processed < self.max_queue_size
        if room:
            self._accepted += 1
        else:
            self.lost_at_full_queue += 1
        self._numbered = number + 1
        return number, room

    def payload(self, batch: EventBatch) -> bytes | None:
        """A batch as it will travel; None for one that cannot be encoded, which is lost when its turn comes."""
        try:
            return encode_batch(batch, self.data_parallel_rank, self.epoch)
        except Exception:
            return None

    def frames(self, number: int, batch: EventBatch, payload: bytes | None = None) -> list[bytes]:
        """The live message of a batch from the queue; it is in the window from now on. `payload`: as it will travel.

        Raises TypeError, ValueError or OverflowError for one that cannot be encoded: its number is lost.
        """
        try:
            if payload is None:
                payload = encode_batch(batch, self.data_parallel_rank, self.epoch)
            self._window.append((number, payload))
            self.state.apply(number, batch, payload)
        except Exception:
            self.lost_unencodable += 1
            raise
        finally:
            self._processed_next = number + 1
            self._processed += 1
        return [self.topic, number_frame(number), payload]

    def answer(self, request: ReplayRequest) -> Iterator[list[bytes]]:
        """The messages that answer a request, as of now, the end marker last.

        Raises BadFrameError for a snapshot of a life without an epoch: nobody could tell what it is a state of.
        """
        if request.snapshot:
            if self.epoch is None:
                raise BadFrameError("this publisher speaks the original's format and has no snapshots")
            assert request.tag is not None, "who reads requests takes none for a snapshot that has no tag"
            return self.state.pieces(request.tag, self.epoch, self.numbered_when_idle(), self.data_parallel_rank,
                                     self.topic)
        upto, batches = self._snapshot()
        first = bisect_left(batches, request.start, key=itemgetter(0))
        oldest = batches[0][0] if batches else upto
        report = None
        if request.tag is not None and self.epoch is not None:
            report = EndReport(request.tag, request.start, self.epoch, oldest, upto, len(batches) - first)
        return self._messages(batches, first, report)

    def _messages(self, batches: list[tuple[int, bytes]], first: int,
                  report: EndReport | None) -> Iterator[list[bytes]]:
        for number, payload in islice(batches, first, None):
            yield [b"", self.topic, number_frame(number), payload]
        yield end_frames(report)

    def numbered_when_idle(self) -> int:
        """Every number below this was published or lost."""
        numbered, accepted = self._numbered, self._accepted  # in this order
        upto = self._processed_next
        if self._processed >= accepted:  # nothing waits, so the last numbers were lost at the full queue
            upto = max(upto, numbered)
        return upto

    def _snapshot(self) -> tuple[int, list[tuple[int, bytes]]]:
        """(next, batches): every number below `next` is in the window, too old, or lost."""
        upto = self.numbered_when_idle()  # before the window is copied
        while True:
            try:
                return upto, list(self._window)
            except RuntimeError:  # a batch came in while the window was copied
                continue


# -- the loops -------------------------------------------------------------------------------------------------


def hand_over(log: KVEventLog, batch: EventBatch, *, queue: str = "kv") -> Loop[None]:
    """The step loop's part: number a batch and queue it for the publisher. Never waits."""
    began = yield Now()
    number, room = log.number()
    if not room:
        yield MarkPoint(Mark.KV_DROPPED, {"seq": number})
        yield Observe("kv-lost", {"seq": number, "reason": f"{log.max_queue_size} batches wait already"})
        return
    yield Put(queue, (number, batch))
    ended = yield Now()
    yield Observe("kv-published", {"seq": number, "took": ended - began})


def publish_loop(log: KVEventLog, *, queue: str = "kv", outbox: str = "kv") -> Loop[None]:
    """Publish what is handed over, until None is put into the queue or the log is stopped."""
    told_full = 0  # of those that found the queue full, so many were told
    while True:
        items = yield Take(queue, None)
        found_full = log.lost_at_full_queue - told_full
        if found_full:
            told_full += found_full
            yield Warn("kv-lost", {"batches": found_full, "reason": f"{log.max_queue_size} wait already"})
        for at in range(0, len(items), BURST):
            burst = items[at:at + BURST]
            yield from _publish(log, burst, [item and log.payload(item[1]) for item in burst], outbox)
            if log.stopped or None in burst:
                return


def _publish(log: KVEventLog, burst: list[Any], payloads: list[bytes | None], outbox: str) -> Loop[None]:
    for item, payload in zip(burst, payloads, strict=True):
        if item is None or log.stopped:
            return
        number, batch = item
        try:
            frames = log.frames(number, batch, payload)
        except Exception as error:  # whatever was wrong with this batch, the next one is another
            yield from tell("kv-lost", {"seq": number, "reason": f"cannot be encoded: {error!r}"})
            continue
        try:
            yield Send(outbox, frames)
        except QueueCancelledError:
            raise
        except Exception as error:  # it is in the window, so it can still be asked for
            yield from tell("kv-unsent", {"seq": number, "error": repr(error)})


def tell(name: str, data: dict[str, Any]) -> Loop[None]:
    """To the judges, and to whoever runs it."""
    yield Observe(name, data)
    yield Warn(name, data)
