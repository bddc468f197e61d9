"""Which of several cores gets a request: the one that is asked for, else the one with the least to do, as far as its
client knows; and what that is worth when counts come late.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.topology import Mark, data_parallel
from faults.plan import Plan, cut, delay, drop, hang, kill, marked, plan, until
from scenarios.guarantees.all import (
    dp_burst_spreads,
    dp_chosen_in_turn,
    dp_counts_used,
    dp_dead_never_chosen,
    dp_rank_as_asked,
    ends_once,
    memory_bounded,
    nothing_left_behind,
    served_in_turn,
    tokens_match_reference,
    unroutable_is_known,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import ENDED, Workload, abort, add, for_ranks, recorded, utility

CALM = (tokens_match_reference, served_in_turn)
#: A call takes so long, while counts are told again and again.
SLOW = tuple(delay("frontend.0->core.1/requests", nth=nth, match={"type": "UTILITY", "method": "get_stats"},
                   until=until(seconds=0.4)) for nth in (1, 2, 3))
CALL = {"type": "UTILITY", "method": "get_stats"}
#: Both cores take their time over a step each.
WORK = tuple(hang(f"core.{core}", at=marked(f"core.{core}", Mark.STEP), nth=4, until=until(seconds=0.3))
             for core in (0, 1))
#: What the first core has to do is not told.
UNTOLD = drop("core.0->coordinator.0/report", nth=1, times=60)


def rests() -> Workload:
    """Requests wait while their cores rest: two for the second core, then six for whichever, two at a time."""
    stays = utility("get_stats")
    return for_ranks(recorded("eight-mixed"), {0: 1, 1: 1}).then(utility("pause_scheduler"), steps=0).then(
        add(0, 1), stays, steps=0).then(add(2, 3), stays, steps=0).then(add(4, 5), stays, steps=0).then(
        add(6, 7), utility("resume_scheduler"), steps=0)


def one_after_another() -> Workload:
    """Three at once, of which two are given up, one more, and single ones."""
    return recorded("eight-mixed").then(add(0, 1, 2), behind=("r1", 2)).then(
        abort(0), abort(2), add(3), behind=("r3", ENDED)).then(
        add(4), behind=("r4", ENDED)).then(add(5), behind=("r5", ENDED)).then(add(6, 7))


#: The second core takes its time over two steps, and the first one over one: what was told of them is known by then.
BUSY = (*(hang("core.1", at=marked("core.1", Mark.STEP), nth=nth, until=until(seconds=0.7)) for nth in (3, 4)),
        hang("core.0", at=marked("core.0", Mark.STEP), nth=2, until=until(seconds=0.3)),
        # It is told that the first core rests before it hears the answer behind which it asks.
        delay("core.0->frontend.1/outputs", nth=1, times=60, until=until(seconds=0.06)))


def one_keeps_a_core_busy() -> Workload:
    """All that the first client asks for goes to the second core. The other one asks the first core, then any."""
    requests = for_ranks(recorded("eight-mixed"), {**dict.fromkeys(range(4), 1), 4: 0})
    return requests.then(add(*range(4))).but(1, requests.then(add(4), behind=("r4", ENDED)).then(add(5, 6)))


def one_has_requests() -> Workload:
    """Two at the first core, three at the second, by the first client; the other one asks when it has been told."""
    requests = for_ranks(recorded("eight-mixed"), {0: 0, 1: 0, 2: 1, 3: 1, 4: 1})
    return requests.then(add(*range(5))).but(1, requests.then(utility("get_stats"), steps=0).then(add(5, 6, 7)))


def some_for_one() -> Workload:
    """Four for the second core, two for whichever while these run, and four more when all have ended."""
    requests = for_ranks(recorded("eight-mixed"), dict.fromkeys(range(4), 1))
    return requests.then(add(*range(4)), behind=("r0", 2)).then(add(4, 5), behind=("r0", ENDED)).then(
        *(abort(index) for index in (1, 2, 3, 4, 5)), add(0, name="single"), behind=("single", ENDED)).then(
        *(add(index, name=f"r{index}-again") for index in range(4, 8)))


def one_at_a_time() -> Workload:
    """Two at once, one of which is given up later, two meanwhile, one for the second core, and then single ones."""
    requests = for_ranks(recorded("eight-mixed"), {4: 1}).then(add(0, 1), behind=("r0", 2)).then(add(2, 3), behind=(
        "r0", ENDED))
    requests = requests.then(abort(1), add(4), behind=("r4", ENDED)).then(add(5), behind=("r5", ENDED)).then(
        add(6), behind=("r6", ENDED)).then(add(7))
    return msgspec.structs.replace(requests, free=True)  # what steers could not be sent, either


def some_too_large() -> Workload:
    """Prompts of 300 tokens between short ones, each of which is answered before the next one is sent."""
    requests = recorded("eight-mixed")
    for index in (1, 5, 7):
        requests = requests.then(add(0, name=f"large-{index}"), add(index), behind=(f"r{index}", ENDED))
    return requests.then(add(2, 3, 4, 6))


def by(score: str) -> dict[str, Any]:
    return {"workload": rests(), "config": lab_config(data_parallel={"score": score, "unchanged_s": 0.1})}


globals().update(family(__name__, (
    Case("test_requests_for_one_of_two_cores",
         "All ask for the second core, which gets them.",
         Plan(), (*CALM, dp_rank_as_asked), play={
             "workload": for_ranks(recorded("eight-mixed"), dict.fromkeys(range(8), 1)).then(add(*range(8)))}),
    Case("test_requests_for_cores_that_there_are_none_of",
         "Who asks for one of them is told what there is, and others are served.",
         Plan(), (*CALM, ends_once), play={"workload": for_ranks(
             recorded("eight-mixed"), {0: 2, 1: -1, 2: "1", 3: True, 4: 1}).then(add(*range(8)))}),
    Case("test_requests_come_one_after_another",
         "Some have ended when the next ones come: these go where least is left, and in turn where that is the same.",
         Plan(), (tokens_match_reference, dp_chosen_in_turn), play={
             "topology": data_parallel(2, tp=1), "workload": one_after_another()}),
    Case("test_requests_for_one_core_count_there",
         "Others go where less is to do meanwhile, and have their turn when these have ended.",
         Plan(), (dp_rank_as_asked, dp_chosen_in_turn, tokens_match_reference), play={
             "topology": data_parallel(2, tp=1), "workload": some_for_one()}),
    Case("test_requests_for_a_core_that_is_dead",
         "A core is killed, and asked for: who asks is told at once that it is dead, and others are served.",
         plan(kill("core.1", at=marked("core.1", Mark.EXECUTED), nth=3)),
         (ends_once, dp_dead_never_chosen, nothing_left_behind), play={"workload": for_ranks(
             recorded("eight-mixed"), {4: 1, 5: 0}).then(add(*range(4)), steps=4).then(add(4, 5, 6))}),
    Case("test_core_cannot_be_reached_for_a_while",
         "What is not sent counts there until something is: then it gets its share again.",
         plan(cut("frontend.0->core.1/requests", nth=1, until=until(seconds=0.3)),
              hang("core.0", at=marked("core.0", Mark.STEP), nth=8, until=until(seconds=0.6))),
         (dp_chosen_in_turn, unroutable_is_known, ends_once, nothing_left_behind),
         play={"topology": data_parallel(2, tp=1), "workload": one_at_a_time(),
               "config": lab_config(bounds={"request_s": 1.2})}),
    Case("test_requests_that_are_too_large_count_nowhere",
         "Who is refused for its size was to go to one of the cores, and is not in flight there.",
         Plan(), (dp_chosen_in_turn, memory_bounded, ends_once, tokens_match_reference),
         play={"topology": data_parallel(2, tp=1), "workload": some_too_large(),
               "config": lab_config(limits={"max_request_bytes": 1000})}),
    Case("test_burst_while_counts_are_behind",
         "What one core has is not told for a while: own counts have requests spread.",
         plan(*SLOW, UNTOLD), (*CALM, dp_burst_spreads, dp_rank_as_asked), play=by("new")),
    Case("test_canary_old_score_forgets_a_burst",
         "By the old score each count that comes has the client forget what it has sent: it sends all to one core.",
         plan(*SLOW, UNTOLD), (*CALM, dp_rank_as_asked), play=by("old"), broken=(dp_burst_spreads,)),
    Case("test_one_of_two_clients_has_requests_at_both_cores",
         "The other one sends some in a burst, and counts those that it has sent since it was told.",
         plan(*WORK, delay("frontend.1->core.1/requests", match=CALL, until=until(seconds=0.15))),
         (tokens_match_reference, dp_chosen_in_turn), play={
             "topology": data_parallel(2, tp=1, clients=2, coordinated=True), "workload": one_has_requests()}),
    Case("test_one_of_two_clients_keeps_a_core_busy",
         "The other one knows of it by its counts alone, and asks the core that rests.",
         plan(*BUSY), (*CALM, dp_counts_used), play={
             "topology": data_parallel(2, tp=1, clients=2, coordinated=True), "workload": one_keeps_a_core_busy()}),
), topology=data_parallel(2, tp=1, coordinated=True), workload=recorded("eight-mixed")))
