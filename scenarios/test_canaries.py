"""The same engine with a documented weakness switched on: these must be red, or the lab cannot see red."""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import exits, hang, marked, plan, stall, until
from scenarios.history.verdicts import Verdict
from scenarios.lab.settings import lab_config
from scenarios.test_kv import KV, NARROW, churn, patient
from scenarios.workloads import add, recorded, utility

REQUESTS = "frontend.0->core.0/requests"


def test_canary_high_water_mark(world):
    """With a high-water mark on the request sockets, and a ROUTER that is not told to complain, requests vanish."""
    run = world.play(
        topology=tensor_parallel(2),
        workload=recorded("single").then(add(0), utility("ping", "x" * 5000, times=900)),
        config=lab_config(sockets={"request_hwm": 200, "router_mandatory": False}, bounds={"request_s": 1.2}),
        plan=plan(hang("core.0", at=f"{REQUESTS}:receive", nth=100, until=until(f"{REQUESTS}:send", 890))))
    run.holds(hwm0_no_loss=Verdict.BROKEN)


def test_canary_no_linger(world):
    """Without linger, a core that leaves takes its last outputs and its death notice with it."""
    run = world.play(
        topology=tensor_parallel(2),
        workload=recorded("pair").then(add(0, 1), steps=2).then(utility("ping", "x", 100_000, times=400)),
        config=lab_config(sockets={"output_linger_s": 0.0}),
        plan=plan(
            stall("frontend.0", at=marked("core.0", Mark.SCHEDULED), nth=3, until=until(seconds=1.0)),
            exits("core.0", at=marked("core.0", Mark.EXECUTED), nth=3)))
    run.holds(dead_notice=Verdict.BROKEN)


def test_canary_no_replay(world):
    """Without replay, a subscriber that was too slow never gets what it missed."""
    run = world.play(
        topology=tensor_parallel(2, subscribers=1), workload=churn(),
        config=patient(**NARROW, replay=False),
        plan=plan(hang("subscriber.0", at=f"{KV}:receive", nth=3, until=until(f"{KV}:send", 150))))
    run.holds(kv_replay_complete=Verdict.BROKEN)
