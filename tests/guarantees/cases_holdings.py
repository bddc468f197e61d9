"""Histories about what processes hold, before their work, after it, and at rest."""

from engine.topology import data_parallel
from faults.plan import Until
from scenarios.history.play import Holdings, Measured, Moment
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent

GROWS, RESTS = "nothing-grows", "rests-when-idle"
READY, DONE, RESTED, QUIET = Moment
MIB = 1 << 20


def _measured(h: Builder, node: str, *found: tuple[Moment, float, Holdings]) -> Builder:
    h.lab_values["measured"] = [*h.lab_values.get("measured", ()), *(
        Measured(node=node, life=0, moment=moment, at=at, holds=holds) for moment, at, holds in found)]
    return h


def _holds(threads: int = 4, descriptors: int = 20, memory: int | None = 100 * MIB) -> Holdings:
    return Holdings(threads=threads, descriptors=descriptors, memory_bytes=memory)


def _grown(before: Holdings, *after: tuple[Moment, Holdings], node: str = "core.0", subscribers: int = 0,
           world: str = "sim") -> Builder:
    h = history(world, subscribers=subscribers).started().crosses("core.0/mark:idle")
    first = h.now
    return _measured(h.request("a"), node, (READY, first, before), *((moment, h.now, holds) for moment, holds in after))


@accepts(GROWS)
def the_same_as_before() -> Builder:
    return _grown(_holds(), (DONE, _holds()), (QUIET, _holds()))


@accepts(GROWS)
def less_than_before_and_a_little_more_memory() -> Builder:
    return _grown(_holds(), (QUIET, _holds(3, 18, 163 * MIB)))


@accepts(GROWS)
def more_while_subscribers_still_ask_and_not_when_they_have_left() -> Builder:
    return _grown(_holds(), (DONE, _holds(5, 24)), (QUIET, _holds()))


@accepts(GROWS)
def the_connections_of_a_subscriber_come_late() -> Builder:
    return _grown(_holds(), (DONE, _holds(descriptors=22)), subscribers=1)


@accepts(GROWS)
def a_real_core_s_connection_for_its_outputs_comes_late() -> Builder:
    return _grown(_holds(), (QUIET, _holds(descriptors=21)), node="frontend.0", world="engine")


@rejects(GROWS)
def a_real_client_has_one_connection_more_than_it_has_cores() -> Builder:
    return _grown(_holds(), (QUIET, _holds(descriptors=22)), node="frontend.0", world="engine")


@accepts(GROWS)
def a_real_core_has_not_connected_yet_where_it_tells_its_outputs() -> Builder:
    return _grown(_holds(), (QUIET, _holds(descriptors=21)), world="engine")


@rejects(GROWS)
def a_real_core_has_one_connection_more_than_it_has_clients() -> Builder:
    return _grown(_holds(), (QUIET, _holds(descriptors=22)), world="engine")


@rejects(GROWS)
def a_core_has_a_connection_more_where_time_is_virtual() -> Builder:
    return _grown(_holds(), (QUIET, _holds(descriptors=21)))


@accepts(GROWS)
def a_real_core_s_connection_for_its_counts_comes_late() -> Builder:
    return _of_a_coordinator(1, "engine")


@rejects(GROWS)
def a_real_coordinator_has_one_connection_more_than_it_has_cores() -> Builder:
    return _of_a_coordinator(2, "engine")


@rejects(GROWS)
def a_coordinator_has_one_connection_more_where_time_is_virtual() -> Builder:
    return _of_a_coordinator(1, "sim")


def _of_a_coordinator(more: int, world: str) -> Builder:
    h = history(world, tp=1, topology=data_parallel(1, coordinated=True)).started().crosses("core.0/mark:idle")
    first = h.now
    return _measured(h.request("a"), "coordinator.0", (READY, first, _holds()), (
        QUIET, h.now, _holds(descriptors=20 + more)))


def _sent_without_a_copy(threads: int, descriptors: int, **data: int) -> Builder:
    h = history().started().crosses("core.0/mark:idle")
    first = h.now
    h.request("a").sends("core.0->frontend.0/outputs", "large", **data)
    return _measured(h, "core.0", (READY, first, _holds()), (QUIET, h.now, _holds(4 + threads, 20 + descriptors)))


@accepts(GROWS)
def what_collects_the_frames_that_were_sent_without_a_copy() -> Builder:
    return _sent_without_a_copy(3, 7, bytes=1 << 20)


@rejects(GROWS)
def more_threads_than_such_frames_need() -> Builder:
    return _sent_without_a_copy(4, 7, bytes=1 << 20)


@rejects(GROWS)
def more_descriptors_than_such_frames_need() -> Builder:
    return _sent_without_a_copy(3, 8, bytes=1 << 20)


@rejects(GROWS)
def as_much_more_where_all_frames_were_copied() -> Builder:
    return _sent_without_a_copy(3, 7)


def _through_a_wire(descriptors: int, edge: str = "core.0->frontend.0/outputs") -> Builder:
    h = history().started().crosses("core.0/mark:idle")
    first = h.now
    h.fires("cut", f"{edge}:wire", node="core.0").releases().wait(1).request("a")
    return _measured(h, "core.0", (READY, first, _holds()), (QUIET, h.now, _holds(descriptors=20 + descriptors)))


@accepts(GROWS)
def a_connection_that_was_down_at_the_first_look() -> Builder:
    return _through_a_wire(3)


@rejects(GROWS)
def more_than_the_connection_that_was_down() -> Builder:
    return _through_a_wire(4)


@rejects(GROWS)
def a_connection_of_others_was_down() -> Builder:
    return _through_a_wire(1, "worker.0->worker.1/overflow")


def _looked_at_before_it_was_idle(threads: int) -> Builder:
    h = history().started()
    first = h.now
    h.crosses("core.0/mark:idle").request("a")
    return _measured(h, "core.0", (READY, first, _holds()), (QUIET, h.now, _holds(threads)))


@accepts(GROWS)
def the_thread_that_a_core_starts_when_it_has_said_that_it_is_ready() -> Builder:
    return _looked_at_before_it_was_idle(5)


@rejects(GROWS)
def two_threads_when_it_has_said_that_it_is_ready() -> Builder:
    return _looked_at_before_it_was_idle(6)


@rejects(GROWS)
def a_thread_more() -> Builder:
    return _grown(_holds(), (QUIET, _holds(threads=5)))


@rejects(GROWS)
def a_descriptor_more() -> Builder:
    return _grown(_holds(), (QUIET, _holds(descriptors=21)))


@rejects(GROWS)
def more_connections_than_subscribers_make() -> Builder:
    return _grown(_holds(), (DONE, _holds(descriptors=23)), subscribers=1)


@rejects(GROWS)
def a_worker_has_no_subscribers() -> Builder:
    return _grown(_holds(), (DONE, _holds(descriptors=21)), node="worker.0", subscribers=1)


@rejects(GROWS)
def much_memory_more() -> Builder:
    return _grown(_holds(), (QUIET, _holds(memory=165 * MIB)))


@silent(GROWS)
def nobody_asked_for_anything() -> Builder:
    h = history().started()
    return _measured(h, "core.0", (READY, 1.0, _holds()), (QUIET, 2.0, _holds()))


@silent(GROWS)
def who_died_is_not_compared() -> Builder:
    return _grown(_holds())


@silent(GROWS)
def who_was_held_up_at_the_first_look_was_not_ready_by_then() -> Builder:
    h = history().started().fires("stall", "core.0/mark:idle", node="core.0", until=Until(seconds=2.0))
    first = h.now
    return _measured(h.wait(1).request("a"), "core.0", (READY, first, _holds(0, 0)), (QUIET, h.now, _holds()))


@rejects(GROWS)
def who_was_hit_before_and_went_on_was_ready() -> Builder:
    h = history().started().crosses("core.0/mark:idle")
    h.fires("drop", "frontend.0->core.0/requests:receive", node="core.0").wait(1)
    first = h.now
    return _measured(h.request("a"), "core.0", (READY, first, _holds()), (QUIET, h.now + 1, _holds(threads=5)))


@silent(GROWS)
def nobody_waits_for_the_subscriber_of_a_dead_engine() -> Builder:
    h = history(subscribers=1).started().request("a").fires("kill", "core.0/mark:idle").ends("core.0").wait(0.1)
    return _measured(h, "subscriber.0", (READY, h.now, _holds(0, 0)), (QUIET, h.now + 1, _holds()))


@silent(GROWS)
def nobody_waits_for_the_subscriber_of_an_engine_that_did_not_start() -> Builder:
    h = history(subscribers=1).observes("frontend.0", "starting").fires("raise", "core.0->worker.0/rpc:send")
    h.observes("frontend.0", "start-failed", error="StartupError", reason="core.0: it failed")
    return _measured(h, "subscriber.0", (READY, h.now, _holds(0, 0)), (QUIET, h.now + 1, _holds()))


@silent(GROWS)
def who_is_on_the_way_out_opens_what_it_needs() -> Builder:
    h = history().started().crosses("core.0/mark:idle")
    first = h.now
    h.request("a").fires("kill", "frontend.0/mark:born", node="frontend.0").ends("frontend.0").wait(0.1)
    return _measured(h, "worker.0", (READY, first, _holds()), (QUIET, h.now, _holds(descriptors=22)))


@silent(GROWS)
def who_reads_its_own_source_for_a_traceback_is_on_the_way_out_too() -> Builder:
    h = history().started().crosses("core.0/mark:idle")
    first = h.now
    h.request("a").observes("core.0", "dying", reason="worker.0 failed", queued=0)
    return _measured(h, "worker.1", (READY, first, _holds()), (QUIET, h.now, _holds(descriptors=21)))


@silent(GROWS)
def who_misses_its_parent_leaves() -> Builder:
    h = history().started().crosses("core.0/mark:idle")
    first = h.now
    h.request("a").observes("worker.1", "parent-gone", kept={"requests": 0})
    return _measured(h, "worker.1", (READY, first, _holds()), (QUIET, h.now, _holds(descriptors=21)))


@rejects(GROWS)
def who_leaves_only_after_the_last_look_is_compared() -> Builder:
    h = _grown(_holds(), (QUIET, _holds(descriptors=21)))
    return h.wait(0.1).observes("core.0", "dying", reason="shutdown", queued=0)


def _rests(before: Holdings, after: Holdings) -> Builder:
    return _measured(history().started().request("a"), "core.0", (DONE, 2.0, before), (RESTED, 4.0, after))


def _took(seconds: float | None = None, turns: int | None = None) -> Holdings:
    return Holdings(threads=4, descriptors=20, processor_s=seconds, turns=turns)


@accepts(RESTS)
def a_tenth_of_a_core() -> Builder:
    """A hundredth of a second more may be rounding, of its own time and of the kernel's."""
    return _rests(_took(1.0), _took(1.21))


@accepts(RESTS)
def some_turns_of_a_twin() -> Builder:
    return _rests(_took(turns=100), _took(turns=4000))


@rejects(RESTS)
def more_than_a_tenth_of_a_core() -> Builder:
    return _rests(_took(1.0), _took(1.23))


@rejects(RESTS)
def as_many_turns_as_one_that_never_waits() -> Builder:
    return _rests(_took(turns=100), _took(turns=4200))


@silent(RESTS)
def nobody_looked_twice() -> Builder:
    return _measured(history().started().request("a"), "core.0", (DONE, 2.0, _took(1.0)))


def _looked_while_it_became_idle(threads: int) -> Builder:
    """It was looked at before its first idle look, and others after that."""
    h = history().started()
    since = h.now
    h.wait(.001).crosses("core.0/mark:idle").wait(.001)
    looked = Measured(node="core.0", life=0, moment=READY, at=h.now, since=since, holds=_holds())
    return _measured(h.lab(measured=[looked]).request("a"), "core.0", (DONE, h.now, _holds(threads)))


@accepts(GROWS)
def the_thread_that_reads_requests_comes_while_the_lab_looks() -> Builder:
    return _looked_while_it_became_idle(5)


@rejects(GROWS)
def two_threads_come_while_the_lab_looks() -> Builder:
    return _looked_while_it_became_idle(6)
