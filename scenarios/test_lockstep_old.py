"""Cores that step together by the first protocol, in which a client tells the coordinator of what it sends to a group
at rest; and what the first protocol cannot do, each beside the same play by the one of today.
"""

from __future__ import annotations

from typing import Any

from engine.topology import Mark, data_parallel
from faults.plan import Plan, cut, delay, drop, duplicate, hang, marked, plan, until
from scenarios.guarantees.all import (
    dp_collectives_equal,
    dp_coordinator_in_turn,
    dp_first_told,
    dp_rank_in_turn,
    dp_work_wakes_all,
    ends_once,
    lost_request_is_bounded,
    nothing_without_cause,
    pause_exact,
    tokens_match_reference,
    unroutable_is_known,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_lockstep import CALM, IN_STEP, RESTS, START, TO_SECOND, paused, waves
from scenarios.workloads import ENDED, Workload, abort, add, for_ranks, recorded, utility

TO_HUB = "frontend.0->coordinator.0/stats"
REQUESTS = "frontend.0->core.0/requests"
FIRST = {"type": "FIRST_REQUEST"}


def by(protocol: str, workload: Workload, **more: Any) -> dict[str, Any]:
    """Of a play by this protocol."""
    return {"workload": workload, "config": lab_config(
        bounds={"collective_s": 0.8}, data_parallel={"wave_protocol": protocol, **more})}


def awake() -> Workload:
    """It begins without a pause."""
    return recorded("eight-mixed").then(utility("get_stats"), steps=0)


def three_and_one() -> Workload:
    """All ranks have a request of their own; and the second one has another, when these are over."""
    return awake().then(add(0, 1, 2), behind=("r2", ENDED)).then(add(3))


def given_up() -> Workload:
    """A request is given up before its rank may begin with it, and the other rank gets one."""
    return recorded("eight-mixed").then(utility("pause_scheduler"), steps=0).then(
        add(0), abort(0), utility("resume_scheduler"), steps=0).then(add(1))


OLD, NEW = "old", "new"
#: All have been told to go on when it comes.
LATE = delay(TO_SECOND, nth=1, match=START, until=until(seconds=0.1))
#: The client stands still behind three requests, and hears of the end of their wave before it has told of any of them.
STILL = hang("frontend.0", at=f"{REQUESTS}:send", nth=4, until=until(seconds=1.0))
STANDS_STILL, TOLD_LATE = plan(STILL), plan(STILL, LATE)
REQUEST_LOST = plan(drop(REQUESTS, nth=1, match={"type": "ADD"}))
WOKEN = (*IN_STEP, dp_work_wakes_all)
ENDS_ALL = (dp_work_wakes_all, tokens_match_reference, nothing_without_cause)

globals().update(family(__name__, (
    Case("test_old_one_request_wakes_all_ranks",
         "A request comes to a group at rest, and its client tells the coordinator so, which wakes the others.",
         Plan(), WOKEN),
    Case("test_old_word_of_a_first_request_is_late",
         "The coordinator hears late of a first request: that costs time.",
         plan(delay(TO_HUB, nth=1, match=FIRST, until=until(seconds=0.3))), WOKEN),
    Case("test_old_word_of_a_first_request_is_doubled",
         "The coordinator hears of a first request twice: the wave runs already.",
         plan(duplicate(TO_HUB, nth=1, match=FIRST)), CALM),
    Case("test_old_two_clients_tell_of_a_first_request_each",
         "Two requests come to a group at rest, and each client tells of its own: the second word finds that all run.",
         Plan(), (tokens_match_reference, dp_collectives_equal, dp_coordinator_in_turn, dp_rank_in_turn),
         play={
             "topology": data_parallel(2, lockstep=True, clients=2),
             "workload": recorded("eight-mixed").then(add(0)).but(1, recorded("eight-mixed").then(add(1)))}),
    Case("test_old_first_request_cannot_be_sent",
         "The connection to its core is cut: its caller is told, and the coordinator is told of the next one.",
         plan(cut(REQUESTS, nth=1, until=until(seconds=1.0))), (unroutable_is_known, ends_once, dp_first_told),
         play={"workload": for_ranks(recorded("eight-mixed"), {1: 0, 2: 1}).then(utility("get_stats"), steps=0).then(
             add(1), behind=("r1", ENDED)).then(add(2)),
               "config": lab_config(bounds={"request_s": 0.6}, data_parallel={"wave_protocol": OLD})}),
    Case("test_old_ranks_at_rest_are_told_to_pause",
         "They do at once, and go on when they are told to.",
         Plan(), (tokens_match_reference, dp_collectives_equal),
         play=by(OLD, awake().then(utility("pause_scheduler"), steps=0).then(
             utility("resume_scheduler"), steps=0).then(add(0)))),
    Case("test_old_rank_reports_what_its_client_has_not",
         "A client is behind, and takes no request for the first one: its rank says so, and once where steps are slow.",
         plan(STILL, *(hang("core.0", at=marked("core.0", Mark.DUMMY), nth=nth, until=until(seconds=0.05))
                       for nth in range(1, 9))),
         (tokens_match_reference, dp_collectives_equal, dp_rank_in_turn), play=by(OLD, three_and_one())),
    Case("test_old_start_to_a_rank_is_lost",
         "START does not reach a rank: it is said again.",
         plan(drop(TO_SECOND, nth=1, match=START)), WOKEN),
    Case("test_canary_old_word_of_a_first_request_is_lost",
         "The coordinator does not hear of a first request, nobody says it again, and the others are never woken.",
         plan(drop(TO_HUB, nth=1, match=FIRST)), (), broken=ENDS_ALL),
    Case("test_canary_old_first_request_is_told_when_its_wave_is_over",
         "It is told as one of the next wave: its rank is left out, and what comes to the other one waits for that.",
         TOLD_LATE, (), play=by(OLD, three_and_one(), repair=False),
         broken=(dp_work_wakes_all, nothing_without_cause)),
    Case("test_new_requests_cross_the_end_of_a_wave",
         "The same play by the protocol of today: each rank says itself that it has work.",
         STANDS_STILL, RESTS, play=by(NEW, three_and_one(), repair=False)),
    Case("test_canary_old_first_request_is_given_up",
         "A request is given up before its rank has begun: that rank is left out of a wave that all others run.",
         plan(LATE), (), play=by(OLD, given_up(), repair=False), broken=ENDS_ALL),
    Case("test_new_first_request_is_given_up",
         "The same by the protocol of today: whoever says that it has work runs.",
         Plan(), RESTS, play=by(NEW, given_up(), repair=False)),
    Case("test_canary_old_first_request_is_lost",
         "A request does not reach its rank, which is left out of the wave: that ends all, and not the request alone.",
         REQUEST_LOST, (), play=by(OLD, awake().then(add(0)), repair=False), broken=(nothing_without_cause,)),
    Case("test_new_first_request_is_lost",
         "The same by the protocol of today: who has no work says nothing.",
         REQUEST_LOST, (lost_request_is_bounded, ends_once), play=by(NEW, awake().then(add(0)), repair=False)),
    Case("test_canary_old_start_comes_in_a_pause",
         "A request comes while all ranks rest because they were told to: START has the others step.",
         Plan(), (), play=by(OLD, paused()), broken=(pause_exact,)),
    Case("test_canary_start_is_not_repeated",
         "START does not reach a rank, and is said once.",
         plan(drop(TO_SECOND, nth=1, match=START)), (), play=by(NEW, waves(), repair=False), broken=ENDS_ALL),
), topology=data_parallel(2, lockstep=True), **by(OLD, waves())))
