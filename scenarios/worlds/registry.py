"""Every world by its name. A new one is a row here: pytest, the command line and the report know it from nowhere else.

The order counts. A world that plays every allowed outcome stands before those that play what happens, because what the
later ones did is held against what the earlier ones allow (`scenarios/history/sides.py`). The module of a world that
nobody asks for is never imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

#: What real processes need beyond the rest.
ENGINE_PACKAGES = ("torch", "zmq", "safetensors")
#: What `--world` calls all of them.
EVERY = "both"


def _nothing() -> str | None:
    return None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One world. `make` takes what `scenarios.worlds.base.World` does. `obstacle` says why it cannot be played here,
    `lack` what of it cannot.
    """

    name: str
    word: str  # what it is called in sentences and tables
    within: str  # where something happens in it
    described: str  # what it is, for who sees it the first time
    virtual_time: bool
    make: Callable[..., Any]
    obstacle: Callable[[], str | None]
    lack: Callable[[], str | None] = _nothing
    by_name: bool = False  # played where it is asked for by its name, and nowhere else


def _twin(out: Path, **rest: Any) -> Any:
    from scenarios.worlds.sim import SimWorld

    return SimWorld(out, **rest)


def _engine(out: Path, **rest: Any) -> Any:
    from scenarios.lab import home
    from scenarios.worlds.engine import EngineWorld

    home.sweep_labs()
    return EngineWorld(out, **rest)


def _vllm(out: Path, **rest: Any) -> Any:
    from scenarios.lab import home
    from scenarios.worlds.vllm.world import VllmWorld

    home.sweep_labs()
    return VllmWorld(out, **rest)


def _no_vllm() -> str | None:
    from scenarios.worlds.vllm.environment import obstacle

    return no_real_processes() or obstacle()


def _no_stores_of_vllm() -> str | None:
    from scenarios.worlds.vllm.rings.tripwire import obstacle

    return (why := obstacle()) and f"less the stores of its rings: {why}"


def _nowhere(out: Path, **rest: Any) -> Any:
    raise LookupError("a world that is only known from a recorded run cannot be made")


def no_real_processes() -> str | None:
    """Why this machine cannot run the engine itself, or None if it can."""
    if not sys.platform.startswith("linux"):
        return "real processes need Linux (/dev/shm and pidfds)"
    missing = [package for package in ENGINE_PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        return f"{' and '.join(missing)} not installed; pip install 'ringtwin[engine]', or play --world sim"
    return None


WORLDS = {entry.name: entry for entry in (
    Entry(name="sim", word="twin", within="in the twin", described="the twin", virtual_time=True, make=_twin,
          obstacle=_nothing),
    Entry(name="engine", word="engine", within="on the engine", described="the real engine", virtual_time=False,
          make=_engine, obstacle=no_real_processes),
    Entry(name="vllm", word="vLLM", within="in vLLM", described="vLLM's own processes", virtual_time=False, make=_vllm,
          obstacle=_no_vllm, lack=_no_stores_of_vllm, by_name=True),
)}


_UNASKED = tuple(name for name, entry in WORLDS.items() if not entry.by_name)


def known(name: str) -> Entry:
    """The entry of this name; of a world that only some other version has, one that says no more than its name."""
    return WORLDS.get(name) or Entry(
        name=name, word=name, within=f"in {name}", described=name, virtual_time=False, make=_nowhere,
        obstacle=lambda: f"there is no world {name!r}")


def in_order(names: Iterable[str]) -> list[str]:
    """Each once, in the order of the registry; strangers after them by name."""
    places = {name: place for place, name in enumerate(WORLDS)}
    return sorted(set(names), key=lambda name: (places.get(name, len(places)), name))


def can_play(name: str) -> str | None:
    """Why this world cannot be played on this machine, or None if it can."""
    return known(name).obstacle()


def worlds_of(asked: str | None) -> tuple[str, ...]:
    """The worlds that `--world` names. None: all that this machine has the needs of."""
    if asked is None:
        return tuple(name for name in _UNASKED if can_play(name) is None)
    return _UNASKED if asked == EVERY else (asked,)
