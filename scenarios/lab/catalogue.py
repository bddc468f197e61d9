"""Finds scenarios: `def test_xxx(world): "sentence"` in test_*.py of one folder or another, without pytest running.

Promises
- Order: files by name, functions as they stand in the file (rows of a family in theirs), parameters as they are listed.
- A function with `pytest.mark.parametrize` on one argument is as many scenarios, called `test_xxx[value]`; the
  command line and pytest give one scenario one name.
- A scenario that one world cannot play says so itself, with its reason: `@only("engine", reason="...")`.

    scenario.function(world, **scenario.parameters)
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from engine.errors import RingtwinError
from scenarios.worlds.registry import known

FOLDER = Path(__file__).parents[1]


class CatalogueError(RingtwinError):
    """A scenario cannot be read, or none matches. The message names it."""


class Only(msgspec.Struct, frozen=True):
    """A scenario's own restriction to one world."""

    world: str
    reason: str


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to play. `title` is the function's sentence."""

    name: str
    title: str
    function: Callable[..., None]
    parameters: dict[str, Any] = {}
    only: Only | None = None

    def not_played_in(self, world: str) -> str | None:
        """Why this world does not play it, or None if it does."""
        return self.only.reason if self.only is not None and self.only.world != world else None


def only(world: str, *, reason: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a scenario that only one world can play. The reason is shown wherever it is left out."""

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        function.only = Only(world, reason)  # type: ignore[attr-defined]
        return function

    return mark


def catalogue(*folders: Path) -> list[Scenario]:
    """All scenarios of these folders, or files; the shipped ones where none is named.

    Raises CatalogueError for one that is not there or has no scenario, for a file that cannot be imported, a scenario
    without a sentence, and two of one name.
    """
    found: dict[str, Scenario] = {}
    for folder in folders or (FOLDER,):
        if not folder.exists():
            raise CatalogueError(f"{folder}: no such folder or file")
        files = sorted(folder.glob("test_*.py")) if folder.is_dir() else [folder]
        mine = [scenario for path in files for scenario in scenarios_in(_module(path))]
        if not mine:
            raise CatalogueError(f"{folder}: no scenario in it; they are functions test_...(world) in files test_*.py")
        for scenario in mine:
            other = found.setdefault(scenario.name, scenario)
            if other is not scenario:
                raise CatalogueError(f"{scenario.name}: two scenarios are called so, in {other.function.__module__} "
                                     f"and in {scenario.function.__module__}")
    return list(found.values())


def _module(path: Path) -> ModuleType:
    try:
        if path.parent == FOLDER:
            return importlib.import_module(f"scenarios.{path.stem}")
        return _stranger(path)
    except Exception as error:
        raise CatalogueError(f"{path}: cannot be imported ({type(error).__name__}: {error})") from error


def _stranger(path: Path) -> ModuleType:
    """A file of somebody's own. What lies beside it can be imported, but hides nothing."""
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scenarios_in(module: ModuleType) -> list[Scenario]:
    """The scenarios of one module, in the order in which they are defined."""
    functions = [value for name, value in vars(module).items()
                 if name.startswith("test_") and inspect.isfunction(value) and value.__module__ == module.__name__]
    return [scenario for function in functions for scenario in scenarios_of(function)]


def scenarios_of(function: Callable[..., None]) -> list[Scenario]:
    """One scenario, or one per parameter. Raises CatalogueError where pytest would see something else."""
    where = f"{function.__module__}.{function.__name__}"
    title = " ".join((inspect.getdoc(function) or "").split())
    arguments = list(inspect.signature(function).parameters)
    if not title:
        raise CatalogueError(f"{where}: a scenario needs a sentence as its docstring")
    if "world" not in arguments:
        raise CatalogueError(f"{where}: a scenario takes the world as an argument")
    restricted = getattr(function, "only", None)
    marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
    if not marks:
        if arguments != ["world"]:
            raise CatalogueError(f"{where}: takes {', '.join(arguments)}; only 'world' and one parametrized argument")
        return [Scenario(name=function.__name__, title=title, function=function, only=restricted)]
    argument, values, labels = _parameters(marks, where)
    if sorted(arguments) != sorted(["world", argument]):
        raise CatalogueError(f"{where}: takes {', '.join(arguments)}, but parametrizes {argument!r}")
    return [Scenario(name=f"{function.__name__}[{label}]", title=title, function=function,
                     parameters={argument: value}, only=restricted)
            for value, label in zip(values, labels, strict=True)]


def _parameters(marks: Sequence[Any], where: str) -> tuple[str, list[Any], list[str]]:
    if len(marks) > 1 or len(marks[0].args) < 2 or not isinstance(marks[0].args[0], str) or "," in marks[0].args[0]:
        raise CatalogueError(f"{where}: a scenario may parametrize one argument, once")
    argument, given = marks[0].args[:2]
    ids = marks[0].kwargs.get("ids")
    values, labels = [], []
    for place, value in enumerate(given):
        label = ids(value) if callable(ids) else ids[place] if ids else None
        if hasattr(value, "values") and hasattr(value, "marks"):  # pytest.param(value, id=...)
            label = value.id or label
            value = value.values[0]
        values.append(value)
        labels.append(str(value if label is None else label))
    return argument, values, labels


def selected(scenarios: Iterable[Scenario], globs: Sequence[str]) -> list[Scenario]:
    """Those that one of the globs names; all without a glob. Raises CatalogueError where a glob names none.

    `calm*`, `test_calm*`, `test_calm` (with all its parameters) and `test_calm[4]` name the same kind of thing; so does
    the file that they stand in: `kv*` is all of test_kv.py and test_kv_more.py.
    """
    scenarios = list(scenarios)
    for glob in globs:
        if not any(named(scenario, glob) for scenario in scenarios):
            raise CatalogueError(f"no scenario is called {glob!r}; 'ringtwin list scenarios' shows them all")
    return [scenario for scenario in scenarios if not globs or any(named(scenario, glob) for glob in globs)]


def worth_naming(scenario: Scenario, worlds: Sequence[str]) -> bool:
    """Whether these worlds play it, or say why not: what is of a world that is played by its name alone is no loss."""
    return scenario.only is None or scenario.only.world in worlds or not known(scenario.only.world).by_name


def named(scenario: Scenario, glob: str) -> bool:
    function = scenario.name.partition("[")[0]
    file = scenario.function.__module__.rpartition(".")[2]
    names = [name for full in (scenario.name, function, file) for name in (full, full.removeprefix("test_"))]
    # Equality first: in a glob the brackets of a parameter would be a set of characters.
    return any(name == glob or fnmatchcase(name, glob) for name in names)
