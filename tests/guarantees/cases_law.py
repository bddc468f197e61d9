"""Histories about the law that nothing happens without a cause. Its rows have theirs in tests/law."""

from tests.guarantees.build import REQUESTS, Builder, history
from tests.guarantees.cases import accepts, rejects, silent

LAW = "nothing-without-cause"


@accepts(LAW)
def all_is_served() -> Builder:
    return history().started().request("a").request("b", 1)


@accepts(LAW)
def a_request_is_lost_by_the_plan_and_fails() -> Builder:
    h = history().started().called("a", core=False).carries(REQUESTS, "add a")
    return h.fires("drop", f"{REQUESTS}:receive").wait(2).ended("a", "failed", error="RequestTimeoutError")


@accepts(LAW)
def a_caller_dies_with_its_request_open() -> Builder:
    return history().started().called("a").fires("kill", "frontend.0/mark:born", node="frontend.0").ends("frontend.0")


@rejects(LAW)
def a_request_of_a_calm_play_times_out() -> Builder:
    return history().started().request("a").called("b").wait(2).ended("b", "failed", error="RequestTimeoutError")


@rejects(LAW)
def a_request_of_a_calm_play_never_ends() -> Builder:
    return history().started().called("a")


@rejects(LAW)
def a_worker_falls_over() -> Builder:
    return history().started().request("a").ends("worker.1", exitcode=1)


@rejects(LAW)
def a_core_falls_over_while_it_leaves() -> Builder:
    h = history().started().request("a").observes("frontend.0", "closing").observes("core.0", "bye", reason="SIGTERM")
    return h.ends("core.0", exitcode=139)


@rejects(LAW)
def a_frame_of_a_calm_play_cannot_be_read() -> Builder:
    return history().started().request("a").observes("core.0", "bad-frame", edge=REQUESTS, error="no request")


@rejects(LAW)
def a_thread_ends_in_silence() -> Builder:
    return history().started().request("a").observes("core.0", "thread-ended", thread="input", why="done")


@rejects(LAW)
def a_thread_falls_over() -> Builder:
    return history().started().request("a").observes("core.0", "thread-ended", thread="output", why="failed")


@rejects(LAW)
def a_thread_runs_without_end() -> Builder:
    """Whatever befell its engine: no fault makes a loop of it that does not end."""
    h = history().started().called("a").fires("kill", "worker.1/mark:born").ends("worker.1", exitcode=-9)
    return h.observes("core.0", "thread-ended", thread="main", why="endless").dies("a")


@accepts(LAW)
def the_threads_of_a_core_that_leaves_end() -> Builder:
    h = history().started().request("a").observes("frontend.0", "closing").observes("core.0", "dying", reason="SIGTERM")
    return h.observes("core.0", "thread-ended", thread="output", why="done").observes(
        "core.0", "thread-ended", thread="input", why="cancelled")


@rejects(LAW)
def the_thread_that_reads_requests_ends_by_itself() -> Builder:
    h = history().started().request("a").observes("frontend.0", "closing").observes("core.0", "dying", reason="SIGTERM")
    return h.observes("core.0", "thread-ended", thread="input", why="done")


@rejects(LAW)
def an_idle_core_keeps_a_step_of_what_is_over() -> Builder:
    return history().started().request("a").observes(
        "core.0", "blocks", free=8, used=0, cached=0, total=8, requests=0, errors=[], kept={"in_flight": 1, "calls": 0})


@rejects(LAW)
def a_client_does_not_say_what_it_found_in_its_books() -> Builder:
    return history().started().request("a").observes("frontend.0", "closing", kept={}, errors=None)


@rejects(LAW)
def a_client_keeps_the_bytes_of_what_is_over() -> Builder:
    return history().started().request("a").observes("frontend.0", "closing", kept={"requests": 0, "bytes": 17})


def _idle(untold: bool) -> Builder:
    h = history().started().request("a").observes("core.0", "rpc-call", call=4, method="execute_model")
    h.executes("worker.1", call=4, method="execute_model").observes(
        "core.0", "blocks", free=8, used=0, cached=0, total=8, requests=0, errors=[], untold=untold)
    return h.observes("frontend.0", "closing").observes("worker.1", "parent-gone", kept={"requests": 1})


@rejects(LAW)
def a_worker_that_made_no_step_knows_a_request() -> Builder:
    h = history().started().request("a").executes("worker.1", call=0, method="get_num_blocks")
    return h.observes("frontend.0", "closing").observes("worker.1", "parent-gone", kept={"requests": 1})


@rejects(LAW)
def a_worker_is_gone_that_nobody_has_asked_to_leave() -> Builder:
    return history().started().request("a").observes("frontend.0", "closing").observes(
        "core.0", "worker-gone", reason="worker.1 (pid 7) died")


@accepts(LAW)
def a_worker_is_gone_that_was_killed() -> Builder:
    return history().started().called("a").fires("kill", "worker.1/mark:executing").ends("worker.1").observes(
        "core.0", "worker-gone", reason="worker.1 (pid 7) died").dies("a")


@rejects(LAW)
def the_wait_of_a_calm_core_is_cancelled() -> Builder:
    return history().started().request("a").observes(
        "core.0", "queue-wait", ring="response", began=1.0, ended=1.1, deadline=2.0, outcome="cancelled")


@rejects(LAW)
def a_worker_was_never_told_that_a_request_is_over() -> Builder:
    return _idle(untold=False)


@accepts(LAW)
def a_worker_is_still_to_be_told_when_its_engine_is_shut_down() -> Builder:
    return _idle(untold=True)


@accepts(LAW)
def a_client_closes_with_a_request_open() -> Builder:
    h = history().started().called("a").observes("frontend.0", "closing", kept={"requests": 1, "bytes": 17})
    return h.dies("a")


@rejects(LAW)
def a_segment_stays_behind() -> Builder:
    return history().started().request("a").lab(leftovers=["segment /dev/shm/ringtwin-e0-rpc"])


@rejects(LAW)
def a_request_is_refused_with_room_for_more() -> Builder:
    return history().started().called("a", core=False).ended("a", "refused", error="RefusedError")


@silent(LAW)
def nobody_asks_for_anything() -> Builder:
    return history().started()


def _client_leaves(*said: str) -> Builder:
    """A client that leaves on its own feet and has said no more than this."""
    h = history().request("a")
    for name in said:
        h.observes("frontend.0", name)
    return h.observes("frontend.0", "bye", reason="done").ends("frontend.0")


_ALL = ("starting", "born", "closing", "closed")


@accepts(LAW)
def a_client_leaves_and_has_told_all() -> Builder:
    return _client_leaves(*_ALL)


@rejects(LAW)
def a_client_leaves_and_has_not_told_how_it_closed() -> Builder:
    return _client_leaves("starting", "born", "closing")


@rejects(LAW)
def a_client_tells_its_callers_of_a_death_and_not_the_judges() -> Builder:
    h = history().called("a").fires("kill", "core.0/mark:step").dies("a")
    for name in _ALL:
        h.observes("frontend.0", name)
    return h.observes("frontend.0", "bye", reason="done").ends("frontend.0")


@rejects(LAW)
def a_call_of_the_core_is_never_answered() -> Builder:
    return history().started().request("a").observes("frontend.0", "over", unanswered=1)


def _asked_for_its_engine(errored: bool) -> Builder:
    h = history().started().called("a").fires("kill", "core.0/mark:step").ends("core.0", exitcode=-9)
    h.observes("frontend.0", "engine-dead", reason="core.0 died (exit code -9)").dies("a")
    return h.observes("frontend.0", "over", unanswered=0, errored=errored)


@accepts(LAW)
def a_client_says_that_its_engine_is_dead() -> Builder:
    return _asked_for_its_engine(True)


@rejects(LAW)
def a_client_says_that_its_engine_lives_whose_death_it_has_told() -> Builder:
    return _asked_for_its_engine(False)


@rejects(LAW)
def a_client_does_not_tell_that_a_message_stayed_with_it() -> Builder:
    h = history().called("a", core=False).fires("cut", f"{REQUESTS}:wire").observes(
        "frontend.0", "not-sent", site=f"{REQUESTS}:send", nth=1)
    return h.ended("a", "failed", error="UnroutableError")


def _stays_before_it_is_gone(after_s: float) -> Builder:
    """The lab sees the end of a core so long after its client has."""
    h = history("engine").started().called("a", core=False).fires("raise", "core.0/mark:step").observes(
        "frontend.0", "not-sent", site=f"{REQUESTS}:send", nth=1)
    return h.wait(after_s).ends("core.0", exitcode=1).observes(
        "frontend.0", "engine-dead", reason="core.0 died (exit code 1)").dies("a")


@accepts(LAW)
def a_real_client_knows_of_an_end_before_the_lab_does() -> Builder:
    return _stays_before_it_is_gone(0.01)


@rejects(LAW)
def a_real_client_keeps_a_message_for_itself_long_before_the_end() -> Builder:
    return _stays_before_it_is_gone(0.5)


def _core_leaves(with_goodbye: bool) -> Builder:
    h = history().started().request("a").observes("frontend.0", "closing", kept={"requests": 0})
    h.observes("core.0", "dying", reason="SIGTERM", queued=0)
    return (h.observes("core.0", "bye", reason="SIGTERM") if with_goodbye else h).ends("core.0")


@accepts(LAW)
def a_core_says_goodbye_when_it_has_left() -> Builder:
    return _core_leaves(True)


@rejects(LAW)
def a_core_is_gone_in_the_middle_of_its_leaving() -> Builder:
    return _core_leaves(False)


def _core_is_no_more(with_goodbye: bool) -> Builder:
    """What it ended with nobody knows but who started it."""
    h = history().started().request("a").observes("frontend.0", "closing", kept={"requests": 0})
    return (h.observes("core.0", "bye", reason="SIGTERM") if with_goodbye else h).wait(2).ends("core.0", exitcode=None)


@accepts(LAW)
def a_core_of_a_client_that_closes_has_left() -> Builder:
    return _core_is_no_more(True)


@rejects(LAW)
def a_core_of_a_client_that_closes_is_not_asked_to_leave_and_is_killed() -> Builder:
    return _core_is_no_more(False)


@rejects(LAW)
def a_client_whose_books_are_wrong_closes() -> Builder:
    h = history().started().request("a")
    return h.observes("frontend.0", "closing", kept={"requests": 0}, errors=["bytes in flight do not add up"])


def _books(**books: object) -> Builder:
    return history().started().request("a").observes(
        "core.0", "blocks", **{"free": 8, "used": 0, "cached": 0, "total": 8, "requests": 0, "errors": [], **books})


@accepts(LAW)
def an_idle_core_has_looked_at_its_books() -> Builder:
    return _books(kept={"calls": 0})


@rejects(LAW)
def an_idle_core_does_not_say_whether_its_books_are_right() -> Builder:
    return _books(errors=None)


@rejects(LAW)
def an_idle_core_does_not_know_how_many_calls_it_keeps() -> Builder:
    return _books(kept={"calls": None})


def _leaves(reason: str, what: str = "dying", node: str = "core.0", **data: object) -> Builder:
    """A rank raises by the plan, and its engine ends: that explains each end, and no error of a process's own."""
    h = history().started().called("a").fires("raise", "worker.1/mark:executing")
    field = "reason" if what in ("dying", "bye") else "error"
    return h.observes(node, what, **{field: reason, **data}).dies("a")


@accepts(LAW)
def a_core_says_which_rank_raised_what() -> Builder:
    return _leaves("worker.1 failed in execute_model: RuntimeError: planted by the plan", queued=0)


@rejects(LAW)
def a_core_falls_over_what_a_rank_has_told_it() -> Builder:
    return _leaves("TypeError: 'NoneType' object is not iterable", queued=0)


@rejects(LAW)
def a_core_falls_over_behind_the_name_of_who_died() -> Builder:
    return _leaves("worker.1 (pid 9) died; KeyError: 3", queued=0)


@rejects(LAW)
def a_rank_falls_over_a_step() -> Builder:
    return _leaves("IndexError: index out of range in self", "rpc-raised", "worker.0", call=3, method="execute_model")


@rejects(LAW)
def a_worker_falls_over_on_its_way_out() -> Builder:
    return _leaves("AttributeError: 'NoneType' object has no attribute 'x'", "bye", "worker.0")


@rejects(LAW)
def a_thread_of_a_core_falls_over_beside_its_end() -> Builder:
    return _leaves("AssertionError", "thread-ended", thread="output", why="failed")


def _asks_for(failure: str) -> Builder:
    return history().started().request("a").observes(
        "frontend.0", "utility", method="no_such_call", args=[], ticket=1, failure=failure, result=None)


@accepts(LAW)
def a_caller_is_told_that_there_is_no_such_call() -> Builder:
    return _asks_for("unknown utility 'no_such_call'; known: ping")


@rejects(LAW)
def a_caller_is_told_what_python_says_of_no_such_call() -> Builder:
    return _asks_for("no_such_call: 'NoneType' object is not callable")


@rejects(LAW)
def a_caller_is_told_of_an_error_that_nobody_wrote() -> Builder:
    h = history().started().called("a").fires("kill", "worker.1/mark:executing").ends("worker.1", exitcode=-9)
    return h.ended("a", "engine-dead", error="KeyError", reason="worker.1 died")


def _damaged_calls(*calls: int) -> Builder:
    """A rank reads a ring whose memory is written over; its engine ends."""
    h = history().started().called("a").fires("corrupt", "core.0/rpc:store.data")
    for call in calls:
        h.executes("worker.0", call=call, method="check_health")
    return h.dies("a")


@accepts(LAW)
def a_rank_executes_what_it_can_read() -> Builder:
    return _damaged_calls(0, 1, 3)


@rejects(LAW)
def a_rank_executes_once_more_what_it_has_read_before() -> Builder:
    return _damaged_calls(0, 1, 1)
