"""Plans of steps that were one call."""

from __future__ import annotations

import pytest

from faults.plan import drop, hang, kill, plan, stall, to_two_phases, until


@pytest.mark.parametrize(("nth", "moved"), [(1, 1), (2, 2), (3, 3), (4, 5), (12, 21)])
@pytest.mark.parametrize("site", [
    "core.0->worker.1/rpc:send", "core.0->worker.1.0/rpc:receive", "core.0/rpc:store.written", "core.0/rpc:doorbell",
    "worker.1/rpc:store.read", "worker.0->core.0/response:send", "worker.1.0/response:store.data",
    "core.0/response.0:store.read", "worker.1/mark:executing", "core.0/mark:executing"])
def test_what_every_call_crosses_moves_behind_the_start(site: str, nth: int, moved: int) -> None:
    [fault] = to_two_phases(plan(kill("core.0", at=site, nth=nth))).faults
    assert (fault.site, fault.nth) == (site, moved)


@pytest.mark.parametrize("site", [
    "worker.1->core.0/response:send", "worker.1.1/response:store.data", "core.0/response.1:store.read",
    "core.0->worker.1/overflow:send", "core.0->frontend.0/outputs:send", "worker.1/collective:enter",
    "core.0/mark:executed"])
def test_what_a_step_crosses_as_often_as_before_stays(site: str) -> None:
    before = plan(kill("core.0", at=site, nth=12))
    assert to_two_phases(before) == before


def test_the_end_of_a_hold_moves_too_and_all_else_stays() -> None:
    rpc = "core.0->worker.1/rpc"
    before = plan(stall("worker.1", at=f"{rpc}:receive", nth=7, until=until(f"{rpc}:send", 9)),
                  hang("core.0", at=f"{rpc}:send", nth=5, until=until(seconds=0.5)),
                  drop("core.0->frontend.0/outputs", nth=3))
    assert to_two_phases(before) == plan(
        stall("worker.1", at=f"{rpc}:receive", nth=11, until=until(f"{rpc}:send", 15)),
        hang("core.0", at=f"{rpc}:send", nth=7, until=until(seconds=0.5)), drop("core.0->frontend.0/outputs", nth=3))


def test_a_start_of_another_length_can_be_said() -> None:
    assert to_two_phases(plan(kill("core.0", at="core.0/rpc:store.written", nth=5)), calls=3).faults[0].nth == 6
