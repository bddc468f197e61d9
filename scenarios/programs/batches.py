"""Batches that no engine of ours makes, as programs publish them, and what becomes of them (pure, for both worlds).

    types      batches and events of a program's own types, and a publisher of the original's format
    losses     what cannot be encoded, and what is given up
    states     on several media, in groups, of owners; and what no state can be made of
    readers    of a publisher whose batches say nothing of its life, one that is interrupted, and a mirror

Promises: it asks the engine's own loops and objects, frame by frame, without a socket; what they must answer stands
beside each question, as their documentation has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from engine.effects import Effect, Loop, Now, Observe, Put, Receive, Send, Take, Warn, WasCut
from engine.errors import QueueCancelledError
from engine.kv_events.codec import (
    LARGEST,
    EndReport,
    ReplayRequest,
    end_frames,
    number_frame,
    read_answer,
    read_batch,
    request_frames,
    snapshot_request,
)
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.publisher.life import is_bound
from engine.kv_events.publisher.log import KVEventLog, hand_over, publish_loop
from engine.kv_events.publisher.replays import replay_loop
from engine.kv_events.reports import Applied, Gap, Healed, Report
from engine.kv_events.subscriber.follower import KVEventFollower
from engine.kv_events.subscriber.reading import Reading
from engine.messages import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEventBatch
from engine.wire.wiring import KV, REPLAY

#: Words, what answers them, and what the answer must be: an error by its name.
Asked = tuple[str, Callable[[], Any], Any]
_EPOCH, _TAG = 7, 3


class _Noted(EventBatch, frozen=True):
    """A batch with a field of its own."""

    note: str = ""


class _OwnStored(BlockStored, frozen=True, tag="BlockStored"):
    """An event of its own that reads as one of ours."""


class _Strange(msgspec.Struct, frozen=True, tag=True):
    """An event that is none of a KV cache."""


def ask_of_batches() -> Loop[None]:
    for asked in (_types, _losses, _states, _readers, _addresses):
        for words, answer, wanted in asked():
            try:
                told = answer()
            except Exception as error:
                told = type(error).__name__
            yield Observe("asked", {"words": words, "answer": told, "wanted": wanted})


def _run(loop: Loop[None], *given: Any) -> list[tuple[str, Any]]:
    """What a loop sends, puts and tells, in order. `given`: what it takes and receives, and then nothing any more."""
    left, found = list(given), list[tuple[str, Any]]()
    step: Callable[[Any], Effect] = loop.send
    value: Any = None
    while True:
        try:
            effect = step(value)
        except (StopIteration, QueueCancelledError):
            return found
        step, value = loop.send, None
        match effect:
            case Take() | Receive() if not left:
                step, value = loop.throw, QueueCancelledError("over")
            case Take() | Receive():
                value = left.pop(0)
            case Now():
                value = 0.0
            case WasCut():
                value = False
            case Send():
                found.append(("sent", effect.frames))
            case Put():
                found.append(("put", effect.item))
            case Observe() | Warn():
                found.append((type(effect).__name__, [effect.name, effect.data.get("seq", effect.data.get("edge"))]))


def _publish(log: KVEventLog, *batches: Any) -> list[tuple[str, Any]]:
    """Handed over one after the other, and published to the end."""
    items = [item for batch in batches for what, item in _run(hand_over(log, batch)) if what == "put"]
    return _run(publish_loop(log), [*items, None])


def _numbers(found: list[tuple[str, Any]]) -> list[int]:
    return [int.from_bytes(frames[-2], "big") for what, frames in found if what == "sent"]


def _answers(log: KVEventLog, question: list[bytes]) -> list[tuple[str, Any]]:
    return _run(replay_loop(log), (REPLAY, 0, question), None)


def _stored(*hashes: int, parent: int | None = None, **place: Any) -> BlockStored:
    return BlockStored(list(hashes), parent, [5] * 2 * len(hashes), 2, None, **place)


def _state(log: KVEventLog) -> list[Any]:
    """Whether it is known, and each block of it, with where it lies."""
    answers = [read_answer(frames) for frames in log.answer(ReplayRequest(0, _TAG, True))]
    blocks = [[event.block_hashes[0], event.medium, event.group_idx, event.locality, event.ownership]
              for answer in answers if answer.batch is not None for event in answer.batch.events
              if isinstance(event, BlockStored)]
    return [answers[0].place.known if answers[0].place else None, sorted(blocks, key=repr)]


def _epoch_of(epoch: int) -> int | None:
    return KVEventLog(epoch=epoch).epoch


def _types() -> Iterator[Asked]:
    def payload(batch: EventBatch, epoch: int | None = _EPOCH) -> Any:
        (_, frames), *_ = _publish(KVEventLog(epoch=epoch, data_parallel_rank=2), batch)
        return msgspec.msgpack.decode(frames[-1])

    yield "what is sent of a batch", lambda: payload(KVEventBatch(1.0, [])), [1.0, [], 2, _EPOCH]
    yield "what is sent of a batch with a rank", lambda: payload(KVEventBatch(1.0, [], 5)), [1.0, [], 5, _EPOCH]
    yield "what is sent in the original's format", lambda: payload(KVEventBatch(1.0, []), None), [1.0, [], 2]
    yield "what is sent of one of its own type", lambda: payload(_Noted(1.0, [], 5, "mine")), [1.0, [], 5, "mine"]
    for epoch, wanted in ((0, 0), (LARGEST, LARGEST), (-1, "ValueError"), (LARGEST + 1, "ValueError")):
        yield f"a publisher of epoch {epoch}", partial(_epoch_of, epoch), wanted
    log = KVEventLog(epoch=None)
    _publish(log, KVEventBatch(1.0, []))
    refused = [("Observe", ["bad-frame", REPLAY]), ("Warn", ["bad-frame", REPLAY])]
    yield "how long the end is that the original's format gives to a question with a tag", lambda: [
        len(frames) for _, frames in _answers(log, request_frames(0, _TAG))], [4, 4]
    yield "whether the original's format has a state", lambda: _answers(log, snapshot_request(_TAG)) == refused, True


def _losses() -> Iterator[Asked]:
    log = KVEventLog(epoch=_EPOCH)
    found = _publish(log, KVEventBatch(0.0, [_stored(1)]), KVEventBatch(1.0, [object()]),  # type: ignore[list-item]
                     KVEventBatch(2.0, [_stored(2)]))
    yield "which are sent where one cannot be encoded", lambda: _numbers(found), [0, 2]
    yield "what is told of it", lambda: [told for what, told in found if what != "sent"], [["kv-lost", 1]] * 2
    yield "how many were lost, and wait", lambda: [log.lost_unencodable, log.lost_at_full_queue, log.waiting], [1, 0, 0]
    ends = [read_answer(frames).report for _, frames in _answers(log, request_frames(0, _TAG))]
    yield "what an answer reports then", lambda: ends[-1] == EndReport(_TAG, 0, _EPOCH, 0, 3, 2), True
    yield "which state there is then", lambda: _state(log), [0, []]
    _publish(log, KVEventBatch(3.0, [AllBlocksCleared(), _stored(9)]))
    yield "which state there is behind a clearing", lambda: _state(log), [1, [[9, None, None, None, None]]]
    log.stop()
    yield "what is sent of what is given up", lambda: _numbers(_publish(log, KVEventBatch(4.0, []))), []


def _states() -> Iterator[Asked]:
    log = KVEventLog(epoch=_EPOCH)
    _publish(log, KVEventBatch(0.0, [_OwnStored([1], None, [5, 5], 2, None)]))
    yield "which state an event of its own makes", lambda: _state(log), [1, [[1, None, None, None, None]]]
    places = KVEventLog(epoch=_EPOCH)
    _publish(places, KVEventBatch(0.0, [
        _stored(1), _stored(1, medium="CPU"), _stored(2, medium="CPU", group_idx=1), _stored(2, medium="CPU"),
        _stored(3, medium="CPU", locality="LOCAL"), _stored(3, medium="CPU", locality="LOCAL", ownership="me"),
        _stored(4)]))
    _publish(places, KVEventBatch(1.0, [BlockRemoved([1], "CPU"), BlockRemoved([2], "CPU", 1), BlockRemoved([4], "CPU"),
                                        BlockRemoved([3], "CPU", None, "LOCAL")]))
    yield "where the blocks lie of several places", lambda: _state(places), [1, [
        [1, None, None, None, None], [2, "CPU", None, None, None], [3, "CPU", None, "LOCAL", "me"],
        [4, None, None, None, None]]]
    strange = KVEventLog(epoch=_EPOCH)
    yield "whether events that are none are sent", lambda: _numbers(
        _publish(strange, KVEventBatch(0.0, [_stored(1), _Strange()]))), [0]  # type: ignore[list-item]
    yield "which state they make", lambda: _state(strange), [0, []]


def _said(reports: Sequence[Report]) -> list[Any]:
    """What a user is told, in short."""
    return [["applied", report.number] if isinstance(report, Applied) else [type(report).__name__, report.first]
            for report in reports if isinstance(report, Applied | Gap | Healed)]


def _before(mirror: KVCacheMirror, block: int) -> list[Any]:
    return [found.block_hash for found in mirror.chain(block)]


def _readers() -> Iterator[Asked]:
    def live(number: int) -> list[bytes]:
        return [b"", number_frame(number), msgspec.msgpack.encode(KVEventBatch(number / 10, []))]

    follower = KVEventFollower()
    told = [*follower.on_time(0.0), *follower.on_replay(end_frames(EndReport(1, 0, _EPOCH, 0, 0, 0)), 0.0),
            *follower.on_live(live(0), 0.1), *follower.on_live(live(2), 0.2)]
    told += follower.on_replay([b"", *live(1)], 0.3)  # and batch 2 is lost on its way
    told += follower.on_replay(end_frames(EndReport(2, 1, _EPOCH, 0, 3, 2)), 0.3)
    yield "what is told of a publisher that says in its answers alone which life it is", lambda: _said(told), [
        ["applied", 0], ["Gap", 1], ["applied", 1], ["Healed", 1], ["applied", 2]]

    narrow = KVEventFollower(max_held=1)
    told = [report for number in (0, 2, 3) for report in narrow.on_live(live(number), 0.1)]
    yield "how many it keeps behind a gap", lambda: [narrow.held, narrow.wire], [1, 3]
    for number in (0, 1):  # the first one is known: it is the same publisher's
        told += narrow.on_replay([b"", *live(number)], 0.2)
    yield "what it is told where it keeps no more", lambda: _said(told), [
        ["applied", 0], ["Gap", 1], ["applied", 1], ["Healed", 1], ["applied", 2]]

    reading = Reading(KVEventFollower)
    before = reading.follower
    yield "a reader that is interrupted amid a message", lambda: _run(
        reading.turn(None), (KV, None, _Interrupting(live(0)))), "InterruptedError"
    _run(reading.turn(None))
    _run(reading.turn(None), (KV, None, live(0)), None)
    yield "what it tells then", lambda: [type(report).__name__ for report in reading.told], ["Restarted", "Applied"]
    yield "whether it begins anew", lambda: reading.follower is not before and reading.whole, True

    mirror = KVCacheMirror()
    mirror.apply(0, KVEventBatch(0.0, [
        _stored(1, 2), _stored(3, parent=2), _stored(8, parent=9), _stored(9, parent=8)]))
    for block, wanted in ((3, [3, 2, 1]), (1, [1]), (4, []), (8, [8, 9])):
        yield f"what stands before block {block}", partial(_before, mirror, block), wanted
    yield "what it reads of a batch", lambda: read_batch(live(5)[-1]).ts, 0.5


class _Interrupting(list[bytes]):
    """A message amid which a signal handler raises."""

    def __len__(self) -> int:
        raise InterruptedError


def _addresses() -> Iterator[Asked]:
    for endpoint, wanted in (("tcp://*:5557", True), ("tcp://[::]:5557", True), ("ipc:///tmp/events", True),
                             ("inproc://events", True), ("tcp://127.0.0.1:5557", False), ("tcp://events:5557", False)):
        yield f"whether {endpoint} is bound", partial(is_bound, endpoint), wanted
