"""`ringtwin run --model DIR`: the scenarios on another checkpoint.

Promises
- The reference tokens are this model's own, from `transformers`, recorded once into `<out>/recorded`; so both worlds
  are judged against the right answer.
- Scenarios are not changed: only the model, its dtype (float32: bfloat16 has ties) and the recorded requests are.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from scenarios.command import checks
from scenarios.command.screen import Screen
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import Workload, recorded
from scenarios.worlds.base import PlayedRun, World


def on_model(model: Path, out: Path, screen: Screen) -> Callable[[World], World]:
    """-> a function that makes a world play on this model. What is recorded for it is told on the screen.

    Raises BadInputError where transformers is missing.
    """
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise checks.BadInputError("--model: the reference tokens come from transformers, which is not installed; "
                                   "pip install 'ringtwin[engine]'") from None
    model = model.resolve()
    folder = out / "recorded" / f"{model.name}-{fingerprint(model)}"

    @cache
    def of(name: str) -> Workload:
        path = folder / f"{name}.json"
        if not path.exists():
            began = time.monotonic()
            screen.say(f"recording what {model.name} answers to the workload {name!r}, once, into {path}")
            record(model, path, name, lambda count: screen.recording(name, count))
            screen.say(f"  recorded in {time.monotonic() - began:.1f} s")
        return recorded(str(path.with_suffix("").resolve()))

    return lambda world: OtherModel(world, model, of)  # type: ignore[return-value]


def fingerprint(model: Path) -> str:
    """Changes with the checkpoint: names, sizes and times of its files."""
    state = hashlib.blake2b(digest_size=4)
    for file in sorted(model.glob("*")):
        seen = file.stat()
        state.update(f"{file.name} {seen.st_size} {seen.st_mtime_ns}\n".encode())
    return state.hexdigest()


def record(model: Path, path: Path, name: str, told: Callable[[int], None]) -> None:
    """Raises BadInputError where nobody knows how this workload was made."""
    from scenarios.workloads.record import WORKLOADS, Prompts, ReferenceRecorder, write

    if name not in WORKLOADS:
        raise checks.BadInputError(f"--model: the workload {name!r} cannot be recorded for another model")
    recorder = ReferenceRecorder(model, told)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, name, WORKLOADS[name](recorder, Prompts(recorder.tokenizer, seed=list(WORKLOADS).index(name) + 1)))


class OtherModel:
    """A world that plays the same scenarios with another checkpoint. All else is the world's own."""

    def __init__(self, world: World, model: Path, of: Callable[[str], Workload]) -> None:
        self._world = world
        self._model = model
        self._of = of

    def play(self, *, workload: Workload, config: Any = None, **rest: Any) -> PlayedRun:
        requests = {request.index: request for request in self._of(workload.name).requests}
        return self._world.play(
            workload=msgspec.structs.replace(workload, requests=[
                requests.get(request.index, request) for request in workload.requests]),
            config=msgspec.structs.replace(config or lab_config(), model=str(self._model), dtype="float32"), **rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)
