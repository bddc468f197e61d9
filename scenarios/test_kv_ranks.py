"""KV-cache events of two data-parallel ranks: each an engine of its own, both on one base endpoint."""

from __future__ import annotations

import pytest

from engine.topology import Engine, Topology, side_by_side
from faults.plan import drop, kill, plan
from scenarios.guarantees.all import (
    death_is_told,
    ends_once,
    kv_gap_seen,
    kv_mirror_true,
    kv_ranks_apart,
    kv_replay_complete,
    kv_seq,
    nothing_left_behind,
    two_on_one_host,
)
from scenarios.history.play import Options
from scenarios.lab.settings import lab_config
from scenarios.workloads import recorded

KV = "core.0->subscriber.0/kv"
EVENTS = {"enable_kv_cache_events": True}
#: Ranks of an ipc endpoint have neighbouring paths, those of a tcp endpoint neighbouring ports.
TRANSPORTS = {"ipc": EVENTS, "tcp": {**EVENTS, "socket_buffer_bytes": 1 << 16}}


def ranks(first: int = 0) -> Topology:
    """The rank that the plan befalls, and the other one beside it, each with a subscriber of its own."""
    return side_by_side(Engine(tp=1, data_parallel_rank=first, subscribers=(0,)),
                        Engine(tp=1, data_parallel_rank=1 - first, subscribers=(1,)))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_of_two_ranks_loses_a_batch(world, transport):
    """Rank 0 loses a batch and replays it while rank 1 publishes beside it: each subscriber hears its own rank."""
    run = world.play(
        topology=ranks(), workload=recorded("eight-mixed"), config=lab_config(kv_events=TRANSPORTS[transport]),
        plan=plan(drop(KV, nth=5)))
    run.holds(kv_ranks_apart, kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_seq, two_on_one_host)


@pytest.mark.parametrize("rank", (0, 1))
def test_one_of_two_ranks_dies(world, rank):
    """One rank's core is killed with a batch in its hands, the other publishes on: nobody takes it for the dead one."""
    run = world.play(
        topology=ranks(rank), workload=recorded("eight-mixed"),
        config=lab_config(kv_events=TRANSPORTS["tcp"], bounds={"cleanup_s": 2.0}),
        plan=plan(kill("core.0", at=f"{KV}:send", nth=10)))
    run.holds(kv_ranks_apart, death_is_told, ends_once, nothing_left_behind, two_on_one_host)


@pytest.mark.parametrize("rank", (0, 1))
def test_one_of_two_ranks_is_killed_and_started_again(world, rank):
    """A whole rank is killed and started again where it was: its path is taken back, its neighbour's is not."""
    run = world.play(
        topology=ranks(rank), workload=recorded("eight-growing"), config=lab_config(kv_events=EVENTS),
        options=Options(kill_all_then_restart=True))
    run.holds(kv_ranks_apart, kv_seq, kv_mirror_true, nothing_left_behind, two_on_one_host)


def test_two_ranks_are_asked_for_everything_at_once(world):
    """Both subscribers come when all has been said, and ask for it side by side: each is answered by its own rank."""
    run = world.play(
        topology=ranks(), workload=recorded("eight-mixed"), config=lab_config(kv_events=EVENTS),
        options=Options(late_subscriber=True))
    run.holds(kv_ranks_apart, kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_seq)
