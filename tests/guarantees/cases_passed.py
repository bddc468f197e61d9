"""Histories about the law, of what a process has passed on its way when it leaves on its own feet."""

from collections.abc import Sequence

from faults.plan import Until
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects

LAW = "nothing-without-cause"
#: Marks are written with a colon before them.
_BEGINS = ("born", ":born", "ready", ":ready", ":idle", "blocks")
_STEP = (":step", ":scheduled", "rpc-call", ":executed", ":published")
_LEAVES = ("dying", ":dying", "output", "input")
_CORE = (*_BEGINS, *_STEP, *_STEP, ":idle", "blocks", ":draining", "draining", *_LEAVES, "bye")
_WORKER = ("born", ":born", ":loading", ":ready", ":executing", ":executing", "parent-gone", "bye")


def _goes(node: str, way: Sequence[str], h: Builder | None = None) -> Builder:
    """That process comes to these, one after the other, and leaves with 0."""
    h = h or history().called("a", core=False).ended("a").observes("frontend.0", "closing")
    calls = 0
    for place in way:
        if place.startswith(":"):
            h.crosses(f"{node}/mark{place}")
        elif place in ("input", "output"):
            h.observes(node, "thread-ended", thread=place, why="cancelled")
        elif place == "rpc-call":
            h.observes(node, place, call=calls, method="execute_model", output_rank=0)
            calls += 1
        elif place in ("dying", "bye"):
            h.observes(node, place, reason="SIGTERM", queued=0)
        elif place == "blocks":
            h.observes(node, place, requests=0, errors=[], kept={})
        else:
            h.observes(node, place)
    return h.ends(node)


def _without(way: tuple[str, ...], *places: str) -> list[str]:
    """The same way with the first of each of these left out."""
    left = list(way)
    for place in places:
        left.remove(place)
    return left


@accepts(LAW)
def a_worker_was_stopped_before_it_was_born() -> Builder:
    h = history().called("a", core=False).ended("a").observes("frontend.0", "closing")
    h.fires("stall", "worker.1/mark:born", until=Until(seconds=.1)).releases()
    return _goes("worker.1", _WORKER, h)


@accepts(LAW)
def a_core_passes_all_its_marks() -> Builder:
    return _goes("core.0", _CORE)


@accepts(LAW)
def a_worker_passes_all_its_marks() -> Builder:
    return _goes("worker.1", _WORKER)


def _subscribes(*way: str) -> Builder:
    h = history(subscribers=1).called("a", core=False).ended("a").observes("frontend.0", "closing")
    return _goes("subscriber.0", (*way, "bye"), h)


@accepts(LAW)
def a_subscriber_is_born_at_its_mark() -> Builder:
    return _subscribes("born", ":born")


@rejects(LAW)
def a_subscriber_does_not_say_who_it_is() -> Builder:
    return _subscribes(":born")


@rejects(LAW)
def a_subscriber_passes_no_mark() -> Builder:
    return _subscribes("born")


@accepts(LAW)
def a_core_raises_at_a_mark_and_comes_to_nothing_behind_it() -> Builder:
    h = history().called("a", core=False)
    h = _goes("core.0", (*_BEGINS, *_STEP, *_STEP[:-1]), h).fires("raise", "core.0/mark:executed", nth=2)
    return _goes("core.0", (*_LEAVES, "bye"), h).dies("a")


@accepts(LAW)
def a_core_whose_thread_hangs_does_not_wait_for_it_for_ever() -> Builder:
    h = _goes("core.0", _BEGINS, history().called("a", core=False)).ended("a").observes("frontend.0", "closing")
    h.fires("hang", "frontend.0->core.0/requests:receive", nth=2)
    return _goes("core.0", _without((*_LEAVES, "bye"), "input"), h)


@accepts(LAW)
def a_child_without_a_recipe_goes_with_its_parent() -> Builder:
    return history().request("a").observes("frontend.0", "closing").ends("worker.1")


@rejects(LAW)
def a_core_schedules_without_a_mark() -> Builder:
    return _goes("core.0", _without(_CORE, ":scheduled", ":scheduled"))


@rejects(LAW)
def a_core_publishes_a_step_without_a_mark_twice() -> Builder:
    return _goes("core.0", _without(_CORE, ":published", ":published"))


@rejects(LAW)
def a_core_executes_more_than_it_called() -> Builder:
    return _goes("core.0", _without(_CORE, "rpc-call"))


@rejects(LAW)
def a_core_looks_at_its_books_without_a_mark() -> Builder:
    return _goes("core.0", _without(_CORE, ":idle"))


@rejects(LAW)
def a_core_drains_without_a_mark() -> Builder:
    return _goes("core.0", _without(_CORE, ":draining"))


@rejects(LAW)
def a_core_drains_and_does_not_say_so() -> Builder:
    return _goes("core.0", _without(_CORE, "draining"))


@rejects(LAW)
def a_core_is_idle_and_does_not_tell_of_its_books() -> Builder:
    return _goes("core.0", _without(_CORE, "blocks"))


@accepts(LAW)
def a_core_raises_at_the_mark_before_it_says_that_it_drains() -> Builder:
    h = _goes("core.0", (*_BEGINS, *_STEP), history().called("a", core=False))
    h.crosses("core.0/mark:draining", fate="raise", fault="f1").fires("raise", "core.0/mark:draining")
    return _goes("core.0", (*_LEAVES, "bye"), h).dies("a")


@rejects(LAW)
def a_core_is_ready_without_a_mark() -> Builder:
    return _goes("core.0", _without(_CORE, ":ready"))


@rejects(LAW)
def a_core_leaves_without_a_mark() -> Builder:
    return _goes("core.0", _without(_CORE, ":dying"))


@rejects(LAW)
def a_core_is_born_without_a_mark() -> Builder:
    return _goes("core.0", _without(_CORE, ":born"))


@rejects(LAW)
def a_core_does_not_say_who_it_is() -> Builder:
    return _goes("core.0", _without(_CORE, "born"))


@rejects(LAW)
def a_core_says_late_who_it_is() -> Builder:
    return _goes("core.0", (":born", "born", *_CORE[2:]))


@rejects(LAW)
def a_core_does_not_wait_for_its_thread() -> Builder:
    return _goes("core.0", _without(_CORE, "input"))


def _both_leave(*order: str) -> Builder:
    h = history().called("a", core=False).ended("a").observes("frontend.0", "closing")
    for node in order:
        h = _goes(node, _CORE if node == "core.0" else _WORKER, h)
    return h


@accepts(LAW)
def workers_are_gone_when_their_core_is_out() -> Builder:
    return _both_leave("worker.0", "worker.1", "core.0")


@rejects(LAW)
def a_core_is_out_before_its_worker() -> Builder:
    return _both_leave("worker.0", "core.0", "worker.1")


def _leaves_a_worker_that_stands_still(later_s: float, world: str = "sim") -> Builder:
    """So long after the core is out the lab sees that worker's end."""
    h = history(world=world).called("a", core=False).ended("a").observes("frontend.0", "closing")
    h = _goes("core.0", _CORE, h.fires("stall", "worker.1/mark:executing"))
    return h.ends("worker.1", at=h.now + later_s, exitcode=-9).wait(max(0.0, later_s))


@accepts(LAW)
def a_core_ends_a_worker_that_stands_still_before_it_is_out() -> Builder:
    return _leaves_a_worker_that_stands_still(-0.02)


@rejects(LAW)
def a_core_leaves_a_worker_that_stands_still_to_its_client() -> Builder:
    return _leaves_a_worker_that_stands_still(0.02)


@accepts(LAW)
def a_lab_sees_the_end_of_a_worker_a_moment_later() -> Builder:
    return _leaves_a_worker_that_stands_still(0.02, "engine")


@rejects(LAW)
def a_lab_sees_that_a_core_has_left_a_worker_to_its_client() -> Builder:
    return _leaves_a_worker_that_stands_still(2.0, "engine")


def _is_asked_while_it_starts(*said: str) -> Builder:
    h = _goes("core.0", _BEGINS[:2], history().observes("frontend.0", "starting"))
    h.fires("terminate", "core.0->frontend.0/handshake:send")
    h = _goes("core.0", said, h).ends("core.0", exitcode=0 if said else -15)
    return h.observes("frontend.0", "start-failed", error="StartupError", reason="core.0 was asked to leave")


@accepts(LAW)
def a_core_is_asked_to_leave_while_it_starts() -> Builder:
    return _is_asked_while_it_starts("dying", ":dying", "bye")


@rejects(LAW)
def a_core_is_asked_to_leave_while_it_starts_and_is_gone() -> Builder:
    return _is_asked_while_it_starts()


def _goes_without_its_client(*said: str) -> Builder:
    h = _goes("core.0", _BEGINS, history().called("a", core=False)).fires("kill", "frontend.0/mark:born")
    h.observes("core.0", "parent-gone")
    return _goes("core.0", said, h.ends("frontend.0", exitcode=-9)).ends("core.0", exitcode=1)


@accepts(LAW)
def a_core_without_its_client_leaves_in_order() -> Builder:
    return _goes_without_its_client(*_LEAVES, "bye")


@rejects(LAW)
def a_core_without_its_client_is_ended_on_its_way_out() -> Builder:
    return _goes_without_its_client(*_LEAVES)


@rejects(LAW)
def a_core_without_its_client_is_ended_and_did_not_try_to_leave() -> Builder:
    return _goes_without_its_client()


def _is_asked_to_leave(running: int, after_s: float) -> Builder:
    h = history().called("a").ended("a").observes("frontend.0", "closing")
    h.observes("core.0", "draining", running=running, waiting=0, deadline=h.now + 9)
    return h.wait(after_s).observes("core.0", "dying", reason="SIGTERM", queued=0)


@accepts(LAW)
def a_core_with_something_to_run_takes_its_time_to_leave() -> Builder:
    return _is_asked_to_leave(1, .5)


@accepts(LAW)
def a_core_with_nothing_to_run_leaves() -> Builder:
    return _is_asked_to_leave(0, .01)


@rejects(LAW)
def a_core_with_nothing_to_run_takes_its_time_to_leave() -> Builder:
    return _is_asked_to_leave(0, .5)


@rejects(LAW)
def a_core_leaves_because_its_client_is_gone_and_does_not_say_when_it_saw_that() -> Builder:
    h = history().called("a", core=False).fires("kill", "frontend.0/mark:born").ends("frontend.0", exitcode=-9)
    return h.observes("core.0", "dying", reason="QueueCancelledError: the frontend is gone", queued=0)


@rejects(LAW)
def a_core_leaves_and_does_not_know_why() -> Builder:
    return history().started().called("a").observes("core.0", "dying", reason=None, queued=0)


@rejects(LAW)
def a_core_does_not_wait_for_a_thread_that_is_held_up_for_a_moment() -> Builder:
    h = _goes("core.0", _BEGINS, history().called("a", core=False)).ended("a").observes("frontend.0", "closing")
    h.fires("hang", "frontend.0->core.0/requests:receive", nth=2, until=Until(seconds=.05))
    return _goes("core.0", _without((*_LEAVES, "bye"), "input"), h)


@rejects(LAW)
def a_worker_loads_without_a_mark() -> Builder:
    return _goes("worker.1", _without(_WORKER, ":loading"))


@rejects(LAW)
def a_worker_is_ready_without_a_mark() -> Builder:
    return _goes("worker.1", _without(_WORKER, ":ready"))


@rejects(LAW)
def a_worker_leaves_with_0_and_its_core_is_there() -> Builder:
    return _goes("worker.1", _without(_WORKER, "parent-gone"))


@accepts(LAW)
def a_worker_that_cannot_load_says_so() -> Builder:
    return _cannot_load("bye")


@rejects(LAW)
def a_worker_that_cannot_load_is_gone_without_a_word() -> Builder:
    return _cannot_load()


@rejects(LAW)
def a_worker_that_cannot_load_leaves_with_0() -> Builder:
    return _cannot_load("bye", exitcode=0)


def _fails_twice(first: str, then: str) -> Builder:
    """A worker that is gone without a word by the second of two faults: it had got over the first one."""
    h = _goes("worker.1", ("born", ":born", ":loading"), history().observes("frontend.0", "starting"))
    h.fires(first, "worker.1/mark:loading").fires(then, "worker.1/mark:loading", nth=2)
    h.ends("worker.1", exitcode=1)
    return h.observes("frontend.0", "start-failed", error="StartupError", reason="worker.1 could not start")


@accepts(LAW)
def a_worker_exits_behind_an_exception_that_it_had_got_over() -> Builder:
    return _fails_twice("raise", "exit")


@rejects(LAW)
def a_worker_leaves_without_a_word_by_an_exception_behind_another_fault() -> Builder:
    return _fails_twice("terminate", "raise")


def _cannot_load(*said: str, exitcode: int = 1) -> Builder:
    h = _goes("worker.1", ("born", ":born", ":loading"), history().observes("frontend.0", "starting"))
    h = _goes("worker.1", said, h.fires("raise", "worker.1/mark:loading")).ends("worker.1", exitcode=exitcode)
    return h.observes("frontend.0", "start-failed", error="StartupError", reason="worker.1 could not start")


@rejects(LAW)
def a_worker_leaves_with_0_and_without_a_word() -> Builder:
    return _goes("worker.1", _without(_WORKER, "bye"))


def _comes_twice(*actions: str) -> Builder:
    edge = "frontend.0->core.0/requests"
    h = history().called("a", core=False).sends(edge, "a").receives(edge, "a", fate="duplicate", fault="f1")
    h.fires("duplicate", f"{edge}:receive")
    for action in actions:
        h.observes("core.0", "request", request="a-0", action=action, reason="")
    return h.ended("a").observes("core.0", "blocks", requests=0, errors=[], kept={})


@accepts(LAW)
def a_core_says_that_a_request_came_twice() -> Builder:
    return _comes_twice("add", "duplicate")


@accepts(LAW)
def a_request_comes_again_when_it_has_ended() -> Builder:
    return _comes_twice("add", "add")


@rejects(LAW)
def a_core_does_not_say_that_a_request_came_twice() -> Builder:
    return _comes_twice("add")


@rejects(LAW)
def a_core_says_something_else_of_a_request_that_came_twice() -> Builder:
    return _comes_twice("add", "abort")
