"""The publisher's half, stepped by hand: numbers, losses of its own, the window, turns."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from engine.effects import Observe, Receive, Send, Warn
from engine.errors import QueueCancelledError
from engine.kv_events.codec import ReplayRequest, read_answer, request_frames
from engine.kv_events.publisher.log import BURST, KVEventLog, publish_loop
from engine.kv_events.publisher.replays import MAX_REPLAYS, MAX_WAITING, replay_loop
from engine.messages import EventBatch
from engine.ports import Unroutable
from tests.engine.kv_events.kv_world import KVWorld


def _log(batches: int, *, buffer_steps: int = 100, epoch: int | None = 5) -> KVEventLog:
    log = KVEventLog(buffer_steps=buffer_steps, epoch=epoch)
    for _ in range(batches):
        log.frames(log.number()[0], EventBatch(0.0, []))
    return log


def _numbers(messages: list[list[bytes]]) -> list[int]:
    return [int.from_bytes(frames[2], "big", signed=True) for frames in messages]


def test_a_batch_at_a_full_queue_keeps_its_number() -> None:
    """With room for two, the third is lost, told with its number, and the fourth is numbered after it."""
    world = KVWorld(max_queue_size=2)
    assert [world.store() for _ in range(3)] == [0, 1, 2]
    world.flush()
    world.store()
    world.flush()
    assert _numbers([[b"", *frames] for frames in world.live]) == [0, 1, 3]
    assert [data["seq"] for name, data in world.life.observed if name == "kv-lost"] == [2]
    assert [data["seq"] for name, data in world.life.observed if name == "kv-published"] == [0, 1, 3]
    assert world.life.log.lost_at_full_queue == 1


def test_an_unencodable_batch_keeps_its_number_and_hurts_no_other() -> None:
    """Its number is told as lost; the batches around it are published."""
    world = KVWorld()
    world.store()
    world.publish_unencodable()
    world.store()
    world.flush()
    assert _numbers([[b"", *frames] for frames in world.live]) == [0, 2]
    assert [data["seq"] for name, data in world.life.observed if name == "kv-lost"] == [1]


def _published(log: KVEventLog, items: list[Any]) -> Iterator[int]:
    """The numbers of the batches that are sent, in turn."""
    loop = publish_loop(log)
    next(loop)
    effect = loop.send(items)
    with contextlib.suppress(StopIteration):
        while True:
            if isinstance(effect, Send):
                yield int.from_bytes(effect.frames[1], "big")
            effect = loop.send(None)


def test_what_waits_is_encoded_ahead_and_enters_the_window_in_its_turn() -> None:
    """A burst and a bit: whoever asks amid it gets what was sent, and no number counts as done before its turn."""
    log, made = KVEventLog(), []
    encode = log.payload
    log.payload = lambda batch: made.append(batch) or encode(batch)  # type: ignore[method-assign]
    items = [(log.number()[0], EventBatch(0.0, [object()] if number == 3 else [])) for number in range(BURST + 2)]
    seen = [(number, log.numbered_when_idle(), len(made)) for number in _published(log, [*items, None])]
    numbers = [number for number in range(BURST + 2) if number != 3]
    assert seen == [(number, number + 1, BURST if number < BURST else BURST + 2) for number in numbers]
    assert log.lost_unencodable == 1


def test_who_gives_up_amid_a_burst_sends_no_more_of_it() -> None:
    log = KVEventLog()
    sent = _published(log, [(log.number()[0], EventBatch(0.0, [])) for _ in range(BURST + 2)])
    assert next(sent) == 0
    log.stop()
    assert list(sent) == []
    assert log.waiting == BURST + 1


def test_replayed_batches_equal_the_live_ones() -> None:
    """Topic, number and payload of an answer are byte for byte what was sent."""
    world = KVWorld(max_queue_size=10)
    for _ in range(5):
        world.store()
    world.flush()
    answer = list(world.life.log.answer(_request(2)))
    assert [frames[1:] for frames in answer[:-1]] == list(world.live)[2:]
    assert answer[0][0] == b"" and answer[0][1] == b"kv"


def test_an_answer_holds_the_window_from_the_number_asked_for() -> None:
    """Of ten batches the last four are kept; a late start gets the rest, an early one what is left."""
    log = _log(10, buffer_steps=4)
    assert _numbers(list(log.answer(_request(8)))) == [8, 9, -1]
    assert _numbers(list(log.answer(_request(0)))) == [6, 7, 8, 9, -1]
    assert _numbers(list(log.answer(_request(99)))) == [-1]


def test_the_report_says_what_the_answer_could_not_hold() -> None:
    """The oldest number, the next one and the count let the asker tell lost frames from lost batches."""
    *_, end = _log(10, buffer_steps=4).answer(_request(3, tag=77))
    report = read_answer(end).report
    assert (report.tag, report.start, report.epoch, report.oldest, report.next, report.count) == (77, 3, 5, 6, 10, 4)


def test_numbers_lost_at_the_end_are_in_the_report() -> None:
    """Nothing follows the last lost batch, so only the report can tell that it existed."""
    world = KVWorld(max_queue_size=1)
    world.store()
    world.store()
    world.flush()
    *_, end = world.life.log.answer(_request(0, tag=1))
    assert read_answer(end).report.next == 2


def test_an_answer_is_one_moment_while_live_batches_go_on() -> None:
    """Batches that come, and others that leave the window, change nothing of an answer that began."""
    log = _log(4, buffer_steps=4)
    answer = log.answer(_request(0))
    first = next(answer)
    for _ in range(4):
        log.frames(log.number()[0], EventBatch(0.0, []))
    assert _numbers([first, *answer]) == [0, 1, 2, 3, -1]


def test_several_replays_take_turns() -> None:
    """A peer that asks while another is being answered is served chunk by chunk with it, not after it."""
    loop = replay_loop(_log(6), chunk_batches=2)
    sent = _serve(loop, [("a", request_frames(0)), ("b", request_frames(0))])
    assert [peer for peer, _ in sent] == list("aa" + "aa" + "bb" + "aa" + "bb" + "a" + "bb" + "b")


def test_a_peer_that_leaves_ends_its_own_replay_only() -> None:
    """An unroutable peer is told and forgotten; the other gets all."""
    loop = replay_loop(_log(4), chunk_batches=2)
    observed: list[str] = []
    sent = _serve(loop, [("gone", request_frames(0)), ("b", request_frames(0))], gone="gone", observed=observed)
    assert [number for peer, number in sent if peer == "b"] == [0, 1, 2, 3, -1]
    assert observed == ["replay-ended"]


def test_malformed_requests_are_told_and_the_next_one_is_answered() -> None:
    """Wrong frame count, short number, number out of range: each is reported, none is answered."""
    loop = replay_loop(_log(1))
    observed: list[str] = []
    sent = _serve(loop, [("a", [b""]), ("a", [b"", b"\x01"]), ("a", [b"", b"\xff" * 8]), ("b", request_frames(0))],
                  observed=observed)
    assert sent == [("b", 0), ("b", -1)]
    assert observed == ["bad-frame"] * 3


def test_a_repeated_question_replaces_the_earlier_one() -> None:
    """A peer that asks again with a tag gets one answer, not two mixed ones; without tags both are owed."""
    tagged = _serve(replay_loop(_log(3), chunk_batches=1), [("a", request_frames(0, 1)), ("a", request_frames(0, 2))])
    assert [number for _, number in tagged].count(-1) == 1
    plain = _serve(replay_loop(_log(3), chunk_batches=1), [("a", request_frames(0)), ("a", request_frames(0))])
    assert [number for _, number in plain].count(-1) == 2


def test_an_answer_that_cannot_be_made_is_told_and_the_next_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and in the midst of its messages: both are told, and another peer is answered."""
    log = _log(3)
    answer = log.answer

    def broken(request: ReplayRequest) -> Iterator[list[bytes]]:
        if request.start == 1:
            raise OverflowError("at once")
        if request.start == 2:
            return map(lambda frames: frames[9], answer(request))
        return answer(request)

    monkeypatch.setattr(log, "answer", broken)
    observed: list[str] = []
    sent = _serve(replay_loop(log), [("a", request_frames(1)), ("a", request_frames(2)), ("b", request_frames(0))],
                  observed=observed)
    assert sent == [("b", 0), ("b", 1), ("b", 2), ("b", -1)]
    assert observed == ["replay-ended"] * 2


def test_a_peer_that_cannot_be_sent_to_ends_nobody_elses_replay() -> None:
    """Whatever sending raises, but for the end of the process."""
    observed: list[str] = []
    requests = [("gone", request_frames(0)), ("b", request_frames(0))]
    sent = _serve(replay_loop(_log(1)), requests, gone="gone", why=OSError("wire"), observed=observed)
    assert sent == [("b", 0), ("b", -1)] and observed == ["replay-ended"]
    with pytest.raises(QueueCancelledError):
        _serve(replay_loop(_log(1)), requests, gone="gone", why=QueueCancelledError("over"))


@pytest.mark.parametrize("epoch", [-1, 2**63])
def test_an_epoch_that_no_frame_can_hold_is_refused(epoch: int) -> None:
    with pytest.raises(ValueError, match=str(epoch)):
        KVEventLog(epoch=epoch)
    assert KVEventLog(epoch=2**63 - 1).epoch == 2**63 - 1


@pytest.mark.parametrize("tag", [None, 5])
def test_however_many_ask_at_once_each_is_answered_in_its_turn(tag: int | None) -> None:
    """More than are answered at once, and more than may wait; window copies are held for those under way alone."""
    log, peers = _log(3), MAX_REPLAYS + MAX_WAITING + 200
    alive: set[object] = set()
    most, answer = 0, log.answer

    def counted(request: ReplayRequest) -> Iterator[list[bytes]]:
        nonlocal most
        me = object()
        alive.add(me)
        most = max(most, len(alive))
        yield from answer(request)
        alive.discard(me)

    log.answer = counted
    sent = _serve(replay_loop(log, chunk_batches=1), [(f"peer{i}", request_frames(0, tag)) for i in range(peers)])
    assert Counter(peer for peer, number in sent if number == -1) == {f"peer{i}": 1 for i in range(peers)}
    assert Counter(number for _, number in sent) == dict.fromkeys([0, 1, 2, -1], peers)
    assert MAX_REPLAYS / 2 < most <= MAX_REPLAYS


def test_who_asks_again_while_it_waits_keeps_its_turn() -> None:
    """The last of many asks twice with a tag: it is answered once, with the later question, before who came after."""
    requests = [(f"peer{i}", request_frames(0, 1)) for i in range(MAX_REPLAYS + 1)]
    requests += [(f"peer{MAX_REPLAYS}", request_frames(2, 2)), ("last", request_frames(0, 1))]
    sent = _serve(replay_loop(_log(3), chunk_batches=1), requests)
    assert [number for peer, number in sent if peer == f"peer{MAX_REPLAYS}"] == [2, -1]
    ends = [peer for peer, number in sent if number == -1]
    assert ends.index(f"peer{MAX_REPLAYS}") < ends.index("last")


def _request(start: int, tag: int | None = None) -> ReplayRequest:
    return ReplayRequest(start, tag)


def _serve(loop, requests: list[tuple[str, list[bytes]]], *, gone: str | None = None,
           why: Exception = Unroutable("not connected"), observed: list[str] | None = None) -> list[tuple[str, int]]:
    """Every request is there at once. -> (peer, number) as sent, until the loop waits for more."""
    requests = list(requests)
    sent: list[tuple[str, int]] = []
    effect = next(loop)
    while True:
        match effect:
            case Receive(inboxes=inboxes, deadline=deadline):
                if inboxes and requests:
                    peer, frames = requests.pop(0)
                    effect = loop.send(("replay", peer, frames))
                elif deadline is None:
                    return sent
                else:
                    effect = loop.send(None)
            case Send(frames=frames, peer=peer):
                if peer == gone:
                    effect = loop.throw(why)
                    continue
                sent.append((peer, int.from_bytes(frames[2], "big", signed=True)))
                effect = loop.send(None)
            case Observe(name=name):
                if observed is not None:
                    observed.append(name)
                effect = loop.send(None)
            case Warn():
                effect = loop.send(None)
