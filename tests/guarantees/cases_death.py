"""Histories about deaths, stalls, starts and ends."""

from typing import Any

import msgspec

from engine.config import LimitsConfig
from engine.messages import ENGINE_CORE_DEAD
from engine.topology import data_parallel, headless
from faults.journal import digest_of
from faults.plan import Until
from scenarios.history.play import Beside, Options
from tests.guarantees.build import OUTPUTS, REQUESTS, RESPONSE, Builder, history, two_engines
from tests.guarantees.cases import accepts, outside, rejects, silent, unknown

AT_ANSWER = f"{RESPONSE[1]}:send"


def _worker_killed(world: str = "sim") -> Builder:
    return history(world).started().called("a").streams("a", [7]).fires("kill", AT_ANSWER)


@accepts("death-is-told", "ends-once")
def a_killed_worker_is_told_within_the_detection_bound() -> Builder:
    return _worker_killed().wait(.02).observes("frontend.0", "engine-dead", reason="worker.1 died").dies("a")


@accepts("death-is-told")
def a_call_after_the_death_is_refused_at_once() -> Builder:
    h = history().started().fires("kill", AT_ANSWER).wait(1)
    return h.observes("frontend.0", "late-call", began=h.now, error="EngineDeadError")


@accepts("death-is-told")
def a_failing_core_tells_its_caller_and_its_workers_are_gone_first() -> Builder:
    h = history().started().called("a").streams("a", [7]).fires("raise", f"{OUTPUTS}:send").wait(.01).dies("a")
    return h.wait(.01).ends("worker.0", "worker.1").wait(.01).ends("core.0", exitcode=1)


def _a_core_exits(reason: str) -> Builder:
    """Its workers are gone before it is."""
    h = history().started().called("a").fires("exit", "core.0/mark:executed")
    h.observes("core.0", "dying", reason=reason, queued=0)
    h.dies("a", reason=f"core.0 said that it is leaving: {reason}")
    return h.wait(.01).ends("worker.0", "worker.1").wait(.01).ends("core.0", exitcode=1)


@accepts("death-is-told")
def a_core_that_exits_says_by_what() -> Builder:
    return _a_core_exits("sys.exit(1)")


@accepts("death-is-told")
def a_core_whose_thread_exits_says_by_what() -> Builder:
    return _a_core_exits("RuntimeError: sys.exit(1)")


@rejects("death-is-told")
def a_core_that_exits_says_less_than_it_knows() -> Builder:
    return _a_core_exits("SystemExit: 1")


@rejects("death-is-told")
def a_core_that_exits_names_another_code() -> Builder:
    return _a_core_exits("sys.exit(2)")


def _a_core_fails(reason: str) -> Builder:
    h = history().started().called("a").fires("raise", "core.0/mark:executed")
    h.observes("core.0", "dying", reason=reason, queued=0).dies("a", reason=reason)
    return h.wait(.01).ends("worker.0", "worker.1").wait(.01).ends("core.0", exitcode=1)


@accepts("death-is-told")
def a_core_that_fails_says_by_what() -> Builder:
    return _a_core_fails("RuntimeError: planted by the plan")


@rejects("death-is-told")
def a_core_that_fails_blames_a_worker_that_went_before_it() -> Builder:
    return _a_core_fails("worker.0 died")


@rejects("death-is-told")
def a_killed_worker_is_noticed_by_the_step_deadline_only() -> Builder:
    return _worker_killed().wait(1).dies("a")


def _worker_gives_up_a_hung_core(told_after_s: float, until: Until | None = None) -> Builder:
    """The core stands still for 1.5 s at most before it is given up; its worker is gone after one."""
    h = history().started().called("a").fires("hang", "core.0->worker.0/rpc:send", until=until).wait(1)
    return h.ends("worker.0", exitcode=1).wait(told_after_s - 1).dies("a")


@accepts("death-is-told")
def a_worker_gives_up_a_core_that_stands_still_and_this_is_told_when_the_core_is_given_up() -> Builder:
    return _worker_gives_up_a_hung_core(1.75)


@rejects("death-is-told")
def a_worker_gives_up_a_core_that_stands_still_and_this_is_told_later() -> Builder:
    return _worker_gives_up_a_hung_core(1.85)


@rejects("death-is-told")
def a_worker_gives_up_a_core_that_went_on_and_this_is_told_when_it_would_have_been_given_up() -> Builder:
    h = history().started().called("a").fires("hang", "core.0->worker.0/rpc:send", until=Until(seconds=.5)).wait(.5)
    return h.releases().wait(.5).ends("worker.0", exitcode=1).wait(.75).dies("a")


@rejects("death-is-told", "ends-once")
def a_killed_worker_is_never_noticed() -> Builder:
    return _worker_killed().wait(60)


@rejects("death-is-told")
def who_is_told_reads_nothing_of_who_died() -> Builder:
    return _worker_killed().wait(.02).dies("a", reason="core.0 said that it is leaving (ENGINE_CORE_DEAD)")


@rejects("death-is-told")
def who_is_told_reads_nothing_of_how_the_core_died() -> Builder:
    return history().started().called("a").fires("kill", "core.0/mark:step").wait(.02).dies("a", reason="core.0 died")


@rejects("death-is-told")
def who_is_told_reads_nothing_of_what_the_core_raised() -> Builder:
    h = history().started().called("a").fires("raise", "core.0/mark:step").ends("core.0", exitcode=1)
    return h.wait(.02).dies("a", reason="core.0 died")


@rejects("death-is-told")
def a_call_is_let_in_although_the_core_is_gone() -> Builder:
    return history().started().fires("kill", "core.0/mark:step").wait(.02).called("a", core=False).dies("a")


@rejects("death-is-told")
def a_late_call_gets_some_other_error() -> Builder:
    h = history().started().fires("kill", AT_ANSWER).wait(1)
    return h.observes("frontend.0", "late-call", began=h.now, error="RequestTimeoutError")


@rejects("death-is-told")
def a_later_request_times_out_instead_of_being_told() -> Builder:
    h = history().started().fires("kill", AT_ANSWER).wait(1).called("b", 1, core=False)
    return h.ended("b", "failed", error="RequestTimeoutError")


@unknown("death-is-told")
def the_death_was_told_late_on_a_starved_machine() -> Builder:
    return _worker_killed("engine").wait(.3).dies("a").lab(longest_starvation_s=.25)


@rejects("death-is-told")
def a_little_starvation_does_not_excuse_a_long_delay() -> Builder:
    return _worker_killed("engine").wait(.9).dies("a").lab(longest_starvation_s=.25)


def _core_killed(world: str = "sim", held_s: float | None = None) -> Builder:
    """With an output held back for so long."""
    h = history(world).started().called("a").streams("a", [7])
    if held_s is not None:
        h.fires("delay", f"{OUTPUTS}:receive", until=Until(seconds=held_s))
    return h.fires("kill", "core.0/mark:step")


@accepts("death-is-told")
def a_killed_core_that_had_said_all_is_told_at_once() -> Builder:
    return _core_killed().wait(.002).dies("a")


@rejects("death-is-told")
def a_killed_core_that_had_said_all_is_told_later() -> Builder:
    return _core_killed().wait(.005).dies("a")


@accepts("death-is-told")
def a_real_killed_core_is_told_when_it_is_seen() -> Builder:
    return _core_killed("engine").wait(.05).dies("a")


@accepts("death-is-told")
def a_killed_core_is_told_when_what_was_held_back_came() -> Builder:
    return _core_killed(held_s=.02).wait(.02).releases(0).dies("a")


@rejects("death-is-told")
def a_killed_core_is_told_before_what_was_held_back_came() -> Builder:
    return _core_killed(held_s=.02).wait(.015).dies("a")


@rejects("death-is-told")
def a_killed_core_is_told_some_time_after_what_was_held_back_came() -> Builder:
    return _core_killed(held_s=.02).wait(.02).releases(0).wait(.005).dies("a")


@accepts("death-is-told")
def a_killed_core_is_told_without_what_is_held_back_for_too_long() -> Builder:
    return _core_killed(held_s=.2).wait(.032).dies("a")


@rejects("death-is-told")
def a_killed_core_is_told_later_than_what_is_held_back_is_waited_for() -> Builder:
    return _core_killed(held_s=.2).wait(.035).dies("a")


def _client_stands_still(seconds: float) -> Builder:
    """For half a second, beside a killed core."""
    h = history().started().called("a").fires("stall", "frontend.0->core.0/requests:send", until=Until(seconds=.5))
    return h.fires("kill", "core.0/mark:step").wait(.5).releases(0).wait(seconds)


@accepts("death-is-told")
def a_client_that_stood_still_is_told_when_it_goes_on() -> Builder:
    return _client_stands_still(.001).dies("a")


@rejects("death-is-told")
def a_client_that_stood_still_is_told_later() -> Builder:
    return _client_stands_still(.01).dies("a")


def _reads_what_was_sent(*, before: bool = True, idle_s: float = 0.05, world: str = "engine") -> Builder:
    """Four outputs that it comes to one by one, behind a death; then it is told."""
    h, frames = history(world).started().called("a").streams("a", [7]), ("p", "q", "r", "s")
    h = h.sends(OUTPUTS, *frames).fires("kill", AT_ANSWER) if before else h.fires("kill", AT_ANSWER)
    for frame in frames:
        h.wait(.05)
        (h.receives if before else h.carries)(OUTPUTS, frame)
    return h.wait(idle_s).dies("a")


@accepts("death-is-told")
def a_real_client_reads_first_what_was_sent_before() -> Builder:
    return _reads_what_was_sent()


@rejects("death-is-told")
def a_client_has_read_what_was_sent_before_and_is_told_late() -> Builder:
    return _reads_what_was_sent(idle_s=.15)


@rejects("death-is-told")
def a_client_is_told_late_behind_what_is_sent_after_a_death() -> Builder:
    return _reads_what_was_sent(before=False)


@rejects("death-is-told")
def in_the_twin_reading_takes_no_time() -> Builder:
    return _reads_what_was_sent(world="sim")


@rejects("health-is-true")
def a_client_that_stood_still_tells_what_it_heard_before() -> Builder:
    return _client_stands_still(.001).observes("frontend.0", "health", healthy=True, reason="").dies("a")


@accepts("health-is-true")
def a_client_looks_when_it_is_asked_for_its_health() -> Builder:
    return _core_killed(held_s=.2).wait(.002).observes("frontend.0", "health", healthy=False, reason="died").dies("a")


@rejects("health-is-true")
def a_killed_core_is_healthy_while_its_last_words_are_waited_for() -> Builder:
    return _core_killed(held_s=.2).wait(.002).observes("frontend.0", "health", healthy=True, reason="").dies("a")


@silent("health-is-true")
def a_client_that_stood_still_has_not_been_told_of_a_worker() -> Builder:
    h = _worker_killed().fires("stall", "frontend.0->core.0/requests:send", until=Until(seconds=1.0)).wait(1)
    return h.releases().observes("frontend.0", "health", healthy=True, reason="").dies("a")


def _asked_when_closed(reason: str, error: str) -> Builder:
    h = history().started().request("a").observes("frontend.0", "closing").ends("core.0")
    return h.observes("frontend.0", "closed").observes("frontend.0", "asked-when-closed", reason=reason, error=error)


@silent("health-is-true")
def an_engine_that_was_shut_down_says_so() -> Builder:
    return _asked_when_closed("the engine was shut down", "EngineDeadError")


@rejects("health-is-true")
def an_engine_that_was_shut_down_is_healthy() -> Builder:
    return _asked_when_closed("", "EngineDeadError")


@rejects("health-is-true")
def an_engine_that_was_shut_down_ends_a_call_by_some_other_error() -> Builder:
    return _asked_when_closed("the engine was shut down", "UnroutableError")


def _stalled_beside_its_client(told_after_s: float) -> Builder:
    h = history().started().called("a").fires("stall", f"{OUTPUTS}:send")
    h.fires("stall", "frontend.0->core.0/requests:send", until=Until(seconds=3.0))
    return h.wait(3.0).releases(1).wait(told_after_s).dies("a", reason="core.0 has made no progress")


@accepts("stall-is-told")
def a_client_that_stood_still_longer_than_its_core_tells_that_when_it_goes_on() -> Builder:
    return _stalled_beside_its_client(1.6)


@rejects("stall-is-told")
def a_client_that_stood_still_longer_than_its_core_tells_that_too_late() -> Builder:
    return _stalled_beside_its_client(1.8)


@silent("death-is-told", "stall-is-told", "health-is-true", "no-orphans", "dead-notice", "drain")
def everybody_lives_until_the_frontend_closes() -> Builder:
    h = history().started().request("a").observes("frontend.0", "health", healthy=True, reason="")
    h.observes("frontend.0", "closing").wait(.1).ends("worker.0", "worker.1", "core.0")
    return h.observes("frontend.0", "closed").observes("frontend.0", "bye", reason="done").ends("frontend.0")


@silent("death-is-told")
def nobody_waits_when_the_worker_dies() -> Builder:
    return history().started().request("a").fires("kill", AT_ANSWER).wait(1)


def _core_stopped(**fault: object) -> Builder:
    return history().started().called("a").streams("a", [7]).fires("stall", f"{OUTPUTS}:send", **fault)


@accepts("stall-is-told")
def a_stopped_core_is_noticed() -> Builder:
    return _core_stopped().wait(1.6).observes("frontend.0", "engine-dead", reason="no heartbeat").dies("a")


@accepts("stall-is-told")
def a_hanging_collective_is_noticed_by_the_step_deadline() -> Builder:
    h = history().started().called("a").fires("hang", "worker.1/collective:enter").wait(1.1)
    return h.observes("frontend.0", "engine-dead", reason="no answer to execute_model").dies("a")


@rejects("stall-is-told", "ends-once")
def a_stopped_core_is_never_noticed() -> Builder:
    return _core_stopped().wait(60)


@rejects("stall-is-told")
def a_stopped_core_is_noticed_far_too_late() -> Builder:
    return _core_stopped().wait(9).observes("frontend.0", "engine-dead", reason="at last").dies("a")


@rejects("stall-is-told")
def a_stall_is_noticed_and_a_request_forgotten() -> Builder:
    return _core_stopped().wait(1.6).observes("frontend.0", "engine-dead", reason="no heartbeat").wait(9)


@silent("stall-is-told", "health-is-true")
def a_stall_is_over_before_it_must_be_noticed() -> Builder:
    return _core_stopped(until=Until(seconds=.5)).wait(.5).releases().wait(.1).ended("a")


@accepts("health-is-true")
def health_is_bad_after_a_death() -> Builder:
    return _worker_killed().wait(.02).dies("a").wait(.2).observes(
        "frontend.0", "health", healthy=False, reason="worker.1 died")


def _healthy_after(seconds: float) -> Builder:
    h = history().started().called("a").fires("hang", "core.0->worker.0/rpc:send").wait(1).ends("worker.0", exitcode=1)
    h.wait(seconds - 1).observes("frontend.0", "health", healthy=True, reason="")
    return h.dies("a").observes("frontend.0", "health", healthy=False, reason="no heartbeat")


@accepts("health-is-true")
def a_worker_gives_up_a_core_that_stands_still_which_is_still_healthy() -> Builder:
    return _healthy_after(1.7)


@rejects("health-is-true")
def a_core_that_stands_still_without_its_worker_is_healthy_for_too_long() -> Builder:
    return _healthy_after(1.9)


@accepts("health-is-true")
def health_is_bad_after_a_stall() -> Builder:
    return _core_stopped().wait(1.9).dies("a").observes("frontend.0", "health", healthy=False, reason="no heartbeat")


@rejects("health-is-true")
def a_dead_engine_is_reported_healthy() -> Builder:
    return _worker_killed().wait(.5).observes("frontend.0", "health", healthy=True, reason="").dies("a")


@rejects("health-is-true")
def a_stopped_core_is_reported_healthy() -> Builder:
    return _core_stopped().wait(3).observes("frontend.0", "health", healthy=True, reason="").dies("a")


@rejects("health-is-true")
def health_is_good_when_a_caller_was_told_of_the_death() -> Builder:
    return _worker_killed().wait(.01).dies("a").observes("frontend.0", "health", healthy=True, reason="")


@silent("health-is-true")
def health_was_good_before_the_caller_was_told() -> Builder:
    return _worker_killed().wait(.01).observes("frontend.0", "health", healthy=True, reason="").dies("a")


@silent("health-is-true")
def health_was_good_while_the_death_need_not_be_known() -> Builder:
    return _worker_killed().wait(.02).observes("frontend.0", "health", healthy=True, reason="").dies("a")


@accepts("stall-is-told", "health-is-true")
def the_caller_closes_in_the_moment_in_which_it_is_told() -> Builder:
    h = _core_stopped().wait(1.6).observes("frontend.0", "engine-dead", reason="no heartbeat").dies("a")
    told = h.now
    h.observes("frontend.0", "health", healthy=False, reason="no heartbeat").observes("frontend.0", "closing")
    records = h.records["frontend.0", 0]
    records[:] = [msgspec.structs.replace(r, at=min(r.at, told)) for r in records]
    return h


@accepts("health-is-true")
def health_is_bad_before_it_had_to_be_known() -> Builder:
    return _worker_killed().wait(.01).dies("a").observes("frontend.0", "health", healthy=False, reason="worker.1")


# -- last words


def _core_raises(queued: int = 2) -> Builder:
    h = history().started().called("a").fires("raise", "core.0/mark:executed").sends(OUTPUTS, "o1", "o2")
    return h.observes("core.0", "dying", reason="planted", queued=queued).sends(OUTPUTS, "DEAD")


@accepts("dead-notice", "death-is-told")
def the_notice_comes_behind_everything_that_was_queued() -> Builder:
    return _core_raises().receives(OUTPUTS, "o1", "o2").streams("a", [7]).receives(OUTPUTS, "DEAD").observes(
        "frontend.0", "dead-notice").observes("frontend.0", "engine-dead", reason="notice").dies("a").ends("core.0")


@rejects("dead-notice")
def the_queue_dies_with_the_core() -> Builder:
    return _core_raises().receives(OUTPUTS, "o1").wait(.1).ends("core.0").dies("a")


@rejects("dead-notice")
def the_frontend_learns_of_the_death_from_elsewhere_and_closes() -> Builder:
    return _core_raises().receives(OUTPUTS, "o1", "o2").wait(.03).observes(
        "frontend.0", "engine-dead", reason="core.0 died").dies("a").observes("frontend.0", "closing").ends("core.0")


@silent("dead-notice")
def the_frontend_closes_before_the_notice_can_reach_it() -> Builder:
    return history().started().request("a").fires("terminate", "core.0/mark:executed").observes(
        "core.0", "dying", reason="SIGTERM", queued=0).observes("frontend.0", "closing").sends(OUTPUTS, "DEAD")


@silent("dead-notice")
def the_frontend_is_stopped_for_longer_than_a_notice_is_kept() -> Builder:
    """For all of it, whatever the sums of these times are rounded to."""
    h = history().started().called("a").wait(.3).fires("stall", "frontend.0/mark:born", until=Until(seconds=6))
    return h.observes("core.0", "dying", reason="SIGTERM", queued=0).ends("core.0").wait(6).releases().dies("a")


@rejects("dead-notice")
def the_frontend_is_stopped_for_a_part_of_the_time_in_which_a_notice_is_kept() -> Builder:
    h = history().started().called("a").fires("stall", "frontend.0/mark:born", until=Until(seconds=.5))
    h.observes("core.0", "dying", reason="SIGTERM", queued=0).ends("core.0")
    return h.wait(.5).releases().wait(1).dies("a")


@accepts("death-is-told")
def the_core_is_gone_only_after_its_callers_were_told_and_closed() -> Builder:
    return _core_raises().wait(.01).observes("frontend.0", "dead-notice").dies("a").observes(
        "frontend.0", "closing").wait(.5).ends("core.0")


@rejects("dead-notice")
def the_notice_overtakes_the_queue() -> Builder:
    return _core_raises().receives(OUTPUTS, "DEAD").observes("frontend.0", "dead-notice").receives(
        OUTPUTS, "o1", "o2").dies("a")


@accepts("dead-notice")
def a_call_is_refused_because_the_core_is_gone_while_its_notice_is_still_to_be_read() -> Builder:
    h = _core_raises().observes("frontend.0", "call", request="late", index=1, prompt=2, max_tokens=3).dies("late")
    return h.receives(OUTPUTS, "o1", "o2", "DEAD").observes("frontend.0", "dead-notice").dies("a")


@rejects("dead-notice")
def a_stream_is_told_of_the_death_before_its_last_outputs_are_read() -> Builder:
    return _core_raises().dies("a").receives(OUTPUTS, "o1", "o2", "DEAD").observes("frontend.0", "dead-notice")


@rejects("dead-notice")
def the_notice_takes_longer_than_the_linger() -> Builder:
    return _core_raises().receives(OUTPUTS, "o1", "o2").wait(2).receives(OUTPUTS, "DEAD").observes(
        "frontend.0", "dead-notice").dies("a")


@rejects("dead-notice")
def sigterm_kills_the_core_without_a_word() -> Builder:
    return history().started().called("a").fires("terminate", "core.0/mark:step").wait(.01).ends(
        "core.0", exitcode=-15).wait(3).dies("a")


def _output_thread_raises() -> Builder:
    """What it had in hand was noted, never put, and is sent by the main thread."""
    h = history().started().called("a").crosses(f"{OUTPUTS}:send", "o1", fate="raise", fault="f1")
    return h.fires("raise", f"{OUTPUTS}:send").observes("core.0", "dying", reason="x", queued=0).sends(
        OUTPUTS, "o1", "DEAD")


@accepts("dead-notice")
def another_thread_says_the_last_words() -> Builder:
    return _output_thread_raises().receives(OUTPUTS, "o1", "DEAD").observes("frontend.0", "dead-notice").dies(
        "a").ends("core.0")


@rejects("dead-notice")
def another_thread_says_the_last_words_and_has_nothing_in_hand() -> Builder:
    h = history().started().called("a").crosses(f"{OUTPUTS}:send", "o1", fate="raise", fault="f1")
    h.fires("raise", f"{OUTPUTS}:send").observes("core.0", "dying", reason="x", queued=0).sends(OUTPUTS, "DEAD")
    return h.receives(OUTPUTS, "DEAD").observes("frontend.0", "dead-notice").dies("a").ends("core.0")


@accepts("dead-notice")
def another_thread_cannot_send_what_was_in_hand_either() -> Builder:
    h = history().started().called("a")
    for fault in ("f1", "f2"):
        h.crosses(f"{OUTPUTS}:send", "o1", fate="raise", fault=fault).fires("raise", f"{OUTPUTS}:send")
    h.observes("core.0", "dying", reason="x", queued=0).sends(OUTPUTS, "DEAD").receives(OUTPUTS, "DEAD")
    return h.observes("frontend.0", "dead-notice").dies("a").ends("core.0")


def _says_them_in_vain(fault: bool) -> Builder:
    h = history().started().called("a").crosses(f"{OUTPUTS}:send", "o1", fate="raise", fault="f1")
    h.fires("raise", f"{OUTPUTS}:send").observes("core.0", "dying", reason="x", queued=0).sends(OUTPUTS, "o1")
    if fault:
        h.crosses(f"{OUTPUTS}:send", digest_of([ENGINE_CORE_DEAD]), fate="exit", fault="f2")
        h.fires("exit", f"{OUTPUTS}:send")
    return h.receives(OUTPUTS, "o1").wait(3).dies("a").ends("core.0")


@silent("dead-notice")
def another_thread_says_the_last_words_and_fails_at_the_notice() -> Builder:
    return _says_them_in_vain(True)


@rejects("dead-notice")
def another_thread_says_the_last_words_but_for_the_notice() -> Builder:
    return _says_them_in_vain(False)


@rejects("dead-notice")
def another_thread_says_the_last_words_and_not_what_was_in_hand() -> Builder:
    return _output_thread_raises().receives(OUTPUTS, "DEAD").observes("frontend.0", "dead-notice").dies(
        "a").ends("core.0")


@outside("dead-notice", "drain", "bad-frame-isolated", "rpc-any-rank-fails-fast")
def a_killed_core_owes_no_notice() -> Builder:
    return history().started().called("a").fires("kill", "core.0/mark:step").wait(.02).dies("a")


# -- parents and children


def _frontend_killed() -> Builder:
    return history().started().called("a").fires("kill", f"{OUTPUTS}:receive").ends(
        "frontend.0", exitcode=-9)


@accepts("no-orphans")
def the_children_follow_a_killed_frontend() -> Builder:
    return _frontend_killed().wait(.1).ends("core.0", "worker.0").wait(.1).ends("worker.1")


@rejects("no-orphans")
def a_worker_outlives_its_core_because_its_death_pipe_stays_open() -> Builder:
    return _frontend_killed().wait(.1).ends("core.0", "worker.0").wait(3).ends("worker.1", killed_by_lab=True)


@rejects("no-orphans")
def a_worker_follows_too_late() -> Builder:
    return _frontend_killed().wait(.1).ends("core.0", "worker.0").wait(3).ends("worker.1")


def _frontend_killed_and(stopped: str) -> Builder:
    """Somebody of its engine is stopped at once; a worker is there for as long, and it is its core that it hears by."""
    h = _frontend_killed().fires("stall", f"{stopped}/mark:executing", until=Until(seconds=6.0)).wait(6.0).releases()
    return h.wait(.1).ends("core.0", "worker.0", "worker.1")


@accepts("no-orphans")
def a_worker_follows_when_its_core_goes_on() -> Builder:
    return _frontend_killed_and("core.0")


@rejects("no-orphans")
def a_worker_outlives_its_client_while_another_worker_stands_still() -> Builder:
    return _frontend_killed_and("worker.1")


def _lone_core(waits_s: float, frozen: bool = False) -> Builder:
    h = _frontend_killed().observes("core.0", "parent-gone")
    if frozen:
        h.fires("stall", "core.0/mark:step", until=Until(seconds=waits_s)).wait(waits_s).releases()
    else:
        h.wait(waits_s)
    h.observes("core.0", "dying", reason="QueueCancelledError: the frontend is gone", queued=0)
    return h.wait(.1).ends("core.0", "worker.0", "worker.1")


@accepts("no-orphans")
def a_core_leaves_when_it_sees_that_its_client_is_gone() -> Builder:
    return _lone_core(.05)


@accepts("no-orphans")
def a_core_that_stands_still_leaves_later() -> Builder:
    return _lone_core(.3, frozen=True)


@rejects("no-orphans")
def a_core_waits_for_a_step_although_its_client_is_gone() -> Builder:
    return _lone_core(.3)


@rejects("no-orphans")
def a_core_whose_client_is_gone_ends_without_having_begun_to_leave() -> Builder:
    return _frontend_killed().observes("core.0", "parent-gone").wait(.3).ends("core.0", "worker.0", "worker.1")


def _headless_core(leaves_after_s: float) -> Builder:
    """Its head is killed, and so goes the head's own core."""
    h = history(tp=1, topology=headless(2, 1), data_parallel_size=2)
    h.observes("core.1", "ready", num_gpu_blocks=8, parallel_config={})
    h.fires("kill", "core.0->frontend.0/outputs:receive").ends("frontend.0", exitcode=-9).wait(.05).ends("core.0")
    h.wait(leaves_after_s).observes("core.1", "dying", reason="frontend.0 is gone", queued=0)
    return h.ends("core.1", "launcher.1")


@accepts("no-orphans")
def a_headless_core_leaves_when_its_head_is_gone() -> Builder:
    return _headless_core(.01)


@rejects("no-orphans")
def a_headless_core_stays_without_a_head() -> Builder:
    return _headless_core(1.0)


def _stopped_worker(ended_after: float, *, client: bool = True) -> Builder:
    h = history().started().called("a").fires("stall", "core.0->worker.1/rpc:receive").fires(
        "kill", "core.0/mark:step").ends("core.0", exitcode=-9).wait(.1).ends("worker.0")
    h = h if client else h.ends("frontend.0")
    return h.wait(ended_after - .1).ends("worker.1", exitcode=-9)


@accepts("no-orphans")
def a_worker_that_stands_still_is_ended_by_its_client() -> Builder:
    return _stopped_worker(.8)


@accepts("no-orphans")
def a_worker_that_stands_still_and_nobody_is_there() -> Builder:
    return _stopped_worker(9, client=False)


@rejects("no-orphans")
def a_worker_that_stands_still_is_left_alone() -> Builder:
    return _stopped_worker(9)


@rejects("nothing-left-behind")
def a_client_has_closed_before_its_core_has_ended() -> Builder:
    h = _born().request("a").observes("frontend.0", "closing").observes("frontend.0", "closed")
    return h.wait(.1).ends("core.0", "frontend.0")


def _told_dead(notice: bool) -> Builder:
    h = _born().called("a").fires("stall", "core.0/mark:scheduled").wait(2)
    h = h.observes("frontend.0", "dead-notice") if notice else h
    h.observes("frontend.0", "engine-dead", reason="core.0 has made no progress").dies("a")
    return h.wait(1).ends("core.0", "frontend.0")


@rejects("nothing-left-behind")
def a_client_lets_a_core_be_that_stands_still() -> Builder:
    return _told_dead(notice=False)


@accepts("nothing-left-behind")
def a_client_lets_a_core_be_that_said_it_was_leaving() -> Builder:
    return _told_dead(notice=True)


@accepts("nothing-left-behind")
def a_client_closes_when_its_core_has_ended() -> Builder:
    h = _born().request("a").observes("frontend.0", "closing").ends("core.0").observes("frontend.0", "closed")
    return h.ends("frontend.0")


def _closes_with_a_request_under_way(*said: str) -> Builder:
    h = _born().called("a").observes("frontend.0", "closing", kept={"requests": 1}).sends(REQUESTS, *said)
    return h.ends("worker.0", "worker.1", "core.0").observes("frontend.0", "closed").ends("frontend.0")


@accepts("nothing-left-behind")
def who_closes_with_a_request_under_way_tells_its_core() -> Builder:
    return _closes_with_a_request_under_way("abort")


@rejects("nothing-left-behind")
def who_closes_with_a_request_under_way_does_not_tell_its_core() -> Builder:
    return _closes_with_a_request_under_way()


@accepts("nothing-left-behind")
def who_closes_with_a_request_under_way_does_not_tell_a_core_that_is_dead() -> Builder:
    h = _born().called("a").fires("kill", "core.0/mark:step").ends("core.0", exitcode=-9)
    h.observes("frontend.0", "engine-dead", reason="core.0 died").observes(
        "frontend.0", "closing", kept={"requests": 1}).ends("worker.0", "worker.1")
    return h.observes("frontend.0", "closed").ends("frontend.0")


@rejects("no-orphans", "nothing-left-behind")
def a_worker_is_still_there_when_the_lab_stops_looking() -> Builder:
    return _frontend_killed().wait(.1).ends("core.0", "worker.0").ends("worker.1", alive=True).wait(9)


def _born(**values: Any) -> Builder:
    h = history(**values)
    h.observes("core.0", "born", pid=2, segments=["rt-1-rpc"], paths=["/tmp/rt-1/requests.ipc"])
    return h.started()


@accepts("nothing-left-behind")
def what_was_made_is_gone() -> Builder:
    return _born().request("a").observes("frontend.0", "closing").ends("core.0", "frontend.0")


@accepts("nothing-left-behind")
def the_next_start_removes_what_the_dead_left() -> Builder:
    h = _born()
    for node in ("frontend.0", "core.0"):
        h.fires("kill", f"{node}/mark:idle").ends(node, exitcode=-9)
    return h.lab(restarts=[{"life": 1, "ready": True, "served": True, "removed": ["rt-1-rpc"]}])


@accepts("nothing-left-behind")
def a_start_of_somebody_else_has_removed_what_the_dead_left() -> Builder:
    h = _born()
    for node in ("frontend.0", "core.0"):
        h.fires("kill", f"{node}/mark:idle").ends(node, exitcode=-9)
    return h.lab(restarts=[{"life": 1, "ready": True, "served": True, "removed": []}])


@accepts("nothing-left-behind", "no-orphans")
def the_lab_kills_everything_as_it_was_asked_to() -> Builder:
    h = _born().ends("frontend.0", killed_by_lab=True).wait(.01).ends("core.0", exitcode=-9)
    return h.promised(options=Options(kill_all_then_restart=True)).lab(
        restarts=[{"life": 1, "ready": True, "served": True, "removed": ["rt-1-rpc"], "error": ""}])


def _frontend_struck_down(*, last: bool) -> Builder:
    h = _born().observes("frontend.0", "closing")
    if last:
        h.ends("core.0").wait(.01)
    h.fires("terminate", "core.0/mark:draining", node="frontend.0").wait(.01).ends("frontend.0", exitcode=-15)
    if not last:
        h.wait(.01).ends("core.0")
    return h.lab(leftovers=["segment rt-1-rpc"])


@silent("nothing-left-behind")
def a_caller_is_struck_down_before_it_has_told_who_is_left() -> Builder:
    h = history().observes("coordinator.0", "born", pid=2, ppid=1, start_time=2, segments=["rt-1-"], paths=[])
    h.observes("frontend.0", "born", pid=1, ppid=0, start_time=1, segments=["rt-1-"], paths=[])
    h.fires("kill", "frontend.0->core.0/birth:send", node="frontend.0").ends("frontend.0").wait(.01).ends("core.0")
    return h.lab(leftovers=["segment rt-1-rpc"])


@silent("nothing-left-behind")
def a_caller_is_struck_down_when_all_others_have_left() -> Builder:
    return _frontend_struck_down(last=True)


@rejects("nothing-left-behind")
def a_core_outlives_its_caller_and_cleans_up_nothing() -> Builder:
    return _frontend_struck_down(last=False)


def _ends_seen_at_once(*, said: bool) -> Builder:
    """A rank is killed; the lab looks only when everybody is gone, and sees that one last."""
    h = _born().observes("frontend.0", "closing").fires("kill", "worker.1/mark:loading").wait(.03)
    if said:
        h.observes("frontend.0", "health", healthy=False, reason="the engine did not start")
    for node in ("frontend.0", "core.0", "worker.0", "worker.1"):
        h.ends(node, exitcode=None).wait(1e-6)
    return h


@accepts("nothing-left-behind")
def who_says_something_after_a_kill_outlived_it() -> Builder:
    return _ends_seen_at_once(said=True)


@rejects("nothing-left-behind")
def who_outlived_a_kill_cleans_up_nothing() -> Builder:
    return _ends_seen_at_once(said=True).lab(leftovers=["segment rt-1-rpc"])


@silent("nothing-left-behind")
def nobody_says_anything_after_a_kill() -> Builder:
    return _ends_seen_at_once(said=False).lab(leftovers=["segment rt-1-rpc"])


def _started_half(fate: str) -> Builder:
    """The caller is ended while it starts an engine, and the core is killed; no worker was told of anything yet."""
    h = history().observes("frontend.0", "born", pid=1, segments=["rt-1-"], paths=["e0"])
    if fate == "exit":
        h.fires("kill", "core.0/mark:dying").ends("core.0", exitcode=-9).wait(.1)
    h.fires(fate, "core.0->frontend.0/handshake:receive").ends("frontend.0", exitcode=-15 if fate == "terminate" else 1)
    if fate == "terminate":
        h.wait(.1).fires("kill", "core.0/mark:dying").ends("core.0", exitcode=-9)
    return h.wait(.1).ends("worker.0", "worker.1").lab(leftovers=["e0"])


@silent("nothing-left-behind")
def nobody_is_left_who_was_told_of_anything() -> Builder:
    return _started_half("terminate")


@rejects("nothing-left-behind")
def a_caller_that_could_clean_up_leaves_it_behind() -> Builder:
    return _started_half("exit")


def _told_to_go(mark: str) -> Builder:
    """The caller is killed while it starts two cores, and the one that it has told is told to go."""
    h = history(topology=data_parallel(2, tp=2)).observes("frontend.0", "born", pid=1, segments=["rt-1-"], paths=["e0"])
    h.fires("kill", "frontend.0->core.1/birth:send", node="frontend.0").ends("frontend.0", exitcode=-9)
    h.observes("core.0", "born", pid=2, segments=["rt-1-"], paths=["e0"]).fires("terminate", f"core.0/mark:{mark}")
    return h.ends("core.0", exitcode=-15).wait(.1).ends("core.1").lab(leftovers=["segment rt-1-rpc"])


@silent("nothing-left-behind")
def who_is_told_to_go_as_it_is_born_cleans_up_nothing() -> Builder:
    return _told_to_go("born")


@rejects("nothing-left-behind")
def who_is_told_to_go_later_leaves_it_behind() -> Builder:
    return _told_to_go("step")


@rejects("nothing-left-behind")
def a_segment_remains_after_a_kill() -> Builder:
    return _born().fires("kill", "core.0/mark:step").ends("core.0", exitcode=-9).wait(.1).ends("frontend.0").lab(
        leftovers=["segment rt-1-rpc"])


@rejects("nothing-left-behind")
def the_next_start_fails_on_what_remained() -> Builder:
    return _born().lab(restarts=[{"life": 1, "ready": False, "error": "segment exists"}])


@rejects("nothing-left-behind", "two-on-one-host")
def the_neighbours_segment_is_removed() -> Builder:
    return _born(topology=two_engines()).lab(beside=[Beside(engine=1, served=True, touched=["segment rt-9-rpc"])])


@silent("nothing-left-behind")
def nobody_looked_for_leftovers() -> Builder:
    return _born().lab(leftovers_checked_at=None)


@silent("nothing-left-behind")
def nothing_was_ever_made() -> Builder:
    return history().started()


@accepts("two-on-one-host")
def an_engine_starts_beside_a_living_neighbour() -> Builder:
    return history(topology=two_engines()).started().lab(beside=[Beside(engine=1, served=True, touched=[])])


@rejects("two-on-one-host")
def the_neighbour_dies_of_a_fixed_port() -> Builder:
    h = history(topology=two_engines()).started().ends("core.1", exitcode=1).wait(.01)
    return h.lab(beside=[Beside(engine=1, served=True, touched=[])])


@rejects("two-on-one-host")
def the_neighbour_serves_no_more() -> Builder:
    return history(topology=two_engines()).started().lab(beside=[Beside(engine=1, served=False, touched=[])])


@rejects("two-on-one-host")
def the_first_engine_dies_of_what_befalls_the_other() -> Builder:
    h = history(topology=two_engines()).started().fires("kill", "worker.1.0/mark:executing")
    return h.ends("worker.1.0", exitcode=-9).ends("core.0", exitcode=1).lab(
        beside=[Beside(engine=1, served=False, touched=[])])


@accepts("two-on-one-host")
def what_befalls_the_neighbour_is_its_own() -> Builder:
    h = history(topology=two_engines()).started().fires("kill", "worker.1.0/mark:executing")
    h.observes("frontend.1", "starting").observes("frontend.1", "ready", num_gpu_blocks=8, parallel_config={})
    return h.ends("worker.1.0", exitcode=-9).ends("core.1", exitcode=1).lab(
        beside=[Beside(engine=1, served=False, touched=["rt-9"])])


@silent("two-on-one-host")
def there_is_no_neighbour() -> Builder:
    return history().started()


# -- start and drain


def _starting() -> Builder:
    return history().observes("frontend.0", "starting").observes("worker.1", "born", pid=3)


@accepts("start-ends")
def a_worker_dies_while_loading_and_the_start_fails() -> Builder:
    h = _starting().fires("kill", "worker.1/mark:loading").wait(.1)
    return h.observes("frontend.0", "start-failed", error="StartupError", reason="worker.1 died").wait(.2).ends(
        "core.0", "worker.0", "worker.1")


@accepts("start-ends")
def ready_comes_late_and_the_engine_is_not_given_up() -> Builder:
    h = _starting().fires("delay", "core.0->frontend.0/handshake:receive", until=Until(seconds=1)).wait(1).releases()
    return h.observes("frontend.0", "ready", num_gpu_blocks=8)


@rejects("start-ends")
def an_escaped_key_error_names_nothing() -> Builder:
    return _starting().fires("kill", "worker.1/mark:loading").wait(.1).observes(
        "frontend.0", "start-failed", error="KeyError", reason="'addresses'")


@rejects("start-ends")
def one_child_fails_and_another_goes_on() -> Builder:
    return _starting().fires("kill", "worker.1/mark:loading").wait(.1).observes(
        "frontend.0", "start-failed", error="StartupError", reason="worker.1 died").wait(9).ends(
        "worker.0", killed_by_lab=True)


@rejects("start-ends")
def the_engine_is_ready_without_its_worker() -> Builder:
    return _starting().fires("kill", "worker.1/mark:loading").wait(.1).observes("frontend.0", "ready", num_gpu_blocks=8)


def _answers_the_start(h: Builder, *ranks: int) -> Builder:
    h.observes("core.0", "rpc-call", call=0, method="get_num_blocks", output_rank=None)
    for rank in ranks:
        h.observes("core.0", "rpc-reply", call=0, rank=rank, status=0)
    return h


@accepts("start-ends")
def a_worker_dies_when_it_has_answered_all_that_the_start_asks() -> Builder:
    h = _answers_the_start(_starting(), 0, 1).fires("kill", "worker.1/response:doorbell")
    return h.observes("core.0", "ready", num_gpu_blocks=8).observes("frontend.0", "ready", num_gpu_blocks=8)


@rejects("start-ends")
def a_worker_dies_before_it_has_answered_and_the_engine_is_ready() -> Builder:
    h = _answers_the_start(_starting(), 0).fires("kill", "worker.1/response:doorbell")
    return h.observes("core.0", "ready", num_gpu_blocks=8).observes("frontend.0", "ready", num_gpu_blocks=8)


@rejects("start-ends")
def the_start_fails_and_nothing_had_befallen_it() -> Builder:
    return _starting().observes("frontend.0", "start-failed", error="StartupError", reason="path too long")


@silent("start-ends")
def a_start_is_ready_and_nothing_befell_it() -> Builder:
    return history().started()


@accepts("start-ends")
def a_configuration_is_refused() -> Builder:
    return _starting().observes("frontend.0", "start-failed", error="ConfigError", reason="no such model")


def _a_worker_gives_up(told: str) -> Builder:
    h = _starting().fires("raise", "worker.1/mark:loading")
    h.observes("worker.1", "bye", reason="could not start: planted by the plan")
    return h.observes("frontend.0", "start-failed", error="StartupError", reason=f"worker.1 {told}")


@accepts("start-ends")
def what_a_worker_could_not_start_by_is_told() -> Builder:
    return _a_worker_gives_up("could not start: planted by the plan")


@rejects("start-ends")
def what_a_worker_could_not_start_by_is_not_told() -> Builder:
    return _a_worker_gives_up("died while starting (exit code 1)")


def _both_lose_patience(after: float, *, heard: bool = False, world: str = "engine") -> Builder:
    """A core, and who started it `after` that, each for a reason of its own."""
    h = history(world).observes("frontend.0", "starting").fires("drop", "core.0->frontend.0/handshake:receive")
    h.wait(2).observes("core.0", "dying", reason="CollectiveError: core.1 did not come", queued=0)
    if heard:
        h.crosses("core.0->frontend.0/birth:receive", word="failed")
    return h.wait(after).observes("frontend.0", "start-failed", error="StartupError", reason="core.1 said no HELLO")


@accepts("start-ends")
def who_started_it_had_not_heard_yet_why_a_core_gave_up() -> Builder:
    return _both_lose_patience(.05)


@rejects("start-ends")
def who_started_it_has_heard_why_a_core_gave_up() -> Builder:
    return _both_lose_patience(.05, heard=True)


@rejects("start-ends")
def who_started_it_never_hears_why_a_core_gave_up() -> Builder:
    return _both_lose_patience(.6)


@rejects("start-ends")
def who_started_it_hears_at_once_where_time_is_virtual() -> Builder:
    return _both_lose_patience(.05, world="sim")


@accepts("start-ends")
def another_worker_died_before_one_could_not_start() -> Builder:
    h = _starting().fires("kill", "worker.0/mark:loading").ends("worker.0", exitcode=-9).wait(.1)
    h.fires("raise", "worker.1/mark:loading").observes("worker.1", "bye", reason="could not start: planted by the plan")
    return h.observes("frontend.0", "start-failed", error="StartupError", reason="worker.0 died while starting")


@rejects("start-ends")
def a_worker_is_said_to_have_died_that_lives() -> Builder:
    h = _starting().fires("corrupt", "worker.1->core.0/birth:receive", node="core.0").observes(
        "core.0", "bad-frame", edge="birth", error="its checksum is wrong")
    return h.observes("frontend.0", "start-failed", error="StartupError", reason="worker.1 died while starting").wait(2)


@rejects("start-ends")
def the_start_fails_long_after_its_bound() -> Builder:
    return _starting().fires("kill", "worker.1/mark:loading").wait(9).observes(
        "frontend.0", "start-failed", error="StartupError", reason="worker.1 died")


def _terminated() -> Builder:
    h = history().started().called("a").streams("a", [7]).fires("terminate", "core.0/mark:step")
    return h.observes("core.0", "draining", running=1, waiting=0, deadline=h.now + 1)


@accepts("drain")
def a_running_request_finishes_after_sigterm() -> Builder:
    return _terminated().wait(.1).streams("a", [8, 9], offset=1).ended("a")


@accepts("drain")
def a_running_request_is_aborted_at_the_deadline() -> Builder:
    return _terminated().wait(1.01).ended("a", "failed", error="RequestError", may_have_taken_effect=True)


@accepts("drain")
def what_cannot_be_served_is_told_so_before_the_deadline() -> Builder:
    return _terminated().ended("a", "failed", error="BadRequestError")


@rejects("drain")
def what_could_be_served_fails_before_the_deadline() -> Builder:
    return _terminated().ended("a", "failed", error="RequestError")


def _aborted_at_the_deadline(*marks: str) -> Builder:
    h = _terminated()
    for mark in marks:
        h.crosses(f"core.0/mark:{mark}")
    h = h.wait(1.01).ended("a", "failed", error="RequestError", may_have_taken_effect=True)
    return h.observes("core.0", "dying", reason="SIGTERM", queued=0)


@accepts("drain")
def who_is_aborted_at_the_deadline_ran_until_then() -> Builder:
    return _aborted_at_the_deadline("step", "step")


def _given_up(reason: str) -> Builder:
    h = _terminated()
    if not reason:
        h.observes("frontend.0", "abort", request="a")
    h.observes("core.0", "request", request="a-0", action="abort", reason=reason)
    return h.ended("a", "aborted").observes("core.0", "dying", reason="SIGTERM", queued=0)


@accepts("drain")
def who_ran_is_given_up_by_its_caller_before_the_next_step() -> Builder:
    return _given_up("")


@rejects("drain")
def who_ran_is_given_up_by_the_core_before_the_next_step() -> Builder:
    return _given_up("drain deadline")


def _leaves_a_wave(*, outcome: str, goes_on: bool = True, patience_s: float = 1.0) -> Builder:
    """The second core has nothing to do itself; whether it made a forward since the first one took a request."""
    h = history(tp=1, topology=data_parallel(2, tp=1, lockstep=True)).started().called("a").wait(.01)
    if goes_on:
        h.crosses("core.1/mark:dummy", wave=0, step=1).wait(.01)
    h.fires("terminate", "core.1/mark:step", node="core.1")
    h.observes("core.1", "draining", running=0, waiting=0, deadline=h.now + patience_s)
    return h.wait(.01).ended("a", outcome)


@accepts("drain")
def who_is_served_in_step_with_a_core_that_leaves_is_served_to_the_end() -> Builder:
    return _leaves_a_wave(outcome="finished")


@silent("drain")
def a_core_leaves_its_wave_at_its_deadline() -> Builder:
    return _leaves_a_wave(outcome="engine-dead", patience_s=0.0)


@silent("drain")
def a_core_leaves_that_has_not_heard_of_a_wave() -> Builder:
    return _leaves_a_wave(outcome="engine-dead", goes_on=False)


@rejects("drain")
def a_core_leaves_its_wave_and_takes_another_one_with_it() -> Builder:
    return _leaves_a_wave(outcome="engine-dead")


@rejects("drain")
def a_paused_core_makes_no_step_for_those_who_ran() -> Builder:
    return _aborted_at_the_deadline()


@accepts("drain", "memory-bounded")
def a_new_request_is_refused() -> Builder:
    return _terminated().observes("frontend.0", "call", request="b", index=1).observes(
        "frontend.0", "accepted", request="b", internal="b-0").observes(
        "core.0", "request", request="b-0", action="refused", reason="draining").ended(
        "b", "refused", error="RefusedError", reason="the engine is draining").ended("a")


@rejects("drain")
def the_core_leaves_at_sigterm_with_the_work_in_its_hands() -> Builder:
    return history().started().called("a").fires("terminate", "core.0/mark:step").wait(.05).ends("core.0").dies("a")


@rejects("drain")
def who_runs_at_the_deadline_hears_of_the_end_only() -> Builder:
    return _terminated().wait(1.01).observes("core.0", "dying", reason="SIGTERM", queued=0).dies("a")


@rejects("drain")
def a_draining_core_takes_new_work() -> Builder:
    return _terminated().called("b", 1).ended("a").ended("b")


@rejects("drain")
def a_request_outlives_the_drain_deadline() -> Builder:
    return _terminated().wait(5).ended("a")


# -- overload


@accepts("memory-bounded")
def excess_is_refused_by_name() -> Builder:
    h = history().started().observes("frontend.0", "call", request="e", index=0)
    return h.ended("e", "refused", error="RefusedError", reason="4 requests are in flight").observes(
        "frontend.0", "load", requests=4, bytes=100, max_requests=4, max_bytes=64 << 20)


@rejects("memory-bounded")
def more_is_held_than_the_limit_allows() -> Builder:
    return history().started().observes("frontend.0", "load", requests=5, bytes=0, max_requests=4, max_bytes=1)


@rejects("memory-bounded")
def the_limit_was_switched_off() -> Builder:
    return history(limits=LimitsConfig(max_requests=2)).started().observes(
        "frontend.0", "load", requests=1, bytes=0, max_requests=1 << 60)


@rejects("memory-bounded")
def a_request_is_refused_without_saying_why() -> Builder:
    return history().started().observes("frontend.0", "call", request="e", index=0).ended("e", "refused", reason="")


@silent("memory-bounded")
def the_load_is_light() -> Builder:
    return history().started().observes("frontend.0", "load", requests=1, bytes=9, max_requests=4, max_bytes=64 << 20)


def _leaves(*course: str) -> Builder:
    """A client that says this of its life, in this order."""
    h = history().lab(leftovers_checked_at=3.0)
    for word in course:
        if word == "dying":
            h.crosses("frontend.0/mark:dying")
        else:
            h.observes("frontend.0", word, segments=["ringtwin-1-"], paths=[], num_gpu_blocks=8)
    return h


@accepts("nothing-left-behind")
def a_client_tells_of_its_whole_life() -> Builder:
    return _leaves("starting", "born", "ready", "closing", "dying", "closed", "bye")


@rejects("nothing-left-behind")
def a_client_serves_and_never_said_that_it_starts() -> Builder:
    return _leaves("born", "ready", "closing", "dying", "closed", "bye")


@rejects("nothing-left-behind")
def a_client_leaves_and_never_said_that_it_has_closed() -> Builder:
    return _leaves("starting", "born", "ready", "closing", "dying", "bye")


@rejects("nothing-left-behind")
def a_client_has_closed_before_it_gave_anything_back() -> Builder:
    return _leaves("starting", "born", "ready", "closing", "closed", "dying", "bye")
