"""Somebody who is none of its peers speaks with each socket that engines bind: it is named, and nobody else notices."""

from __future__ import annotations

from engine.topology import data_parallel, tensor_parallel
from faults.plan import delay, duplicate, plan, truncate, until
from scenarios.guarantees.all import (
    bad_frame_isolated,
    blocks_conserved,
    dp_coordinator_in_turn,
    nothing_left_behind,
    tokens_match_reference,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_lockstep import CONFIG, waves
from scenarios.workloads import ENDED, Workload, add, recorded
from scenarios.workloads.intruders import (
    TO_COORDINATOR,
    TO_COORDINATOR_OF_TODAY,
    amid,
    another_core_of_this_index,
    no_buffers,
    no_requests,
    of_no_client,
    ready_of_a_core_that_has_not_said_hello,
    to_client,
    to_outputs_of_another,
    to_owner,
)

PROMISED = (bad_frame_isolated, tokens_match_reference, blocks_conserved, nothing_left_behind)
LOCKSTEP = {"topology": data_parallel(2, lockstep=True), "workload": waves(), "config": CONFIG}
OLD = {**LOCKSTEP, "config": lab_config(bounds={"collective_s": 0.8}, data_parallel={"wave_protocol": "old"})}
TWO = data_parallel(1, tp=1, clients=2)


def rude(*, other: int) -> Workload:
    """Of a client that speaks as the other one, too."""
    return recorded("eight-even").then(add(0, 1, 2, 3), *no_requests(other), behind=("r0", ENDED)).then(
        add(4, 5, 6, 7))


#: The core is told what it is a while after its client's socket is there: whoever comes early is there before it.
LATE = plan(delay("frontend.0->core.0/birth", nth=1, until=until(seconds=0.3)))


globals().update(family(__name__, (
    Case("test_strangers_at_a_coordinator", "All three of its sockets, of cores that step together.", plan(), PROMISED,
         play={"options": amid(*TO_COORDINATOR_OF_TODAY), **LOCKSTEP}),
    Case("test_strangers_at_a_coordinator_of_the_old_protocol", "The same where it hears of first requests.", plan(),
         PROMISED, play={"options": amid(*TO_COORDINATOR), **OLD}),
    Case("test_strangers_at_a_coordinator_of_counts", "The same where it carries counts alone, to two clients.", plan(),
         PROMISED, play={"topology": data_parallel(2, tp=1, clients=2, coordinated=True),
                         "options": amid(*TO_COORDINATOR_OF_TODAY)}),
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
           LATE, PROMISED,
           play={"options": amid(another_core_of_this_index(says_ready=what == "ready"))})
      for what in ("hello", "ready")),
    Case("test_another_core_of_the_same_index_says_ready_first", "It has not said HELLO: nobody goes by what it says.",
         LATE, PROMISED, play={"options": amid(ready_of_a_core_that_has_not_said_hello())}),
    Case("test_frames_that_are_no_requests_of_two_clients", "Either sends them: neither is hurt by them.", plan(),
         (bad_frame_isolated, tokens_match_reference, blocks_conserved),
         play={"topology": TWO, "workload": rude(other=1).but(1, rude(other=0))}),
    Case("test_requests_of_who_is_no_client", "A request and a call go by the index of a core's coordinator.",
         plan(), (bad_frame_isolated, tokens_match_reference, blocks_conserved, dp_coordinator_in_turn), play={
             "topology": data_parallel(2, tp=1, coordinated=True), "workload": recorded("eight-even").then(
                 add(0, 1), *of_no_client(), behind=("r0", 3)).then(add(2, 3, 4, 5))}),
    Case("test_buffers_that_are_not_what_a_request_says_of_them", "It is refused by name, and others are served.",
         plan(), (bad_frame_isolated, tokens_match_reference, blocks_conserved), play={
             "workload": recorded("eight-even").then(add(0, 1, 2, 3), *no_buffers(), steps=3).then(add(4, 5, 6, 7))}),
    Case("test_what_a_coordinator_says_is_damaged", "A client and a core drop what they cannot read.",
         plan(truncate("coordinator.0->frontend.0/stats", nth=3), truncate("coordinator.0->core.1/wave", nth=1),
              truncate("coordinator.0->core.1/wave", nth=3)), (bad_frame_isolated, tokens_match_reference),
         play=LOCKSTEP),
    Case("test_ready_of_a_coordinator_is_damaged_when_it_comes_again", "Who is ready drops what it cannot read.",
         plan(duplicate("core.1->coordinator.0/wave", nth=1), truncate("coordinator.0->core.0/wave", nth=2)),
         (bad_frame_isolated, tokens_match_reference), play=LOCKSTEP),
), topology=tensor_parallel(1), workload=recorded("eight-mixed"), config=lab_config()))
