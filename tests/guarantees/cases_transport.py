"""Histories about frames between frontend and core."""

import msgspec

from engine.config import SchedulerConfig
from engine.messages import EngineCoreRequest, SamplingParams
from engine.topology import data_parallel
from engine.wire.codec import encode_add
from faults.plan import Until
from scenarios.history.play import Intruder, Options
from tests.guarantees.build import OUTPUTS, REQUESTS, WORKLOAD, Builder, history
from tests.guarantees.cases import accepts, outside, rejects, silent, unknown

BURST = [f"d{n}" for n in range(1200)]


@accepts("hwm0-no-loss", "edge-fifo")
def a_burst_stands_unread_and_arrives() -> Builder:
    return history().started().sends(OUTPUTS, *BURST).receives(OUTPUTS, *BURST).wait(1).observes(
        "frontend.0", "closing")


@rejects("hwm0-no-loss")
def the_middle_of_a_burst_is_dropped_at_the_high_water_mark() -> Builder:
    return history().started().sends(OUTPUTS, *BURST).receives(OUTPUTS, *BURST[:1000], BURST[-1])


@rejects("hwm0-no-loss")
def the_tail_of_a_burst_is_dropped_while_both_ends_live_on() -> Builder:
    return history().started().sends(OUTPUTS, *BURST).receives(OUTPUTS, *BURST[:1000]).wait(2).observes(
        "frontend.0", "closing")


@rejects("hwm0-no-loss")
def a_frame_is_received_twice() -> Builder:
    return history().started().sends(OUTPUTS, *BURST).receives(OUTPUTS, *BURST, BURST[3])


@silent("hwm0-no-loss", "edge-fifo")
def frames_one_by_one() -> Builder:
    return history().started().carries(OUTPUTS, "a", "b").carries(REQUESTS, "c")


@silent("hwm0-no-loss")
def the_last_frames_are_on_their_way_when_the_frontend_closes() -> Builder:
    return history().started().sends(OUTPUTS, "a", "b", "c").receives(OUTPUTS, "a").observes("frontend.0", "closing")


@silent("hwm0-no-loss")
def the_core_is_stopped_for_good_with_a_frame_in_hand() -> Builder:
    return history().started().sends(OUTPUTS, "a").fires("stall", "core.0/mark:scheduled").wait(2).observes(
        "frontend.0", "closing")


def _comes_later(then_s: float) -> Builder:
    """The core announces itself a second before its client is born."""
    h = history().started().sends("core.0->frontend.0/requests", "here").wait(1.0)
    return h.observes("frontend.0", "born", pid=7).wait(then_s).observes("frontend.0", "closing")


@silent("hwm0-no-loss")
def who_comes_later_leaves_before_it_has_heard_of_its_core() -> Builder:
    return _comes_later(0.4)


@rejects("hwm0-no-loss")
def who_comes_later_never_hears_of_its_core() -> Builder:
    return _comes_later(2.0)


@rejects("hwm0-no-loss")
def a_core_that_goes_on_again_never_sends_what_it_had_in_hand() -> Builder:
    return history().started().sends(OUTPUTS, "a").fires(
        "stall", "core.0/mark:scheduled", until=Until(seconds=1.0)).wait(1).releases().wait(2).observes(
        "frontend.0", "closing")


@outside("hwm0-no-loss")
def the_plan_drops_an_output() -> Builder:
    return history().started().sends(OUTPUTS, "a").fires("drop", f"{OUTPUTS}:receive")


@accepts("edge-fifo")
def a_successor_is_under_way() -> Builder:
    return history().started().sends(OUTPUTS, "a", "b").receives(OUTPUTS, "a", "b")


@rejects("edge-fifo")
def the_newest_frame_is_read_first() -> Builder:
    return history().started().sends(OUTPUTS, "a", "b", "c").receives(OUTPUTS, "c", "a", "b")


@accepts("edge-fifo")
def equal_frames_of_which_one_is_lost_are_still_in_order() -> Builder:
    return history().started().sends(OUTPUTS, "a", "b", "a").receives(OUTPUTS, "b", "a")


@accepts("unroutable-is-known")
def the_caller_is_told_that_the_core_is_not_connected() -> Builder:
    return _cut().called("a", core=False).observes("frontend.0", "unroutable", request="a", edge=REQUESTS).ended(
        "a", "failed", error="UnroutableError")


def _cut() -> Builder:
    cut = history().started().fires("cut", f"{REQUESTS}:wire", node="core.0", until=Until(seconds=1.0))
    return cut.wait(0.3)


@rejects("unroutable-is-known")
def a_plain_router_drops_the_frame_in_silence() -> Builder:
    return _cut().called("a", core=False).sends(REQUESTS, "x").wait(0.2).releases().wait(2.5).ended(
        "a", "failed", error="RequestTimeoutError", may_have_taken_effect=True)


@accepts("unroutable-is-known")
def the_socket_refuses_what_it_cannot_route() -> Builder:
    h = _cut().called("a", core=False).sends(REQUESTS, "x")
    h.observes("frontend.0", "not-sent", site=f"{REQUESTS}:send", nth=1)
    h.observes("frontend.0", "unroutable", request="a", edge=REQUESTS)
    return h.ended("a", "failed", error="UnroutableError").wait(2)


@rejects("unroutable-is-known")
def the_socket_knows_and_the_caller_is_never_told() -> Builder:
    return _cut().called("a", core=False).observes("frontend.0", "unroutable", request="a", edge=REQUESTS).wait(
        3).releases()


def _call_not_sent() -> Builder:
    return _cut().observes("frontend.0", "unroutable", request=None, utility="reset", edge=REQUESTS)


@accepts("unroutable-is-known")
def the_caller_of_a_utility_is_told_at_once() -> Builder:
    return _call_not_sent().observes("frontend.0", "utility", method="reset", result=None, failure="not connected")


@rejects("unroutable-is-known")
def the_caller_of_a_utility_is_told_at_its_deadline() -> Builder:
    return _call_not_sent().wait(2).observes("frontend.0", "utility", method="reset", result=None, failure="late")


@rejects("unroutable-is-known")
def the_caller_of_a_utility_is_never_told() -> Builder:
    return _call_not_sent().observes("frontend.0", "utility", method="other", result=1, failure="").wait(3).releases()


@silent("unroutable-is-known")
def everything_could_be_routed() -> Builder:
    return history().started().called("a").carries(REQUESTS, "x").ended("a")


@silent("unroutable-is-known")
def the_cut_was_not_yet_noticed() -> Builder:
    return history().started().fires("cut", f"{REQUESTS}:wire", until=Until(seconds=1.0)).sends(
        REQUESTS, "x").wait(1).releases()


@silent("unroutable-is-known")
def it_was_cut_for_a_moment_and_frames_are_lost_much_later() -> Builder:
    h = history().started().fires("cut", f"{REQUESTS}:wire", node="core.0").releases()
    return h.wait(1.0).called("a", core=False).sends(REQUESTS, "x").wait(1.0)


@silent("unroutable-is-known")
def no_end_was_told_of_the_cut() -> Builder:
    h = history().started().fires("cut", f"{REQUESTS}:wire", node="core.0", until=Until(seconds=1.0))
    h.faults[0] = msgspec.structs.replace(h.faults[0], silent=True)
    return h.wait(0.3).called("a", core=False).sends(REQUESTS, "x").wait(0.2).releases().wait(2.5)


def _is_sent_to_who_is_gone(stood_s: float, looked_s: float) -> Builder:
    h = history().started().called("a").fires("kill", "core.0/mark:step", node="core.0").ends("core.0", exitcode=-9)
    if stood_s:
        until = Until(seconds=stood_s)
        h.fires("stall", f"{OUTPUTS}:receive", node="frontend.0", until=until).wait(stood_s).releases()
    return h.wait(looked_s).sends(REQUESTS, "abort a").dies("a", reason="core.0 died")


@silent("unroutable-is-known")
def a_client_that_stood_still_sends_to_a_core_that_is_gone() -> Builder:
    return _is_sent_to_who_is_gone(3.0, 0.01)


@rejects("unroutable-is-known")
def a_client_that_looks_again_sends_to_a_core_that_is_gone() -> Builder:
    return _is_sent_to_who_is_gone(3.0, 0.2)


@rejects("unroutable-is-known")
def a_client_that_always_looked_sends_to_a_core_that_is_gone() -> Builder:
    return _is_sent_to_who_is_gone(0.0, 0.2)


@silent("unroutable-is-known")
def another_client_is_not_connected() -> Builder:
    h = history(tp=1, topology=data_parallel(1, tp=1, clients=2)).started()
    h.fires("cut", "frontend.1->core.0/requests:wire", node="core.0", until=Until(seconds=1.0)).wait(0.3)
    return h.called("a", core=False).sends(REQUESTS, "x").wait(0.2).releases().wait(2.5)


def _large() -> Builder:
    return history().started().sends(OUTPUTS, "big", bytes=1 << 20).observes("core.0", "freed", request="a-0")


@accepts("frames-intact")
def a_large_frame_is_under_way_while_its_sender_goes_on() -> Builder:
    return _large().receives(OUTPUTS, "big")


@rejects("frames-intact")
def the_buffer_of_a_large_frame_was_reused() -> Builder:
    return _large().receives(OUTPUTS, "other")


@accepts("frames-intact")
def the_plan_changed_the_frame_that_differs() -> Builder:
    return _large().receives(OUTPUTS, "big").sends(OUTPUTS, "b").fires("corrupt", f"{OUTPUTS}:receive").receives(
        OUTPUTS, "changed")


@silent("frames-intact")
def small_frames_are_copied() -> Builder:
    return history().started().sends(OUTPUTS, "a", "b").receives(OUTPUTS, "a", "b")


@accepts("handshake-order")
def both_sides_agree() -> Builder:
    return history().started().carries(REQUESTS, "x")


def _calls_its_worker(*, core_hears: bool = True, worker_hears: bool = True) -> Builder:
    """A core of one worker: both ends of each ring say that all are there, then there is work."""
    h = history(tp=1).observes("worker.0", "born").started()
    for heard, node, other in ((worker_hears, "worker.0", "core.0"), (core_hears, "core.0", "worker.0")):
        edge = f"{other}->{node}/overflow"
        h.sends(edge, "ready")
        if heard:
            h.receives(edge, "ready")
    h.observes("core.0", "rpc-call", call=0, method="get_num_blocks", output_rank=None)
    return h.executes("worker.0", call=0, method="get_num_blocks")


@accepts("handshake-order")
def a_call_comes_when_all_ends_are_there() -> Builder:
    return _calls_its_worker()


@rejects("handshake-order")
def a_core_calls_whose_answers_ring_is_not_complete() -> Builder:
    return _calls_its_worker(core_hears=False).receives("worker.0->core.0/overflow", "ready")


@rejects("handshake-order")
def a_worker_executes_a_call_of_a_ring_of_which_it_has_heard_nothing() -> Builder:
    return _calls_its_worker(worker_hears=False)


@accepts("handshake-order", "start-ends")
def hello_is_lost_and_the_start_fails_by_name() -> Builder:
    up = "core.0->frontend.0/handshake"
    return history().observes("frontend.0", "starting").sends(up, "hello").fires("drop", f"{up}:receive").wait(
        2).observes("frontend.0", "start-failed", error="StartupError", reason="no HELLO from core.0")


def _served_before_it_is_ready(*ready: list[bytes]) -> Builder:
    """Somebody else goes by the core's name, has greeted, and says this, too; then the core's own READY is read."""
    other = Intruder(at="handshake", kind="DEALER", identity=b"\0\0", early=True, bad=[[b"hello"]], idle=list(ready))
    h = history().promised(options=Options(intruders=[other])).observes("frontend.0", "starting")
    down, announce = "frontend.0->core.0/handshake", "core.0->frontend.0/requests"
    config = {"tensor_parallel_size": h.tp, "pipeline_parallel_size": h.pp, "data_parallel_size": 1}
    h.carries(_UP, "", "hello").carries(down, "metadata").sends(_UP, "ready").carries(announce, "")
    for node in ("core.0", "frontend.0"):
        h.observes(node, "ready", num_gpu_blocks=8, parallel_config=config)
    return h.called("a").carries(REQUESTS, "a").receives(_UP, "ready").ended("a")


@accepts("handshake-order")
def a_client_goes_by_the_ready_of_who_goes_by_its_core_s_name() -> Builder:
    return _served_before_it_is_ready([b"ready"])


@rejects("handshake-order")
def who_goes_by_its_core_s_name_has_not_said_ready() -> Builder:
    return _served_before_it_is_ready()


def _hello_is_changed(reason: str) -> Builder:
    h = history().observes("frontend.0", "starting").carries(_UP, "").sends(_UP, "hello")
    h.fires("corrupt", f"{_UP}:receive", nth=2, node="frontend.0").receives(_UP, "other")
    return h.observes("frontend.0", "start-failed", error="StartupError", reason=reason)


@accepts("handshake-order")
def a_changed_hello_is_said_to_be_of_a_core_that_is_elsewhere() -> Builder:
    return _hello_is_changed("core.0 greets as headless, and is to be one that was started here")


@rejects("handshake-order")
def a_changed_hello_is_told_as_something_else() -> Builder:
    return _hello_is_changed("core.1 greets as headless, and is to be one that was started here")


@rejects("handshake-order")
def work_is_sent_at_hello() -> Builder:
    up, down = "core.0->frontend.0/handshake", "frontend.0->core.0/handshake"
    return history().observes("frontend.0", "starting").carries(up, "hello").carries(down, "metadata").carries(
        "core.0->frontend.0/requests", "here").sends(REQUESTS, "x").carries(up, "ready").observes(
        "frontend.0", "ready", num_gpu_blocks=8, parallel_config={})


@rejects("handshake-order")
def work_is_sent_before_the_core_announced_itself() -> Builder:
    up = "core.0->frontend.0/handshake"
    return history().observes("frontend.0", "starting").carries(up, "hello", "ready").observes(
        "frontend.0", "ready", num_gpu_blocks=8, parallel_config={}).sends(REQUESTS, "x")


@rejects("handshake-order")
def the_two_sides_disagree_about_the_blocks() -> Builder:
    return history().started(blocks=8, core_blocks=9)


@rejects("handshake-order")
def both_sides_agree_on_another_engine() -> Builder:
    h = history(tp=4)
    h.tp = 2
    return h.started()


@rejects("handshake-order", "start-ends")
def ready_is_waited_for_for_ever() -> Builder:
    up = "core.0->frontend.0/handshake"
    return history().observes("frontend.0", "starting").carries(up, "hello").fires("drop", f"{up}:receive").wait(60)


_UP, _DOWN = "core.0->frontend.0/handshake", "frontend.0->core.0/handshake"


@rejects("handshake-order")
def a_core_says_ready_twice() -> Builder:
    return history().started().sends(_UP, "ready")


@rejects("handshake-order")
def a_core_announces_itself_twice() -> Builder:
    return history().started().sends("core.0->frontend.0/requests", "")


@rejects("handshake-order")
def a_frontend_answers_hello_twice() -> Builder:
    return history().started().sends(_DOWN, "metadata")


@accepts("handshake-order")
def hello_comes_twice_by_the_plan_and_is_answered_twice() -> Builder:
    return history().started().fires("duplicate", f"{_UP}:receive", nth=2).sends(_DOWN, "metadata")


def _ready_is_changed(fate: str = "corrupt") -> Builder:
    h = history().observes("frontend.0", "starting").carries(_UP, "", "hello").carries(_DOWN, "metadata")
    return h.sends(_UP, "ready").receives(_UP, "READY").fires(fate, f"{_UP}:receive", nth=3)


@accepts("handshake-order")
def a_changed_greeting_is_told_and_not_taken() -> Builder:
    h = _ready_is_changed().observes("frontend.0", "bad-frame", edge="handshake", error="a greeting with status READY")
    return h.wait(1).observes("frontend.0", "start-failed", error="StartupError", reason="core.0 did not report READY")


@accepts("handshake-order")
def a_changed_greeting_is_another_one() -> Builder:
    config = {"tensor_parallel_size": 2, "data_parallel_size": 1}
    h = _ready_is_changed().observes("core.0", "ready", num_gpu_blocks=8, parallel_config=config)
    return h.observes("frontend.0", "ready", num_gpu_blocks=8, parallel_config=config)


@rejects("handshake-order")
def cores_are_told_to_step_together_that_were_not_started_so() -> Builder:
    config = {"tensor_parallel_size": 2, "data_parallel_size": 1, "lockstep": True}
    h = _ready_is_changed().observes("core.0", "ready", num_gpu_blocks=8, parallel_config=config)
    return h.observes("frontend.0", "ready", num_gpu_blocks=8, parallel_config=config)


@rejects("handshake-order")
def a_changed_greeting_is_not_taken_and_nobody_says_so() -> Builder:
    return _ready_is_changed().wait(1).observes("frontend.0", "start-failed", error="StartupError",
                                                reason="core.0 did not report READY")


@rejects("handshake-order")
def a_core_begins_with_hello() -> Builder:
    return history().observes("frontend.0", "starting").carries(_UP, "hello", "").carries(_DOWN, "metadata").carries(
        _UP, "ready").carries("core.0->frontend.0/requests", "").observes("core.0", "ready").observes(
        "frontend.0", "ready", parallel_config={"tensor_parallel_size": 2, "data_parallel_size": 1})


def _cut_short(told: bool) -> Builder:
    h = history().observes("frontend.0", "starting").carries(_UP, "", "hello").carries(_DOWN, "metadata").fires(
        "truncate", f"{_UP}:receive", nth=3)
    h = h.observes("frontend.0", "bad-frame", edge="handshake", error="truncated") if told else h
    return h.wait(4).observes("frontend.0", "start-failed", error="StartupError", reason="core.0 was late")


@accepts("handshake-order")
def a_greeting_that_is_cut_short_is_told() -> Builder:
    return _cut_short(told=True)


@rejects("handshake-order")
def a_greeting_that_is_cut_short_is_passed_over_in_silence() -> Builder:
    return _cut_short(told=False)


def _is_not_answered(seconds: float, fate: str = "drop") -> Builder:
    h = history().observes("frontend.0", "starting").carries(_UP, "", "hello").fires(fate, f"{_DOWN}:receive")
    if fate != "drop":
        h.carries(_DOWN, "metadata")
    return h.wait(seconds).observes("frontend.0", "start-failed", error="StartupError", reason="core.0 had no answer")


@accepts("handshake-order")
def a_core_whose_hello_is_not_answered_gives_up() -> Builder:
    return _is_not_answered(2.1)


@accepts("handshake-order")
def a_core_whose_hello_is_answered_twice_may_take_as_long() -> Builder:
    return _is_not_answered(4, "duplicate")


@rejects("handshake-order")
def a_core_whose_hello_is_not_answered_waits_as_long_as_a_start_may_take() -> Builder:
    return _is_not_answered(4)


def _stands_still_unanswered(until_s: float, then_s: float) -> Builder:
    """A launcher that reads no HELLO for so long, and goes on for so long until its start has failed."""
    up = "core.0->launcher.0/handshake"
    h = history(topology=data_parallel(1, clients=2)).observes("launcher.0", "starting").carries(up, "")
    h.sends(up, "hello").fires("stall", f"{up}:receive", node="launcher.0", until=Until(seconds=until_s))
    return h.wait(until_s).releases().receives(up, "hello").wait(then_s).observes(
        "launcher.0", "start-failed", error="StartupError", reason="core.0: had no answer to its HELLO")


@accepts("handshake-order")
def a_launcher_that_stood_still_reads_late_that_the_core_has_given_up() -> Builder:
    return _stands_still_unanswered(3.0, 0.01)


@rejects("handshake-order")
def a_launcher_that_stood_still_goes_on_with_a_core_that_has_given_up() -> Builder:
    return _stands_still_unanswered(2.5, 1.0)


@rejects("handshake-order")
def a_launcher_stood_still_before_its_core_had_to_give_up() -> Builder:
    return _stands_still_unanswered(1.0, 2.0)


def _fails_after(seconds: float, *heard: str) -> Builder:
    h = history().observes("frontend.0", "starting").carries(_UP, *heard).fires("stall", "core.0/mark:born")
    return h.wait(seconds).observes("frontend.0", "start-failed", error="StartupError",
                                    reason="core.0 did not report READY in time")


@accepts("handshake-order", "start-ends")
def a_core_that_says_no_hello_is_not_waited_for() -> Builder:
    return _fails_after(2.1, "").fires("drop", f"{_UP}:receive")


@rejects("handshake-order")
def a_core_that_says_no_hello_is_waited_for_as_long_as_for_one_that_has() -> Builder:
    return _fails_after(4, "")


@rejects("handshake-order")
def a_core_that_said_hello_is_given_up_as_if_it_had_not() -> Builder:
    return _fails_after(2.1, "", "hello")


@accepts("handshake-order")
def a_core_that_said_hello_has_the_time_of_a_start() -> Builder:
    return _fails_after(4, "", "hello").fires("drop", f"{_UP}:receive")


@accepts("handshake-order")
def a_core_whose_empty_frame_is_cut_short_has_said_hello_all_the_same() -> Builder:
    return _fails_after(4, "", "hello").fires("truncate", f"{_UP}:receive")


@unknown("handshake-order", "start-ends")
def the_play_ends_before_a_slow_start_does() -> Builder:
    return history("engine").observes("frontend.0", "starting").wait(6)


@silent("handshake-order", "start-ends")
def no_engine_is_started() -> Builder:
    return history().observes("core.0", "born", pid=1)


def _bad_frame(**data: object) -> Builder:
    return history().started().called("a").called("b", 1).observes(
        "core.0", "bad-frame", edge=REQUESTS, error="unknown type 0x7f", **data)


@rejects("bad-frame-isolated")
def a_type_that_every_core_knows_is_called_unknown() -> Builder:
    return history().started().called("a").called("b", 1).observes(
        "core.0", "bad-frame", edge=REQUESTS, error="unknown request type 00").ended("a").ended("b")


@accepts("bad-frame-isolated", "no-foreign-code")
def a_bad_frame_is_dropped_and_others_are_served() -> Builder:
    return _bad_frame().ended("a").ended("b").observes("frontend.0", "closing")


def _intruded(*said: tuple[str, dict[str, str]]) -> Builder:
    """Two messages on each of two ways; this was said of them."""
    intruders = [Intruder(at="reports", kind="PUSH", bad=[[b"?"], [b"!"]], idle=[[b"."]]),
                 Intruder(at="outputs", kind="PUSH", bad=[[b"?"], [b"!"]])]
    h = history(topology=data_parallel(2, coordinated=True)).promised(options=Options(intruders=intruders))
    h.started().called("a")
    for name, data in said:
        h.observes("frontend.0" if "outputs" in data.get("edge", "") else "coordinator.0", name, error="?", **data)
    return h.ended("a").observes("coordinator.0", "bye", reason="done").observes("frontend.0", "bye", reason="done")


_NAMED = (("bad-frame", {"edge": "report"}), ("odd", {"cause": "counts", "why": "no rank"}),
          *[("bad-frame", {"edge": "core.1->frontend.0/outputs"})] * 2)


@accepts("bad-frame-isolated")
def all_that_an_intruder_says_is_named() -> Builder:
    return _intruded(*_NAMED)


@rejects("bad-frame-isolated")
def a_coordinator_passes_over_what_an_intruder_says() -> Builder:
    return _intruded(*_NAMED[1:])


@rejects("bad-frame-isolated")
def what_a_coordinator_finds_odd_is_not_what_an_intruder_said() -> Builder:
    return _intruded(_NAMED[0], ("odd", {"cause": "subscription", "why": "no rank"}), *_NAMED[2:])


@rejects("bad-frame-isolated")
def a_client_passes_over_what_an_intruder_says() -> Builder:
    return _intruded(*_NAMED[:3])


@accepts("bad-frame-isolated")
def the_request_in_a_bad_frame_fails_alone() -> Builder:
    return history().started().called("a").called("b", 1).sends(REQUESTS, "a").receives(REQUESTS, "a").fires(
        "truncate", f"{REQUESTS}:receive").observes("core.0", "bad-frame", edge=REQUESTS, error="cut short").ended(
        "a", "failed", error="RequestError").ended("b")


@rejects("bad-frame-isolated")
def a_bad_frame_that_was_no_request_ends_one() -> Builder:
    return _bad_frame().ended("a", "failed", error="BadRequestError").ended("b")


@rejects("bad-frame-isolated")
def a_bad_frame_takes_two_requests_with_it() -> Builder:
    return _bad_frame().ended("a", "failed", error="RequestError").ended("b", "failed", error="RequestError")


def _paused_for_good(error: str) -> Builder:
    h = _bad_frame().observes("frontend.0", "utility", method="resume_scheduler", result=None, failure="no answer")
    return h.ended("a", "failed", error=error).ended("b", "failed", error=error)


@silent("bad-frame-isolated")
def what_was_to_resume_the_scheduler_is_a_bad_frame_and_paused_requests_time_out() -> Builder:
    return _paused_for_good("RequestTimeoutError")


@rejects("bad-frame-isolated")
def what_was_to_resume_the_scheduler_is_a_bad_frame_and_takes_two_requests_with_it() -> Builder:
    return _paused_for_good("RequestError")


@rejects("bad-frame-isolated")
def the_input_thread_dies_of_a_bad_frame() -> Builder:
    return _bad_frame().observes("frontend.0", "engine-dead", reason="core.0 died").dies("a").dies("b")


@rejects("bad-frame-isolated", "no-foreign-code")
def the_core_dies_of_a_bad_frame() -> Builder:
    return _bad_frame().ends("core.0", exitcode=1).wait(0.1).dies("a").dies("b")


@rejects("bad-frame-isolated", "no-foreign-code")
def a_truncated_frame_is_dropped_without_a_word() -> Builder:
    return history().started().called("a").sends(REQUESTS, "x").fires("truncate", f"{REQUESTS}:receive").receives(
        REQUESTS, "x").ended("a")


def _not_whole(fate: str, edge: str = REQUESTS, reader: str = "core.0", told: bool = True) -> Builder:
    h = history().started().called("a").called("b", 1).sends(edge, "x", buffers=2)
    h.fires(fate, f"{edge}:receive").receives(edge, "x")
    if told:
        h.observes(reader, "bad-frame", edge=edge, error="buffer 1 is not the one that the body names")
    return h.ended("a").ended("b")


@accepts("bad-frame-isolated")
def a_message_whose_buffers_are_swapped_is_dropped_and_told_of() -> Builder:
    return _not_whole("swap")


@accepts("bad-frame-isolated")
def an_answer_without_its_last_buffer_is_dropped_and_told_of() -> Builder:
    return _not_whole("omit", OUTPUTS, "frontend.0")


@rejects("bad-frame-isolated")
def a_message_whose_buffers_are_swapped_is_taken_for_whole() -> Builder:
    return _not_whole("swap", told=False)


@rejects("bad-frame-isolated")
def a_message_without_its_last_buffer_is_taken_for_whole() -> Builder:
    return _not_whole("omit", told=False)


@rejects("bad-frame-isolated")
def somebody_else_tells_of_an_answer_without_its_last_buffer() -> Builder:
    return _not_whole("omit", OUTPUTS, "core.0")


_TWO_RAW_FRAMES = {**WORKLOAD, "phases": [{"actions": [{"kind": "raw"}, {"kind": "add"}, {"kind": "raw"}]}]}


@rejects("bad-frame-isolated")
def one_of_two_frames_that_are_no_requests_vanishes_in_silence() -> Builder:
    return _bad_frame().ended("a").ended("b").promised(workload=_TWO_RAW_FRAMES)


@accepts("bad-frame-isolated")
def the_one_of_two_such_frames_that_the_plan_lets_through_is_told_of() -> Builder:
    return _bad_frame().fires("drop", f"{REQUESTS}:send").ended("a").ended("b").promised(workload=_TWO_RAW_FRAMES)


def _of_nobody(client_index: int = 0, took: bool = True, freed: bool = True, told: bool = True,
               longest: int | None = None) -> Builder:
    """A request of two tokens comes that no client has sent, of one that there may be none of, and is computed."""
    frames = encode_add(EngineCoreRequest("nobody", [5, 6], SamplingParams(max_tokens=2), client_index))
    raw = {"kind": "raw", "args": [frame.hex() for frame in frames]}
    h = history(scheduler=SchedulerConfig(max_model_len=longest)).started().request("a")
    h.promised(workload={**WORKLOAD, "phases": [{"actions": [raw]}]})
    if took:
        h.observes("core.0", "request", request="nobody", action="add", reason="")
        h.observes("worker.0", "step", call=0, new=[["nobody", [5, 6], 2, [0], 0]], scheduled={"nobody": 2})
    if client_index and told:
        h.observes("core.0", "bad-frame", edge="outputs", error=f"no client {client_index}")
    return (h.observes("core.0", "freed", request="nobody") if freed else h).request("b", 1)


@accepts("bad-frame-isolated")
def what_a_request_of_another_client_has_come_to_is_told() -> Builder:
    return _of_nobody(client_index=7)


@silent("bad-frame-isolated")
def a_request_that_nobody_has_sent_is_served_like_any_other() -> Builder:
    return _of_nobody()


@silent("bad-frame-isolated")
def a_request_that_nobody_has_sent_is_as_long_as_may_be() -> Builder:
    return _of_nobody(longest=3)


@rejects("bad-frame-isolated")
def a_request_that_nobody_has_sent_is_computed_and_leaves_no_room_for_an_answer() -> Builder:
    return _of_nobody(longest=2)


@rejects("bad-frame-isolated")
def a_request_that_nobody_has_sent_vanishes() -> Builder:
    return _of_nobody(took=False, freed=False)


@rejects("bad-frame-isolated")
def a_request_that_nobody_has_sent_is_kept_for_good() -> Builder:
    return _of_nobody(freed=False)


@rejects("bad-frame-isolated")
def outputs_for_a_client_that_there_is_none_of_vanish() -> Builder:
    return _of_nobody(client_index=7, told=False)


@rejects("no-foreign-code")
def a_pickle_from_the_socket_is_executed() -> Builder:
    """It ends the process that unpickles it."""
    return _bad_frame().ends("core.0", exitcode=1).ended("a").promised(workload=_TWO_RAW_FRAMES)


@silent("bad-frame-isolated", "no-foreign-code")
def every_frame_is_good() -> Builder:
    return history().started().request("a")


@outside("bad-frame-isolated", "no-foreign-code")
def the_metadata_of_the_handshake_is_damaged_and_the_start_fails() -> Builder:
    h = history().observes("frontend.0", "starting").fires("corrupt", "frontend.0->core.0/handshake:receive")
    h.observes("core.0", "bad-frame", edge="handshake", error="truncated").wait(1)
    return h.ends("core.0", exitcode=1).observes("frontend.0", "start-failed", error="StartupError", reason="core.0")


def _hello_comes_twice() -> Builder:
    h = history().observes("frontend.0", "starting").fires("duplicate", "core.0->frontend.0/handshake:receive")
    return h.observes("frontend.0", "bad-frame", edge="handshake", error="HELLO again")


def _start_fails(h: Builder) -> Builder:
    h.wait(5).ends("worker.1").ends("core.0", exitcode=1)
    return h.observes("frontend.0", "start-failed", error="StartupError", reason="worker.1")


@silent("bad-frame-isolated")
def a_hello_comes_twice_and_the_start_fails_because_a_recipe_is_lost() -> Builder:
    return _start_fails(_hello_comes_twice().fires("drop", "core.0->worker.1/birth:receive"))


@rejects("bad-frame-isolated")
def a_hello_comes_twice_and_the_start_fails_although_no_word_is_lost() -> Builder:
    return _start_fails(_hello_comes_twice())


@rejects("bad-frame-isolated")
def a_hello_comes_twice_and_a_rank_dies_although_the_lost_word_ended_no_start() -> Builder:
    return _hello_comes_twice().fires("drop", "core.0->worker.1/birth:receive").started().called("a").ends("worker.1")


def _damaged_batch() -> Builder:
    h = history(subscribers=1).started().called("a").fires("truncate", "core.0->subscriber.0/kv:receive")
    return h.observes("subscriber.0", "bad-frame", edge="kv", error="truncated").ended("a")


@accepts("no-foreign-code")
def a_subscriber_drops_a_damaged_batch_and_leaves_when_it_is_told_to() -> Builder:
    return _damaged_batch().observes("subscriber.0", "bye", reason="done").ends("subscriber.0").wait(1).observes(
        "frontend.0", "closing")


@rejects("no-foreign-code")
def a_subscriber_dies_of_a_damaged_batch() -> Builder:
    return _damaged_batch().ends("subscriber.0", exitcode=1).wait(1).observes("frontend.0", "closing")
