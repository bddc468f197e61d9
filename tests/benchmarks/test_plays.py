"""What a play costs: real plays per minute, schedules of the twin per second, and the fault layer's share of a step.

    pytest tests/benchmarks/test_plays.py -s                       a few rounds
    RINGTWIN_ROUNDS=50 pytest tests/benchmarks/test_plays.py -s    the measurement

The play is calm: two workers, 8 requests of 16 tokens each. Figures are printed beside their aims and kept as
`extra_info`; no time is asserted, because a busy machine is no bug. What is asserted is that the plays were played.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.messages import SamplingParams
from engine.topology import frontend, tensor_parallel
from faults.plan import Plan
from scenarios.guarantees.all import tokens_match_reference, workers_in_step
from scenarios.guarantees.judge import judge
from scenarios.history.play import Play
from scenarios.history.verdicts import Judgement, Verdict
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import recorded
from scenarios.worlds.sim import play_once

pytest.importorskip("pytest_benchmark")

ROUNDS = int(os.environ.get("RINGTWIN_ROUNDS", "1"))
REAL_PLAYS_AIM = 200  # per minute
SCHEDULES_AIM = 300  # per second and core, journal and guarantees on
TOKENS = 16


def told(name: str, info: dict[str, Any], benchmark: Any) -> None:
    benchmark.extra_info.update(info)
    print(f"\n  {name}: " + ", ".join(f"{key} {value:.4g}" for key, value in info.items()))


# -- the twin


def calm() -> Play:
    workload = recorded("eight-even")
    assert len(workload.requests) == 8
    assert all(len(request.reference_token_ids) == TOKENS for request in workload.requests)
    return Play(
        scenario="calm", title="", world="sim", topology=tensor_parallel(2), plan=Plan(), promises=(),
        workload=msgspec.to_builtins(workload.played()), config=lab_config(tensor_parallel_size=2))


def schedule(play: Play) -> Judgement:
    """One schedule, played and judged in memory."""
    simulation, lab = play_once(play)
    return judge(play, lab, simulation.journal_files())


@pytest.fixture
def frozen():
    """What this process has imported so far is none of the collector's business while schedules are played."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_schedules_of_the_twin_per_second_and_core(benchmark, frozen) -> None:
    play = calm()
    verdicts = {cell.guarantee: cell.verdict for cell in schedule(play).cells}
    assert verdicts["tokens-match-reference"] is Verdict.HELD
    assert Verdict.BROKEN not in verdicts.values()
    rounds = 10 * ROUNDS
    bare = [timed(lambda: play_once(play, record=False)) for _ in range(rounds)]
    played = [timed(lambda: play_once(play)) for _ in range(rounds)]
    whole = [timed(lambda: schedule(play)) for _ in range(rounds)]
    benchmark.pedantic(schedule, args=(play,), rounds=rounds)
    bare_s, played_s, whole_s = map(statistics.median, (bare, played, whole))
    told("the twin", {
        "schedules_per_second": 1 / whole_s, "best": 1 / min(whole), "aim": SCHEDULES_AIM,
        "of_aim": 1 / whole_s / SCHEDULES_AIM, "journal_share": 1 - bare_s / played_s,
        "guarantees_share": 1 - played_s / whole_s}, benchmark)


def timed(what: Callable[[], Any]) -> float:
    """By the wall: a play arms a timer of processor time, and while one is armed that clock counts in whole ticks."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


# -- real plays


@pytest.fixture(scope="module")
def real_world(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("zmq")
    from scenarios.lab import home
    from scenarios.worlds.engine import EngineWorld

    world = EngineWorld(tmp_path_factory.mktemp("plays"), device="cpu")
    world.scenario = "calm"
    yield world
    home.end()
    world.close()


def test_real_plays_per_minute(real_world, benchmark) -> None:
    """With a warm fork server; the lab's own part and the guarantees are in it."""
    def play() -> None:
        began = time.perf_counter()
        run = real_world.play(topology=tensor_parallel(2), workload=recorded("eight-even"))
        run.holds(tokens_match_reference, workers_in_step)
        times.append(time.perf_counter() - began)
        runs.append(run.runs[0])

    runs: list[Any] = []
    times: list[float] = []
    benchmark.pedantic(play, rounds=2 * ROUNDS, warmup_rounds=1)  # in the first one the fork server imports torch
    medians = {name: statistics.median(values) for name, values in phases(runs[1:]).items()}
    median = statistics.median(times[1:])
    told("real plays", {"per_minute": 60 / median, "best": 60 / min(times), "aim": REAL_PLAYS_AIM,
                        "of_aim": 60 / median / REAL_PLAYS_AIM, **medians}, benchmark)


def phases(runs: list[Any]) -> dict[str, list[float]]:
    """Seconds from the lab's beginning to the caller's birth, to readiness, to the end of the workload, to the end."""
    found: dict[str, list[float]] = {"caller_s": [], "start_s": [], "serve_s": [], "end_s": []}
    for run in runs:
        records = next(file.records for file in run.journals if file.node == "frontend.0")
        at = {record.site: record.at for record in records if record.site in ("born", "ready", "closing")}
        moments = [run.lab.began_at, at["born"], at["ready"], at["closing"], run.lab.ended_at]
        for name, begin, end in zip(found, moments, moments[1:], strict=False):
            found[name].append(end - begin)
    return found


# -- the fault layer


def test_the_fault_layers_share_of_a_step(benchmark, tmp_path: Path) -> None:
    """Two engines side by side, one plain, one with the fault layer and an empty plan; they take turns."""
    pytest.importorskip("torch")
    pytest.importorskip("zmq")
    from engine.frontend.llm import LLM
    from engine.process.entry import open_ports
    from faults.real.board import create_board
    from faults.real.ports import FACTORY, argument_for
    from tests.engine.engine_lab import config

    topology = tensor_parallel(2)
    (tmp_path / "journals").mkdir()
    create_board(tmp_path, Plan(), topology)
    requests = recorded("eight-even").requests
    prompts = [request.prompt_token_ids for request in requests]
    params = SamplingParams(max_tokens=4 * TOKENS, ignore_eos=True)
    settings = config(2, cache={"enable_prefix_caching": False})

    def step_s(llm: LLM) -> float:
        began_steps, began = llm.call_utility("resume_scheduler"), time.perf_counter()
        outputs = llm.generate(prompts, params)
        took = time.perf_counter() - began
        assert all(len(output.token_ids) == 4 * TOKENS for output in outputs)
        return took / (llm.call_utility("resume_scheduler") - began_steps)

    with LLM(config=settings) as off, LLM(
            config=settings, ports=open_ports(frontend(), FACTORY, argument_for(tmp_path, Plan()))) as on:
        engines = {"off": off, "on": on}
        for llm in engines.values():
            step_s(llm)
        times: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(ROUNDS):
            for name, llm in engines.items():
                times[name].append(step_s(llm))
        benchmark.pedantic(step_s, args=(on,), rounds=1)
    assert {path.stem for path in (tmp_path / "journals").iterdir()} == {
        f"{node}@0" for node in topology.nodes}, "the fault layer was not there"
    off_s, on_s = (statistics.median(times[name]) for name in ("off", "on"))
    told("the fault layer", {"off_steps_per_second": 1 / off_s, "on_steps_per_second": 1 / on_s,
                             "ratio": on_s / off_s, "ratio_of_best": min(times["on"]) / min(times["off"])}, benchmark)
