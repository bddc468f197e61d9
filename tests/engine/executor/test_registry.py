"""Which executor runs is a choice by name."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.effects import Loop
from engine.errors import ConfigError
from engine.executor.abstract import AcrossOf, Executor, alone
from engine.executor.multiproc import MultiprocExecutor
from engine.executor.registry import EXECUTORS, executor_of, make_executor
from engine.executor.uniproc import UniProcExecutor
from engine.process.recipes import CoreRecipe
from tests.engine.process.hands import FILES, ME


def config(name: str, ranks: int) -> EngineConfig:
    return EngineConfig(model="m", tensor_parallel_size=ranks, distributed_executor_backend=name)


def made(name: str, ranks: int) -> Executor:
    recipe = CoreRecipe(config=config(name, ranks), files=FILES, handshake_address="", beat="", frontend=ME)
    return make_executor(recipe, 0, "told")


@pytest.mark.parametrize(("name", "ranks", "kind"), [
    ("auto", 1, UniProcExecutor), ("auto", 2, MultiprocExecutor), ("uni", 1, UniProcExecutor),
    ("mp", 1, MultiprocExecutor), ("mp", 4, MultiprocExecutor)])
def test_the_name_chooses_and_auto_has_a_process_per_rank_where_there_are_several(name, ranks, kind) -> None:
    assert type(made(name, ranks)) is kind


def test_a_name_that_nobody_knows_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"unknown executor 'ray'; known: auto, mp, uni$"):
        executor_of(config("ray", 2))


def test_one_process_does_not_run_several_ranks() -> None:
    with pytest.raises(ConfigError, match=r'"uni" runs one rank, not 2; choose "mp"'):
        executor_of(config("uni", 2))


def test_an_executor_that_is_registered_is_chosen_by_its_name_and_given_its_recipe(monkeypatch) -> None:
    given = []

    class Another(UniProcExecutor):
        def connect(self, across: AcrossOf = alone) -> Loop[None]:
            return
            yield

    def make(recipe: CoreRecipe, life: int, told: str) -> Executor:
        given.append((recipe.config.distributed_executor_backend, life, told))
        return Another(recipe.config.bounds)

    monkeypatch.setitem(EXECUTORS, "another", make)
    assert isinstance(made("another", 3), Another) and given == [("another", 0, "told")]
