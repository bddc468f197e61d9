"""KV-cache events: a subscriber's second life, a wire cut inside of a message, and questions that are none."""

from __future__ import annotations

import msgspec

from engine.topology import tensor_parallel
from faults.plan import Fault, corrupt, cut, drop, kill, plan, truncate, until
from scenarios.guarantees.all import (
    bad_frame_isolated,
    blocks_conserved,
    kv_gap_seen,
    kv_mirror_true,
    kv_never_stalls,
    kv_replay_complete,
    kv_seq,
    no_foreign_code,
)
from scenarios.history.play import Options
from scenarios.lab.settings import lab_config
from scenarios.test_kv import churn, patient
from scenarios.workloads import recorded

KV = "core.0->subscriber.0/kv"
QUESTIONS = "subscriber.0->core.0/replay"
OTHERS_QUESTIONS = "subscriber.1->core.0/replay"
EVENTS = {"enable_kv_cache_events": True}
#: A batch on the wire is two short frames, 12 bytes, and its payload: behind so many bytes the payload has begun.
IN_MID_FRAME = 40


def in_mid_frame(fault: Fault) -> Fault:
    return msgspec.structs.replace(fault, byte=IN_MID_FRAME)


def test_subscriber_dies_and_is_started_again(world):
    """A subscriber is killed in the middle of the stream; its second life has no memory, and asks for all of it."""
    run = world.play(
        topology=tensor_parallel(1, subscribers=1), workload=churn(), config=patient(**EVENTS),
        plan=plan(kill("subscriber.0", at=f"{KV}:receive", nth=10)))
    run.holds(kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_never_stalls, kv_seq, blocks_conserved)


def test_connection_is_cut_inside_of_a_message(world):
    """The wire is cut behind the first 40 bytes of a batch, and shut for a while: half a batch is none, all come."""
    run = world.play(
        topology=tensor_parallel(1, subscribers=1), workload=churn(), config=patient(**EVENTS),
        plan=plan(in_mid_frame(cut(KV, nth=8, until=until(f"{KV}:send", 20)))))
    run.holds(kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_never_stalls, kv_seq)


def test_replay_requests_are_malformed(world):
    """One subscriber's questions are cut short and damaged: another's is answered meanwhile, live batches go on.

    Whose question was none asks again, and is answered, too.
    """
    run = world.play(
        topology=tensor_parallel(1, subscribers=2), workload=recorded("eight-mixed"),
        config=lab_config(kv_events=EVENTS),
        plan=plan(drop(KV, nth=5), drop("core.0->subscriber.1/kv", nth=5),
                  truncate(OTHERS_QUESTIONS, nth=2), corrupt(OTHERS_QUESTIONS, nth=3, byte=0),
                  truncate(QUESTIONS, nth=3)))
    run.holds(kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_never_stalls, kv_seq)


def test_replay_requests_by_a_stranger_are_none(world):
    """A peer of unknown identity sends wrong frame counts, bad numbers and a pickle before each question it has.

    Each is told and not answered; the stranger's own questions and another subscriber's are answered all the same.
    """
    run = world.play(
        topology=tensor_parallel(1, subscribers=2), workload=recorded("eight-mixed"),
        # vLLM answers one question in a tenth of a second, also those that make no sense.
        config=lab_config(kv_events=EVENTS, bounds={"replay_s": 1.0}), options=Options(rude_subscriber=True),
        plan=plan(drop(KV, nth=5), drop("core.0->subscriber.1/kv", nth=5)))
    run.holds(kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_never_stalls, kv_seq, no_foreign_code,
              bad_frame_isolated)
