"""The workers' life as their executor sees it, stepped by hand: whoever fails, dies or is late is named."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Bounds, EngineConfig
from engine.effects import AwaitEnds, Cancel, CreateRing, Gone, Identity, StartChild
from engine.errors import ConfigError, PeerDeadError, StartupError, WorkerDeadError
from engine.executor.abstract import SENTINEL_S
from engine.executor.workers import Workers
from engine.process.recipes import CoreRecipe, StartFailure, WorkerReady, WorkersBorn
from engine.topology import worker
from tests.engine.process.hands import FILES, ME, LifeHand

BOUNDS = Bounds(startup_s=10.0, terminate_s=4.0)
TOLD = "told"


def two(life: int = 0, engine: int = 0) -> tuple[LifeHand, Workers]:
    recipe = CoreRecipe(config=EngineConfig(model="m", tensor_parallel_size=2, start_method="fork", bounds=BOUNDS),
                        files=FILES, handshake_address="", beat="beat", frontend=ME, engine_index=engine)
    hand, workers = LifeHand(), Workers(recipe, life, TOLD)
    hand.instead[CreateRing] = lambda effect: (None, b"rpc handle")
    hand.run(workers.start())
    return hand, workers


def test_they_are_started_in_the_order_of_their_ranks_and_told_to_the_parent() -> None:
    hand, workers = two()
    assert [(effect.node, effect.start_method) for effect in hand.seen(StartChild)] == [
        (worker(0), "fork"), (worker(1), "fork")]
    assert hand.told_parent == [WorkersBorn((Identity(201, 1, 100), Identity(202, 1, 100)))]


def test_each_is_told_its_rank_its_engine_and_where_calls_will_come() -> None:
    hand, workers = two(engine=1)
    with pytest.raises(StartupError):
        hand.run(workers.connect())
    told = [(node, recipe.rank, recipe.engine_index, recipe.rpc_handle, recipe.frontend)
            for node, recipe in hand.recipes.items()]
    assert told == [(worker(rank, engine=1), rank, 1, b"rpc handle", ME) for rank in (0, 1)]


@pytest.mark.parametrize(("word", "error", "text"), [
    (StartFailure("ConfigError", "no such model"), ConfigError, "^no such model$"),
    (StartFailure("RuntimeError", "out of memory"), StartupError, "^worker.1 could not start: out of memory$"),
    (Gone(-9), StartupError, r"^worker.1 died while starting \(exit code -9\)$"),
    (None, StartupError, "^worker.1 did not report READY in time$"),
])
@pytest.mark.parametrize("life", [0, 1])
def test_one_that_does_not_come_up_fails_the_start_by_name(word: Any, error: type, text: str, life: int) -> None:
    hand, workers = two(life)
    hand.words.append((worker(0, life), WorkerReady(0, b"")))
    if isinstance(word, Gone):
        hand.later(2.0, lambda: hand.ended.update({worker(1, life): word}))
    elif word is not None:
        hand.later(2.0, lambda: hand.words.append((worker(1, life), word)))
    with pytest.raises(error, match=text):
        hand.run(workers.connect())
    assert hand.now == (10.0 if word is None else 2.0)


def test_both_that_are_late_are_named() -> None:
    hand, workers = two(engine=1)
    with pytest.raises(StartupError, match=r"^worker\.1\.0, worker\.1\.1 did not report READY in time$"):
        hand.run(workers.connect())


def test_what_one_said_before_its_end_is_the_reason() -> None:
    hand, workers = two()
    hand.ended[worker(0)] = Gone(1)
    hand.words.append((worker(0), StartFailure("ConfigError", "no such model")))
    with pytest.raises(ConfigError, match="no such model"):
        hand.run(workers.connect())


def test_a_death_ends_whatever_the_core_waits_for_and_is_told() -> None:
    hand, workers = two()
    hand.later(3.0, lambda: hand.ended.update({worker(1): Gone(-9)}))
    hand.run(workers._watch())
    assert isinstance(hand.cancelled, PeerDeadError) and str(hand.cancelled) == "worker.1 (pid 202) died"
    (told,) = hand.queues[TOLD]
    assert isinstance(told, WorkerDeadError) and str(told) == "worker.1 (pid 202) died" and hand.now == 3.0


def test_an_end_that_is_expected_is_no_death() -> None:
    hand, workers = two()
    workers.leaving()
    hand.later(3.0, lambda: hand.ended.update({worker(0): Gone(0), worker(1): Gone(0)}))
    hand.run(workers._watch())
    assert not hand.seen(Cancel) and not hand.queues[TOLD]


@pytest.mark.parametrize(("after_s", "text"), [(SENTINEL_S / 2, "worker.0 (pid 201) died; "), (2 * SENTINEL_S, "")])
def test_a_dead_rank_is_named_if_its_end_is_known_a_moment_later(after_s: float, text: str) -> None:
    hand, workers = two()
    hand.later(after_s, lambda: hand.ended.update({worker(0): Gone(-9)}))
    assert hand.run(workers.who_died(SENTINEL_S)) == text


def test_closing_their_pipes_ends_them_and_none_is_killed() -> None:
    hand, workers = two()
    hand.run(workers.stop(BOUNDS.terminate_s))
    assert hand.ending == [(worker(0), "hang-up"), (worker(1), "hang-up")] and hand.now == 0.0


def test_one_that_does_not_hear_is_killed_after_half_the_bound_and_waited_for() -> None:
    hand, workers = two()
    hand.obey = False
    hand.later(1.0, lambda: hand.ended.update({worker(0): Gone(0)}))
    hand.run(workers.stop(BOUNDS.terminate_s))
    assert hand.ending == [(worker(0), "hang-up"), (worker(1), "hang-up"), (worker(1), "kill")]
    assert hand.now == 2.0 and hand.seen(AwaitEnds)[-1].nodes == (worker(1),)


def test_without_patience_all_are_killed_at_once() -> None:
    hand, workers = two()
    hand.run(workers.kill())
    assert hand.ending == [(worker(0), "kill"), (worker(1), "kill")] and hand.now == 0.0
