"""Several clients of the same engines: each gets what it asked for, and the end of one is none of the others'."""

from __future__ import annotations

from typing import Any

from engine.topology import Mark, data_parallel
from faults.plan import delay, drop, hang, kill, marked, plan, raises, stall, terminate, until
from scenarios.guarantees.all import (
    bad_request_isolated,
    blocks_conserved,
    calls_answered,
    client_isolated,
    client_returns,
    client_routed,
    death_is_told,
    dp_coordinator_death_is_told,
    dp_death_ends_group,
    dp_handshakes_agree,
    ends_once,
    handshake_order,
    launcher_says,
    lost_request_is_bounded,
    no_orphans,
    nothing_left_behind,
    notice_to_all,
    rests_when_idle,
    served_in_turn,
    stall_is_told,
    start_ends,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import ENDED, Workload, add, raw, recorded, utility

CALM = (client_routed, tokens_match_reference, blocks_conserved, served_in_turn)
DIES = (client_isolated, tokens_match_reference, nothing_left_behind)
#: Steps that take so long that nobody is served to the end before a client is missed, or within the bound of that.
SLOW = [hang("core.0", at=marked("core.0", Mark.STEP), nth=nth, until=until(seconds=0.08)) for nth in range(30, 42)]
TWO, EIGHT = data_parallel(2, tp=1, clients=2, coordinated=True), recorded("eight-mixed")
IN_STEP: dict[str, Any] = {"topology": data_parallel(2, tp=1, clients=2, lockstep=True),
                           "config": lab_config(bounds={"collective_s": 0.8})}
#: Ten processes beside those of other plays.
UNHURRIED = lab_config(bounds={"request_s": 12.0})
BACK = Options(client_returns=True)


def calls() -> Workload:
    """Each asks the core for something of its own, under the same numbers, while it is served and behind that."""
    def of_one(text: str) -> Workload:
        return recorded("eight-mixed").then(add(*range(8)), utility("ping", text, 3), behind=("r0", ENDED)).then(
            utility("ping", text), utility("no_such_call"))

    return of_one("ab").but(1, of_one("xyz"))


globals().update(family(__name__, (
    Case("test_two_clients_share_a_core", "Each asks the same, by the same names.", plan(), CALM),
    Case("test_two_clients_share_two_cores", "The same of two cores, whose counts a coordinator carries.", plan(), CALM,
         play={"topology": TWO}),
    Case("test_two_clients_share_a_core_of_two_workers", "Each asks the same, by the same names.", plan(), CALM,
         play={"topology": data_parallel(1, tp=2, clients=2)}),
    Case("test_two_clients_share_two_cores_of_two_workers", "The same of two cores that have two workers each.",
         plan(), CALM,
         play={"topology": data_parallel(2, tp=2, clients=2)}),
    Case("test_two_clients_share_cores_of_two_workers_in_step", "The same, and the cores step together.", plan(), CALM,
         play={"topology": data_parallel(2, tp=2, clients=2, lockstep=True), "config": UNHURRIED}),
    Case("test_two_clients_share_cores_in_step", "The same of two cores that step together.", plan(), CALM,
         play=IN_STEP),
    Case("test_three_clients_share_a_core", "Each asks the same, by the same names.", plan(), CALM,
         play={"topology": data_parallel(1, tp=1, clients=3)}),
    Case("test_two_clients_call_a_core", "Each is answered with what it asked for, and nobody else is.", plan(),
         (*CALM, calls_answered), play={"workload": calls()}),
    Case("test_two_clients_have_as_much_in_flight_as_each_may", "What one has is not counted against the other one.",
         plan(hang("core.0", at=marked("core.0", Mark.STEP), nth=2, until=until(seconds=0.5))),
         (client_isolated, tokens_match_reference), play={"config": lab_config(limits={"max_requests": 8})}),
    Case("test_two_clients_ask_for_more_than_the_cache_holds",
         "Each is told so of its own request alone; and one of what the core cannot read.", plan(),
         (bad_request_isolated, client_routed, served_in_turn, blocks_conserved),
         play={"config": lab_config(cache={"num_gpu_blocks": 24}), "workload": EIGHT.then(add(*range(8))).but(
             1, EIGHT.then(add(*range(8)), raw(b"\x00", b"\x92\xa7r9-1.01\x07")))}),
    Case("test_one_of_two_clients_dies", "It is killed while both are served: the other one is served on.",
         plan(kill("frontend.1", at="core.0->frontend.1/outputs:receive", nth=4), *SLOW), DIES),
    Case("test_one_of_two_clients_dies_in_a_long_step", "The other one has much to come when it is missed.",
         plan(kill("frontend.1", at=marked("core.0", Mark.STEP), nth=30),
              hang("core.0", at=marked("core.0", Mark.STEP), nth=31, until=until(seconds=0.4))), DIES),
    Case("test_one_of_two_clients_dies_behind_what_it_asked", "What it had sent is taken in, and then given up.",
         plan(hang("core.0", at="frontend.0->core.0/requests:receive", nth=2, until=until(seconds=0.2)),
              kill("frontend.1", at="core.0->frontend.0/outputs:send", nth=3)), DIES),
    Case("test_first_of_two_clients_dies", "The first one is no more than any other.",
         plan(kill("frontend.0", at="core.0->frontend.0/outputs:receive", nth=4), *SLOW), DIES),
    Case("test_one_of_two_clients_of_two_cores_dies", "Each of two cores frees what is its.",
         plan(kill("frontend.1", at="core.1->frontend.1/outputs:receive", nth=4)), DIES, play={"topology": TWO}),
    Case("test_one_of_two_clients_is_stopped", "It reads nothing for a while: nobody waits for it.",
         plan(stall("frontend.1", at="core.0->frontend.1/outputs:receive", nth=4, until=until(seconds=0.5))),
         (client_routed, tokens_match_reference)),
    Case("test_core_of_two_clients_dies", "Both are told.",
         plan(kill("core.0", at="core.0->frontend.1/outputs:send", nth=4)),
         (notice_to_all, launcher_says, nothing_left_behind), play={"options": Options(rest_s=0.8)}),
    Case("test_one_of_two_cores_in_step_of_two_clients_dies",
         "Their launcher says so, and ends the other one; their clients rest then.",
         plan(kill("core.1", at=marked("core.1", Mark.EXECUTED), nth=3)),
         (launcher_says, rests_when_idle, nothing_left_behind),
         play={**IN_STEP, "options": Options(rest_s=0.8)}),
    Case("test_one_of_two_cores_of_two_clients_dies",
         "Their launcher says so once, and rests: the other one serves both clients on, and needs no looking after.",
         plan(kill("core.1", at=marked("core.1", Mark.EXECUTED), nth=3)),
         (launcher_says, dp_death_ends_group, rests_when_idle, nothing_left_behind),
         play={"topology": TWO, "options": Options(rest_s=0.8)}),
    Case("test_coordinator_of_two_clients_dies", "Their launcher says so, and ends the cores that it kept in step.",
         plan(kill("coordinator.0", at=marked("core.0", Mark.EXECUTED), nth=3)),
         (launcher_says, dp_coordinator_death_is_told, nothing_left_behind),
         play={**IN_STEP, "options": Options(rest_s=0.8)}),
    Case("test_core_of_two_clients_dies_while_a_worker_is_stopped",
         "A worker is stopped for good when the core is killed: their launcher ends it, and is not closed for that.",
         plan(stall("worker.1", at="core.0->worker.1/rpc:receive", nth=21),
              kill("core.0", at="core.0->worker.0/rpc:receive", nth=21)),
         (no_orphans, launcher_says, nothing_left_behind),
         play={"topology": data_parallel(1, tp=2, clients=2), "options": Options(rest_s=3.5),
               "config": lab_config(bounds={"orphan_s": 1.0})}),
    Case("test_both_cores_of_two_clients_die", "Their launcher says so of each, and of the last one that none is left.",
         plan(kill("core.0", at=marked("core.0", Mark.EXECUTED), nth=3),
              kill("core.1", at=marked("core.1", Mark.EXECUTED), nth=12)),
         (launcher_says, nothing_left_behind), play={"topology": TWO, "options": Options(rest_s=0.8)}),
    Case("test_engines_of_two_clients_are_killed_and_start_again",
         "All processes are killed at once: the next start finds nothing in its way.", plan(),
         (nothing_left_behind, tokens_match_reference), play={"options": Options(kill_all_then_restart=True)}),
    Case("test_core_of_two_clients_is_asked_to_leave", "Both are told by its last words.",
         plan(terminate("core.0", at="core.0->frontend.1/outputs:send", nth=4)), (nothing_left_behind,)),
    Case("test_core_in_step_of_two_clients_is_asked_to_leave",
         "The other one goes with it. Neither client is told by either core why, and waits a moment for who was first.",
         plan(terminate("core.1", at=marked("core.1", Mark.EXECUTED), nth=4)),
         (dp_death_ends_group, notice_to_all, nothing_left_behind),
         play={**IN_STEP, "config": lab_config(bounds={"collective_s": 0.8, "drain_s": 0.0})}),
    Case("test_core_of_two_clients_stands_still", "Their launcher ends it.",
         plan(stall("core.0", at="core.0->frontend.1/outputs:send", nth=4)), (launcher_says, nothing_left_behind)),
    Case("test_core_of_two_clients_stands_still_and_so_does_its_launcher",
         "Nobody ends it for long: each client sees by itself that it makes no progress.",
         plan(stall("launcher.0", at="core.0->frontend.1/outputs:send", nth=3, until=until(seconds=2.5)),
              stall("core.0", at="core.0->frontend.1/outputs:send", nth=4)), (stall_is_told, ends_once)),
    Case("test_announcement_to_one_of_two_clients_is_lost", "It says which core it cannot send to, and the other one "
         "is served.", plan(drop("core.0->frontend.1/requests")), (start_ends, nothing_left_behind)),
    Case("test_announcement_to_one_of_two_clients_is_late", "It waits for it, and both are served.",
         plan(delay("core.0->frontend.1/requests", until=until(seconds=0.8))),
         (handshake_order, tokens_match_reference, nothing_left_behind)),
    Case("test_launcher_dies", "It is killed: what it owns goes, and both clients are told.",
         plan(kill("launcher.0", at="core.0->frontend.1/outputs:send", nth=4)),
         (notice_to_all, death_is_told, nothing_left_behind)),
    Case("test_launcher_fails_as_it_closes",
         "It is interrupted as its cores leave, one of which stands still: it waits for nobody and leaves nothing.",
         plan(stall("core.1", at=marked("core.1", Mark.DYING)),
              raises("launcher.0", at="core.0->launcher.0/birth:receive")), (nothing_left_behind,),
         play={"topology": TWO}),
    Case("test_launcher_fails_when_it_is_ready",
         "It fails before it could say where its engines are: it ends them on its way out.",
         plan(raises("launcher.0", at=marked("launcher.0", Mark.READY))), (nothing_left_behind,)),
    Case("test_launcher_fails_when_it_has_closed",
         "It fails as the last of its engines is given back, and closes them again on its way out: they are closed.",
         plan(raises("launcher.0", at=marked("launcher.0", Mark.DYING))), (nothing_left_behind,)),
    Case("test_two_clients_are_configured_otherwise_than_their_engines",
         "Their cores speak another protocol between ranks: neither attaches, and both are told so.",
         plan(), (dp_handshakes_agree, start_ends, nothing_left_behind), play={
             **IN_STEP, "options": Options(differs={"wave_protocol": "old"}),
             "workload": recorded("eight-mixed").then()}),
    Case("test_client_leaves_and_comes_back", "It is served again by the same engines.", plan(),
         (client_returns, tokens_match_reference, nothing_left_behind), play={"options": BACK}),
    Case("test_client_dies_and_comes_back", "It is served while what it had asked for before is given up.",
         plan(kill("frontend.1", at="core.0->frontend.1/outputs:receive", nth=4), *SLOW),
         (client_returns, client_isolated, tokens_match_reference, nothing_left_behind), play={"options": BACK}),
    Case("test_client_comes_back_to_a_core_that_is_gone", "It is told so by its name.",
         plan(kill("core.0", at="core.0->frontend.0/outputs:send", nth=9)), (start_ends, nothing_left_behind),
         play={"options": BACK}),
    Case("test_client_of_two_cores_in_step_dies_and_comes_back", "Each core knows it again.",
         plan(kill("frontend.1", at="core.1->frontend.1/outputs:receive", nth=4)),
         (client_returns, client_isolated, tokens_match_reference, nothing_left_behind), play={
             "options": BACK, "topology": data_parallel(2, tp=1, clients=2, lockstep=True),
             "config": lab_config(bounds={"collective_s": 0.8})}),
    Case("test_outputs_to_one_of_two_clients_are_late", "They come behind later ones.",
         plan(delay("core.0->frontend.1/outputs", nth=4, until=until("core.0->frontend.1/outputs:send", 8))),
         (client_routed, tokens_match_reference)),
    Case("test_request_of_one_of_two_clients_is_lost", "Its caller is told in time, and the other one is served.",
         plan(drop("frontend.1->core.0/requests", nth=2)), (lost_request_is_bounded, client_routed)),
), topology=data_parallel(1, tp=1, clients=2), workload=recorded("eight-mixed"), config=lab_config()))
