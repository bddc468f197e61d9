"""Histories about the law, of what a core or a worker keeps silent about."""

from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects

LAW = "nothing-without-cause"


def _loses_a_worker(*said: str, reason: str = "PeerDeadError: worker.1 (pid 7) died") -> Builder:
    h = history().started().fires("kill", "worker.1/mark:executing").ends("worker.1", exitcode=-9)
    for what in said:
        h.observes("core.0", what, reason="worker.1 (pid 7) died")
    return h.observes("core.0", "dying", reason=reason, queued=0)


@accepts(LAW)
def a_core_says_that_its_worker_is_gone() -> Builder:
    return _loses_a_worker("worker-gone")


@accepts(LAW)
def a_core_finds_its_worker_gone_when_a_call_has_failed() -> Builder:
    return _loses_a_worker(reason="worker.1 (pid 7) died; worker.0 failed in execute_model: no peer")


@rejects(LAW)
def a_core_does_not_say_that_its_worker_is_gone() -> Builder:
    return _loses_a_worker()


def _waits_for_room(node: str, ring: str, marks: int, waits: int = 1) -> Builder:
    h = history().started().request("a", tokens=[[7], [8], [9]])
    for _ in range(marks):
        h.crosses(f"{node}/mark:ring-full", ring=ring)
    for _ in range(waits):
        h.observes(node, "queue-wait", ring=ring, began=h.now, ended=h.now, deadline=None, outcome="ok")
    return h


@accepts(LAW)
def a_core_waits_for_room_at_its_mark() -> Builder:
    return _waits_for_room("core.0", "rpc", 1)


@accepts(LAW)
def a_worker_waits_for_calls_and_has_no_mark_for_that() -> Builder:
    return _waits_for_room("worker.1", "rpc", 0)


@accepts(LAW)
def a_worker_is_killed_while_it_waits_for_room() -> Builder:
    return _waits_for_room("worker.1", "response.1", 1, waits=0)


@rejects(LAW)
def a_core_waits_for_room_and_passes_no_mark() -> Builder:
    return _waits_for_room("core.0", "rpc", 1, waits=2)


@rejects(LAW)
def a_worker_waits_for_room_and_passes_no_mark() -> Builder:
    return _waits_for_room("worker.1", "response.1", 0)


def _leaves_and_is_heard(exitcode: int, *said: str, closed: bool = False) -> Builder:
    h = history().started().fires("raise", "core.0/mark:executed").observes("core.0", "dying", reason="x", queued=0)
    h.observes("frontend.0", "dead-notice")
    if closed:
        h.observes("frontend.0", "closing")
    for what in said:
        h.observes("core.0", what, reason="x")
    return h.ends("core.0", exitcode=exitcode)


@accepts(LAW)
def a_core_that_was_heard_to_leave_leaves() -> Builder:
    return _leaves_and_is_heard(0, "bye")


@accepts(LAW)
def a_core_that_was_heard_to_leave_is_ended_by_a_client_that_is_closed() -> Builder:
    return _leaves_and_is_heard(-9, closed=True)


@rejects(LAW)
def a_core_that_was_heard_to_leave_is_ended() -> Builder:
    return _leaves_and_is_heard(-9)


def _cannot_read(*ends: str, answered: bool = False) -> Builder:
    """Rank 1 says that it cannot read a call, into whose memory somebody has written; what the core says to that."""
    h = history().started().fires("corrupt", "core.0/rpc:store.data").called("a")
    h.observes("core.0", "rpc-call", call=0, method="execute_model", output_rank=0)
    if answered:
        h.observes("core.0", "rpc-reply", call=0, rank=0, status=0)
    h.observes("core.0", "rpc-reply", call=-1, rank=1, status=1)
    for what in ends:
        h.observes("core.0", what, call=0, rank=1, error="unreadable RPC")
    return h.dies("a")


@accepts(LAW)
def a_call_that_a_rank_cannot_read_has_failed() -> Builder:
    return _cannot_read("rpc-failed")


@accepts(LAW)
def a_call_that_a_rank_could_not_read_is_over() -> Builder:
    return _cannot_read(answered=True)


@rejects(LAW)
def a_call_that_a_rank_cannot_read_is_waited_for() -> Builder:
    return _cannot_read()


@rejects(LAW)
def a_client_that_was_closed_is_closed_again() -> Builder:
    h = history().started().request("a", tokens=[[7], [8], [9]])
    return h.observes("frontend.0", "closing", kept={}).observes("frontend.0", "closing", kept={})


def _fails_in_its_second_step(*told: int | None) -> Builder:
    """Of three that it has scheduled."""
    h = history(max_concurrent_batches=2).started().called("a").fires("raise", "worker.1/mark:executing")
    for step in range(3):
        h.crosses("core.0/mark:scheduled", step=step, tokens=2)
        if step == 0:
            h.crosses("core.0/mark:executed", step=step)
    for step in told:
        h.observes("core.0", "step-failed", step=step, error="RpcError: worker.1 failed in execute_model: it fell off")
    return h.observes("core.0", "dying", reason="worker.1 failed in execute_model: it fell off", queued=0).dies("a")


@accepts(LAW)
def a_core_says_which_step_it_fails_by() -> Builder:
    return _fails_in_its_second_step(1)


@rejects(LAW)
def a_core_does_not_say_which_step_it_fails_by() -> Builder:
    return _fails_in_its_second_step()


@rejects(LAW)
def a_core_says_that_it_fails_by_a_step_that_was_used() -> Builder:
    return _fails_in_its_second_step(0)


@rejects(LAW)
def a_core_says_that_it_fails_by_a_step_that_it_never_scheduled() -> Builder:
    return _fails_in_its_second_step(3)
