"""Histories about the ring, its queue and collective RPC."""

from faults.plan import Until
from tests.guarantees.build import RESPONSE, RPC, Builder, history
from tests.guarantees.cases import accepts, rejects, silent


def _messages(count: int, *, edge: str = RPC[1]) -> Builder:
    h = history().started()
    for position in range(count):
        h.writes(edge, position).reads(edge, position)
    return h


@accepts("ring-exact-prefix")
def the_ring_goes_round() -> Builder:
    return _messages(5)


@accepts("ring-exact-prefix")
def the_writer_dies_between_data_and_flag() -> Builder:
    h = _messages(1).crosses(f"{RPC[1]}:send", "m1", position=1, bytes=8, overflow=False)
    h.crosses("core.0/rpc:store.reset").crosses("core.0/rpc:store.data")
    return h.fires("kill", "core.0/rpc:store.written", nth=2)


@rejects("ring-exact-prefix")
def a_reader_takes_what_a_dead_writer_never_finished() -> Builder:
    h = _messages(1).crosses(f"{RPC[1]}:send", "m1", position=1, bytes=8, overflow=False)
    h.fires("kill", "core.0/rpc:store.written", nth=2)
    return h.reads(RPC[1], 1, "half of m1")


@rejects("ring-exact-prefix")
def a_reader_does_not_wait_for_the_flag_of_a_stopped_writer() -> Builder:
    h = _messages(1).crosses(f"{RPC[1]}:send", "m1", position=1, bytes=8, overflow=False)
    h.fires("stall", "core.0/rpc:store.written", nth=2, until=Until(seconds=0.5))
    return h.reads(RPC[1], 1).wait(0.5).releases()


@accepts("ring-exact-prefix")
def a_reader_waits_for_the_flag_of_a_stopped_writer() -> Builder:
    h = _messages(1).crosses(f"{RPC[1]}:send", "m1", position=1, bytes=8, overflow=False)
    h.fires("stall", "core.0/rpc:store.written", nth=2, until=Until(seconds=0.5))
    return h.wait(0.5).releases().reads(RPC[1], 1)


@rejects("ring-exact-prefix")
def a_busy_chunk_is_skipped() -> Builder:
    return _messages(2).writes(RPC[1], 2).writes(RPC[1], 3).reads(RPC[1], 3)


@rejects("ring-exact-prefix")
def a_stale_flag_gives_the_old_message_again() -> Builder:
    return _messages(2).writes(RPC[1], 2).reads(RPC[1], 2, "m0")


@rejects("ring-exact-prefix")
def a_message_that_nobody_wrote() -> Builder:
    return _messages(1).reads(RPC[1], 1)


@silent("ring-exact-prefix", "ring-no-overwrite", "ring-overflow-ordered", "ring-no-lost-wakeup", "ring-bounded-wait")
def two_messages_in_an_empty_ring() -> Builder:
    return _messages(2)


def _full() -> Builder:
    h = history().started().writes(RPC[1], 0).writes(RPC[1], 1)
    return h.crosses("core.0/mark:ring-full", ring="core.0/rpc")


@accepts("ring-no-overwrite", "edge-fifo")
def the_writer_waits_for_the_slowest_reader() -> Builder:
    return _full().reads(RPC[1], 0).writes(RPC[1], 2).reads(RPC[1], 1).reads(RPC[1], 2)


@rejects("ring-no-overwrite")
def the_writer_writes_over_what_a_reader_has_not_read() -> Builder:
    return _full().writes(RPC[1], 2).reads(RPC[1], 0)


@rejects("ring-no-overwrite", "ring-exact-prefix")
def a_reader_finds_the_message_that_was_written_over_its_own() -> Builder:
    h = history().started()
    for position in range(3):
        h.writes(RPC[1], position, stores=False)
    return h.reads(RPC[1], 0, "m2", stores=False)


@silent("ring-no-overwrite")
def a_dead_reader_is_not_waited_for() -> Builder:
    return history().started().writes(RPC[1], 0).writes(RPC[1], 1).fires(
        "kill", f"{RPC[1]}:receive").wait(0.01).writes(RPC[1], 2).wait(0.01)


@accepts("ring-overflow-ordered")
def an_overflow_is_read_before_its_successor() -> Builder:
    return history().started().writes(RPC[1], 0, overflow=True).writes(RPC[1], 1).reads(
        RPC[1], 0, overflow=True).reads(RPC[1], 1)


@accepts("ring-overflow-ordered")
def a_time_out_falls_between_flag_and_payload() -> Builder:
    h = history().started().writes(RPC[1], 0, overflow=True)
    h.observes("worker.1", "queue-wait", ring="core.0/rpc", began=h.now, deadline=h.now + .001, ended=h.now + .001,
               outcome="timeout")
    return h.reads(RPC[1], 0, overflow=True)


@accepts("ring-overflow-ordered")
def the_payload_comes_late() -> Builder:
    h = history().started().writes(RPC[1], 0, overflow=True)
    h.fires("delay", "core.0->worker.1/overflow:receive", until=Until(seconds=.1)).wait(.1).releases()
    return h.reads(RPC[1], 0, overflow=True)


@rejects("ring-overflow-ordered")
def the_ring_is_read_on_while_a_payload_is_under_way() -> Builder:
    return history().started().writes(RPC[1], 0, overflow=True).writes(RPC[1], 1).reads(RPC[1], 1).reads(
        RPC[1], 0, overflow=True)


@rejects("ring-overflow-ordered")
def the_next_payload_is_taken_for_the_one_before() -> Builder:
    return history().started().writes(RPC[1], 0, overflow=True).writes(RPC[1], 1, overflow=True).reads(
        RPC[1], 0, "m1", overflow=True)


@rejects("ring-overflow-ordered")
def a_burst_of_overflows_loses_one_at_the_high_water_mark() -> Builder:
    return history().started().writes(RPC[1], 0, overflow=True).writes(RPC[1], 1, overflow=True).reads(
        RPC[1], 0, overflow=True).wait(5)


def _slept(h: Builder, seconds: float, outcome: str = "ok", **data: object) -> Builder:
    """worker.1 tells of a wait that ends now and began so many seconds ago."""
    return h.observes("worker.1", "queue-wait", **{
        "ring": "core.0/rpc", "began": h.now - seconds, "deadline": None, "ended": h.now, "outcome": outcome, **data})


@accepts("ring-no-lost-wakeup")
def a_sleeping_reader_notices_although_its_doorbell_was_lost() -> Builder:
    h = history().started().wait(1).writes(RPC[1], 0).fires("drop", "core.0/rpc:doorbell").wait(.2)
    return _slept(h.reads(RPC[1], 0), .5)


@accepts("ring-no-lost-wakeup")
def a_sleeping_reader_is_woken() -> Builder:
    return _slept(history().started().wait(1).writes(RPC[1], 0).reads(RPC[1], 0), .5)


@rejects("ring-no-lost-wakeup")
def a_reader_whose_doorbell_was_lost_sleeps_on() -> Builder:
    return history().started().wait(1).writes(RPC[1], 0).fires("drop", "core.0/rpc:doorbell").wait(9)


@rejects("ring-no-lost-wakeup")
def a_reader_notices_long_after_the_recheck_bound() -> Builder:
    return _slept(history().started().wait(1).writes(RPC[1], 0).wait(.6).reads(RPC[1], 0), .8)


@accepts("ring-bounded-wait")
def a_wait_ends_by_its_deadline() -> Builder:
    h = history().started().wait(1)
    return _slept(h, .5, "timeout", deadline=h.now)


@rejects("ring-bounded-wait")
def a_wait_times_out_before_its_deadline() -> Builder:
    h = history().started().wait(1)
    return _slept(h, .5, "timeout", deadline=h.now + .1)


@rejects("ring-bounded-wait")
def a_wait_is_said_to_have_ended_well_and_brought_nothing() -> Builder:
    h = history().started().writes(RPC[1], 0).reads(RPC[1], 0).wait(1)
    return _slept(h, .5, deadline=h.now)


@silent("ring-bounded-wait")
def a_wait_ends_well_by_its_last_look() -> Builder:
    h = history().started().wait(1).writes(RPC[1], 0).reads(RPC[1], 0)
    return _slept(h, .5, deadline=h.now)


@rejects("ring-no-lost-wakeup")
def a_bell_that_was_rung_is_not_heard() -> Builder:
    return _slept(history().started().wait(1).writes(RPC[1], 0).wait(.1).reads(RPC[1], 0), .5)


@accepts("ring-no-lost-wakeup")
def a_bell_that_nobody_hears_may_take_its_time_on_a_real_machine() -> Builder:
    return _slept(history("engine").started().wait(1).writes(RPC[1], 0).wait(.1).reads(RPC[1], 0), .5)


def _waits_for_room(after: float) -> Builder:
    h = _full().wait(1).reads(RPC[1], 0).wait(after)
    return h.observes("core.0", "queue-wait", ring="core.0/rpc", began=2.0, deadline=9.0, ended=h.now,
                      outcome="ok").writes(RPC[1], 2)


@accepts("ring-no-lost-wakeup")
def a_writer_hears_that_there_is_room() -> Builder:
    return _slept(_waits_for_room(0).reads(RPC[1], 1).reads(RPC[1], 2).wait(1).writes(RPC[1], 3).reads(RPC[1], 3), .5)


@rejects("ring-no-lost-wakeup")
def a_bell_rings_twice_for_a_message() -> Builder:
    return history().started().writes(RPC[1], 0).crosses("core.0/rpc:doorbell").crosses("core.0/rpc:doorbell")


@rejects("ring-no-lost-wakeup")
def a_writer_does_not_hear_that_there_is_room() -> Builder:
    return _waits_for_room(.1)


@accepts("ring-bounded-wait")
def a_writer_facing_a_dead_reader_is_told() -> Builder:
    h = _full().fires("kill", "worker.1/rpc:store.read").wait(.05)
    return h.observes("core.0", "queue-wait", ring="core.0/rpc", began=h.now - .2, deadline=h.now + 9, ended=h.now,
                      outcome="peer-dead")


@rejects("ring-bounded-wait")
def a_wait_of_the_twin_goes_on_a_moment_longer_whatever_befell_somebody() -> Builder:
    h = history().started().fires("drop", RPC[1].replace("/rpc", "/overflow:receive")).wait(1)
    return _slept(h, .5, "timeout", deadline=h.now - .02)


@rejects("ring-bounded-wait")
def a_wait_outlives_its_deadline() -> Builder:
    h = history().started().wait(5)
    return _slept(h, 4, "timeout", deadline=h.now - 3)


@rejects("ring-bounded-wait")
def a_writer_notices_a_dead_reader_only_at_its_deadline() -> Builder:
    h = _full().fires("kill", "worker.1/rpc:store.read").wait(.8)
    return h.observes("core.0", "queue-wait", ring="core.0/rpc", began=h.now - .9, deadline=h.now, ended=h.now,
                      outcome="timeout")


@rejects("ring-bounded-wait")
def a_writer_waits_for_a_dead_reader_until_it_is_ended() -> Builder:
    h = _full().fires("kill", "worker.1/rpc:store.read").wait(3)
    return h.observes("frontend.0", "closing")


@silent("ring-bounded-wait")
def a_writer_waits_for_a_dead_reader_of_which_it_could_not_know_yet() -> Builder:
    return _full().fires("kill", "worker.1/rpc:store.read").wait(.01).fires("kill", "core.0/mark:ring-full")


@rejects("ring-bounded-wait")
def an_expired_deadline_becomes_for_ever() -> Builder:
    return _full().wait(60)


@rejects("ring-bounded-wait")
def a_call_is_open_long_after_its_deadline_and_nobody_was_told() -> Builder:
    return _calls(0).wait(60).observes("frontend.0", "closing")


@silent("ring-bounded-wait")
def a_call_is_open_when_the_core_leaves() -> Builder:
    return _calls(0).observes("core.0", "dying", reason="worker.0 died", queued=0).wait(60)


@silent("ring-bounded-wait")
def a_call_stays_open_while_its_core_stands_still() -> Builder:
    return _calls(0).fires("stall", "core.0/mark:scheduled").wait(60)


# -- collective RPC


def _calls(*output_ranks: int | None) -> Builder:
    h = history().started()
    for call, rank in enumerate(output_ranks):
        h.observes("core.0", "rpc-call", call=call, method="m", output_rank=rank)
    return h


def _answer(h: Builder, rank: int, call: int, position: int, *, taken_for: int | None = None) -> Builder:
    h.executes(f"worker.{rank}", call=call, method="m", position=call)
    return h.writes(RESPONSE[rank], position, f"a{call}").reads(RESPONSE[rank], position, f"a{call}").observes(
        "core.0", "rpc-reply", call=call if taken_for is None else taken_for, rank=rank, status=0)


@accepts("rpc-matched")
def replies_come_while_a_later_call_is_open() -> Builder:
    return _answer(_answer(_calls(None, None), 1, 0, 0), 1, 1, 1)


@accepts("rpc-matched")
def a_rank_answers_after_calls_that_it_had_to_leave_alone() -> Builder:
    h = _calls(0, 0, None)
    for call in (0, 1):
        h.executes("worker.1", call=call, method="m", position=call)
    return _answer(h, 1, 2, 0)


@rejects("rpc-matched")
def a_stale_reply_answers_the_next_call() -> Builder:
    return _answer(_calls(None, None), 1, 0, 0, taken_for=1)


@rejects("rpc-matched")
def a_reply_is_taken_twice() -> Builder:
    h = _answer(_calls(None), 1, 0, 0)
    return h.observes("core.0", "rpc-reply", call=0, rank=1, status=0)


@rejects("rpc-matched")
def a_reply_to_a_call_that_was_never_made() -> Builder:
    return _calls(None).observes("core.0", "rpc-reply", call=5, rank=0, status=0)


def _waits_in_vain(h: Builder) -> Builder:
    called_at = [record.at for record in h.records["core.0", 0] if record.site == "rpc-call"][-1]
    return h.wait(3).observes("core.0", "queue-wait", ring="response", began=h.now - 3, ended=h.now, outcome="timeout",
                              deadline=called_at + h.config.bounds.rpc_s)


@rejects("rpc-matched")
def a_call_waits_for_an_answer_that_another_one_has_taken() -> Builder:
    return _waits_in_vain(_answer(_calls(0), 0, 0, 0))


@accepts("rpc-matched")
def a_call_waits_for_an_answer_that_never_came() -> Builder:
    h = _answer(_answer(_calls(None, None), 1, 0, 0), 1, 1, 1)
    return _waits_in_vain(h)


@silent("rpc-matched")
def one_call_at_a_time_is_answered_by_the_output_rank() -> Builder:
    h = history().started()
    for call in (0, 1):
        h.observes("core.0", "rpc-call", call=call, method="m", output_rank=0)
        _answer(h, 0, call, call)
    return h


def _raised(rank: int) -> Builder:
    h = _calls(0).called("a")
    h.executes(f"worker.{rank}", call=0, method="m", position=0)
    return h.observes(f"worker.{rank}", "rpc-raised", call=0, method="m", error="ValueError: x")


@accepts("rpc-any-rank-fails-fast")
def a_rank_that_need_not_answer_raises_and_the_call_ends() -> Builder:
    return _raised(1).observes("core.0", "rpc-failed", call=0, rank=1, error="x").wait(.01).observes(
        "frontend.0", "engine-dead", reason="worker.1 failed").dies("a")


@rejects("rpc-any-rank-fails-fast")
def only_the_output_rank_reports_so_the_step_deadline_ends_it() -> Builder:
    return _raised(1).wait(1).observes("core.0", "rpc-failed", call=0, rank=1, error="time-out").dies("a")


@silent("rpc-any-rank-fails-fast")
def a_rank_raises_because_its_peer_died_and_the_core_leaves_for_that() -> Builder:
    return _raised(1).observes("core.0", "dying", reason="worker.0 died", queued=0).wait(.01).dies("a")


@rejects("rpc-any-rank-fails-fast")
def the_core_leaves_by_the_step_deadline_only() -> Builder:
    return _raised(1).wait(1).observes("core.0", "dying", reason="no answer", queued=0).wait(.01).dies("a")


@rejects("rpc-any-rank-fails-fast")
def the_failure_is_never_told() -> Builder:
    return _raised(1).wait(30)


@rejects("rpc-any-rank-fails-fast")
def the_engine_goes_on_after_a_failure() -> Builder:
    return _raised(1).observes("core.0", "rpc-failed", call=0, rank=1, error="x").wait(3).ended("a")


@silent("rpc-any-rank-fails-fast")
def the_output_rank_itself_raises() -> Builder:
    return _raised(0).observes("core.0", "rpc-failed", call=0, rank=0, error="x").wait(.01).dies("a")


def _fails_late(slept_s: float) -> Builder:
    """In a call that another rank had answered, while the core waits for the answer to the next one."""
    h = _raised(1).observes("core.0", "rpc-reply", call=0, rank=1, status=1)
    h.observes("core.0", "queue-wait", ring="response", began=h.now - .01, ended=h.now - .001 + slept_s,
               deadline=h.now + 1, outcome="cancelled")
    return h.observes("core.0", "dying", reason="worker.1 failed", queued=0).wait(.01).dies("a")


@silent("rpc-any-rank-fails-fast")
def a_failure_is_read_after_its_call_and_ends_the_wait_for_the_next_one() -> Builder:
    return _fails_late(0.0)


@rejects("rpc-any-rank-fails-fast")
def a_failure_is_read_after_its_call_and_the_core_sleeps_on() -> Builder:
    return _fails_late(.002)


def _executed(h: Builder, rank: int, *calls: int) -> Builder:
    for call in calls:
        h.executes(f"worker.{rank}", call=call, method="m", position=call)
    return h


@accepts("workers-in-step")
def both_workers_execute_the_same() -> Builder:
    return _executed(_executed(_calls(0, 0, 0), 0, 0, 1, 2), 1, 0, 1, 2)


@accepts("workers-in-step")
def a_worker_that_died_executed_a_prefix() -> Builder:
    return _executed(_executed(_calls(0, 0, 0), 0, 0, 1, 2), 1, 0, 1)


@rejects("workers-in-step")
def a_worker_is_spared_the_calls_it_need_not_answer() -> Builder:
    return _executed(_executed(_calls(0, None, 0), 0, 0, 1, 2), 1, 1)


@rejects("workers-in-step")
def a_worker_swaps_two_calls() -> Builder:
    return _executed(_executed(_calls(0, 0), 0, 0, 1), 1, 1, 0)


def _steps(*numbers: int) -> Builder:
    h = _calls(*(0 for _ in numbers))
    for rank in (0, 1):
        for call, number in enumerate(numbers):
            h.executes(f"worker.{rank}", call=call, method="execute_model", step=number)
    return h


@accepts("workers-in-step")
def workers_execute_each_step() -> Builder:
    return _steps(0, 1, 2)


@rejects("workers-in-step")
def a_step_is_left_out() -> Builder:
    return _steps(0, 2)


@rejects("workers-in-step")
def a_step_is_executed_twice() -> Builder:
    return _steps(0, 1, 1)


@silent("workers-in-step")
def only_one_worker_was_ever_asked() -> Builder:
    return _executed(_calls(0), 0, 0)


def _enters(h: Builder, *entries: tuple[int, str]) -> Builder:
    for rank, operation in entries:
        h.crosses(f"worker.{rank}/collective:enter", operation=operation).wait(.001)
    return h


def _killed_at(h: Builder, nth: int, operation: str) -> Builder:
    h.crosses("worker.1/collective:enter", operation=operation, fate="kill", fault="f1")
    return h.fires("kill", "worker.1/collective:enter", nth=nth).wait(.1)


SUM, PARTS = "all_reduce", "all_gather"


@accepts("groups-agree")
def both_ranks_enter_the_same() -> Builder:
    return _enters(history(), (0, SUM), (1, SUM), (1, PARTS), (0, PARTS), (0, SUM), (1, SUM))


@accepts("groups-agree")
def a_rank_that_is_killed_is_waited_for() -> Builder:
    return _killed_at(_enters(history(), (0, SUM), (1, SUM), (0, PARTS), (1, PARTS), (0, SUM)), 3, SUM).dies("a")


@rejects("groups-agree")
def a_rank_has_an_order_of_its_own() -> Builder:
    return _enters(history(), (0, SUM), (1, PARTS), (0, PARTS), (1, SUM))


@rejects("groups-agree")
def a_rank_leaves_out_a_sum() -> Builder:
    return _enters(history(), (0, SUM), (1, SUM), (0, SUM), (1, PARTS), (0, PARTS))


@rejects("groups-agree")
def a_rank_goes_on_before_the_other_has_come() -> Builder:
    return _enters(history(), (0, SUM), (0, PARTS), (1, SUM), (1, PARTS))


@rejects("groups-agree")
def a_rank_goes_on_and_the_other_never_comes() -> Builder:
    return _enters(history(), (0, SUM), (1, SUM), (0, PARTS), (0, SUM))


@rejects("groups-agree")
def a_rank_goes_on_without_the_one_that_was_killed() -> Builder:
    return _enters(_killed_at(_enters(history(), (0, SUM), (1, SUM), (0, PARTS)), 2, PARTS), (0, SUM))


@accepts("groups-agree")
def a_rank_that_stands_still_is_waited_for() -> Builder:
    h = _enters(history(), (0, SUM), (1, SUM), (0, PARTS))
    h.crosses("worker.1/collective:enter", operation=PARTS, fate="hang", fault="f1")
    h.fires("hang", "worker.1/collective:enter", nth=2, until=Until(seconds=.1)).wait(.1).releases()
    return _enters(h.wait(.01), (0, SUM), (1, SUM))


@rejects("groups-agree")
def a_rank_goes_on_without_the_one_that_hangs() -> Builder:
    h = _enters(history(), (0, SUM), (1, SUM), (0, PARTS))
    h.crosses("worker.1/collective:enter", operation=PARTS, fate="hang", fault="f1")
    return _enters(h.fires("hang", "worker.1/collective:enter", nth=2).wait(.1), (0, SUM))


@silent("groups-agree")
def one_collective_has_no_order() -> Builder:
    return _enters(history(), (0, SUM), (1, SUM))
