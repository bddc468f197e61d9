"""Histories of cores that step together."""

from engine.config import SchedulerConfig
from engine.topology import Mark, data_parallel, mark_site
from tests.guarantees.build import REQUESTS, Builder, history
from tests.guarantees.cases import accepts, outside, rejects, silent

EQUAL, MONOTONE = "dp-collectives-equal", "dp-wave-monotone"
WAKES, QUIET, PAUSE = "dp-work-wakes-all", "dp-quiet-when-idle", "pause-exact"
MISSING = "dp-missing-is-named"
HUB = "coordinator.0"
INTERVAL = 16


def two(world: str = "sim") -> Builder:
    return history(world, tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2)


def workers() -> Builder:
    return history(tp=2, topology=data_parallel(2, tp=2, lockstep=True), data_parallel_size=2)


def forward(h: Builder, core: int, wave: int, step: int, *, dummy: bool = False, executes: bool = True,
            nodes: tuple[str, ...] = ()) -> Builder:
    name = f"core.{core}"
    if dummy:
        h.crosses(mark_site(name, Mark.DUMMY), wave=wave, step=step)
    else:
        h.crosses(mark_site(name, Mark.SCHEDULED), step=step, tokens=1)
    for node in (nodes or (name,)) if executes else ():
        h.crosses(f"{node}/collective:enter", operation="keep_step", wave=wave, step=step)
    return h


def enters(h: Builder, *cores: int) -> Builder:
    for core in cores or (0, 1):
        h.crosses(f"core.{core}/consensus:enter", group="dp", operation="sum")
    return h


def answers(h: Builder, core: int, wave: int, step: int, votes: list[int], answer: list[int]) -> Builder:
    running = answer[0] > 0
    h.observes(f"core.{core}", "consensus", wave=wave, step=step, votes=votes, answer=answer, running=running)
    return h if running or not step else h.crosses(mark_site(f"core.{core}", Mark.WAVE_DONE), wave=wave)


def agree(h: Builder, wave: int, step: int, first: int, second: int) -> Builder:
    """An all-reduce of both; what they have left to do."""
    enters(h)
    for core, mine in ((0, first), (1, second)):
        answers(h, core, wave, step, [mine, 0], [first + second, 0])
    return h


def asked(h: Builder, core: int, request: str) -> Builder:
    return h.observes(f"core.{core}", "request", request=request, action="add", reason="")


def start(h: Builder, core: int, wave: int, at: int, *, runs: bool) -> Builder:
    return h.observes(f"core.{core}", "start-heard", wave=wave, exclude=None, at=at, runs=runs)


def both(h: Builder, wave: int, step: int, *, second: int | None = None) -> Builder:
    """A forward of each, with tokens and without; of the second at another step."""
    return forward(forward(h, 0, wave, step), 1, wave, step if second is None else second, dummy=True)


# -- what they do in turn


@accepts(EQUAL)
def one_has_tokens_and_the_other_one_a_dummy_batch() -> Builder:
    return agree(both(agree(both(two(), 0, 0), 0, 1, 1, 0), 0, 1), 0, 2, 0, 0)


@accepts(EQUAL)
def a_rank_that_dies_is_shorter() -> Builder:
    h = both(agree(both(two(), 0, 0), 0, 1, 1, 0), 0, 1)
    return forward(h, 0, 0, 2).fires("kill", "core.1/mark:dummy", nth=3)


@accepts(EQUAL)
def workers_enter_for_their_core() -> Builder:
    h = forward(workers(), 0, 0, 0, nodes=("worker.0", "worker.1"))
    return agree(forward(h, 1, 0, 0, dummy=True, nodes=("worker.1.0", "worker.1.1")), 0, 1, 1, 0)


@accepts(EQUAL)
def a_step_may_be_in_flight_at_an_all_reduce() -> Builder:
    h = history(tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2, max_concurrent_batches=2)
    return agree(forward(forward(h, 0, 0, 0, executes=False), 1, 0, 0, dummy=True), 0, 1, 1, 0)


@rejects(EQUAL)
def a_dummy_batch_is_left_out() -> Builder:
    return enters(forward(forward(two(), 0, 0, 0), 1, 0, 0, dummy=True, executes=False), 1)


@rejects(EQUAL)
def a_worker_leaves_its_dummy_batch_out() -> Builder:
    h = forward(workers(), 0, 0, 0, nodes=("worker.0", "worker.1"))
    return enters(forward(h, 1, 0, 0, dummy=True, nodes=("worker.1.0",)), 1)


@rejects(EQUAL)
def one_is_a_step_ahead() -> Builder:
    return both(two(), 0, 0, second=1)


@rejects(EQUAL)
def one_adds_up_where_the_other_one_goes_on() -> Builder:
    return enters(forward(both(agree(both(two(), 0, 0), 0, 1, 1, 0), 0, 1), 0, 0, 2), 1)


@silent(EQUAL)
def one_may_have_been_asked_for_more_steps_than_the_other_one() -> Builder:
    h = two().carries(REQUESTS, "run_steps").fires("duplicate", f"{REQUESTS}:receive")
    return enters(forward(both(agree(both(h, 0, 0), 0, 1, 1, 0), 0, 1), 0, 0, 2), 1)


@rejects(EQUAL)
def they_add_up_at_different_steps() -> Builder:
    h = enters(both(two(), 0, 0))
    return answers(answers(h, 0, 0, 1, [1, 0], [1, 0]), 1, 0, 2, [0, 0], [1, 0])


@rejects(EQUAL)
def one_goes_by_its_own_part() -> Builder:
    h = enters(both(two(), 0, 0))
    return answers(answers(h, 0, 0, 1, [1, 0], [1, 0]), 1, 0, 1, [0, 0], [0, 0])


@silent(EQUAL)
def all_have_tokens() -> Builder:
    return agree(forward(forward(two(), 0, 0, 0), 1, 0, 0), 0, 1, 1, 1)


# -- the number of a wave


def later() -> Builder:
    """Wave 0 is over."""
    return agree(both(two(), 0, 0), 0, 1, 0, 0)


@accepts(MONOTONE)
def a_start_of_an_ended_wave_starts_nothing() -> Builder:
    return start(later(), 1, 0, 1, runs=False)


@rejects(MONOTONE)
def a_start_of_an_ended_wave_starts_a_rank() -> Builder:
    return start(later(), 1, 0, 1, runs=True)


@rejects(MONOTONE)
def a_rank_goes_back_to_an_ended_wave() -> Builder:
    return start(later(), 1, 0, 0, runs=False)


@rejects(MONOTONE)
def a_forward_is_of_an_earlier_wave() -> Builder:
    return both(both(two(), 1, 0), 0, 0)


@rejects(MONOTONE)
def the_coordinator_s_wave_falls() -> Builder:
    h = later()
    for wave in (1, 0):
        h = h.observes(HUB, "notice", counts=None, wave=wave, running=False, cause="time")
    return h


@rejects(MONOTONE)
def a_coordinator_repeats_the_start_of_a_wave_that_is_over() -> Builder:
    h = later().observes(HUB, "notice", counts=None, wave=1, running=True, cause="start-wave")
    return h.observes(HUB, "start", wave=0, exclude=None, cause="time")


@silent(MONOTONE)
def each_start_comes_in_its_wave() -> Builder:
    return start(start(two(), 1, 0, 0, runs=True), 1, 0, 0, runs=False)


# -- who is woken


def waking(*, after: float = .01, world: str = "sim") -> Builder:
    """A request comes to the first rank, and START to the second."""
    h = forward(asked(two(world), 0, "a"), 0, 0, 0).wait(after)
    return forward(start(h, 1, 0, 0, runs=True), 1, 0, 0, dummy=True)


@accepts(WAKES)
def a_request_wakes_the_other_rank() -> Builder:
    return waking()


@accepts(WAKES)
def a_passing_stop_costs_its_time() -> Builder:
    h = forward(asked(two(), 0, "a"), 0, 0, 0).fires("hang", "coordinator.0->core.1/wave:receive").wait(2).releases()
    return forward(start(h, 1, 0, 0, runs=True), 1, 0, 0, dummy=True)


@rejects(WAKES)
def it_is_woken_too_late() -> Builder:
    return waking(after=1.2)


@rejects(WAKES)
def it_is_never_woken() -> Builder:
    return forward(asked(two(), 0, "a"), 0, 0, 0).wait(3)


@rejects(WAKES)
def it_is_never_woken_for_the_second_wave() -> Builder:
    h = agree(waking(), 0, 1, 0, 0)
    return forward(asked(h, 0, "b"), 0, 1, 0).wait(3)


@rejects(WAKES)
def all_end_because_nobody_is_woken() -> Builder:
    h = forward(asked(two("engine"), 0, "a"), 0, 0, 0).wait(.8)
    return h.observes("frontend.0", "engine-dead", reason="core.1 did not enter within 0.8 s", core=0)


@silent(WAKES)
def each_has_a_request_of_its_own() -> Builder:
    return forward(forward(asked(asked(two(), 0, "a"), 1, "b"), 0, 0, 0), 1, 0, 0)


@silent(WAKES)
def who_should_be_woken_is_killed() -> Builder:
    h = forward(asked(two(), 0, "a"), 0, 0, 0).fires("kill", "coordinator.0->core.1/wave:receive", node="core.1")
    return h.wait(3).observes("frontend.0", "engine-dead", reason="core.1 died (exit code -9)", core=1)


@silent(WAKES)
def the_client_leaves_at_once() -> Builder:
    return asked(two(), 0, "a").observes("frontend.0", "closing", kept={}, errors=[]).wait(3)


@silent(WAKES)
def all_rest_because_they_were_told_to() -> Builder:
    return asked(rests(two()), 0, "a").wait(3)


@outside(WAKES)
def a_rank_stands_still_for_good() -> Builder:
    return asked(two(), 0, "a").fires("stall", "core.1/mark:dummy").wait(3)


@outside(WAKES)
def a_call_to_pause_reaches_one_rank_alone() -> Builder:
    return asked(two(), 0, "a").fires("drop", f"{REQUESTS}:receive").wait(3)


# -- when they rest


def quiet(dummies: int, h: Builder | None = None) -> Builder:
    """Behind the last request so many dummy batches of both come before they agree to rest."""
    h = agree(both(asked(h or two(), 0, "a"), 0, 0), 0, 1, 1, 0).observes("core.0", "freed", request="a")
    for step in range(1, dummies + 1):
        forward(forward(h, 0, 0, step, dummy=True), 1, 0, step, dummy=True)
    return agree(h, 0, dummies + 1, 0, 0)


@accepts(QUIET)
def they_rest_at_the_next_all_reduce() -> Builder:
    return quiet(INTERVAL - 1)


@rejects(QUIET)
def they_ask_each_other_too_seldom() -> Builder:
    return quiet(INTERVAL + 1)


@rejects(QUIET)
def they_go_on_though_nothing_is_left() -> Builder:
    h = quiet(3)
    for step in range(INTERVAL + 1):
        forward(forward(h, 0, 1, step, dummy=True), 1, 1, step, dummy=True)
    return h


@accepts(QUIET)
def a_queue_of_two_steps_has_one_more() -> Builder:
    return quiet(INTERVAL + 1, history(tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2,
                                       max_concurrent_batches=2, scheduler=SchedulerConfig(async_scheduling=True)))


@silent(QUIET)
def somebody_asks_for_more() -> Builder:
    h = agree(both(asked(two(), 0, "a"), 0, 0), 0, 1, 1, 0).observes("core.0", "freed", request="a")
    asked(h, 1, "b")
    for step in range(1, 40):
        both(h, 0, step)
    return h


@silent(QUIET)
def they_are_told_to_pause_meanwhile() -> Builder:
    h = agree(both(asked(two(), 0, "a"), 0, 0), 0, 1, 1, 0).observes("core.0", "freed", request="a")
    for step in range(1, 25):
        forward(forward(h, 0, 0, step, dummy=True), 1, 0, step, dummy=True)
    enters(h)
    return answers(answers(h, 0, 0, 25, [0, 1], [0, 2]), 1, 0, 25, [0, 1], [0, 2])


# -- when they are told to


def rests(h: Builder) -> Builder:
    """All agree to rest."""
    enters(both(h, 0, 0))
    for core in (0, 1):
        answers(h, core, 0, 1, [0, 1], [0, 2])
        h.crosses(mark_site(f"core.{core}", Mark.PAUSED), wave=1)
    return h


def goes_on(h: Builder, *cores: int) -> Builder:
    enters(h, *cores)
    for core in cores or (0, 1):
        answers(h, core, 1, 0, [1, 0], [2, 0])
        h.crosses(mark_site(f"core.{core}", Mark.RESUMED), wave=1)
    return h


@accepts(PAUSE)
def what_is_asked_meanwhile_waits_until_all_go_on() -> Builder:
    return both(goes_on(asked(rests(two()), 1, "a")), 1, 0)


@accepts(PAUSE)
def a_start_comes_meanwhile() -> Builder:
    return start(rests(two()), 0, 0, 1, runs=False)


@rejects(PAUSE)
def a_rank_executes_what_came_meanwhile() -> Builder:
    return forward(asked(rests(two()), 1, "a"), 1, 1, 0)


@rejects(PAUSE)
def a_rank_goes_on_before_another_one() -> Builder:
    return goes_on(forward(goes_on(asked(rests(two()), 1, "a"), 1), 1, 1, 0), 0)


@silent(PAUSE)
def nothing_comes_meanwhile() -> Builder:
    return both(goes_on(rests(two())), 1, 0)


def three() -> Builder:
    return history(tp=1, topology=data_parallel(3, lockstep=True), data_parallel_size=3)


LATE, DIED = "did not enter within 5 s", "died before it entered"


def gives_up(h: Builder, core: int, *blamed: str, why: str = LATE, title: str = "sum, turn 2 of dp") -> Builder:
    reason = f"{title}: {' and '.join(blamed)} {why}"
    return h.observes(f"core.{core}", "consensus-failed", blamed=list(blamed), reason=reason)


@accepts(MISSING)
def who_does_not_come_is_named() -> Builder:
    return gives_up(enters(two(), 0).wait(5.05), 0, "core.1")


@accepts(MISSING)
def who_is_gone_is_named_at_once() -> Builder:
    h = enters(three(), 0, 2).fires("kill", "core.1/consensus:enter", node="core.1")
    return gives_up(gives_up(h, 0, "core.1", why=DIED), 2, "core.1", why=DIED)


@accepts(MISSING)
def who_is_gone_is_named_before_its_process_has_ended() -> Builder:
    h = gives_up(enters(two("engine"), 0), 0, "core.1", why=DIED).wait(0.05)
    return h.fires("kill", "core.1/consensus:enter", node="core.1")


@accepts(MISSING)
def who_gave_up_is_named_by_the_other_one() -> Builder:
    h = gives_up(enters(three(), 0, 2).wait(5.0), 0, "core.1")
    return gives_up(h, 2, "core.0", why="gave up")


@accepts(MISSING)
def who_gave_up_writes_it_down_after_it_was_named() -> Builder:
    h = gives_up(enters(two("engine"), 0).wait(0.1), 0, "core.1", why="gave up").wait(0.05)
    return h.observes("core.1", "dying", reason="sys.exit('SIGTERM')", queued=0)


@accepts(MISSING)
def who_gave_up_is_held_up_when_it_has_told_so() -> Builder:
    """In the twin, where what one tells is known at once: it hangs on its way out."""
    h = enters(two(), 0).wait(0.1).observes("core.1", "dying", reason="sys.exit('SIGTERM')", queued=0)
    h.fires("hang", "core.1/mark:dying", node="core.1")
    return gives_up(h, 0, "core.1", why="gave up").wait(0.2).releases()


@rejects(MISSING)
def who_leaves_long_after_is_said_to_have_given_up() -> Builder:
    h = gives_up(enters(two("engine"), 0).wait(5.05), 0, "core.1", why="gave up").wait(1.0)
    return h.observes("core.1", "dying", reason="sys.exit('SIGTERM')", queued=0)


@accepts(MISSING)
def who_gave_up_is_gone_before_it_has_written_that_down() -> Builder:
    h = gives_up(enters(two("engine"), 0).wait(0.1), 0, "core.1", why="gave up").wait(0.05)
    return h.fires("kill", "core.1/consensus:enter", node="core.1")


@rejects(MISSING)
def who_is_gone_long_after_is_said_to_have_given_up() -> Builder:
    h = gives_up(enters(two("engine"), 0).wait(5.05), 0, "core.1", why="gave up").wait(1.0)
    return h.fires("kill", "core.1/consensus:enter", node="core.1")


def comes_so_long_before(seconds: float, world: str) -> Builder:
    """core.1, to an all-reduce that core.0 leaves because it does not come."""
    return gives_up(enters(enters(two(world), 0).wait(5.0), 1).wait(seconds), 0, "core.1")


@accepts(MISSING)
def who_has_just_entered_may_not_have_told_yet() -> Builder:
    return comes_so_long_before(0.05, "engine")


@rejects(MISSING)
def who_entered_long_before_has_told() -> Builder:
    return comes_so_long_before(0.6, "engine")


@rejects(MISSING)
def who_has_just_entered_has_told_where_time_is_virtual() -> Builder:
    return comes_so_long_before(0.05, "sim")


def gave_up_so_long_before(seconds: float) -> Builder:
    """core.1, of which core.0 says that it did not come."""
    h = enters(two("engine"), 0).wait(5.0).observes("core.1", "dying", reason="sys.exit('SIGTERM')", queued=0)
    return gives_up(h.wait(seconds), 0, "core.1")


@accepts(MISSING)
def who_has_just_given_up_may_not_have_told_yet() -> Builder:
    return gave_up_so_long_before(0.05)


@rejects(MISSING)
def who_gave_up_long_before_has_told() -> Builder:
    return gave_up_so_long_before(0.6)


@accepts(MISSING)
def who_hangs_as_it_is_about_to_give_up_is_said_not_to_have_come() -> Builder:
    h = enters(two(), 0).observes("core.1", "dying", reason="sys.exit(1)", queued=0)
    return gives_up(h.fires("hang", "core.1/mark:dying").wait(5.05), 0, "core.1")


@accepts(MISSING)
def who_gave_up_is_named_with_whom_it_missed() -> Builder:
    h = gives_up(enters(three(), 0, 2).wait(5.0), 0, "core.1")
    why = "core.1 did not enter, and core.0 gave up"
    return h.observes("core.2", "consensus-failed", blamed=["core.1", "core.0"], reason=f"sum, turn 2 of dp: {why}")


def is_stopped_so_long_after(seconds: float, fate: str = "stall", why: str = LATE) -> Builder:
    """core.1, behind its entry, by what it says."""
    h = enters(two("engine"), 0, 1).wait(seconds).fires(fate, "core.0/mark:step", node="core.1")
    return gives_up(h.wait(5.05 - seconds if fate == "stall" else 0.05), 0, "core.1", why=why)


@accepts(MISSING)
def who_is_stopped_as_it_enters_may_not_have_told() -> Builder:
    return is_stopped_so_long_after(0.01)


@accepts(MISSING)
def who_dies_as_it_enters_may_not_have_told() -> Builder:
    return is_stopped_so_long_after(0.01, "kill", DIED)


@rejects(MISSING)
def who_is_stopped_long_after_it_entered_has_told() -> Builder:
    return is_stopped_so_long_after(0.6)


@rejects(MISSING)
def who_dies_long_after_it_entered_has_told() -> Builder:
    return is_stopped_so_long_after(0.6, "kill", DIED)


def hangs_as_it_enters(h: Builder) -> Builder:
    """core.1, where core.0 waits."""
    h = enters(h, 0).fires("hang", "core.1/consensus:enter")
    return h.crosses("core.1/consensus:enter", group="dp", operation="sum", fate="hang")


@accepts(MISSING)
def who_hangs_as_it_enters_is_said_not_to_have_come() -> Builder:
    return gives_up(hangs_as_it_enters(two()).wait(5.05), 0, "core.1")


@rejects(MISSING)
def who_hung_as_it_entered_has_come_when_it_is_said_not_to_have() -> Builder:
    return gives_up(hangs_as_it_enters(two()).wait(5.05).releases(), 0, "core.1")


@rejects(MISSING)
def whom_it_blames_it_does_not_say() -> Builder:
    h = gives_up(enters(three(), 0, 2).wait(5.0), 0, "core.1")
    return h.observes("core.2", "consensus-failed", blamed=["core.1", "core.0"],
                      reason="sum, turn 2 of dp: core.0 gave up")


@rejects(MISSING)
def another_turn_is_spoken_of() -> Builder:
    return gives_up(enters(two(), 0).wait(5.05), 0, "core.1", title="sum, turn 1 of dp")


@rejects(MISSING)
def who_lives_is_said_to_have_died() -> Builder:
    return gives_up(enters(two(), 0).wait(5.05), 0, "core.1", why=DIED)


@rejects(MISSING)
def who_dies_long_after_is_said_to_have_died() -> Builder:
    h = gives_up(enters(two("engine"), 0).wait(5.05), 0, "core.1", why=DIED).wait(1.0)
    return h.fires("kill", "core.1/consensus:enter", node="core.1")


@rejects(MISSING)
def who_had_come_is_said_to_have_died_before() -> Builder:
    h = enters(two()).fires("kill", "core.0/consensus:enter", node="core.1")
    return gives_up(h, 0, "core.1", why=DIED)


@rejects(MISSING)
def who_has_died_is_waited_for() -> Builder:
    h = enters(three(), 0, 2).fires("kill", "core.1/consensus:enter", node="core.1").wait(.05)
    return gives_up(gives_up(h, 0, "core.1", why=DIED), 2, "core.1", why=DIED)


@rejects(MISSING)
def who_waits_itself_is_named() -> Builder:
    return gives_up(enters(three(), 0, 2).wait(5.1), 0, "core.1", "core.2")


@rejects(MISSING)
def nobody_is_named() -> Builder:
    return gives_up(enters(two(), 0).wait(5.1), 0)


@rejects(MISSING)
def it_is_let_wait_too_long() -> Builder:
    return gives_up(enters(two(), 0).wait(9.0), 0, "core.1")


@rejects(MISSING)
def it_waits_for_as_long_as_it_lives() -> Builder:
    return enters(two(), 0).wait(60.0)


@silent(MISSING)
def all_come() -> Builder:
    return agree(two(), 0, 0, 1, 0)
