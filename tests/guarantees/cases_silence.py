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


def _fails_in_its_second_step(*told: int | None, waits: bool = False, **says: object) -> Builder:
    """Of three that it has scheduled. `waits`: for an answer that does not come, in place of one that tells of it."""
    h = history(max_concurrent_batches=2).started().called("a").fires("raise", "worker.1/mark:executing")
    for step in range(3):
        h.crosses("core.0/mark:scheduled", step=step, tokens=2)
        h.observes("core.0", "rpc-call", call=step, method="execute_model", output_rank=0)
        h.observes("worker.0", "step", call=step, step=step, scheduled={"a": 1}, new=[], finished=["b"], preempted=[],
                   cached=[["a", [7], [], 4 + step]])
        if step == 0:
            h.crosses("core.0/mark:executed", step=step)
    error = "RpcTimeoutError: no answer to execute_model" if waits else \
        "RpcError: worker.1 failed in execute_model: it fell off"
    if waits:
        h.observes("core.0", "queue-wait", ring="response", began=h.now, ended=h.now, deadline=h.now, outcome="timeout")
    else:
        h.observes("core.0", "rpc-failed", call=1, rank=1, error=error)
    for step in told:
        data = {"behind": [number for number in (1, 2) if number != step], "stats": {"in_flight": 2}, "new": [],
                "cached": [["a", 1, 0, 4 + (step or 0)]], "scheduled": {"a": 1}, "left_out": 0, "finished": 1,
                "preempted": 0}
        h.observes("core.0", "step-failed", step=step, error=error, **data | says)
    return h.observes("core.0", "dying", reason=error.partition(": ")[2], queued=0).dies("a")


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


@accepts(LAW)
def a_core_says_which_step_it_waits_for_in_vain() -> Builder:
    return _fails_in_its_second_step(1, waits=True)


@rejects(LAW)
def a_core_says_that_it_waits_for_another_step_than_the_oldest() -> Builder:
    return _fails_in_its_second_step(2, waits=True)


@rejects(LAW)
def a_core_says_that_it_fails_by_another_step_than_the_one_of_the_call() -> Builder:
    return _fails_in_its_second_step(2)


@rejects(LAW)
def a_core_that_fails_by_a_step_counts_too_few_in_flight() -> Builder:
    return _fails_in_its_second_step(1, stats={"in_flight": 1})


@rejects(LAW)
def a_core_that_fails_by_a_step_leaves_out_who_was_in_flight_beside_it() -> Builder:
    return _fails_in_its_second_step(1, behind=[])


@rejects(LAW)
def a_core_that_fails_by_a_step_says_that_it_made_none() -> Builder:
    return _fails_in_its_second_step(None)


@rejects(LAW)
def a_core_that_fails_by_a_step_says_another_place_of_its_request() -> Builder:
    return _fails_in_its_second_step(1, cached=[["a", 1, 0, 4]])


@rejects(LAW)
def a_core_that_fails_by_a_step_leaves_out_its_tokens() -> Builder:
    return _fails_in_its_second_step(1, scheduled={})


@rejects(LAW)
def a_core_that_fails_by_a_step_says_nothing_of_ends_in_it() -> Builder:
    return _fails_in_its_second_step(1, finished=0)


def _cannot_read_its_second_call(*, said: int | None = 1, begins: bool = False, refuses: bool = True) -> Builder:
    """Worker 1 takes three calls, each a step. `said`: of which it says so; `begins`: with the one behind it."""
    h = history(max_concurrent_batches=2).started().called("a").fires("corrupt", "core.0/rpc:store.data")
    edge, answers = "core.0->worker.1/rpc", "worker.1->core.0/response"
    for call in range(3):
        h.observes("core.0", "rpc-call", call=call, method="execute_model", output_rank=None)
        h.writes(edge, call, stores=False).reads(edge, call, stores=False)
        if call == 1 and said is None:
            continue
        if call != 1 and (call == 0 or begins):
            h.executes("worker.1", call=call, method="execute_model", step=call)
        if call == 2 and refuses:
            h.observes("worker.1", "rpc-raised", call=call, method="execute_model",
                       error="RuntimeError: no step is executed behind one that failed (unreadable RPC: of no kind)")
        if call < 2 or begins:
            h.writes(answers, call, stores=False).reads(answers, call, stores=False)
            named = call if call != 1 or said is None else -1 - said
            h.observes("core.0", "rpc-reply", call=named, rank=1, status=int(call == 1))
            if call == 1:
                h.observes("core.0", "rpc-failed", call=1, rank=1, error="unreadable RPC: of no kind")
    return h.dies("a")


@accepts(LAW)
def a_rank_says_what_it_could_not_read_and_refuses_what_is_behind_it() -> Builder:
    return _cannot_read_its_second_call(begins=True)


@rejects(LAW)
def a_rank_says_of_a_call_that_it_executed_that_it_could_not_read_it() -> Builder:
    return _cannot_read_its_second_call(said=0)


@rejects(LAW)
def a_rank_could_not_read_a_call_and_takes_the_next_one() -> Builder:
    return _cannot_read_its_second_call(said=None)


@rejects(LAW)
def a_rank_could_not_read_a_step_and_begins_with_the_next_one() -> Builder:
    return _cannot_read_its_second_call(begins=True, refuses=False)


def _waits_for_a_worker_that_stands_still(*, out: bool, ended_s: float = 3.0) -> Builder:
    """A core that leaves. `out`: it comes so far, and else its client ends it so long after."""
    h = history().started().called("a").fires("stall", "worker.1/mark:executing")
    h.observes("core.0", "dying", reason="RpcTimeoutError: no answer to m", queued=0).ends("worker.1", exitcode=-9)
    if out:
        h.observes("core.0", "bye", reason="RpcTimeoutError: no answer to m")
    return h.dies("a").wait(ended_s).ends("core.0", exitcode=0 if out else -9)


@accepts(LAW)
def a_core_is_ended_while_a_worker_that_stands_still_has_its_time() -> Builder:
    return _waits_for_a_worker_that_stands_still(out=False, ended_s=2.4)


@accepts(LAW)
def a_core_kills_a_worker_that_stands_still_and_is_out() -> Builder:
    return _waits_for_a_worker_that_stands_still(out=True)


@rejects(LAW)
def a_core_waits_for_a_worker_that_stands_still_until_it_is_ended() -> Builder:
    return _waits_for_a_worker_that_stands_still(out=False)
