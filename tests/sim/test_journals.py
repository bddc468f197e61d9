"""What the twin keeps in memory and what it writes to disk say the same."""

import msgspec
import pytest

from engine.topology import tensor_parallel
from faults.journal import read_journal
from faults.plan import Fate, Fault, Plan, Until
from scenarios.guarantees.judge import judge
from scenarios.history.play import Play
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import recorded
from scenarios.worlds.sim import play_once

FAULTS = {
    "calm": (),
    "a stall": (Fault(id="f1", site="core.0/mark:scheduled", fate=Fate.STALL, nth=3, until=Until(seconds=0.1)),),
    "a death": (Fault(id="f1", site="worker.1/collective:enter", fate=Fate.KILL, nth=20),),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_a_judge_finds_the_same_in_memory_and_on_disk(faults, tmp_path):
    play = Play(scenario="s", title="", world="sim", topology=tensor_parallel(2, subscribers=1),
                plan=Plan(faults=faults), promises=(), workload=msgspec.to_builtins(recorded("eight-even").played()),
                config=lab_config(tensor_parallel_size=2, kv_events={"enable_kv_cache_events": True}))
    simulation, lab = play_once(play)
    in_memory = judge(play, lab, simulation.journal_files())
    simulation.write_journals(tmp_path)
    read = [read_journal(tmp_path / f"{file.node}@{file.life}.journal") for file in simulation.journal_files()]
    assert sum(len(file.records) for file in read) > 200
    assert not any(file.torn for file in read)
    assert judge(play, lab, read) == in_memory
