"""Whoever of a real engine dies, however: every caller is told at once, by name, and nobody is left."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from types import SimpleNamespace

import msgspec
import pytest

from engine.errors import EngineDeadError, RequestError
from engine.frontend.client import AsyncMPClient
from engine.frontend.llm import LLM
from engine.messages import SamplingParams
from engine.worker.worker import Worker
from tests.engine.deaths import kill_while_serving
from tests.engine.engine_lab import (
    BOUNDS,
    ENDLESS,
    PROMPT,
    SIXTY_FOUR,
    Owned,
    async_llm,
    config,
    core_of,
    engine_processes,
    gone_within,
    is_alive,
    run,
    until,
)

LONG_S = 30.0
VICTIMS = {"core": 0, "worker.0": 1, "worker.1": 2}


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("turn", range(4))
def test_sigkill_with_8_requests_in_flight_is_told_to_all(victim: str, turn: int) -> None:
    async def main():
        with async_llm(config(2)) as llm:
            death = await kill_while_serving(llm, VICTIMS[victim])
            assert len(death.told_s) == 8
            assert max(death.told_s) < 1.0
            assert all(victim in reason for reason in death.reasons), death.reasons
            assert death.survivors == []
            with pytest.raises(EngineDeadError):
                llm.start("late", PROMPT, ENDLESS)
            with pytest.raises(EngineDeadError):
                await llm.call_utility("ping")
            with pytest.raises(EngineDeadError):
                await llm.check_health()
            assert llm.errored and str(llm.dead_error) in death.reasons
            owned = Owned.by(llm)
        assert owned.left() == []

    run(main())


def test_the_core_of_one_rank_killed_is_told_too() -> None:
    async def main():
        with async_llm(config(1)) as llm:
            death = await kill_while_serving(llm, 0)
            assert len(death.told_s) == 8 and max(death.told_s) < 1.0

    run(main())


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_death_in_idleness_is_known_to_the_next_caller(victim: str) -> None:
    """Nobody runs a loop and nothing is in flight: health and calls tell the truth all the same."""
    with LLM(config=config(2)) as llm:
        processes = engine_processes(llm)
        os.kill(processes[VICTIMS[victim]][0], signal.SIGKILL)
        assert gone_within(processes, BOUNDS.orphan_s) == []
        with pytest.raises(EngineDeadError):
            llm.check_health()
        with pytest.raises(EngineDeadError):
            llm.generate([PROMPT])
        with pytest.raises(EngineDeadError):
            llm.call_utility("ping")


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_of_any_rank_ends_the_engine_and_is_what_callers_read(rank: int, monkeypatch) -> None:
    execute = Worker.execute_model

    def failing(self, output):
        if self.rank == rank and output.step == 3:
            raise RuntimeError("a device fell off")
        return execute(self, output)

    monkeypatch.setattr(Worker, "execute_model", failing)
    with LLM(config=config(2)) as llm:
        processes = engine_processes(llm)
        with pytest.raises(EngineDeadError, match=f"worker.{rank} failed in execute_model.*a device fell off"):
            llm.generate([r.prompt_token_ids for r in SIXTY_FOUR[:4]], ENDLESS)
        assert gone_within(processes, BOUNDS.orphan_s) == []


def test_an_exception_of_the_only_rank_is_told_by_the_same_words(monkeypatch) -> None:
    def failing(self, output):
        raise RuntimeError("a device fell off")

    monkeypatch.setattr(Worker, "execute_model", failing)
    with LLM(config=config(1)) as llm, \
            pytest.raises(EngineDeadError, match=r"worker.0 failed in execute_model.*a device fell off"):
        llm.generate([PROMPT], ENDLESS)


def test_a_stopped_worker_is_noticed_within_the_step_bound_and_killed() -> None:
    async def main():
        settings = config(2, bounds=msgspec.structs.replace(BOUNDS, step_s=0.5))
        with async_llm(settings) as llm:
            death = await kill_while_serving(llm, 2, signal.SIGSTOP)
            assert max(death.told_s) < 2.0
            assert any("worker" in reason for reason in death.reasons)
            assert gone_within(engine_processes(llm), BOUNDS.terminate_s) == []

    run(main())


def test_a_stopped_core_is_noticed_by_its_heartbeat() -> None:
    async def main():
        bounds = msgspec.structs.replace(BOUNDS, step_s=0.3, rpc_s=0.3, heartbeat_s=0.1, stall_s=0.6)
        with async_llm(config(2, bounds=bounds)) as llm:
            death = await kill_while_serving(llm, 0, signal.SIGSTOP)
            assert max(death.told_s) < 2.0
            assert all("no progress" in reason for reason in death.reasons)
            assert death.survivors == []

    run(main())


def test_a_core_that_stands_still_unwatched_is_not_called_healthy() -> None:
    """Between two calls of a program without a loop nobody looks; the first who looks is told."""
    bounds = msgspec.structs.replace(BOUNDS, step_s=0.2, rpc_s=0.2, heartbeat_s=0.1, stall_s=0.4)
    with LLM(config=config(1, bounds=bounds)) as llm:
        llm.check_health()
        core = engine_processes(llm)[0]
        os.kill(core[0], signal.SIGSTOP)
        stopped_at = time.monotonic()
        until(lambda: time.monotonic() > stopped_at + 2 * bounds.stall_s)
        with pytest.raises(EngineDeadError, match="no progress"):
            llm.check_health()


def test_a_healthy_idle_core_stays_healthy_for_longer_than_the_stall_bound() -> None:
    bounds = msgspec.structs.replace(BOUNDS, heartbeat_s=0.1, stall_s=1.0)
    with LLM(config=config(2, bounds=bounds)) as llm:
        began = time.monotonic()

        def healthy() -> bool:
            llm.check_health()
            return time.monotonic() > began + 2 * bounds.stall_s

        until(healthy)


def test_a_stopped_worker_does_not_outlive_a_killed_core() -> None:
    """It cannot see that its parent is gone: the frontend ends it."""
    with LLM(config=config(2)) as llm:
        core, worker0, worker1 = engine_processes(llm)
        os.kill(worker1[0], signal.SIGSTOP)
        os.kill(core[0], signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            llm.generate([PROMPT])
        assert gone_within([core, worker0], BOUNDS.orphan_s) == []
        assert is_alive(worker1)
        llm.shutdown()
        assert not is_alive(worker1)


# -- leaving in order


def test_sigterm_lets_what_runs_finish_and_refuses_what_is_new() -> None:
    async def main():
        with async_llm(config(2, bounds=msgspec.structs.replace(BOUNDS, drain_s=20.0))) as llm:
            request = SIXTY_FOUR[0]
            running = llm.start("running", request.prompt_token_ids, request.params)
            await running.__anext__()
            await llm.call_utility("pause_scheduler")
            os.kill(core_of(llm)[0], signal.SIGTERM)
            with pytest.raises((RequestError, EngineDeadError)) as caught:
                while True:  # until SIGTERM has been seen
                    async for _ in llm.start("new", PROMPT, SamplingParams(max_tokens=1)):
                        pass
            outputs = [output async for output in running]
            assert outputs[-1].token_ids == request.reference_token_ids
            assert "drain" in str(caught.value) or isinstance(caught.value, EngineDeadError)

    run(main())


def test_after_the_drain_deadline_the_rest_is_told_and_the_core_leaves() -> None:
    async def main():
        with async_llm(config(1, bounds=msgspec.structs.replace(BOUNDS, drain_s=0.2))) as llm:
            core = engine_processes(llm)[0]
            stream = llm.start("running", PROMPT, SamplingParams(max_tokens=1000, ignore_eos=True))
            await stream.__anext__()
            os.kill(core[0], signal.SIGTERM)
            with pytest.raises(RequestError, match="told to stop"):
                async for _ in stream:
                    pass
            assert await asyncio.to_thread(gone_within, [core], BOUNDS.linger_s) == []
            with pytest.raises(EngineDeadError, match="SIGTERM"):
                while True:
                    await llm.check_health()
                    await asyncio.sleep(0)

    run(main())


def test_the_last_words_of_a_core_that_left_while_nobody_read_are_read_before_its_death_is_told() -> None:
    with LLM(config=config(1)) as llm:
        core, session = engine_processes(llm)[0], llm.client.session
        os.kill(core[0], signal.SIGTERM)
        assert gone_within([core], BOUNDS.linger_s) == []

        def told() -> bool:
            with pytest.raises(EngineDeadError):
                llm.check_health()
            return session.dead is not None

        until(told)
        assert session.notices


def test_a_look_for_last_words_ends_with_the_loop_that_it_waits_on() -> None:
    """Or the next loop would wait for a timer that never comes."""
    client, loop = AsyncMPClient.__new__(AsyncMPClient), asyncio.new_event_loop()
    client.loop = client._loop = loop
    client._watched, client._timer = [], loop.call_later(60.0, print)
    client._look = look = loop.call_later(60.0, print)
    client.detach()
    assert look.cancelled() and client._look is None
    loop.close()


def test_time_goes_on_for_a_client_whose_look_fails() -> None:
    """Or its requests would neither be answered nor time out: what was there when it failed makes no descriptor
    readable again."""
    client, loop = AsyncMPClient.__new__(AsyncMPClient), asyncio.new_event_loop()
    client.loop = client._loop = loop
    client.life = SimpleNamespace(tick_s=0.001)
    failures = []

    def look() -> None:
        failures.append(RuntimeError("it fails"))
        if len(failures) == 3:
            loop.stop()
        raise failures[-1]

    client._take = look
    loop.set_exception_handler(lambda loop, context: None)
    loop.call_later(LONG_S, loop.stop)
    loop.call_soon(client._on_timer)
    loop.run_forever()
    loop.close()
    assert len(failures) == 3


def test_nothing_is_watched_of_a_core_that_said_goodbye() -> None:
    """A process that has ended stays readable for ever: a loop that still watched it would never rest."""
    async def main():
        with async_llm(config(1)) as llm:
            await llm.call_utility("ping")
            client, core = llm.client, engine_processes(llm)[0]
            sentinel = client.process.children.sentinel(client.life.cores[0].node)
            os.kill(core[0], signal.SIGTERM)
            while not llm.errored:
                await asyncio.sleep(0)
            assert client.session.notices and sentinel not in client.filenos()
            assert not asyncio.get_running_loop().remove_reader(sentinel)

    run(main())


def test_shutdown_with_requests_in_flight_does_not_wait_for_them() -> None:
    """They are aborted in the core too: nobody reads them any more."""
    async def main():
        with async_llm(config(2)) as llm:
            stream = llm.start("running", PROMPT, ENDLESS)
            await stream.__anext__()
            processes = engine_processes(llm)
            await llm.call_utility("pause_scheduler")
            began = time.monotonic()
            llm.shutdown()
            assert time.monotonic() - began < BOUNDS.drain_s
            with pytest.raises(EngineDeadError, match="shut down"):
                async for _ in stream:
                    pass
            assert not any(map(is_alive, processes))

    run(main())
