"""Somebody who is none of its peers speaks with each socket that engines bind: it is named, and nobody else notices."""

from __future__ import annotations

from engine.topology import data_parallel, tensor_parallel
from faults.plan import plan, truncate
from scenarios.guarantees.all import (
    bad_frame_isolated,
    blocks_conserved,
    nothing_left_behind,
    tokens_match_reference,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_lockstep import CONFIG, ENDED, waves
from scenarios.workloads import add, recorded
from scenarios.workloads.intruders import (
    TO_COORDINATOR,
    amid,
    another_core_of_this_index,
    no_requests,
    to_client,
    to_outputs_of_another,
    to_owner,
)

PROMISED = (bad_frame_isolated, tokens_match_reference, blocks_conserved, nothing_left_behind)
LOCKSTEP = {"topology": data_parallel(2, lockstep=True), "workload": waves(), "config": CONFIG}
OLD = {**LOCKSTEP, "config": lab_config(bounds={"collective_s": 0.8}, data_parallel={"wave_protocol": "old"})}
TWO = data_parallel(1, tp=1, clients=2)

globals().update(family(__name__, (
    Case("test_strangers_at_a_coordinator", "All three of its sockets, of cores that step together.", plan(), PROMISED,
         play={"options": amid(*TO_COORDINATOR), **LOCKSTEP}),
    Case("test_strangers_at_a_coordinator_of_the_old_protocol", "The same where it hears of first requests.", plan(),
         PROMISED, play={"options": amid(*TO_COORDINATOR), **OLD}),
    Case("test_strangers_at_a_coordinator_of_counts", "The same where it carries counts alone, to two clients.", plan(),
         PROMISED, play={"topology": data_parallel(2, tp=1, clients=2, coordinated=True),
                         "options": amid(*TO_COORDINATOR)}),
    Case("test_strangers_at_a_client", "Where its cores' outputs come, and where they can be sent to.", plan(),
         PROMISED, play={"options": amid(*to_client("outputs", "requests"), *to_owner(early=False))}),
    Case("test_strangers_at_a_client_of_two_cores", "The outputs of one come where another's do.", plan(), PROMISED,
         play={"topology": data_parallel(2, tp=1), "options": amid(to_outputs_of_another())}),
    Case("test_strangers_at_clients_of_a_launcher", "The same of two clients, and of who owns their core.", plan(),
         PROMISED, play={"topology": TWO, "options": amid(
             *to_client("client.0.outputs.0", "client.0.requests"),
             *to_client("client.1.outputs.0", "client.1.requests"), *to_owner(early=False))}),
    Case("test_strangers_while_cores_introduce_themselves", "The start goes on with those who are meant.", plan(),
         PROMISED, play={"options": amid(*to_owner(early=True))}),
    Case("test_strangers_while_cores_of_a_launcher_introduce_themselves", "The same where two clients share it.",
         plan(), PROMISED, play={"topology": TWO, "options": amid(*to_owner(early=True))}),
    *(Case(f"test_another_core_of_the_same_index_says_{what}", "It is named, and the one that was started serves.",
           plan(), PROMISED, play={"options": amid(another_core_of_this_index(says_ready=what == "ready"))})
      for what in ("hello", "ready")),
    Case("test_frames_that_are_no_requests_of_two_clients", "Either sends them: neither is hurt by them.", plan(),
         (bad_frame_isolated, tokens_match_reference, blocks_conserved),
         play={"topology": TWO, "workload": recorded("eight-even").then(
             add(0, 1, 2, 3), *no_requests(), behind=("r0", ENDED)).then(add(4, 5, 6, 7))}),
    Case("test_what_a_coordinator_says_is_damaged", "A client and a core drop what they cannot read.",
         plan(truncate("coordinator.0->frontend.0/stats", nth=3), truncate("coordinator.0->core.1/wave", nth=1),
              truncate("coordinator.0->core.1/wave", nth=3)), (bad_frame_isolated, tokens_match_reference),
         play=LOCKSTEP),
), topology=tensor_parallel(2), workload=recorded("eight-mixed"), config=lab_config()))
