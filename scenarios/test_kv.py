"""KV-cache events: losses are seen, healed by replay where that is possible, and told where it is not."""

from __future__ import annotations

from engine.topology import tensor_parallel
from faults.plan import cut, drop, hang, plan, until
from scenarios.guarantees.all import (
    blocks_conserved,
    kv_gap_seen,
    kv_gap_too_old,
    kv_mirror_true,
    kv_never_stalls,
    kv_replay_complete,
    kv_seq,
)
from scenarios.history.play import Options
from scenarios.lab.settings import lab_config
from scenarios.workloads import recorded

KV = "core.0->subscriber.0/kv"
#: Events on; a reader that pauses loses what neither side may keep.
NARROW = {"enable_kv_cache_events": True, "hwm": 2, "subscriber_hwm": 2, "socket_buffer_bytes": 2048}
#: A subscriber comes back a tenth of a second after its publisher, and is to hear of its next life.
GROWING = recorded("eight-growing")


def churn():
    """Many steps that store and evict blocks: 64 prompts through a cache that holds a few. 166 batches, always."""
    return recorded("sixty-four")


def patient(**kv_events):
    """For `churn`: the last prompts wait for 48 others, and on a machine that starves for longer than the lab's bound.

    A request that is given up is one whose batches never come, and whoever counts them would wait for ever.
    """
    return lab_config(kv_events=kv_events, bounds={"request_s": 30.0})


def test_subscriber_is_too_slow_for_its_high_water_mark(world):
    """A subscriber pauses until 150 batches were sent; PUB has dropped some, and replay brings them."""
    run = world.play(
        topology=tensor_parallel(1, subscribers=1), workload=churn(), config=patient(**NARROW),
        plan=plan(hang("subscriber.0", at=f"{KV}:receive", nth=3, until=until(f"{KV}:send", 150))))
    run.holds(kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_never_stalls, kv_seq, blocks_conserved)


def test_subscriber_joins_late(world):
    """A subscriber comes when everything has been said: it asks for it from the beginning."""
    run = world.play(
        topology=tensor_parallel(1, subscribers=1), workload=recorded("eight-mixed"),
        config=lab_config(kv_events={"enable_kv_cache_events": True}), options=Options(late_subscriber=True))
    run.holds(kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_seq)


def test_connection_of_a_subscriber_is_cut(world):
    """The connection is cut in the middle of the stream and comes back: what was lost is replayed."""
    run = world.play(
        topology=tensor_parallel(1, subscribers=1), workload=churn(),
        config=patient(enable_kv_cache_events=True),
        plan=plan(cut(KV, nth=8, until=until(f"{KV}:send", 20))))
    run.holds(kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_never_stalls)


def test_program_polls_what_it_follows(world):
    """A program polls for what it follows; one batch is lost on its way, and asked for."""
    run = world.play(
        topology=tensor_parallel(1, subscribers=1), workload=recorded("eight-mixed"),
        config=lab_config(kv_events={"enable_kv_cache_events": True}), options=Options(polling=True),
        plan=plan(drop(KV, nth=5)))
    run.holds(kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_never_stalls, kv_seq)


def test_gap_is_older_than_the_window(world):
    """The publisher keeps four batches, the gap is wider: what is gone for good is said to be gone."""
    run = world.play(
        topology=tensor_parallel(1, subscribers=1), workload=churn(),
        config=patient(**NARROW, buffer_steps=4),
        plan=plan(hang("subscriber.0", at=f"{KV}:receive", nth=3, until=until(f"{KV}:send", 150))))
    run.holds(kv_gap_seen, kv_gap_too_old, kv_never_stalls)
