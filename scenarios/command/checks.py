"""What is wrong with an order, said in one line before anything is started.

Each check raises `BadInputError`, a `ConfigError`, a `SpaceError` or a `PlanError`; the command line prints its text
and ends with exit code 3. Nothing is created here but the output folder.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from engine.config import EngineConfig, RingConfig
from engine.errors import RingtwinError, SpaceError
from engine.model_config import read_servable_model
from faults.plan import Plan, load_plan
from scenarios.guarantees.registry import GUARANTEES
from scenarios.history.play import Play
from scenarios.history.run import Run, RunError, load_run

SHM = Path("/dev/shm")
#: A segment of its own for the heartbeat, lock files, and pages that are only partly used.
_SHM_SLACK_BYTES = 1 << 20


class BadInputError(RingtwinError):
    """The order cannot be carried out. One line that names what, where, and what to do."""


def writable(folder: Path) -> Path:
    """Make the output folder, or say why it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise BadInputError(f"{folder}: cannot be written to ({error.strerror}); choose another --out") from None
    return folder


def guarantees(given: Sequence[str]) -> list[str]:
    """The ids in these words, which commas may separate, each once."""
    found = list(dict.fromkeys(name.strip() for words in given for name in words.split(",") if name.strip()))
    for name in found:
        if name not in GUARANTEES:
            near = difflib.get_close_matches(name, GUARANTEES, 1)
            raise BadInputError(f"--promise {name}: no such guarantee{f'; is it {near[0]}?' if near else ''} "
                                "('ringtwin list guarantees' shows them all)")
    return found


def servable(config: EngineConfig) -> None:
    """Raises ConfigError for a directory that holds no Llama with weights, or a tp or a length that does not fit it."""
    read_servable_model(config)
    enough_gpus(config.grid.size, config.device)


def together(dp: int | None, *, lockstep: bool, coordinator: bool) -> None:
    """Raises BadInputError where several engines are said to belong together, and there is one."""
    if (dp or 1) == 1 and (lockstep or coordinator):
        what = "--lockstep" if lockstep else "--coordinator"
        raise BadInputError(f"{what} is for several engines: add --dp 2 or more")
    if lockstep and coordinator:
        raise BadInputError("--lockstep has a coordinator anyway: leave --coordinator out")


def unsteady(share: float, names: Sequence[str]) -> None:
    """Raises BadInputError where there is nobody who could stand still."""
    if share and "engine" not in names:
        raise BadInputError(f"--unsteady is for the processes of our engine, and --world {' '.join(names)} has none: "
                            "add --world engine")


def enough_gpus(ranks: int, device: str) -> None:
    if device == "cuda" and ranks > (count := gpus()):
        raise BadInputError(f"--device cuda with {ranks} rank{'s' * (ranks != 1)} (--tp times --pp times --dp): this "
                            f"machine has {count} GPU{'s' * (count != 1)}; use --device auto, which lets ranks share "
                            "one, or --device cpu")


def gpus() -> int:
    """How many GPUs a process of this user may use, from the driver's files: no CUDA context is made."""
    count = sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in Path("/dev").glob("nvidia*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    return min(count, len([entry for entry in visible.split(",") if entry.strip() and entry.strip() != "-1"]))


def shared_memory_bytes(ring: RingConfig, ranks: int) -> int:
    """What the rings of one engine take of /dev/shm."""
    if ranks == 1:
        return _SHM_SLACK_BYTES
    broadcast = ring.max_chunks * (ring.max_chunk_bytes + 1 + ranks)
    return broadcast + ranks * ring.response_chunks * (ring.response_chunk_bytes + 2) + _SHM_SLACK_BYTES


def free_shared_memory_bytes() -> int:
    try:
        space = os.statvfs(SHM)
    except OSError:
        return 0
    return space.f_bavail * space.f_frsize


def enough_shared_memory(ring: RingConfig, ranks: int, engines: int = 1) -> None:
    needed, free = engines * shared_memory_bytes(ring, ranks), free_shared_memory_bytes()
    if needed > free:
        raise SpaceError(f"{SHM} has {mebibytes(free)} free, {mebibytes(needed)} are needed; make it larger "
                         "(docker run --shm-size=1g, mount -o remount,size=1g /dev/shm), or remove what fills it")


def mebibytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


# -- what a replay is made from


def one_run(path: Path) -> Run:
    """A run directory. Raises RunError, BadInputError."""
    if not path.is_dir():
        raise BadInputError(f"{path}: no such run directory; runs lie in out/runs")
    below = sorted(path.glob("*/play.json"))
    if below and not (path / "play.json").exists():
        raise RunError(f"{path}: holds several runs; name one of them, such as {below[0].parent}")
    return load_run(path)


def run_or_plan(path: Path) -> Play | Plan:
    """A run directory's play, or the plan in a JSON file. Raises RunError, PlanError, BadInputError."""
    if path.is_dir():
        play = one_run(path).play
        play.plan.check(play.topology)
        return play
    if not path.exists():
        raise BadInputError(f"{path}: no such run directory or plan; runs lie in out/runs")
    return load_plan(path)


def runs_below(paths: tuple[Path, ...]) -> tuple[list[Run], list[str]]:
    """-> every run among these directories and in those below them, and why others below them are none.

    Raises RunError for a directory that is named itself and not whole, and where there is no whole one at all.
    """
    runs, halves = [], []
    for path in paths:
        if not path.is_dir():
            raise BadInputError(f"{path}: no such directory")
        found = [path] if looks_like_a_run(path) else sorted(p for p in path.rglob("*") if looks_like_a_run(p))
        if not found:
            raise RunError(f"{path}: holds no run (no play.json below it)")
        for folder in found:
            try:
                runs.append(load_run(folder))
            except RunError as error:
                if folder == path:
                    raise
                halves.append(str(error))
    if halves and not runs:
        raise RunError(halves[0])
    return runs, halves


def looks_like_a_run(path: Path) -> bool:
    """Also a part of one: half a run must be an error, not be passed over."""
    return path.is_dir() and any((path / name).exists() for name in ("play.json", "lab.json", "journals"))
