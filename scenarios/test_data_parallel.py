"""Several cores that one client spreads its requests over, each with all of the model."""

from __future__ import annotations

from engine.topology import Mark, data_parallel
from faults.plan import Plan, delay, drop, duplicate, exits, hang, kill, marked, plan, raises, stall, terminate, until
from scenarios.guarantees.all import (
    abort_is_final,
    blocks_conserved,
    calls_answered,
    death_is_told,
    dp_burst_spreads,
    dp_dead_never_chosen,
    dp_death_ends_group,
    drain,
    ends_once,
    handshake_order,
    health_is_true,
    lost_request_is_bounded,
    no_orphans,
    nothing_left_behind,
    rpc_any_rank_fails_fast,
    served_in_turn,
    stall_is_told,
    start_ends,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.workloads import ENDED, Workload, abort, add, recorded, utility


def eight() -> Workload:
    """At rest all cores are asked, one request is given up and one more comes."""
    return recorded("eight-mixed").then(add(*range(7)), steps=3).then(
        abort(1), add(7), utility("get_stats"), steps=2).then(utility("reset_prefix_cache"), add(1, name="again"))


def given_up_while_they_rest() -> Workload:
    """Four requests wait at two cores that rest, and are not told to go on before all of them are given up."""
    return recorded("eight-mixed").then(add(7), behind=("r7", ENDED)).then(
        utility("pause_scheduler"), add(*range(4)), behind=("r3", ENDED)).then(utility("get_stats"), add(5, 6))


RESUME = {"type": "UTILITY", "method": "resume_scheduler"}
CALM = (tokens_match_reference, tokens_in_order, served_in_turn, blocks_conserved, abort_is_final, dp_burst_spreads)
LOST = (death_is_told, ends_once, health_is_true, nothing_left_behind)
OTHERS = (dp_death_ends_group, dp_dead_never_chosen)
MORE = recorded("eight-mixed").then(add(*range(4)), steps=4).then(add(4, 5, 6, 7))

globals().update(family(__name__, (
    Case("test_two_cores_serve_one_client",
         "Requests are spread over two cores, and answered as one core answers them.",
         Plan(), (*CALM, calls_answered)),
    Case("test_two_cores_of_two_workers_serve_one_client",
         "The same with two workers each.",
         Plan(), (*CALM, calls_answered), play={"topology": data_parallel(2, tp=2)}),
    Case("test_four_cores_serve_one_client",
         "The same with four cores.",
         Plan(), CALM, play={"topology": data_parallel(4)}),
    Case("test_eleven_cores_of_two_workers",
         "Their numbers have two digits, and so have those of their workers.",
         Plan(), (tokens_match_reference, nothing_left_behind), play={"topology": data_parallel(11, tp=2)},
         only=Only("sim", "33 real processes are too many for one play")),
    Case("test_requests_of_two_cores_are_given_up_at_once",
         "Two cores rest and do not hear that they shall go on: what is given up is freed at each of them.",
         plan(*(drop(f"frontend.0->core.{core}/requests", match=RESUME) for core in (0, 1))),
         (lost_request_is_bounded, ends_once, blocks_conserved), play={"workload": given_up_while_they_rest()}),
    Case("test_one_of_two_cores_dies",
         "A core is killed amid its requests: they end by its name, and the other one serves on.",
         plan(kill("core.1", at=marked("core.1", Mark.EXECUTED), nth=3)), (*LOST, *OTHERS, tokens_match_reference),
         play={"workload": MORE}),
    Case("test_first_of_two_cores_dies",
         "The first core is killed: what is asked of all is answered by the other one.",
         plan(kill("core.0", at=marked("core.0", Mark.EXECUTED), nth=3)), (*LOST, *OTHERS),
         play={"workload": MORE}),
    Case("test_one_of_four_cores_dies",
         "One of four: three serve on.",
         plan(kill("core.2", at=marked("core.2", Mark.EXECUTED), nth=2)), (*LOST, *OTHERS),
         play={"workload": MORE, "topology": data_parallel(4)}),
    Case("test_both_cores_die",
         "One core is killed, and then the other one: nobody is left, and that is told.",
         plan(kill("core.0", at=marked("core.0", Mark.EXECUTED), nth=2),
              kill("core.1", at=marked("core.1", Mark.EXECUTED), nth=6)), LOST,
         play={"workload": MORE}),
    Case("test_core_beside_others_raises",
         "A core fails by itself, and says so on its way out.",
         plan(raises("core.1", at=marked("core.1", Mark.SCHEDULED), nth=3)), (*LOST, dp_death_ends_group),
         play={"workload": MORE}),
    Case("test_core_beside_others_exits",
         "A core leaves with work in its hands.",
         plan(exits("core.1", at=marked("core.1", Mark.EXECUTED), nth=3)), (*LOST, dp_death_ends_group),
         play={"workload": MORE}),
    Case("test_core_beside_others_is_asked_to_leave",
         "SIGTERM to one of two cores: it serves what it has to the end, and takes nothing more.",
         plan(terminate("core.1", at=marked("core.1", Mark.STEP), nth=3)), (drain, nothing_left_behind),
         play={"workload": MORE}),
    Case("test_core_beside_others_stands_still",
         "One of two cores is stopped: that is told by its bound, and the other one serves on.",
         plan(stall("core.1", at=marked("core.1", Mark.SCHEDULED), nth=3)),
         (stall_is_told, ends_once, health_is_true, dp_death_ends_group, nothing_left_behind),
         play={"workload": MORE}),
    Case("test_worker_of_one_of_two_cores_dies",
         "A worker of one core is killed: that core goes, and no other.",
         plan(kill("worker.1.1", at=marked("worker.1.1", Mark.EXECUTING), nth=8)), LOST,
         play={"workload": MORE, "topology": data_parallel(2, tp=2)}),
    Case("test_rank_of_one_of_two_cores_raises",
         "A rank of one core fails in a step.",
         plan(raises("worker.1.1", at=marked("worker.1.1", Mark.EXECUTING), nth=9)),
         (rpc_any_rank_fails_fast, ends_once, nothing_left_behind),
         play={"workload": MORE, "topology": data_parallel(2, tp=2)}),
    Case("test_client_of_two_cores_dies",
         "The client is killed: both of its cores go.",
         plan(kill("frontend.0", at="core.1->frontend.0/outputs:receive", nth=3)), (no_orphans,)),
    Case("test_one_of_two_cores_dies_as_it_starts",
         "A core is killed before it is ready: the start fails by its name, and the other core goes, too.",
         plan(kill("core.1", at=marked("core.1", Mark.READY))), (start_ends, nothing_left_behind)),
    Case("test_ready_of_one_of_two_cores_is_late",
         "READY of one core comes late: nothing is sent to either before.",
         plan(delay("core.1->frontend.0/handshake", nth=3, until=until(seconds=0.3))),
         (handshake_order, start_ends, tokens_match_reference)),
    Case("test_request_to_one_of_two_cores_is_lost",
         "A request is lost on its way to one of the cores: it ends by its bound, and the others are served.",
         plan(drop("frontend.0->core.1/requests", nth=2, match={"type": "ADD"})), (lost_request_is_bounded, ends_once),
         play={"workload": recorded("eight-mixed")}),
    Case("test_outputs_of_one_of_two_cores_are_late_and_doubled",
         "What one core says comes late, and once more.",
         plan(delay("core.1->frontend.0/outputs", nth=4, until=until(seconds=0.05)),
              duplicate("core.1->frontend.0/outputs", nth=6)), (tokens_in_order, tokens_match_reference)),
    Case("test_one_of_two_cores_is_slow",
         "A core takes its time over some steps: the other one goes on meanwhile.",
         plan(*(hang("core.1", at=marked("core.1", Mark.EXECUTED), nth=nth, until=until(seconds=0.03))
                for nth in range(3, 9))), CALM),
), topology=data_parallel(2), workload=eight()))
