"""The worker's life, stepped by hand: it says why it could not start, and never outlives its core."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import EngineConfig
from engine.effects import Call, CreateRing, HoldFiles, MakeWorker, Observe, OpenRing, RemoveFiles, TellParent
from engine.errors import ConfigError, QueueCancelledError
from engine.process.recipes import StartFailure, WorkerReady, WorkerRecipe
from engine.topology import worker
from engine.worker import life as worker_lives
from engine.worker.life import worker_life
from tests.engine.process.hands import FILES, ME, ExitedError, LifeHand, Run

WATCH = "parent-watch"


class Life:
    def __init__(self, start_method: str = "fork") -> None:
        self.hand = LifeHand()
        self.hand.alive.add(ME)
        self.hand.instead |= {Call: lambda effect: None, OpenRing: lambda effect: "rpc",
                              CreateRing: lambda effect: ("response", b"handle")}
        self.loop = worker_life(worker(1, engine=2), WorkerRecipe(
            config=EngineConfig(model="m", tensor_parallel_size=4, start_method=start_method), files=FILES, rank=1,
            init_method="file:///run/e0/group", rpc_handle=b"rpc handle", frontend=ME, engine_index=2))

    def exits(self, loop: Any) -> int:
        with pytest.raises(ExitedError) as exited:
            self.hand.run(loop)
        return exited.value.args[0]


def failing(error: BaseException) -> Any:
    def fail(effect: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(("step", "error"), [
    (MakeWorker, ConfigError("no such model")), (Call, RuntimeError("out of memory")),
    (OpenRing, FileNotFoundError("no segment")), (CreateRing, FileExistsError("there is one"))])
def test_one_that_cannot_start_says_why_and_is_gone(step: type, error: Exception) -> None:
    life = Life()
    life.hand.instead[step] = failing(error)
    assert life.exits(life.loop) == 1
    assert life.hand.told_parent == [StartFailure(type(error).__name__, str(error))]
    assert life.hand.observed[-1] == ("bye", {"reason": f"could not start: {error}"})


@pytest.mark.parametrize("error", [RuntimeError("planted"), SystemExit(3)])
def test_one_that_cannot_say_why_it_cannot_start_leaves_in_order(error: BaseException) -> None:
    life = Life()
    life.hand.instead |= {MakeWorker: failing(ConfigError("no such model")), TellParent: failing(error)}
    assert life.exits(life.loop) == 1
    assert life.hand.observed[-1] == ("bye", {"reason": "could not start: no such model"})


def test_it_loads_before_it_says_ready_with_the_handle_of_its_answers(monkeypatch) -> None:
    waited = []
    monkeypatch.setattr(worker_lives, "wait_for_writer", lambda queue, deadline: waited.append(queue) or iter(()))
    monkeypatch.setattr(worker_lives, "wait_for_readers", lambda queue, deadline: waited.append(queue) or iter(()))
    monkeypatch.setattr(worker_lives, "worker_busy_loop",
                        lambda rank, rpc, response, bounds: waited.append(("serves", rank, rpc, response)) or iter(()))
    life = Life()
    life.hand.run(life.loop)
    assert [call.method for call in life.hand.seen(Call)] == ["init_device", "load_model"]
    assert life.hand.told_parent == [WorkerReady(1, b"handle")] and [mark for mark, _ in life.hand.marks] == [
        "born", "loading", "ready"]
    assert waited[:2] == ["rpc", "response"] and waited[2][:3] == ("serves", 1, "rpc")
    assert waited[2][3]._response == "response"


def test_what_ends_its_loop_ends_it() -> None:
    life = Life()
    life.hand.instead[OpenRing] = lambda effect: None  # no queue: the first use of it fails
    assert life.exits(life.loop) == 1
    assert life.hand.observed[-1][0] == "bye"


@pytest.mark.parametrize(("start_method", "holds"), [("fork", 0), ("spawn", 1)])
def test_only_who_was_not_forked_must_take_hold_of_the_names_itself(start_method: str, holds: int) -> None:
    life = Life(start_method)
    life.hand.instead[Call] = failing(RuntimeError("planted"))
    life.exits(life.loop)
    assert len(life.hand.seen(HoldFiles)) == holds


# -- its core is gone


def started(life: Life) -> Any:
    """Until it loads. -> the loop that watches its parent"""
    Run(life.hand, life.loop).to(lambda effect: isinstance(effect, Call))
    return life.hand.threads[WATCH].loop


def test_it_is_gone_with_its_core_whatever_it_does_and_leaves_the_files_to_the_frontend() -> None:
    life = Life()
    assert life.exits(started(life)) == 0
    assert life.hand.names()[-2:] == ["parent-gone", "bye"] and not life.hand.seen(RemoveFiles)
    assert life.hand.now == 0.0


def test_the_last_of_an_engine_takes_the_files_along() -> None:
    life = Life()
    life.hand.alive.clear()
    assert life.exits(started(life)) == 0
    assert [effect.files for effect in life.hand.seen(RemoveFiles)] == [FILES]


@pytest.mark.parametrize("step", [Observe, RemoveFiles])
def test_nothing_that_goes_wrong_on_the_way_keeps_it(step: type) -> None:
    life = Life()
    watch = started(life)
    life.hand.alive.clear()
    life.hand.instead[step] = failing(QueueCancelledError("planted"))
    assert life.exits(watch) == 0
