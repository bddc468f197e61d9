"""Several cores that one client spreads its requests over, each with all of the model."""

from __future__ import annotations

from engine.topology import Mark, data_parallel
from faults.plan import Plan, kill, marked, plan
from scenarios.guarantees.all import (
    blocks_conserved,
    calls_answered,
    death_is_told,
    ends_once,
    health_is_true,
    nothing_left_behind,
    served_in_turn,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.lab.family import Case, family
from scenarios.workloads import add, recorded, utility

EIGHT = recorded("eight-mixed").then(add(*range(8)), steps=3).then(utility("get_stats"))

globals().update(family(__name__, (
    Case("test_two_ranks_serve_one_client",
         "Requests are spread over two cores, and answered as one core answers them.",
         Plan(), (tokens_match_reference, tokens_in_order, served_in_turn, blocks_conserved, calls_answered)),
    Case("test_two_ranks_of_two_workers_serve_one_client",
         "The same with two workers each.",
         Plan(), (tokens_match_reference, tokens_in_order, served_in_turn, blocks_conserved),
         play={"topology": data_parallel(2, tp=2)}),
    Case("test_one_of_two_ranks_dies",
         "A core is killed amid its requests: they end by its name, and the other one serves on.",
         plan(kill("core.1", at=marked("core.1", Mark.EXECUTED), nth=5)),
         (death_is_told, ends_once, health_is_true, tokens_in_order, nothing_left_behind)),
), topology=data_parallel(2), workload=EIGHT))
