"""The shared-memory ring and the collective calls that go through it."""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import Fate, Fault, delay, drop, duplicate, kill, marked, plan, stall, until
from scenarios.guarantees.all import (
    death_is_told,
    ends_once,
    frames_intact,
    nothing_left_behind,
    ring_bounded_wait,
    ring_exact_prefix,
    ring_no_lost_wakeup,
    ring_no_overwrite,
    ring_overflow_ordered,
    rpc_matched,
    tokens_match_reference,
    workers_in_step,
)
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_scheduling import pressure, under_pressure
from scenarios.workloads import add, recorded, utility

#: More calls than a ring holds, while requests run.
CALLS = utility("collective_rpc", "check_health", 20)
TWENTY_CALLS = recorded("eight-even").then(add(0, 1), steps=3).then(CALLS, add(2, 3))

#: What stands before the first buffer of a chunk: a flag, how many there are, and its size.
FRAMING_BYTES = 1 + 2 + 4

globals().update(family(__name__, (
    Case("test_writer_dies_between_data_and_flag",
         "The core is killed when a message is in its chunk and its flag is not set: nobody reads it.",
         plan(kill("core.0", at="core.0/rpc:store.written", nth=17)),
         (ring_exact_prefix, death_is_told, ends_once, nothing_left_behind)),
    Case("test_writer_stops_between_data_and_flag",
         "The core stands still when a message is in its chunk and its flag is not set: readers look, and wait for it.",
         plan(stall("core.0", at="core.0/rpc:store.written", nth=17, until=until(seconds=0.5))),
         (ring_exact_prefix, workers_in_step, tokens_match_reference)),
    Case("test_reader_dies_between_read_and_flag",
         "A worker is killed when it has read a message and not yet said so: the writer's wait is bounded.",
         plan(kill("worker.1", at="worker.1/rpc:store.read", nth=17)),
         (ring_exact_prefix, ring_bounded_wait, death_is_told, ends_once, nothing_left_behind)),
    Case("test_step_cannot_be_read",
         "The first byte of a step is damaged behind its framing: no rank can read it, each says so, the engine ends.",
         plan(Fault(id="", site="core.0/rpc:store.data", fate=Fate.CORRUPT, nth=17, byte=FRAMING_BYTES)),
         (ends_once, nothing_left_behind)),
    Case("test_step_cannot_be_read_with_another_one_behind_it",
         "The same, when the next step is in the ring already: no rank begins with that one.",
         plan(Fault(id="", site="core.0/rpc:store.data", fate=Fate.CORRUPT, nth=16, byte=FRAMING_BYTES)),
         (ends_once, nothing_left_behind),
         play={"workload": pressure(), "config": under_pressure(max_concurrent_batches=2)}),
), topology=tensor_parallel(2), workload=recorded("eight-mixed")))


def test_reader_stalls_until_the_ring_is_full(world):
    """A worker stops reading, the ring runs full, the writer waits; then the worker goes on."""
    run = world.play(
        topology=tensor_parallel(2), workload=TWENTY_CALLS,
        plan=plan(stall("worker.1", at="core.0->worker.1/rpc:receive", nth=10,
                        until=until(marked("core.0", Mark.RING_FULL)))))
    run.holds(ring_no_overwrite, ring_exact_prefix, workers_in_step, rpc_matched, tokens_match_reference)


# Messages that do not fit into their chunk: the payload travels beside the ring, and befalls what befalls messages.
globals().update(family(__name__, (
    Case("test_overflow_payload_comes_late",
         "A step does not fit into its chunk; its payload comes 0.3 s late, and waits run out in between.",
         plan(delay("core.0->worker.1/overflow", nth=2, until=until(seconds=0.3))),
         (ring_overflow_ordered, ring_exact_prefix, frames_intact, workers_in_step, tokens_match_reference),
         play={"workload": recorded("eight-mixed"),
               "config": lab_config(ring={"max_chunk_bytes": 768}, scheduler={"max_num_batched_tokens": 512})}),
    Case("test_overflow_payloads_overtake_each_other",
         "Twenty calls that do not fit into their chunks; the payload of one comes late, those behind it wait.",
         plan(delay("core.0->worker.1/overflow", nth=12, until=until(seconds=0.4))),
         (ring_overflow_ordered, ring_exact_prefix, workers_in_step, rpc_matched, tokens_match_reference),
         play={"workload": TWENTY_CALLS, "config": lab_config(ring={"max_chunk_bytes": 32})}),
    Case("test_overflow_payloads_overtake_each_other_again",
         "The payload of a call comes late, and six seconds later that of another one: each is waited for as long.",
         plan(*(delay("core.0->worker.1/overflow", nth=nth, until=until(seconds=0.4)) for nth in (12, 80)),
              delay("frontend.0->core.0/requests", match={"type": "UTILITY"}, nth=5, until=until(seconds=6.0))),
         (ring_overflow_ordered, ring_exact_prefix, workers_in_step, rpc_matched, tokens_match_reference),
         play={"workload": recorded("eight-even").then(add(0, 1), steps=3).then(CALLS, steps=3).then(CALLS, add(2, 3)),
               "config": lab_config(ring={"max_chunk_bytes": 32}, bounds={"request_s": 10.0})},
         only=Only("sim", "nothing is to be seen for six seconds")),
    Case("test_payload_of_an_answer_comes_twice_and_another_one_late",
         "The second copy is of a message that is over: a payload that none has overtaken is waited for all the same.",
         plan(duplicate("worker.0->core.0/overflow", nth=4),
              delay("worker.0->core.0/overflow", nth=6, until=until(seconds=6.0))),
         (ring_overflow_ordered, ring_exact_prefix, workers_in_step, rpc_matched, tokens_match_reference),
         play={"config": lab_config(ring={"response_chunk_bytes": 32}, bounds={
             "collective_s": 9.0, "step_s": 10.0, "stall_s": 11.0, "request_s": 12.0})},
         only=Only("sim", "nothing is to be seen for six seconds")),
    Case("test_payload_of_an_answer_is_lost",
         "The flag of an answer comes and its payload does not: the step's deadline ends the wait for it.",
         plan(drop("worker.0->core.0/overflow", nth=6)),
         (ring_bounded_wait, ends_once, nothing_left_behind),
         play={"config": lab_config(ring={"response_chunk_bytes": 32}, bounds={"stall_s": 3.5})}),
), topology=tensor_parallel(2), workload=recorded("eight-even")))

globals().update(family(__name__, (
    Case("test_doorbell_is_lost",
         "The wake-up for an idle reader is lost: it looks by itself within the re-check bound.",
         plan(drop("core.0/rpc:doorbell", nth=3, times=2)),
         (ring_no_lost_wakeup, workers_in_step, tokens_match_reference)),
    Case("test_doorbell_of_an_answer_is_lost",
         "The core sleeps while it waits for an answer, and nobody wakes it: it looks by itself within the same bound.",
         plan(drop("worker.0/response:doorbell", nth=3, times=2)),
         (ring_no_lost_wakeup, workers_in_step, tokens_match_reference)),
), topology=tensor_parallel(2), workload=recorded("eight-even")))
