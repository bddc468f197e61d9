"""Publisher and subscriber from their birth to their end, on virtual time: the loops are those of real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.config import KVEventsConfig
from engine.effects import Loop, Receive
from engine.kv_events.publisher.life import PUBLISHER, REPLAYER, end_publisher, start_publisher
from engine.kv_events.publisher.log import hand_over
from engine.kv_events.subscriber.life import SubscriberRecipe, subscriber_life
from engine.messages import BlockStored, KVEventBatch
from engine.topology import core, subscriber, tensor_parallel
from engine.wire.wiring import KV, REPLAY, identity_of
from faults.journal import Kind
from sim.process.process import SIGKILL, SimProcess
from sim.simulation import Simulation

EVENTS = KVEventsConfig(enable_kv_cache_events=True, endpoint="ipc://kv", replay_endpoint="ipc://replay")


@pytest.fixture
def sim() -> Iterator[Simulation]:
    simulation = Simulation(tensor_parallel(1, subscribers=1))
    yield simulation
    simulation.close()


def _publishing(batches: int, until_s: float, events: KVEventsConfig = EVENTS) -> Loop[None]:
    """Hands over as fast as it can, and lives on until then."""
    log = yield from start_publisher(events, 0, epoch=1)
    assert log is not None
    for number in range(batches):
        yield from hand_over(log, KVEventBatch(1.0, [BlockStored([number], None, [1, 2], 2, None)]))
    yield Receive((), until_s)
    assert (yield from end_publisher(log, events))
    assert not log.waiting


def _observed(process: SimProcess) -> list[tuple[str, object]]:
    return [(record.site, record.data) for record in process.records if record.kind is Kind.OBSERVATION]


def _subscriber(sim: Simulation, parent: SimProcess | None = None) -> SimProcess:
    recipe = SubscriberRecipe(endpoint="ipc://kv", replay_endpoint="ipc://replay", poll_s=0.1, answer_s=0.1)
    return sim.start_process(subscriber(), lambda _: subscriber_life(recipe, identity_of(0), lambda: 0), parent=parent)


@pytest.mark.parametrize("asks", [True, False])
def test_what_is_queued_is_published_before_the_publisher_ends(sim: Simulation, asks: bool) -> None:
    """A hundred batches in one instant and the end right behind them: none waits any more, and no thread runs."""
    events = EVENTS if asks else KVEventsConfig(enable_kv_cache_events=True, endpoint="ipc://kv")
    process = sim.start_process(core(), lambda _: _publishing(100, 0.0, events))
    threads = process.threads
    sim.run(10.0)
    assert process.error is None and not process.alive
    assert {thread.name: thread.finished for thread in threads} == {
        "main": True, PUBLISHER: True, **({REPLAYER: True} if asks else {})}


@pytest.mark.parametrize("off", [
    KVEventsConfig(), KVEventsConfig(enable_kv_cache_events=True, publisher="null", endpoint="ipc://kv")])
def test_without_events_nothing_is_started(sim: Simulation, off: KVEventsConfig) -> None:
    process = sim.start_process(core(), lambda _: start_publisher(off, 0))
    sim.run(1.0)
    assert process.error is None and not process.ports.sockets
    assert [thread.name for thread in process.threads] == ["main"]


@pytest.mark.parametrize("taken", [KV, REPLAY])
def test_an_address_that_is_taken_is_an_error_and_starts_no_thread(sim: Simulation, taken: str) -> None:
    mine = _at("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    others = _at("tcp://127.0.0.1:1" if taken == KV else "tcp://127.0.0.1:3",
                 "tcp://127.0.0.1:2" if taken == REPLAY else "tcp://127.0.0.1:4")
    sim.start_process(core(), lambda _: _publishing(0, 5.0, mine))
    process = sim.start_process(core(1), lambda _: start_publisher(others, 0, epoch=1), delay_s=1.0)
    sim.run(3.0)
    assert isinstance(process.error, OSError)
    assert [thread.name for thread in process.threads] == ["main"]


@pytest.mark.parametrize("why", ["SIGTERM", "the parent is gone"])
def test_a_subscriber_that_must_go_says_what_it_mirrors_and_why_it_left(sim: Simulation, why: str) -> None:
    sim.start_process(core(), lambda _: _publishing(3, 5.0))
    parent = sim.start_process(core(1))
    process = _subscriber(sim, parent)
    sim.after(1.0, process.terminate if why == "SIGTERM" else parent.kill)
    sim.run(2.0)
    assert process.exitcode == 0 and process.error is None and not process.thread_errors
    said = _observed(process)
    assert said[0][0] == "born" and said[-1] == ("bye", {"reason": why})
    assert said[-2] == ("kv-mirror", {
        "hashes": [0, 1, 2], "next_seq": 3, "unknown_since": None,
        "blocks": [[number, None, (1, 2)] for number in range(3)], "errors": []})


def test_a_subscriber_follows_its_publisher_into_the_next_life(sim: Simulation) -> None:
    """The first is killed; another binds its addresses and sends other blocks, which is all that is mirrored then."""
    first = sim.start_process(core(), lambda _: _publishing(3, 9.0))
    process = _subscriber(sim)
    sim.after(1.0, first.kill)
    sim.start_process(core(0, 1), lambda _: _again(), delay_s=1.5)
    sim.after(4.0, process.terminate)
    sim.run(5.0)
    assert first.exitcode == SIGKILL and process.exitcode == 0
    said = _observed(process)
    assert ("kv-restarted", {"epoch": 2}) in said
    assert said[-2] == ("kv-mirror", {
        "hashes": [7], "next_seq": 1, "unknown_since": None, "blocks": [[7, None, (1, 2)]], "errors": []})


def _again() -> Loop[None]:
    log = yield from start_publisher(EVENTS, 0, epoch=2)
    assert log is not None
    yield from hand_over(log, KVEventBatch(1.0, [BlockStored([7], None, [1, 2], 2, None)]))
    yield Receive((), 9.0)


def _at(live: str, replay: str) -> KVEventsConfig:
    return KVEventsConfig(enable_kv_cache_events=True, endpoint=live, replay_endpoint=replay, bind=True)
