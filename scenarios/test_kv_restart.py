"""KV-cache events: the publisher's second life. Its subscribers outlive the first one."""

from __future__ import annotations

from engine.topology import tensor_parallel
from faults.plan import Plan, delay, drop, plan, until
from scenarios.guarantees.all import kv_mirror_true, kv_seq, kv_tells_what_came
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import recorded

KV, QUESTIONS = "core.0->subscriber.0/kv", "subscriber.0->core.0/replay"

globals().update(family(__name__, (
    Case("test_publisher_is_killed_and_started_again",
         "The whole engine is killed and started again: its subscriber is told of the restart, and starts over.",
         Plan(), (kv_seq, kv_mirror_true)),
    Case("test_questions_of_both_lives_are_answered_late",
         "A gap is open in either life of an engine: what was answered in the first is nothing to the second.",
         plan(drop(KV, nth=29), drop(KV, nth=31, times=3), delay(QUESTIONS, nth=2, until=until(f"{KV}:send", 33))),
         (kv_seq, kv_mirror_true, kv_tells_what_came)),
), topology=tensor_parallel(1, subscribers=1), workload=recorded("eight-growing"),
    config=lab_config(kv_events={"enable_kv_cache_events": True}), options=Options(kill_all_then_restart=True)))
