"""The queue without an engine: one program puts objects in, others take them out."""

from __future__ import annotations

from typing import Any

from engine.topology import tensor_parallel
from faults.plan import Plan
from scenarios.guarantees.all import queue_counts, queue_ends_meet, queue_hands_over
from scenarios.history.play import Options
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import recorded


def _of(queue: str, max_chunks: int, max_chunk_bytes: int) -> dict[str, Any]:
    """A row of `scenarios.lab.queue_play`. `rpc_s` is its writer's patience: programs start when they can."""
    ring = {"max_chunks": max_chunks, "max_chunk_bytes": max_chunk_bytes}
    return {"config": lab_config(ring=ring, bounds={"rpc_s": 5.0}), "options": Options(queue=queue)}


globals().update(family(__name__, (
    Case("test_queue_hands_over_objects",
         "Objects of all shapes, small and large, go from one program to two others, one of which is slow.",
         Plan(), (queue_hands_over, queue_counts), play=_of("objects", 3, 160 << 10)),
    Case("test_queue_hands_over_megabytes",
         "Objects of more than a mebibyte travel beside the ring; the ends wait in different ways.",
         Plan(), (queue_hands_over, queue_counts), play=_of("large", 3, 256 << 10)),
    Case("test_queue_is_asked_about_itself",
         "A program asks where things are in a ring, and which messages lie at another one's place; a reader leaves.",
         Plan(), (queue_ends_meet, queue_counts), play=_of("few", 4, 256),
         only=Only("sim", "real programs put objects into a queue and take them out, and ask nothing else")),
    Case("test_queue_reaches_another_host",
         "One reader is on another host, as far as the queue knows, and comes late; what goes there is encrypted.",
         Plan(), (queue_hands_over, queue_counts, queue_ends_meet), play=_of("far", 3, 256)),
), topology=tensor_parallel(2), workload=recorded("pair")))
