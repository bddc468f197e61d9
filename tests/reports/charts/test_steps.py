"""Steps that overlap: whose spans they are, what a stage waits for, how long it stands idle. In milliseconds."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from engine.topology import tensor_parallel
from reports.charts.arrows import Collective, arrows_of
from reports.charts.bubbles import bubbles_of, length, share, stages_of
from reports.charts.lanes import bars_of, fullest
from reports.charts.steps import IN_FLIGHT, lanes_of, pieces_of
from reports.charts.timeline import sequence_chart
from scenarios.history.play import ProcessEnd
from tests.reports.charts.told import STAGES, TWO, TWO_OF_TWO, Told, core, history, run_of, spans

KILLED = ProcessEnd(node="worker.0", life=0, pid=1, started_at=0.0, ended_at=0.009, exitcode=-9)
OVERLAPPING = core((0.0, 4.0), (1.0, 6.0))


# -- what is a span


def test_steps_in_flight_are_spans_of_the_core_and_stand_beside_each_other():
    works = lanes_of(history(TWO, core((0.0, 4.0), (1.0, 6.0), (4.0, 8.0), (7.0, None))))
    assert spans(works, "core.0", IN_FLIGHT) == [(IN_FLIGHT, 0, 0.0, 4.0), (IN_FLIGHT, 1, 1.0, 6.0),
                                                 (IN_FLIGHT, 2, 4.0, 8.0), (IN_FLIGHT, 3, 7.0, 8.0)]
    assert [work.is_over for work in works] == [True, True, True, False]
    assert [bar.place for bar in bars_of(works, [])] == [0, 1, 0, 1]
    assert fullest(works) == [0.001]


def test_a_step_that_failed_is_in_flight_up_to_there():
    told = core((0.0, None), (1.0, None)).at(3.0, "step-failed", step=0, error="e").at(5.0, "bye")
    assert [(work.ended, work.is_over) for work in lanes_of(history(TWO, told))] == [(0.003, True), (0.005, False)]


@pytest.mark.parametrize(("ended", "at"), [
    (lambda told: told.answers(3.0), 3.0),
    (lambda told: told.at(3.0, "rpc-raised", call=0, error="e"), 3.0),
    (lambda told: told.sample(3.0, 1), 3.0),
    (lambda told: told.at(3.0, "bye"), 3.0),
    (lambda told: told.at(5.0, "queue-wait", ring="rpc", began=0.003, ended=0.005, outcome="timeout"), 3.0),
    (lambda told: told.at(5.0, "core.0->worker.0/rpc:receive").at(5.0, "queue-wait", ring="rpc", began=0.003), 3.0),
    (lambda told: told.at(5.0, "core.0->worker.0/rpc:receive").at(9.0, "queue-wait", ring="rpc", began=0.006), 5.0),
    (lambda told: told.at(5.0, "core.0->worker.0/rpc:receive").at(5.0, "queue-wait", ring="rpc", began=0.0005), 5.0),
    (lambda told: told.at(2.0, "worker.0/collective:enter").at(2.5, "bye", "parent-watch").answers(3.0), 3.0),
], ids=["answered", "raised", "next call", "end", "waited", "slept, then a call", "slept later", "slept sooner",
        "in between"])
def test_a_call_ends_with_what_its_thread_does_next(ended, at):
    works = lanes_of(history(TWO, OVERLAPPING, ended(Told("worker.0").step(1.0, 7, 0))))
    assert spans(works, "worker.0", "main")[0] == ("execute_model", 7, 1.0, at)


def test_a_sample_is_of_the_step_before_it_and_other_calls_are_no_steps():
    told = Told("worker.0").step(1.0, 7, 0).sample(2.0, 1).answers(2.5)
    told.at(3.0, "worker.0/mark:executing", call=2, method="check_health")
    assert spans(lanes_of(history(TWO, OVERLAPPING, told)), "worker.0", "main") == [
        ("execute_model", 7, 1.0, 2.0), ("sample_tokens", 7, 2.0, 2.5)]


def test_a_call_without_an_end_lasts_as_long_as_its_process_and_says_so():
    run = run_of(TWO, OVERLAPPING, Told("worker.0").step(1.0, 7, 0), processes=(KILLED,))
    work = lanes_of(run.history)[-1]
    assert (work.ended, work.seen, work.is_over) == (0.009, 0.001, False)
    assert 'class="s execute open"' in sequence_chart(run).svg


def test_a_core_that_is_its_own_worker_executes_its_steps():
    told = core((0.0, 4.0), (1.0, 6.0))
    told.at(6.0, "core.0/mark:executing", call=3, method="execute_model", step=2).at(8.0, "rpc-reply", call=3, rank=0)
    assert spans(lanes_of(history(tensor_parallel(1), told)), "core.0", "main") == [("execute_model", 2, 6.0, 8.0)]


def test_a_play_without_any_of_it_has_no_lanes_and_looks_as_ever():
    told = core((0.0, 4.0), (4.0, 6.0)), Told("worker.0").step(1.0, 0, 0).answers(2.0)
    assert lanes_of(history(TWO, *told)) == []
    chart = sequence_chart(run_of(TWO, *told))
    assert (chart.legend, chart.bubbles) == ((), ())
    assert 'height="32"' in chart.heads and 'class="s ' not in chart.svg and "rail" not in chart.svg
    assert re.findall(r'x="([\d.]+)" y="18"', chart.heads) == ["135", "257", "379", "501"]


# -- the copy thread


def late_answer() -> Told:
    """The thread has the answer to step 7 for eight milliseconds, and the next step is executed meanwhile."""
    told = Told("worker.0").step(1.0, 7, 0)
    told.at(2.0, "worker.0/mark:copying", "copy", call=0).step(2.5, 8, 1)
    told.at(10.0, "worker.0/mark:copied", "copy", call=0)
    return told.answers(10.0, "copy").at(10.0, "worker.0/mark:copying", "copy", call=1).answers(10.5, "copy")


def test_a_late_answer_is_a_span_of_the_copy_thread_beside_the_next_step():
    works = lanes_of(history(TWO, core((0.0, 11.0)), late_answer()))
    assert spans(works, "worker.0", "copy") == [("answer", 7, 2.0, 10.0), ("answer", 8, 10.0, 10.5)]
    assert spans(works, "worker.0", "main") == [("execute_model", 7, 1.0, 2.0), ("execute_model", 8, 2.5, 10.0)]


def test_a_thread_that_ends_before_its_answer_ends_its_span():
    told = Told("worker.0").step(1.0, 7, 0).at(2.0, "worker.0/mark:copying", "copy", call=0)
    told.at(3.0, "thread-ended", "copy", why="failed")
    assert spans(lanes_of(history(TWO, core((0.0, 11.0)), told)), "worker.0", "copy") == [("answer", 7, 2.0, 3.0)]


def test_each_thread_has_a_lane_of_its_own_beside_its_process():
    chart = sequence_chart(run_of(TWO, core((0.0, 11.0)), late_answer()))
    assert re.findall(r'class="lanename"[^>]*>([^<]+)<', chart.heads) == ["in flight", "main", "copy"]
    assert Counter(re.findall(r'class="s (\w+)', chart.svg)) == {"flight": 1, "execute": 2, "answer": 2}
    assert "answer of step 7, from 0.002 s, 8 ms" in chart.svg
    numbers = re.findall(r'<rect [^>]*/><text [^>]*>(\d+)</text></g>', chart.svg)
    assert numbers == ["0", "7", "8", "7", "8"], "each bar has room for its own"


# -- stages


def pipeline() -> tuple[Told, Told, Told]:
    """Two steps in two stages.

    stage 0:  1 [0] 4    5 [1] 6       executes, hands over at 4 and at 6
    stage 1:  1 [....4 0] 5  5 [..6 1] 9     waits for stage 0 from 1 to 4 and from 5 to 6
    """
    first = Told("worker.0").step(1.0, 0, 0).hands(4.0, 0).at(4.0, "queue-wait", ring="rpc", began=0.004)
    first.step(5.0, 1, 1).hands(6.0, 1).at(8.0, "queue-wait", ring="rpc", began=0.006)
    last = Told("worker.1").step(1.0, 0, 0).takes(1.0, 0).answers(5.0)
    last.step(5.0, 1, 1).takes(5.0, 1).answers(9.0)
    return core((0.0, 5.5), (0.5, 9.5)), first, last


def test_a_stage_waits_from_its_own_crossing_to_the_send_of_the_stage_before():
    works = lanes_of(history(STAGES, *pipeline()))
    assert [[(wait.began, wait.until) for wait in work.waits] for work in works if work.node == "worker.1"] == [
        [(0.001, 0.004)], [(0.005, 0.006)]]
    assert not any(work.waits for work in works if work.node == "worker.0")


@pytest.mark.parametrize(("sent", "waited"), [
    (lambda told: told.hands(0.5, 0), []),
    (lambda told: told, [(0.001, 0.005)]),
    (lambda told: told.hands(7.0, 0), [(0.001, 0.005)]),
    (lambda told: told.hands(2.0, 0, fate="kill", fault="f1"), [(0.001, 0.005)]),
    (lambda told: told.hands(2.0, 0, fate="stall", fault="f1").released(3.0, "worker.0/pipe:send", 1),
     [(0.001, 0.003)]),
    (lambda told: told.hands(2.0, 0, fate="stall", fault="f1"), [(0.001, 0.005)]),
], ids=["sent before", "never sent", "sent too late", "kept by its end", "held", "held for ever"])
def test_what_it_waits_for(sent, waited):
    told = sent(Told("worker.0")), Told("worker.1").step(1.0, 0, 0).takes(1.0, 0).answers(5.0)
    work = lanes_of(history(STAGES, *told))[-1]
    assert [(wait.began, wait.until) for wait in work.waits] == waited


def test_a_rank_that_is_held_as_it_takes_over_does_not_wait_until_it_is_let_go():
    told = Told("worker.0").hands(4.0, 0), Told("worker.1").step(1.0, 0, 0).takes(1.0, 0, fate="stall").released(
        3.0, "worker.1/pipe:receive", 1).answers(5.0)
    work = lanes_of(history(STAGES, *told))[-1]
    assert [(wait.began, wait.until) for wait in work.waits] == [(0.003, 0.004)]


def test_each_send_is_an_arrow_to_its_receive_in_the_next_stage_of_the_ring():
    told = history(STAGES, Told("worker.0").hands(1.0, 0).hands(4.0, 1).takes(6.0, 0, "sampled_tokens"),
                   Told("worker.1").takes(2.0, 0).takes(3.0, 1).hands(5.0, 0, "sampled_tokens"))
    assert [(one.source, one.target, one.label, one.sent_at, one.received_at) for one in arrows_of(told)] == [
        ("worker.0", "worker.1", "pipe 0 hidden", 0.001, 0.002),
        ("worker.0", "worker.1", "pipe 1 hidden", 0.004, 0.004),
        ("worker.1", "worker.0", "pipe 0 tokens", 0.005, 0.006)]


def test_ranks_hand_over_to_their_like_and_the_last_stage_to_the_first():
    topology = tensor_parallel(2, pp=3)
    told = [Told(f"worker.{rank}").takes(0.1, 0).hands(1.0, 0) for rank in range(6)]
    assert [(piece.source, piece.target) for piece in pieces_of(history(topology, *told))] == [
        (f"worker.{rank}", f"worker.{(rank + 2) % 6}") for rank in range(6)]


def test_what_nobody_took_is_lost_but_for_tokens_that_wait_for_the_next_step():
    told = history(STAGES, Told("worker.0").hands(1.0, 0), Told("worker.1").hands(2.0, 0, "sampled_tokens"))
    arrow, = arrows_of(told)
    assert (arrow.label, arrow.received_at) == ("pipe 0 hidden", None)


def test_collectives_of_two_stages_are_two():
    told = [Told(f"worker.{rank}").at(1.0 + rank, f"worker.{rank}/collective:enter") for rank in range(4)]
    assert [sorted(one.entered) for one in arrows_of(history(TWO_OF_TWO, *told)) if isinstance(one, Collective)] == [
        ["worker.0", "worker.1"], ["worker.2", "worker.3"]]


def test_stages_have_their_names_above_their_ranks_and_waits_another_look():
    chart = sequence_chart(run_of(STAGES, *pipeline()))
    assert re.findall(r'class="stagename"[^>]*>([^<]+)<', chart.heads) == ["stage 0: worker.0", "stage 1: worker.1"]
    assert [look for look, _ in chart.legend] == ["flight", "execute", "wait"]
    assert chart.svg.count('class="wait"') == 2 and "3 ms of it in pipe:receive" in chart.svg
    staged = run_of(TWO_OF_TWO, *(Told(f"worker.{rank}").step(1.0, 0, 0).answers(2.0) for rank in range(4)))
    assert "stage 1: worker.2, worker.3" in sequence_chart(staged).heads


# -- bubbles


def test_the_share_of_a_bubble_is_what_no_rank_of_the_stage_executed():
    """Stage 0: 5 ms, idle from 4 to 5. Stage 1: 8 ms, idle from 1 to 4 and from 5 to 6, and waits all the while."""
    told = history(STAGES, *pipeline())
    first, last = bubbles_of(told, lanes_of(told))
    assert [round(1e3 * value, 6) for value in (first.total, first.idle, first.waited)] == [5.0, 1.0, 0.0]
    assert [round(1e3 * value, 6) for value in (last.total, last.idle, last.waited)] == [8.0, 4.0, 4.0]
    assert first.sentence == "stage 0 (worker.0) stood idle for 20 % of its 5 ms of steps"
    assert last.sentence == ("stage 1 (worker.1) stood idle for 50 % of its 8 ms of steps, "
                             "100 % of that waiting for stage 0")


def test_a_stage_is_not_idle_while_any_rank_of_it_executes():
    """worker.2 executes from 1 to 3, worker.3 waits from 1 to 4 and executes to 6, worker.2 goes on at 10."""
    told = history(
        TWO_OF_TWO, Told("worker.0"), Told("worker.1").hands(4.0, 0),
        Told("worker.2").step(1.0, 0, 0).answers(3.0).step(10.0, 1, 1).answers(11.0),
        Told("worker.3").step(1.0, 0, 0).takes(1.0, 0).at(6.0, "queue-wait", ring="rpc", began=0.006))
    bubble, = bubbles_of(told, lanes_of(told))
    assert [round(1e3 * value, 6) for value in (bubble.total, bubble.idle, bubble.waited)] == [10.0, 5.0, 1.0]
    assert bubble.sentence == ("stage 1 (worker.2 and worker.3) stood idle for 50 % of its 10 ms of steps, "
                               "20 % of that waiting for stage 0")


def test_a_call_without_an_end_counts_as_far_as_it_is_on_record():
    told = run_of(STAGES, Told("worker.0").step(1.0, 0, 0).answers(2.0).step(3.0, 1, 1).hands(4.0, 1),
                  processes=(KILLED,)).history
    bubble, = bubbles_of(told, lanes_of(told))
    assert [round(1e3 * value, 6) for value in (bubble.total, bubble.idle)] == [3.0, 1.0]


def test_of_an_engine_without_stages_its_ranks_are_named():
    told = history(TWO, OVERLAPPING, *(Told(f"worker.{rank}").step(1.0, 0, 0).answers(2.0).step(3.0, 1, 1).answers(5.0)
                                       for rank in range(2)))
    assert [bubble.sentence for bubble in bubbles_of(told, lanes_of(told))] == [
        "worker.0 and worker.1 stood idle for 25 % of their 4 ms of steps"]
    told = history(TWO, OVERLAPPING, Told("worker.0").step(1.0, 0, 0).answers(2.0))
    bubble, = bubbles_of(told, lanes_of(told))
    assert bubble.sentence == "worker.0 and worker.1 were never idle in their 1 ms of steps"


def test_what_is_covered_twice_counts_once():
    assert length([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.5, 5.6), (9.0, 8.0)]) == 4.0
    assert [share(part, 100.0) for part in (0.0, 0.1, 1.0, 38.4, 99.9, 100.0)] == [
        "0 %", "less than 1 %", "1 %", "38 %", "more than 99 %", "100 %"]


def test_stages_are_of_their_engine():
    assert [(stage.name, stage.before, stage.ranks, stage.only) for stage in stages_of(history(TWO_OF_TWO))] == [
        ("stage 0", 1, ("worker.0", "worker.1"), False), ("stage 1", 0, ("worker.2", "worker.3"), False)]
    assert [stage.ranks for stage in stages_of(history(tensor_parallel(1)))] == [("core.0",)]
