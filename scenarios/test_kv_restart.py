"""KV-cache events: the publisher's second life. Its subscribers outlive the first one."""

from __future__ import annotations

from engine.topology import tensor_parallel
from scenarios.guarantees.all import kv_mirror_true, kv_seq
from scenarios.history.play import Options
from scenarios.lab.settings import lab_config
from scenarios.workloads import recorded


def test_publisher_is_killed_and_started_again(world):
    """The whole engine is killed and started again: its subscriber is told of the restart, and starts over."""
    run = world.play(
        topology=tensor_parallel(1, subscribers=1), workload=recorded("eight-growing"),
        config=lab_config(kv_events={"enable_kv_cache_events": True}), options=Options(kill_all_then_restart=True))
    run.holds(kv_seq, kv_mirror_true)
