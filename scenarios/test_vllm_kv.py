"""KV events of vLLM's own publisher, heard by the lab's subscriber: what is lost is asked for, what is told is true.

Messages are lost at the subscriber, which is the lab's; all that is sent is vLLM's.
"""

from __future__ import annotations

from engine.topology import tensor_parallel
from faults.plan import Plan, cut, drop, hang, plan, until
from scenarios.guarantees.all import (
    kv_gap_seen,
    kv_gap_too_old,
    kv_mirror_true,
    kv_replay_complete,
    kv_seq,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import add, recorded, utility

THERE = Only(world="vllm", reason="these are vLLM's processes")
KV, ANSWERS = "core.0->subscriber.0/kv", "core.0->subscriber.0/replay"
EVENTS = {"enable_kv_cache_events": True}
HEALED = (kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_seq)
#: Blocks of the first requests are evicted for the later ones, and some requests are preempted.
SMALL = {"cache": {"num_gpu_blocks": 12}, "scheduler": {"max_model_len": 80}}

globals().update(family(__name__, (
    Case("test_vllm_events_are_lost", "Two batches do not come: they are asked for, and the mirror is the cache.",
         plan(drop(KV, nth=5), drop(KV, nth=6)), HEALED, only=THERE),
    Case("test_vllm_answers_are_lost", "A batch does not come, nor does one of the answer: it is asked for again.",
         plan(drop(KV, nth=5), drop(ANSWERS, nth=3)), HEALED, only=THERE),
    Case("test_vllm_connection_of_events_is_cut", "The subscriber's connection ends, and is made again: what was said "
         "meanwhile is asked for.", plan(cut(KV, nth=4)), HEALED, only=THERE),
    Case("test_vllm_connection_of_answers_is_cut", "A batch does not come, and the connection ends on which it is "
         "asked for: it is asked again.", plan(drop(KV, nth=5), cut(ANSWERS, nth=2)), HEALED, only=THERE),
    Case("test_vllm_subscriber_joins_late", "It comes when everything has been said, and asks for it from the start.",
         Plan(), HEALED, only=THERE, play={"options": Options(late_subscriber=True)}),
    Case("test_vllm_subscriber_is_slow", "It stands still for a while, and one batch does not come.",
         plan(hang("subscriber.0", at=f"{KV}:receive", nth=3, until=until(seconds=0.5)), drop(KV, nth=7)), HEALED,
         only=THERE),
    Case("test_vllm_events_of_a_small_cache", "Blocks are evicted and requests preempted: events tell of all of it.",
         plan(drop(KV, nth=5)), (*HEALED, tokens_match_reference), only=THERE,
         play={"config": lab_config(kv_events=EVENTS, **SMALL)}),
    Case("test_vllm_events_of_a_small_cache_async", "The same with a step in flight.", plan(drop(KV, nth=5)),
         (*HEALED, tokens_match_reference), only=THERE,
         play={"config": lab_config(kv_events=EVENTS, cache=SMALL["cache"],
                                    scheduler={**SMALL["scheduler"], "async_scheduling": True})}),
    Case("test_vllm_events_of_a_reset", "The cache is cleared between two requests: that is told with the next ones.",
         plan(drop(KV, nth=3)), HEALED, only=THERE, play={
             "workload": recorded("eight-growing").then(add(*range(4)), behind=("r3", 10_000)).then(
                 utility("reset_prefix_cache")).then(add(4, 5))}),
    Case("test_vllm_gap_is_older_than_its_window", "The publisher keeps two batches, and ten do not come: what is gone "
         "for good is said to be gone.", plan(drop(KV, nth=5, times=10)), (kv_gap_seen, kv_gap_too_old), only=THERE,
         play={"config": lab_config(kv_events={**EVENTS, "buffer_steps": 2})}),
), topology=tensor_parallel(2, subscribers=1), workload=recorded("eight-growing"), config=lab_config(kv_events=EVENTS)))
