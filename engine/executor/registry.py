"""Which executor runs is a choice by name (pure).

A further one is a function here: it is given the core's recipe, its life, and the queue that is told of deaths.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.executor.abstract import Executor
from engine.executor.multiproc import MultiprocExecutor
from engine.executor.uniproc import UniProcExecutor
from engine.executor.workers import Workers
from engine.process.recipes import CoreRecipe


def _uniproc(recipe: CoreRecipe, life: int, told: str) -> Executor:
    return UniProcExecutor(recipe.config.bounds, recipe.config, recipe.local_dp_rank)


def _multiproc(recipe: CoreRecipe, life: int, told: str) -> Executor:
    return MultiprocExecutor(recipe.config.bounds, Workers(recipe, life, told), recipe.config.grid.output_rank)


EXECUTORS: dict[str, Callable[[CoreRecipe, int, str], Executor]] = {"uni": _uniproc, "mp": _multiproc}


def executor_of(config: EngineConfig) -> str:
    """The name of the configured executor; "auto" is one process per rank where there are several.

    Raises ConfigError for a name that nobody knows, and for one that cannot run so many ranks.
    """
    ranks, name = config.grid.size, config.distributed_executor_backend
    if name == "auto":
        return "mp" if ranks > 1 else "uni"
    if name not in EXECUTORS:
        raise ConfigError(f"distributed_executor_backend: unknown executor {name!r}; known: auto, "
                          f"{', '.join(sorted(EXECUTORS))}")
    if name == "uni" and ranks > 1:
        raise ConfigError(f"distributed_executor_backend: \"uni\" runs one rank, not {ranks}; choose \"mp\"")
    return name


def make_executor(recipe: CoreRecipe, life: int, told: str) -> Executor:
    """The executor of a core. A worker's death is put into its queue `told`."""
    return EXECUTORS[executor_of(recipe.config)](recipe, life, told)
