"""Many holes at once: giving them up costs a pass over them, and a dead replay socket one bound for all."""

from __future__ import annotations

import time

from engine.kv_events.codec import EndReport, end_frames, number_frame
from engine.kv_events.publisher.log import encode_batch
from engine.kv_events.reports import Applied, Gap, Healed, Question, Report, Unrecoverable
from engine.kv_events.subscriber.follower import KVEventFollower
from engine.messages import KVEventBatch


def _frames(number: int) -> list[bytes]:
    return [b"", number_frame(number), encode_batch(KVEventBatch(1.0, []), 0, 7)]


def _every_other(follower: KVEventFollower, first: int, upto: int, now: float) -> list[Report]:
    return [report for number in range(first, upto, 2) for report in follower.on_live(_frames(number), now)]


def test_sixteen_thousand_holes_are_given_up_within_a_second() -> None:
    """Every other batch is older than the window, as one answer tells. Holes times held batches took four seconds."""
    count = 16_000
    follower = KVEventFollower(tag=1)
    asked = [report for report in follower.on_time(0.0) if isinstance(report, Question)]
    tag = int.from_bytes(asked[0].frames[2], "big")
    _every_other(follower, 0, 2 * count, 0.0)
    began = time.perf_counter()
    told = follower.on_replay(end_frames(EndReport(tag, 0, 7, 2 * count - 1, 2 * count - 1, 0)), 0.0)
    assert time.perf_counter() - began < 1.0
    assert [report.number for report in told if isinstance(report, Applied)] == list(range(2, 2 * count, 2))
    assert len([report for report in told if isinstance(report, Unrecoverable)]) == count - 1
    assert follower.next == follower.wire == 2 * count - 1


def _silent_until_caught_up(follower: KVEventFollower, now: float) -> tuple[float, list[Report]]:
    told: list[Report] = []
    while follower.next < follower.wire:
        now = follower.deadline()
        told += follower.on_time(now)
    return now, told


def test_a_hundred_holes_and_a_dead_replay_socket_cost_one_bound() -> None:
    """Three questions without an answer for all of them, then one for what comes later; each gap is ended."""
    follower = KVEventFollower(answer_s=5.0, tries=3, poll_s=5.0)
    follower.questions.tags = True
    told = _every_other(follower, 0, 201, 0.0)
    now, more = _silent_until_caught_up(follower, 0.0)
    assert now == 15.0
    told += more
    told += _every_other(follower, 202, 401, now)
    later, more = _silent_until_caught_up(follower, now)
    assert later - now <= 5.0
    told += more
    gaps = [(gap.first, gap.last) for gap in told if isinstance(gap, Gap)]
    assert gaps == [(loss.first, loss.last) for loss in told if isinstance(loss, Unrecoverable)]
    assert len(gaps) == 200 and not [report for report in told if isinstance(report, Healed)]


def test_a_replay_socket_that_answers_again_is_trusted_again() -> None:
    """Deaf after three silences; one answer, and a hole has its three questions again, and its snapshot."""
    follower = KVEventFollower(answer_s=5.0, tries=3, poll_s=5.0)
    follower.questions.tags = True
    _every_other(follower, 0, 3, 0.0)
    now, told = _silent_until_caught_up(follower, 0.0)
    assert [type(report) for report in told if isinstance(report, Unrecoverable)] == [Unrecoverable]
    questions: list[Question] = []
    while not questions:
        now = follower.deadline()
        questions = [report for report in follower.on_time(now) if isinstance(report, Question)]
    tag = int.from_bytes(questions[-1].frames[2], "big")
    told = follower.on_replay(end_frames(EndReport(tag, 3, 7, 3, 3, 0)), now)
    assert [report.frames[3] for report in told if isinstance(report, Question)] == [b"snapshot"]
