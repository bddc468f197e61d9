"""What a mutant of a shell is played with: the scenarios of the real engine, and which lines each runs.

The lines are recorded once, in all processes of each play, and kept in a file: as long as the engine's files stay as
they are, only scenarios that are new are played again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec

from scenarios.lab.catalogue import catalogue
from tests.mutants.plant import planted
from tests.mutation.plays import ROOT

HERE = Path(__file__).parent
#: One recorded play, and all that a recording starts with.
RECORDED_S, BEGINNING_S = 90.0, 60.0


class EngineScene(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario, what it takes, and which lines of which files it runs."""

    name: str
    seconds: float = 0.0
    lines: dict[str, set[int]] = {}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one play. `red`: the guarantee that broke and was not declared to."""

    name: str
    seconds: float
    red: str
    failure: str


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    engine: str  # a digest of its files
    scenes: list[EngineScene]


def play_until_red(tree: Path, names: list[str], most_s: float, *, record: bool = False,
                   tell: Callable[[str], None] = lambda word: None) -> tuple[list[Said], str]:
    """Play these in a planted copy until one is red. -> what came of them, and what was printed; whatever was started
    is gone."""
    shutil.copy(HERE / "play_until_red.py", tree)
    file, log, temporary = tree / "said.jsonl", tree / "printed", tree / "t"
    temporary.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
        "PYTHONPATH": str(tree), "TMPDIR": str(temporary), "RECORD_LINES": "1" * record}
    with open(log, "wb") as printed:
        lab = subprocess.Popen([sys.executable, "play_until_red.py", str(file), *names], cwd=tree, env=environment,
                               stdout=printed, stderr=printed, stdin=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + most_s
    try:
        while lab.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                lab.wait(1.0)
            tell(str(len(_said(file))))
    finally:
        with contextlib.suppress(ProcessLookupError):  # its session: none of its processes begins another
            os.killpg(lab.pid, signal.SIGKILL)
        lab.wait()
    return _said(file), log.read_text(errors="replace")


def _said(file: Path) -> list[Said]:
    if not file.exists():
        return []
    return [msgspec.json.decode(line, type=Said) for line in file.read_bytes().split(b"\n")[:-1]]


def engine_scenes(kept: Path, tell: Callable[[str], None], wanted: Callable[[str], bool] = lambda name: True,
                  ) -> list[EngineScene]:
    """Of all scenarios of the engine (that are `wanted`), by what is kept and what must be recorded."""
    names = [scenario.name for scenario in catalogue() if scenario.not_played_in("engine") is None]
    names = [name for name in names if wanted(name)]
    digest, known = engine_digest(), dict[str, EngineScene]()
    if kept.exists():
        before = msgspec.json.decode(kept.read_bytes(), type=Recorded)
        known = {scene.name: scene for scene in before.scenes} if before.engine == digest else {}
    missing = [name for name in names if name not in known]
    if missing:
        known |= {scene.name: scene for scene in recorded(missing, tell)}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(msgspec.json.encode(Recorded(engine=digest, scenes=list(known.values()))))
    return [known[name] for name in names if name in known]


def recorded(names: list[str], tell: Callable[[str], None]) -> Iterator[EngineScene]:
    """Play them with a recorder in each process."""
    with planted(()) as tree:
        (tree / "lines").mkdir()
        (tree / "playing").write_text("0")
        with open(tree / "sitecustomize.py", "a") as beginning:
            beginning.write((HERE / "recorder.py").read_text())
        said, printed = play_until_red(tree, names, BEGINNING_S + RECORDED_S * len(names), record=True,
                                       tell=lambda count: tell(f"recording {count}/{len(names)}"))
        if len(said) < len(names):
            raise RuntimeError(f"the recording ended after {len(said)} of {len(names)} plays:\n{printed[-2000:]}")
        for number, one in enumerate(said):
            if one.failure:
                raise RuntimeError(f"{one.name} cannot be recorded: {one.failure}")
            yield EngineScene(name=one.name, seconds=one.seconds, lines=_lines(tree / "lines" / str(number)))


def _lines(file: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for line in set(file.read_text().splitlines()) if file.exists() else ():
        name, _, number = line.rpartition(":")
        found.setdefault(name, set()).add(int(number))
    return found


def engine_digest() -> str:
    digest = blake2b(digest_size=8)
    for path in sorted((ROOT / "engine").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
