"""Plants a mutant into this very process: the changed function's code takes the place of the old one's.

Everybody who has imported the function has the changed one then, and nothing is imported again. A process that was
planted is of no further use: the caller forks first.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

from tests.mutation.operators import Mutant, mutated, source_of


class NotPlantableError(Exception):
    """The function is not to be found alive, or its changed code has other free variables."""


def plant(mutant: Mutant, root: Path) -> None:
    """Raises NotPlantableError."""
    source = mutated(source_of(mutant.file, root), mutant)
    implant(compile(source, str(root / mutant.file), "exec"), mutant.file, mutant.function)
    forget()


def implant(module: types.CodeType, file: str, name: str) -> tuple[types.FunctionType, types.CodeType]:
    """-> the function that runs the code of this module's from now on, and what it ran before.

    Raises NotPlantableError.
    """
    code = _code_of(module, name.split("."))
    function = _function_of(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name.split("."))
    before = function.__code__
    if code is not None and not code.co_freevars:  # what asked for them, a `super()`, is what is gone
        code = code.replace(co_freevars=before.co_freevars)
    if code is None or len(code.co_freevars) != len(before.co_freevars):
        raise NotPlantableError(name)
    function.__code__ = code
    return function, before


def _code_of(code: types.CodeType, names: list[str]) -> types.CodeType | None:
    """The code of a function by its qualified name. Of several with one name (a property and its setter) the first."""
    for name in names:
        found = next((const for const in code.co_consts
                      if isinstance(const, types.CodeType) and const.co_name == name), None)
        if found is None:
            return None
        code = found
    return code


def _function_of(owner: Any, names: list[str]) -> types.FunctionType:
    for name in names:
        owner = vars(owner).get(name)
        if owner is None:
            raise NotPlantableError(name)
    while not isinstance(owner, types.FunctionType):
        for inner in ("fget", "func", "__func__", "__wrapped__"):
            if getattr(owner, inner, None) is not None:
                owner = getattr(owner, inner)
                break
        else:
            raise NotPlantableError(names[-1])
    while hasattr(owner, "__wrapped__"):  # a context manager's generator
        owner = owner.__wrapped__
    return owner


def forget() -> None:
    """What functions of the engine have kept of their answers was answered by the code as it was."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("engine", "faults", "sim")]:
        for kept in vars(sys.modules[name]).values():
            if hasattr(kept, "cache_clear") and getattr(kept, "__module__", "") == name:
                kept.cache_clear()
