"""The command: sweeps all phases, then pairs of neighbouring crossings for as long as it is given."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from pathlib import Path

import click
from rich.console import Console

from faults.plan import plan_to_json
from reports import measured
from scenarios.history.play import Play
from scenarios.lab.sweep import Finding, Phase, crossings, kinds, neighbours, phases, red, sampled, singles, words
from scenarios.worlds.sim import play_once
from tests.progress import tracked
from tests.provenance import command, commit, today

CHUNK = 32


def is_red(play: Play) -> Finding | None:
    return red(play, play_once)


def all_singles(most: int | None, seed: int, chosen: tuple[Phase, ...] | None = None) -> dict[str, list[Play]]:
    """Plays by phase. `most` over all phases: each has its share."""
    whole = {phase.name: list(singles(phase, crossings(phase, play_once))) for phase in chosen or phases()}
    total = sum(map(len, whole.values()))
    return {name: sampled(plays, None if most is None else max(1, most * len(plays) // total), seed)
            for name, plays in whole.items()}


def _pairs(plays: dict[str, list[Play]], until: float) -> Iterator[Play]:
    counts = {phase.name: crossings(phase, play_once) for phase in phases()}
    for seed in count():
        for name, singles_of_phase in plays.items():
            for one in sampled(singles_of_phase, 200, seed):
                if time.monotonic() >= until:
                    return
                pair = neighbours(one, counts[name], seed)
                if pair is not None:
                    yield pair


@click.command()
@click.option("--most", type=click.IntRange(1), default=None, help="So many plays of one fault at most.")
@click.option("--pairs", "pairs_s", default=0.0, show_default=True, help="Seconds for pairs of neighbouring crossings.")
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True)
@click.option("--publish", is_flag=True, help="Put the counts into the report.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/sweep"), show_default=True,
              help="Where the plans of what turned red are put.")
def main(most: int | None, pairs_s: float, seed: int, jobs: int, publish: bool, out: Path) -> None:
    """Play every fault at every crossing of what an engine does, in the twin, and judge by every promise."""
    console = Console(stderr=True)
    plays = all_singles(most, seed)
    for name, mine in plays.items():
        console.print(f"{name}: {len(mine)} plays", highlight=False)
    flat = [play for mine in plays.values() for play in mine]
    found: list[Finding] = []
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        results = pool.map(is_red, flat, chunksize=CHUNK)
        found += [one for one in tracked(results, "one fault", len(flat), console) if one is not None]
        paired, until = 0, time.monotonic() + pairs_s
        pairs = _pairs(plays, until)
        while batch := [pair for _, pair in zip(range(CHUNK * jobs * 4), pairs, strict=False)]:
            paired += len(batch)
            found += [one for one in pool.map(is_red, batch, chunksize=CHUNK) if one is not None]
            console.print(f"{paired} pairs, {max(0.0, until - time.monotonic()):.0f} s left", highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    for number, alike in enumerate(kinds(found).values()):
        console.print(f"{len(alike)} times, as in: {words(alike[0])}", markup=False, highlight=False, soft_wrap=True)
        (out / f"{number}.json").write_bytes(plan_to_json(alike[0].play.plan))
    click.echo(f"{len(flat)} plays of one fault over {len(plays)} phases, {paired} of two: {len(found)} turned red"
               + (f", their plans in {out}" if found else ""))
    if publish:
        measured.publish(figures(plays, paired, len(found)))
    raise SystemExit(1 if found else 0)


def figures(plays: dict[str, list[Play]], paired: int, found: int) -> measured.SweepFigures:
    """What the report says of them."""
    counts = {phase.name: crossings(phase, play_once) for phase in phases()}
    return measured.SweepFigures(
        command=command("tests.sweep"), commit=commit(), date=today(), plays=sum(map(len, plays.values())),
        pairs=paired, red=found, phases=[
            measured.PhaseFigures(name=name, places=len(counts[name]), crossings=sum(counts[name].values()),
                                  plays=len(mine)) for name, mine in plays.items()])
