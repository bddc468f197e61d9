"""Ranks that step together without a coordinator, each with a client of its own."""

from __future__ import annotations

from engine.topology import Mark, offline
from faults.plan import Plan, exits, hang, kill, marked, plan, raises, stall, terminate, until
from scenarios.guarantees.all import (
    abort_is_final,
    blocks_conserved,
    death_is_told,
    dp_collectives_equal,
    dp_death_ends_group,
    dp_handshakes_agree,
    dp_offline_ends,
    dp_quiet_when_idle,
    ends_once,
    health_is_true,
    no_orphans,
    nothing_left_behind,
    served_in_turn,
    start_ends,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import ENDED, Workload, abort, add, recorded, utility

#: Whoever waits for another rank gives up before anybody takes it for one that stands still.
BOUNDS = {"collective_s": 0.8}
CONFIG = lab_config(bounds=BOUNDS)
#: Who never comes is given up soon.
SOON = {"config": lab_config(bounds={**BOUNDS, "handshake_s": 2.0})}
STAYS = Options(await_death_s=3.0)


def asks(*indices: int) -> Workload:
    return recorded("eight-mixed").then(add(*indices)) if indices else recorded("eight-mixed")


def uneven() -> Workload:
    """All ranks have something to do, and not as much: the second one's client asks less, and has it sooner."""
    return recorded("eight-mixed").then(add(*range(6)), behind=("r0", 3)).then(
        abort(1), add(6, 7), utility("get_stats")).but(1, asks(0, 1))


def in_turn() -> Workload:
    """Each client asks for the same, and again when it has it."""
    return asks(0, 1, 2, 3).then(add(4), behind=("r0", ENDED)).then(add(5, 6))


CALM = (tokens_match_reference, tokens_in_order, served_in_turn, blocks_conserved, nothing_left_behind,
        dp_collectives_equal, abort_is_final)
LOST = (death_is_told, ends_once, health_is_true, nothing_left_behind, dp_death_ends_group)
REFUSED = (start_ends, nothing_left_behind, dp_handshakes_agree)
DUMMY = marked("core.1", Mark.DUMMY)

globals().update(family(__name__, (
    Case("test_two_offline_ranks_step_together",
         "Two cores with a client each, and nobody between them: tokens come as from one.",
         Plan(), CALM),
    Case("test_two_offline_ranks_of_two_workers_step_together",
         "The same with two workers each.",
         Plan(), CALM, play={"topology": offline(2, tp=2)}),
    Case("test_four_offline_ranks_step_together",
         "The same with four cores.",
         Plan(), CALM, play={"topology": offline(4)}),
    Case("test_offline_ranks_rest_behind_the_last_of_them",
         "One rank has done what it was asked for: it goes on with dummy batches until the others have, and no longer.",
         Plan(), (*CALM[:-1], dp_quiet_when_idle)),
    Case("test_clients_of_offline_ranks_know_that_all_rest",
         "All have been served and a while has passed: each client has heard from its core that the wave is over.",
         Plan(), (*CALM[:-1], dp_quiet_when_idle), play={"options": Options(rest_s=0.7)}),
    Case("test_offline_rank_has_no_request",
         "Nobody asks the second rank for anything: the first one's client is told whom it misses.",
         Plan(), (dp_offline_ends, ends_once, health_is_true, nothing_left_behind),
         play={"workload": uneven().but(1, asks()), "options": STAYS}),
    Case("test_two_of_four_offline_ranks_have_no_request",
         "Nobody asks two of four ranks for anything: both others are told whom they miss.",
         Plan(), (dp_offline_ends, ends_once, health_is_true, nothing_left_behind),
         play={"workload": asks(0, 1, 2).but(1, asks()).but(3, asks()), "topology": offline(4), "options": STAYS}),
    Case("test_offline_rank_of_two_workers_has_no_request",
         "The same with two workers each.",
         Plan(), (dp_offline_ends, ends_once, health_is_true, nothing_left_behind),
         play={"workload": asks(0, 1, 2).but(1, asks()), "topology": offline(2, tp=2), "options": STAYS}),
    Case("test_offline_rank_dies_in_a_wave",
         "A rank is killed while all step: all clients are told, by its name.",
         plan(kill("core.1", at=marked("core.1", Mark.EXECUTED), nth=3)), LOST),
    Case("test_offline_rank_dies_at_an_all_reduce",
         "The same where it comes to what all decide together.",
         plan(kill("core.1", at="core.1/consensus:enter", nth=3)), LOST),
    Case("test_offline_rank_dies_in_a_forward",
         "The same where it comes to what each forward has in common.",
         plan(kill("core.1", at="core.1/collective:enter", nth=6)), LOST),
    Case("test_worker_of_an_offline_rank_dies",
         "A worker of one rank is killed: that ends all.",
         plan(kill("worker.1.1", at="worker.1.1/collective:enter", nth=20)), LOST,
         play={"topology": offline(2, tp=2)}),
    Case("test_offline_rank_dies_when_a_wave_is_over",
         "A rank is killed when all rest: the others are told, though none of them waits for it.",
         plan(kill("core.1", at=marked("core.1", Mark.WAVE_DONE), nth=1)), LOST[1:-1],
         play={"options": STAYS}),
    Case("test_offline_rank_raises",
         "A rank fails by itself.",
         plan(raises("core.1", at=DUMMY, nth=3)), LOST),
    Case("test_offline_rank_exits",
         "A rank leaves by itself.",
         plan(exits("core.1", at=DUMMY, nth=3)), (ends_once, nothing_left_behind)),
    Case("test_offline_rank_is_asked_to_leave_in_a_wave",
         "SIGTERM to a rank while another one has work: it leaves when the wave is over, and the others are told.",
         plan(terminate("core.1", at=DUMMY, nth=3)), (ends_once, nothing_left_behind, tokens_match_reference),
         play={"options": STAYS}),
    Case("test_offline_rank_does_not_stay_until_the_wave_is_over",
         "The same where it may not stay so long.",
         plan(terminate("core.1", at=DUMMY, nth=3)), (ends_once, nothing_left_behind, dp_death_ends_group),
         play={"options": STAYS, "config": lab_config(bounds={**BOUNDS, "drain_s": 0.0})}),
    Case("test_client_of_an_offline_rank_dies",
         "A client is killed: its rank goes, and that ends the group.",
         plan(kill("frontend.1", at="core.1->frontend.1/outputs:receive", nth=2)), (no_orphans,)),
    Case("test_offline_rank_stands_still",
         "A rank is stopped for good while all step: the others name it.",
         plan(stall("core.1", at=DUMMY, nth=3)), (ends_once, health_is_true, nothing_left_behind),
         play={"options": STAYS}),
    Case("test_offline_rank_is_slow",
         "A rank takes its time over some steps: the other one waits for it.",
         plan(*(hang("core.1", at=DUMMY, nth=nth, until=until(seconds=0.03)) for nth in range(2, 6))), CALM),
    Case("test_offline_rank_starts_late",
         "A rank comes late to where all meet: nothing begins before.",
         plan(hang("core.1", at=marked("core.1", Mark.BORN), until=until(seconds=1.0))), (*CALM, start_ends)),
    Case("test_offline_rank_never_comes",
         "A rank dies before it has come to where all meet: the others say whom they miss.",
         plan(kill("core.1", at=marked("core.1", Mark.BORN))), (start_ends, nothing_left_behind), play=SOON),
    Case("test_offline_rank_comes_and_dies_before_the_last_one",
         "A rank has come to where all meet, and is killed while one is missing: it is missing then, too.",
         plan(hang("core.2", at=marked("core.2", Mark.BORN), until=until(seconds=0.9)),
              hang("core.3", at="frontend.3->core.3/birth:receive", until=until(seconds=0.3)),
              kill("core.1", at=marked("core.3", Mark.BORN))), REFUSED,
         play={"topology": offline(4), "config": lab_config(bounds={**BOUNDS, "handshake_s": 1.6})}),
    Case("test_offline_ranks_are_configured_otherwise",
         "The second rank has another interval between all-reduces: nobody starts, and all are told so.",
         Plan(), REFUSED, play={"options": Options(differs={"sync_interval": 7})}),
    Case("test_offline_rank_believes_in_more_ranks",
         "The second rank believes in one more.",
         Plan(), REFUSED, play={"options": Options(differs={"data_parallel_size": 3})}),
    Case("test_offline_rank_is_one_that_there_is_none_of",
         "The second rank comes as the third of three, to one that knows of two.",
         Plan(), REFUSED, play={"options": Options(differs={"data_parallel_size": 3, "data_parallel_rank": 2})}),
    Case("test_two_offline_ranks_come_as_the_same",
         "The second rank comes as the first one: both are named, and nobody starts.",
         Plan(), REFUSED, play={"options": Options(differs={"data_parallel_rank": 0})}),
    Case("test_first_offline_rank_never_comes",
         "The same of the rank that all others come to.",
         plan(kill("core.0", at=marked("core.0", Mark.BORN))), (start_ends, nothing_left_behind), play=SOON),
    Case("test_offline_rank_dies_before_it_is_ready",
         "A rank has met the others, and dies on its way to be ready.",
         plan(kill("core.1", at=marked("core.1", Mark.READY))), (start_ends, nothing_left_behind)),
    Case("test_worker_of_an_offline_rank_dies_as_it_loads",
         "A worker of a rank dies before it has met its like in the other engine.",
         plan(kill("worker.1.1", at=marked("worker.1.1", Mark.LOADING))), (start_ends, nothing_left_behind),
         play={"topology": offline(2, tp=2)}),
), topology=offline(2), config=CONFIG, workload=uneven()))
