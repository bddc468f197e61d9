"""The writer or a reader of a ring is killed at each of its stores, or stands still there: one, two and four readers.

    one reader       the answers of a worker: it writes, the core reads
    two and four     the broadcast of the core: it writes, each worker reads
"""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import kill, marked, plan, stall, until
from scenarios.guarantees.all import (
    death_is_told,
    ends_once,
    nothing_left_behind,
    ring_bounded_wait,
    ring_exact_prefix,
    tokens_match_reference,
    workers_in_step,
)
from scenarios.lab.family import Case, family
from scenarios.workloads import add, recorded, utility

#: The stores of a write in their order; the last one makes it a message.
BEFORE_IT_IS_A_MESSAGE = ("reset", "data", "readers")
WRITES = (*BEFORE_IT_IS_A_MESSAGE, "written")
FOUR = {"topology": tensor_parallel(4)}

#: Of a rank that dies its end may end the core's wait, or first the word of another rank that missed it.
PREFIX = (ring_exact_prefix, death_is_told, ends_once, nothing_left_behind)

globals().update(family(__name__, (
    Case("test_writer_dies_at_a_store_for_one_reader",
         "A worker is killed at a store of an answer: the core has read exactly those before it.",
         lambda store: plan(kill("worker.0", at=f"worker.0/response:store.{store}", nth=15)),
         PREFIX, each=WRITES),
    Case("test_reader_dies_at_its_store_with_one_reader",
         "The core is killed when it has read an answer and not yet said so.",
         plan(kill("core.0", at="core.0/response.0:store.read", nth=15)),
         PREFIX),
    Case("test_writer_dies_at_a_store_for_two_readers",
         "The core is killed at a store of a step: both workers have read exactly the steps before it.",
         lambda store: plan(kill("core.0", at=f"core.0/rpc:store.{store}", nth=15)),
         PREFIX, each=WRITES),
    Case("test_one_of_two_readers_dies_at_its_store",
         "A worker is killed when it has read a step and not yet said so: the writer does not wait for it.",
         lambda rank: plan(kill(f"worker.{rank}", at=f"worker.{rank}/rpc:store.read", nth=15)),
         PREFIX, each=(0, 1)),
    Case("test_writer_dies_at_a_store_for_four_readers",
         "The core is killed at a store of a step: all four workers have read exactly the steps before it.",
         lambda store: plan(kill("core.0", at=f"core.0/rpc:store.{store}", nth=15)),
         PREFIX, each=WRITES, play=FOUR),
    Case("test_one_of_four_readers_dies_at_its_store",
         "A worker is killed when it has read a step and not yet said so: the other three lose nothing.",
         lambda rank: plan(kill(f"worker.{rank}", at=f"worker.{rank}/rpc:store.read", nth=15)),
         PREFIX, each=(0, 3), play=FOUR),
    Case("test_reader_dies_while_the_writer_waits_for_it",
         "A worker reads nothing until the ring is full, reads one message and is killed: the writer's wait ends.",
         plan(stall("worker.1", at="core.0->worker.1/rpc:receive", nth=10,
                    until=until(marked("core.0", Mark.RING_FULL))),
              kill("worker.1", at="worker.1/rpc:store.read", nth=11)),
         (*PREFIX, ring_bounded_wait),
         play={"workload": recorded("pair").then(add(0, 1), steps=3).then(
             utility("collective_rpc", "check_health", 20))}),
    Case("test_writer_stops_at_a_store",
         "The core stands still at a store of a step, for longer than readers sleep: they look, and take nothing yet.",
         lambda store: plan(stall("core.0", at=f"core.0/rpc:store.{store}", nth=15, until=until(seconds=0.5))),
         (ring_exact_prefix, workers_in_step, tokens_match_reference), each=BEFORE_IT_IS_A_MESSAGE),
    Case("test_writer_stops_in_the_first_round",
         "The same in a chunk that has never been used: its readers' flags are down before it is a message.",
         plan(stall("core.0", at="core.0/rpc:store.readers", nth=3, until=until(seconds=0.5))),
         (ring_exact_prefix, workers_in_step, tokens_match_reference)),
), topology=tensor_parallel(2), workload=recorded("pair")))
