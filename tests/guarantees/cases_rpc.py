"""Histories about calls of the workers: their numbers, their deadlines, and who answers what."""

from tests.guarantees.build import RESPONSE, Builder, history
from tests.guarantees.cases import accepts, rejects

CORE = "core.0"


def _calls(*output_ranks: int | None, first: int = 0, method: str = "m") -> Builder:
    h = history().started()
    for call, rank in enumerate(output_ranks, start=first):
        h.observes(CORE, "rpc-call", call=call, method=method, output_rank=rank)
    return h


def _executes(h: Builder, rank: int, call: int, *, answers: int = 1, raises: bool = False) -> Builder:
    """A rank executes a call, and answers it so many times."""
    h.executes(f"worker.{rank}", call=call, method="m")
    if raises:
        h.observes(f"worker.{rank}", "rpc-raised", call=call, method="m", error="ValueError: x")
    for _ in range(answers):
        position = sum(record.site.endswith("response:send") for record in h.records[f"worker.{rank}", 0])
        h.writes(RESPONSE[rank], position, stores=False).reads(RESPONSE[rank], position, stores=False)
    return h


def _takes(h: Builder, rank: int, call: int, status: int = 0) -> Builder:
    return h.observes(CORE, "rpc-reply", call=call, rank=rank, status=status)


def _both_answer(h: Builder, call: int) -> Builder:
    for rank in (0, 1):
        _takes(_executes(h, rank, call), rank, call)
    return h


@accepts("rpc-matched")
def both_ranks_answer_what_both_were_asked() -> Builder:
    return _both_answer(_both_answer(_calls(None, None), 0), 1)


@accepts("rpc-matched")
def a_rank_that_raises_answers_what_it_was_not_asked_to() -> Builder:
    h = _both_answer(_calls(None, 0), 0)
    return _takes(_executes(h, 1, 1, raises=True), 1, 1, status=1).observes(CORE, "rpc-failed", call=1, rank=1)


@rejects("rpc-matched")
def a_failure_is_not_told() -> Builder:
    return _takes(_executes(_both_answer(_calls(None, 0), 0), 1, 1, raises=True), 1, 1, status=1)


@accepts("rpc-matched")
def a_core_is_killed_as_it_reads_a_failure() -> Builder:
    return a_failure_is_not_told().ends(CORE, exitcode=-9)


@rejects("rpc-matched")
def a_core_that_is_killed_long_after_a_failure_has_not_told_it() -> Builder:
    return a_failure_is_not_told().wait(3).ends(CORE, exitcode=-9)


@rejects("rpc-matched")
def a_core_goes_on_with_a_failure_untold_before_it_is_killed() -> Builder:
    return a_failure_is_not_told().crosses(f"{CORE}/mark:step").ends(CORE, exitcode=-9)


@rejects("rpc-matched")
def the_failure_of_a_rank_is_told_as_that_of_another_one() -> Builder:
    h = _both_answer(_calls(None, 0), 0)
    return _takes(_executes(h, 1, 1, raises=True), 1, 1, status=1).observes(CORE, "rpc-failed", call=1, rank=0)


@accepts("rpc-matched")
def a_rank_fails_when_its_call_is_over() -> Builder:
    h = _takes(_executes(_both_answer(_calls(None, 0), 0), 0, 1), 0, 1)
    return _takes(_executes(h, 1, 1, raises=True), 1, 1, status=1)


@rejects("rpc-matched")
def an_answer_comes_of_a_rank_that_there_is_none_of() -> Builder:
    return _takes(_both_answer(_calls(None), 0), 2, 0)


@rejects("rpc-matched")
def a_step_is_executed_that_nobody_was_asked_to() -> Builder:
    return _both_answer(_calls(None, None), 0).crosses(f"{CORE}/mark:executed")


@rejects("rpc-matched")
def calls_are_not_numbered_from_the_first_one_on() -> Builder:
    return _takes(_executes(_calls(None, first=1), 0, 1), 0, 1)


@rejects("rpc-matched")
def a_rank_answers_what_it_was_not_asked_to() -> Builder:
    return _takes(_executes(_executes(_calls(0, None), 1, 0), 1, 1), 1, 1)


@rejects("rpc-matched")
def a_rank_answers_twice() -> Builder:
    return _takes(_executes(_executes(_calls(None, None), 0, 0, answers=2), 0, 1), 0, 0)


@rejects("rpc-matched")
def a_rank_goes_on_without_having_answered() -> Builder:
    return _takes(_executes(_executes(_calls(None, None), 0, 0, answers=0), 0, 1), 0, 1)


@rejects("rpc-matched")
def a_failure_is_taken_for_a_result() -> Builder:
    return _takes(_executes(_calls(None), 0, 0, raises=True), 0, 0)


@rejects("rpc-matched")
def a_result_is_taken_for_a_failure() -> Builder:
    return _takes(_executes(_calls(None), 0, 0), 0, 0, status=1)


def _waits(h: Builder, seconds: float, began: float | None = None) -> Builder:
    """The core waits for an answer, until so long after its last call."""
    called_at = [record.at for record in h.records[CORE, 0] if record.site == "rpc-call"][-1]
    return h.observes(CORE, "queue-wait", ring="response", began=began or h.now, ended=h.now, outcome="ok",
                      deadline=called_at + seconds)


def _two_steps(told: int = 1, waits: bool = True, says: bool = True) -> Builder:
    """Two steps, each told so many times by who answers; then two more calls at once."""
    h = history().started()
    for call in (0, 1):
        began = h.now
        h.observes(CORE, "rpc-call", call=call, method="execute_model", output_rank=None)
        _both_answer(h, call)
        if waits:
            _waits(h, h.config.bounds.step_s, began)
        for _ in range(told):
            h.observes("worker.0", "step", **({"call": call, "step": call} if says else {}))
        h.crosses(f"{CORE}/mark:executed")
    began = h.now
    for call in (2, 3):
        h.observes(CORE, "rpc-call", call=call, method="m", output_rank=None)
    h = _both_answer(_both_answer(h, 2), 3)
    return _waits(h, h.config.bounds.rpc_s, began)


@accepts("rpc-matched")
def two_steps_are_told_and_waited_for() -> Builder:
    return _two_steps()


@rejects("rpc-matched")
def nobody_tells_what_a_step_asks_for() -> Builder:
    return _two_steps(told=0)


@rejects("rpc-matched")
def what_is_told_of_a_step_is_nothing() -> Builder:
    return _two_steps(says=False)


@rejects("rpc-matched")
def two_ranks_tell_what_a_step_asks_for() -> Builder:
    return _two_steps(told=2)


@rejects("rpc-matched")
def an_answer_takes_its_time_and_nobody_has_waited() -> Builder:
    return _two_steps(waits=False)


@accepts("rpc-matched")
def a_step_is_waited_for_until_its_deadline() -> Builder:
    h = _both_answer(_both_answer(_calls(None, None, method="execute_model"), 0), 1)
    return _waits(h, h.config.bounds.step_s)


@rejects("rpc-matched")
def a_wait_for_a_step_that_nobody_has_answered_is_called_well() -> Builder:
    h = _both_answer(_calls(None, None, method="execute_model"), 0)
    return _waits(h, h.config.bounds.step_s)


@rejects("rpc-matched")
def a_step_is_waited_for_as_long_as_a_start_may_take() -> Builder:
    h = _both_answer(_both_answer(_calls(None, None, method="execute_model"), 0), 1)
    return _waits(h, h.config.bounds.startup_s)
