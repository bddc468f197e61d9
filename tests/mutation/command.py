"""The command: chooses mutants, plays them, keeps the file."""

from __future__ import annotations

import multiprocessing
import os
import random
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from reports import measured
from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.plays import (
    CALM,
    ROOT,
    Scene,
    counts_of_phases,
    modules_of_the_twin,
    phase_scenes,
    scenes,
    with_lines,
)
from tests.mutation.score import Fate, Outcome, judged
from tests.mutation.shell.plays import engine_scenes
from tests.mutation.shell.score import bed, judged_on_engine
from tests.progress import tracked
from tests.provenance import command, commit, today

#: The pure files whose bugs the twin can have: what both worlds run.
ROOMS = ("engine/core", "engine/coordinator", "engine/frontend", "engine/ipc", "engine/executor", "engine/kv_events",
         "engine/worker", "engine/wire", "engine/process")
#: Which scenario of the real engine runs which lines of it.
LINES = Path("out/mutation-lines.json")
_scenes: list[Scene] = []
_counts: dict[str, dict[str, int]] = {}


def pure_files() -> list[str]:
    """Every pure file of the engine that the twin loads, by name, less what is mere vocabulary."""
    return [file for file in typed_files() if file.startswith(tuple(f"{room}/" for room in ROOMS))
            and file.removesuffix(".py").replace("/", ".") in modules_of_the_twin()]


def shell_files() -> list[str]:
    """What the twin does not run: every other file of the engine that has something to change, pure or not."""
    found = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "engine").rglob("*.py"))
    mine = {*pure_files(), *vocabulary()}
    return [file for file in found if file not in mine and mutants_of(file, ROOT)]


def vocabulary() -> list[str]:
    """What lies beside the rooms: words that both worlds speak."""
    return [file for file in typed_files() if file.startswith("engine/") and file.count("/") == 1]


@cache
def typed_files() -> list[str]:
    """The pure files are those that the type checker knows, and the vocabulary is."""
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    return found


def chosen(files: Iterable[str], sample: int | None, seed: int) -> list[Mutant]:
    """All mutants, or a sample that has its share of every room."""
    found = [mutant for file in files for mutant in mutants_of(file, ROOT)]
    if sample is None or sample >= len(found):
        return found
    dice, by_room = random.Random(seed), Counter(mutant.file.rpartition("/")[0] for mutant in found)
    firsts: list[Mutant] = []
    others: list[Mutant] = []
    for room, count in sorted(by_room.items()):
        mine = [mutant for mutant in found if mutant.file.rpartition("/")[0] == room]
        first, *more = dice.sample(mine, min(count, max(1, round(sample * count / len(found)))))
        firsts.append(first)
        others += more
    dice.shuffle(firsts)
    dice.shuffle(others)
    picked = (firsts + others)[:sample]
    dice.shuffle(picked)
    return picked


def some(found: list[Scene], most: int | None) -> list[Scene]:
    """All, or so many that stand equally far apart, the calm one among them."""
    if most is None or most >= len(found):
        return found
    others = [scene for scene in found if scene.name != CALM]
    return [scene for scene in found if scene.name == CALM][:most] + [
        others[place * len(others) // (most - 1)] for place in range(most - 1)]


def _judge(work: tuple[Mutant, int, int]) -> Outcome:
    mutant, plans, seed = work
    return judged(mutant, _scenes, _counts, ROOT, plans=plans, seed=seed)


def summary(outcomes: list[Outcome], total: int) -> dict[str, Any]:
    fates = Counter(outcome.fate for outcome in outcomes)
    survivors, equivalent = [], []
    for outcome in outcomes:
        if outcome.fate in (Fate.SURVIVED, Fate.UNPLAYED):
            entry = {"file": outcome.file, "line": outcome.line, "function": outcome.function,
                     "operator": outcome.operator, "old": outcome.old, "new": outcome.new,
                     "reason": outcome.equivalent or outcome.because or "nothing was seen"}
            (equivalent if outcome.equivalent else survivors).append(entry)
    killed, trivial = fates[Fate.KILLED] + fates[Fate.TRIVIAL], fates[Fate.TRIVIAL]
    return {"chosen": total, "mutants": len(outcomes), "killed": killed, "trivial": trivial,
            "equivalent": len(equivalent), "apart": fates[Fate.APART],
            "score": _share(killed, len(outcomes), equivalent),
            "score_without_trivial": _share(killed - trivial, len(outcomes) - trivial, equivalent),
            "survivors": survivors, "equivalents": equivalent, "outcomes": outcomes}


def _share(killed: int, of: int, equivalent: list[Any]) -> dict[str, float]:
    """Killed of those that are not equivalent, with the interval that is 95 % sure (Wilson)."""
    n = of - len(equivalent)
    if n <= 0:
        return {"share": 0.0, "low": 0.0, "high": 1.0}
    z, p = 1.96, killed / n
    middle, half = p + z * z / (2 * n), z * ((p * (1 - p) + z * z / (4 * n)) / n) ** 0.5
    scale = 1 + z * z / n
    return {"share": round(p, 4), "low": round((middle - half) / scale, 4), "high": round((middle + half) / scale, 4)}


@click.command()
@click.option("--files", multiple=True, default=("*",), help="Only files of this pattern; may be given again.")
@click.option("--sample", type=click.IntRange(1), default=None, help="So many mutants, each room with its share.")
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="In the twin.")
@click.option("--plans", default=40, show_default=True, help="Random faults for a mutant that no scenario sees.")
@click.option("--scenes", "most", type=click.IntRange(1), default=None, help="So many scenarios at most, in the twin.")
@click.option("--shell", is_flag=True, help="Files that the twin does not run, on the real engine.")
@click.option("--resume", is_flag=True, help="Go on with what the file has.")
@click.option("--publish", is_flag=True, help="Put the figures into the report.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None,
              help="Default: out/mutation.json, and out/mutation-shell.json.")
def main(files: tuple[str, ...], sample: int | None, seed: int, jobs: int, plans: int, most: int | None, shell: bool,
         resume: bool, publish: bool, json_file: Path | None) -> None:
    """Plant small bugs into the engine's files and see which of them the lab sees."""
    if publish and (shell or most is not None):
        raise click.UsageError("the report shows the figures of the twin and all of its scenarios")
    console = Console(stderr=True)
    known_files = shell_files() if shell else pure_files()
    names = [file for file in known_files if any(fnmatchcase(file, one) for one in files)]
    if not names:
        what = "shell" if shell else "pure file"
        raise click.ClickException(f"no {what} of the engine is called {' or '.join(files)}")
    json_file = json_file or Path("out/mutation-shell.json" if shell else "out/mutation.json")
    mutants = chosen(names, sample, seed)
    done = _before(json_file, {mutant.id for mutant in mutants}) if resume else []
    known = {outcome.id for outcome in done}
    work = [mutant for mutant in mutants if mutant.id not in known]
    json_file.parent.mkdir(parents=True, exist_ok=True)
    outcomes = _on_engine(work, console) if shell else _in_twin(work, jobs, plans, most, seed, console)
    for outcome in tracked(outcomes, "mutants", len(work), console):
        done.append(outcome)
        json_file.write_bytes(msgspec.json.encode(summary(done, len(mutants))))
    _tell(console, summary(done, len(mutants)), json_file)
    if publish:
        measured.publish(figures(done, sum(len(mutants_of(file, ROOT)) for file in names)))


def _in_twin(mutants: list[Mutant], jobs: int, plans: int, most: int | None, seed: int, console: Console,
             ) -> Iterator[Outcome]:
    if not mutants:
        return
    with console.status("covering") as status:
        _scenes[:] = with_lines(some(scenes() + phase_scenes(), most), mutants, status.update)
        _counts.update(counts_of_phases())
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        yield from pool.map(_judge, [(mutant, plans, seed) for mutant in mutants])


def _on_engine(mutants: list[Mutant], console: Console) -> Iterator[Outcome]:
    """One after the other: a machine that is busy with other plays would starve each of them."""
    with console.status("recording") as status:
        played = engine_scenes(LINES, status.update)
    with bed() as tree:
        for mutant in mutants:
            yield judged_on_engine(mutant, played, tree)


def figures(outcomes: list[Outcome], of: int) -> measured.MutationFigures:
    """What the report says of them."""
    found, parts = summary(outcomes, len(outcomes)), sorted({outcome.file.rpartition("/")[0] for outcome in outcomes})
    return measured.MutationFigures(
        command=command("tests.mutation"), commit=commit(), date=today(), of=of, mutants=found["mutants"],
        killed=found["killed"], trivial=found["trivial"], equivalent=found["equivalent"],
        unplayed=sum(o.fate is Fate.UNPLAYED and not o.equivalent for o in outcomes),
        score=measured.Score(**found["score"]), score_without_trivial=measured.Score(**found["score_without_trivial"]),
        parts={part: measured.Score(**summary([o for o in outcomes if o.file.startswith(f"{part}/")], 0)["score"])
               for part in parts})


def _before(json_file: Path, wanted: set[str]) -> list[Outcome]:
    if not json_file.exists():
        return []
    found = msgspec.json.decode(json_file.read_bytes())["outcomes"]
    return [outcome for outcome in msgspec.convert(found, list[Outcome]) if outcome.id in wanted]


def _tell(console: Console, found: dict[str, Any], json_file: Path) -> None:
    score, rest = found["score"], found["score_without_trivial"]
    for survivor in found["survivors"]:
        where = f"{survivor['file']}:{survivor['line']}"
        console.print(f"{where} {survivor['operator']}: {survivor['reason']}", markup=False, soft_wrap=True)
    click.echo(f"{found['mutants']} mutants: {found['killed']} killed ({found['trivial']} of them trivial), "
               f"{found['equivalent']} equivalent, {found['apart']} apart, {len(found['survivors'])} survived. "
               f"Killed of those not equivalent: {score['share']:.1%} ({score['low']:.1%} to {score['high']:.1%}), "
               f"without the trivial ones {rest['share']:.1%} ({rest['low']:.1%} to {rest['high']:.1%}). {json_file}")
