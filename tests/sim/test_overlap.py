"""How long a step of the twin lasts: with several in flight as long as the slower of device and core, else as both."""

from __future__ import annotations

import msgspec
import pytest

from engine.topology import Mark, Topology, mark_site, tensor_parallel
from faults.plan import Plan
from scenarios.history.history import History
from scenarios.history.play import Play
from scenarios.lab.settings import lab_config, with_grid
from scenarios.workloads.workload import recorded
from scenarios.worlds.sim import play_once
from sim.kernel.costs import COSTS

DEVICE_S = 10e-3


def seconds_a_step(topology: Topology, core_s: float, *, promises: bool, tokens: int = 64) -> float:
    """Of the steady middle of a play in which four requests decode."""
    config = with_grid(lab_config(bounds={"step_s": 10.0, "request_s": 60.0}, scheduler={
        "async_scheduling": promises, "max_num_batched_tokens": tokens}), topology.engines[0])
    costs = msgspec.structs.replace(COSTS, model_step_s=DEVICE_S, core_step_s=core_s, model_sample_s=0.0,
                                    shared_collective_s=1e-6, model_copy_s=0.0)
    play = Play(scenario="overlap", title="", world="sim", topology=topology, plan=Plan(), config=config, promises=(),
                workload=msgspec.to_builtins(recorded("long").played()), virtual_time=True)
    simulation, lab = play_once(play, costs=costs)
    history = History(play, lab, simulation.journal_files())
    used = [record.at for record in history.crossings[mark_site("core.0", Mark.EXECUTED)]]
    assert len(used) > 90
    first, last = len(used) // 3, 2 * len(used) // 3
    return (used[last] - used[first]) / (last - first)


@pytest.mark.parametrize("core_s", [2e-3, 8e-3, 15e-3])
def test_with_promised_tokens_a_step_lasts_as_long_as_the_slower_of_device_and_core(core_s: float) -> None:
    step_s = seconds_a_step(tensor_parallel(2), core_s, promises=True)
    assert step_s == pytest.approx(max(DEVICE_S, core_s), rel=0.02)


@pytest.mark.parametrize("core_s", [2e-3, 15e-3])
def test_one_step_at_a_time_lasts_as_long_as_both(core_s: float) -> None:
    step_s = seconds_a_step(tensor_parallel(2), core_s, promises=False)
    assert step_s == pytest.approx(DEVICE_S + core_s, rel=0.02)


def test_two_stages_with_requests_for_both_take_half_as_long() -> None:
    """Prompts that do not fit into one step come in two, which then take turns: no stage stands idle."""
    assert seconds_a_step(tensor_parallel(1, pp=2), 0.0, promises=True, tokens=48) == pytest.approx(
        DEVICE_S / 2, rel=0.03)


def test_two_stages_with_one_step_for_all_take_as_long_as_one() -> None:
    """All are in one step: while it is in one stage the other one has nothing to do."""
    assert seconds_a_step(tensor_parallel(1, pp=2), 0.0, promises=True, tokens=256) == pytest.approx(DEVICE_S, rel=0.03)
