"""vLLM itself, where an interpreter that has it is named: it is played, red where it has to be, and leaves nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from engine.process.identity import start_time
from engine.topology import data_parallel, tensor_parallel
from faults.plan import Plan, drop, kill, plan
from scenarios.guarantees.all import (
    death_is_told,
    ends_once,
    kv_mirror_true,
    kv_replay_complete,
    no_orphans,
    tokens_match_reference,
)
from scenarios.history.run import load_run
from scenarios.history.verdicts import Verdict
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import abort, add, recorded
from scenarios.worlds.registry import can_play
from scenarios.worlds.vllm.environment import VARIABLE
from scenarios.worlds.vllm.family import children_of
from scenarios.worlds.vllm.world import VllmWorld
from tests.scenarios.command.console import bench

pytestmark = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmWorld]:
    assert can_play("vllm") is None
    world = VllmWorld(Path(tmp_path_factory.mktemp("vllm")))
    yield world
    world.close()


def played(world: VllmWorld, faults: Plan = Plan(), workload: object = None) -> object:  # noqa: B008
    return world.play(topology=tensor_parallel(2), workload=workload or recorded("eight-mixed"),  # type: ignore[arg-type]
                      plan=faults)


def test_steps_are_counted(world: VllmWorld) -> None:
    run = played(world, workload=recorded("pair").then(add(0, 1), steps=3).then(abort(0, 1)))
    core = next(file for file in run.runs[0].journals if file.node == "core.0")  # type: ignore[attr-defined]
    steps = [record for record in core.records if record.site == "core.0/mark:executed"]
    assert len(steps) >= 3
    aborts = min(record.at for file in run.runs[0].journals for record in file.records  # type: ignore[attr-defined]
                 if record.site == "abort")
    assert sum(record.at < aborts for record in steps) == 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_nothing_is_left_of_a_play_whose_lab_is_killed(tmp_path: Path, jobs: int) -> None:
    """At the worst moment: all of the engine stands still, and looks at nobody."""
    with bench() as place:
        lab = place.start("run", "--world", "vllm", "--scenario", "test_vllm_worker_is_stopped*", "--out", tmp_path,
                          "--jobs", str(jobs))
        family: dict[int, int | None] = {}

        def stands_still() -> bool:
            family.update({pid: start_time(pid) for pid in _descendants(lab.pid)})
            return any(_state(pid) == "T" for pid in family)

        def living() -> list[int]:
            return [pid for pid, born in family.items() if born is not None and start_time(pid) == born]

        try:
            _await(stands_still, 60.0)
            for pid in _played_for(lab.pid, of_jobs=jobs > 1):
                os.kill(pid, signal.SIGSTOP)
            lab.kill()
            lab.wait()
            _await(lambda: not living(), 10.0)
        finally:
            for pid in living():
                os.kill(pid, signal.SIGKILL)
            lab.stdout.close()  # type: ignore[union-attr]
            lab.stderr.close()  # type: ignore[union-attr]


def test_what_it_makes_for_a_while_lies_in_the_play(tmp_path: Path) -> None:
    """Its ranks meet in a file that nobody removes when one of them is killed."""
    with bench() as place:
        assert place.run("run", "--world", "vllm", "--scenario", "test_vllm_is_killed*", "--out", tmp_path).code == 0
        assert not list(place.folder.glob("vllm_*"))
    left = [path for run in (tmp_path / "runs").iterdir() for path in load_run(run).lab.leftovers]
    assert any("/vllm_dist_" in path for path in left)


def _descendants(pid: int) -> Iterator[int]:
    for child in children_of(pid):
        yield child
        yield from _descendants(child)


def _played_for(lab: int, *, of_jobs: bool) -> set[int]:
    """All of its engines: what its hosts have started, which are children of it, or of its jobs."""
    masters = children_of(lab) if of_jobs else (lab,)
    return {pid for master in masters for host in children_of(master) for pid in _descendants(host)}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _await(condition: Callable[[], bool], at_most_s: float) -> None:
    deadline = time.monotonic() + at_most_s
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def test_a_death_is_told_and_a_calm_play_is_as_expected(world: VllmWorld) -> None:
    played(world).holds(tokens_match_reference)  # type: ignore[attr-defined]
    hit = played(world, plan(kill("worker.1", at="core.0/mark:scheduled", nth=5)))
    hit.holds(ends_once, death_is_told)  # type: ignore[attr-defined]


@pytest.mark.parametrize("lockstep", [False, True], ids=["side by side", "in step"])
def test_two_engines_serve_one_caller(world: VllmWorld, lockstep: bool) -> None:
    """Those in step execute dummy batches where they have no work, and nobody else does."""
    free = msgspec.structs.replace(recorded("eight-mixed"), free=True)
    run = world.play(topology=data_parallel(2, coordinated=True, lockstep=lockstep), workload=free)
    run.holds(tokens_match_reference)
    records = [record for file in run.runs[0].journals for record in file.records]
    assert {record.data["core"] for record in records if record.site == "accepted"} == {0, 1}
    assert any(record.site.endswith("/mark:dummy") for record in records) is lockstep
    assert {process.node for process in run.runs[0].lab.processes} == {
        "frontend.0", "coordinator.0", "core.0", "core.1"}


def test_what_a_subscriber_has_heard_is_the_cache(world: VllmWorld) -> None:
    run = world.play(topology=tensor_parallel(2, subscribers=1), workload=recorded("eight-mixed"),
                     config=lab_config(kv_events={"enable_kv_cache_events": True}),
                     plan=plan(drop("core.0->subscriber.0/kv", nth=5)))
    run.holds(kv_mirror_true, kv_replay_complete)
    cache, mirror = ([record.data["hashes"] for file in run.runs[0].journals for record in file.records
                      if record.site == name][-1] for name in ("kv-cache", "kv-mirror"))
    assert cache == mirror != []


def test_what_outlives_its_caller_is_seen_and_ended(world: VllmWorld) -> None:
    run = played(world, plan(kill("frontend.0", at="core.0/mark:scheduled", nth=5)))
    run.holds(**{no_orphans.name: Verdict.BROKEN})  # type: ignore[attr-defined]
    for process in run.runs[0].lab.processes:  # type: ignore[attr-defined]
        assert not Path(f"/proc/{process.pid}/cmdline").exists() or "VLLM" not in Path(
            f"/proc/{process.pid}/cmdline").read_text()
