"""A program that publishes KV events, and follows them, without an engine: what users of vLLM write.

Questions about `engine.kv_events.publisher.process` and `engine.kv_events.subscriber.process`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from typing import Any

from engine.config import KVEventsConfig
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.publisher.life import DEFAULT_ENDPOINT
from engine.kv_events.publisher.process import EventPublisherFactory, NullEventPublisher, ZmqEventPublisher
from engine.kv_events.reports import Applied, Report, Unrecoverable
from engine.kv_events.subscriber.process import KVEventSubscriber
from engine.messages import BlockStored, KVEventBatch
from engine.process.real_ports import RealPorts
from engine.topology import core
from scenarios.programs.asking import LATE_S, Asking, Turns, held, no_more, sleeps, until

ANY_PORT = "tcp://127.0.0.1:*"
#: How long a subscriber is silent before it asks, and waits for an answer.
SILENT_S, ANSWER_S = 0.1, 5.0
#: Messages that a poll reads at most.
AT_ONCE = 1000


def ask_events(ask: Asking) -> None:
    before = held()
    _publishes(ask)
    _is_told(ask)
    _is_broken_off(ask)
    _iterates(ask)
    _iterates_without_waiting(ask)
    _of_ranks(ask)
    _by_its_factory(ask)
    _ends(ask)
    _fails(ask)
    ask("what is left of everything", lambda: no_more(before), True)


def _batch(number: int) -> KVEventBatch:
    return KVEventBatch(float(number), [BlockStored([number], None, [number, 0], 2, None)])


def _publisher(rank: int = 0, endpoint: str = ANY_PORT, replay: str | None = ANY_PORT, *, batches: int = 0,
               **more: Any) -> ZmqEventPublisher:
    publisher = ZmqEventPublisher(rank, endpoint, replay, **more)
    for number in range(batches):
        publisher.publish(_batch(number))
    return publisher


def _subscriber(publisher: ZmqEventPublisher, topic: str = "", **more: Any) -> KVEventSubscriber:
    return KVEventSubscriber(publisher.address, publisher.replay_address, topic,
                             **{"poll_s": SILENT_S, "answer_s": ANSWER_S, **more})


def _numbers(reports: list[Report]) -> list[int]:
    return [report.number for report in reports if isinstance(report, Applied)]


def _read(subscriber: KVEventSubscriber, count: int) -> list[Report]:
    """Until so many batches were told."""
    told: list[Report] = []
    until(lambda: told.extend(subscriber.poll(0.05)) or len(_numbers(told)) >= count)
    return told


def _told_at_once(subscriber: KVEventSubscriber, count: int) -> list[int]:
    """How many batches each poll tells of, until so many were told."""
    told: list[int] = []
    until(lambda: told.append(len(_numbers(subscriber.poll(0.05)))) or sum(told) >= count)
    return told


def _publishes(ask: Asking) -> None:
    """Live ones, and those from before somebody came."""
    with closing_all(publisher := _publisher(topic="kv", epoch=7, batches=3), _subscriber(publisher, "kv")) as (_, one):
        told = _read(one, 3)
        ask("what was published before it came", lambda: _numbers(told), [0, 1, 2])
        for number in range(3, 6):
            publisher.publish(_batch(number))
        told = _read(one, 3)
        ask("what is published now", lambda: _numbers(told), [3, 4, 5])
        batches = [report.batch for report in told if isinstance(report, Applied)]
        ask("of which rank, life and time", lambda: [[batch.data_parallel_rank, batch.epoch, batch.ts]
                                                     for batch in batches], [[0, 7, 3.0], [0, 7, 4.0], [0, 7, 5.0]])
        ask("the blocks of its mirror", lambda: sorted(block.block_hash for block in one.mirror.blocks.values()),
            [0, 1, 2, 3, 4, 5])
        ask("the number that its mirror expects", lambda: one.mirror.next_seq, 6)
        ask("what comes in a while", lambda: one.poll(0.2), [])
        ask("whether it sleeps meanwhile", lambda: sleeps(lambda: one.poll(0.3), 0.3), True)
        ask("what is there by now", lambda: one.poll(0), [])
        said = publisher.get_publisher_config()
        ask("where it publishes", lambda: [said.endpoint, said.replay_endpoint, said.topic, said.publisher],
            [publisher.address, publisher.replay_address, "kv", "zmq"])
        ask("whether a port was chosen", lambda: "*" in publisher.address + (publisher.replay_address or "*"), False)
        with closing(_subscriber(publisher, "other")) as other:
            began = time.monotonic()
            publisher.publish(_batch(6))
            _read(one, 1)
            ask.took("hearing of what is published behind a rest", time.monotonic() - began, LATE_S)
            live = [report for report in other.poll(0.1) if isinstance(report, Applied) and report.source == "live"]
            ask("what another topic hears of it", lambda: live, [])
        for number in range(7, 7 + 3 * AT_ONCE):
            publisher.publish(_batch(number))
        ask("how much a poll tells at most", lambda: max(_told_at_once(one, 3 * AT_ONCE)) <= AT_ONCE, True)


class _Heard(RealPorts):
    """Ports of a program that wants to know what happens."""

    def __init__(self) -> None:
        super().__init__(core())
        self.heard: list[str] = []

    def observe(self, name: str, **data: Any) -> None:
        self.heard.append(name)


def _is_told(ask: Asking) -> None:
    """Who brings ports is told of each batch, and closes them itself."""
    ports = _Heard()
    with closing_all(ports, publisher := _publisher(ports=ports), _subscriber(publisher)) as (*_, one):
        for number in range(3):
            publisher.publish(_batch(number))
        ask("what its ports are told", lambda: _numbers(_read(one, 3)) and ports.heard.count("kv-published"), 3)


class _Interrupted(KVCacheMirror):
    """As one into which a signal handler breaks, once."""

    broken = False

    def apply(self, number: int, batch: Any) -> None:
        if number == 3 and not self.broken:
            self.broken = True
            raise InterruptedError
        super().apply(number, batch)


def _is_broken_off(ask: Asking) -> None:
    """Nothing that was read is lost by an exception, and nothing is told twice."""
    with closing_all(publisher := _publisher(batches=6), _subscriber(publisher)) as (_, one):
        one.mirror = _Interrupted()
        told: list[Report] = []

        def polled() -> bool:
            with suppress(InterruptedError):
                told.extend(one.poll(0.05))
            return len(_numbers(told)) >= 6

        ask("whether all is told of what was broken off", lambda: [until(polled), _numbers(told)],
            [True, [0, 1, 2, 3, 4, 5]])
        ask("what its mirror knows then", lambda: [one.mirror.next_seq, len(one.mirror.blocks), one.mirror.broken],
            [6, 6, True])


def _iterates(ask: Asking) -> None:
    """Who leaves an iteration early finds the rest with the next one, or with a poll."""
    with closing_all(publisher := _publisher(batches=6), _subscriber(publisher)) as (_, one):
        told = []
        for last in (0, 2):
            for report in one:
                told.append(report)
                if isinstance(report, Applied) and report.number >= last:
                    break
        ask("what two iterations told", lambda: _numbers(told), [0, 1, 2])
        ask("the number that its mirror expects then", lambda: one.mirror.next_seq, 3)
        told = _read(one, 3)
        ask("what a poll tells behind them", lambda: _numbers(told), [3, 4, 5])
        publisher.publish(_batch(6))
        rest = []
        for report in one:  # it ends by itself
            rest.append(report)
            if isinstance(report, Applied):
                one.close()
        ask("what an iteration tells until its end", lambda: _numbers(rest), [6])


def _iterates_without_waiting(ask: Asking) -> None:
    """The same on an event loop, which goes on meanwhile."""
    with closing_all(publisher := _publisher(batches=4), _subscriber(publisher)) as (_, one):
        async def follow() -> list[int]:
            told: list[Report] = []
            others = Turns(0.01)
            async for report in one:
                told.append(report)
                if len(_numbers(told)) == 2:
                    break
            before = others.count
            async with asyncio.timeout(10 * ANSWER_S):
                async for report in one:
                    told.append(report)
                    if _numbers([report]) == [3]:
                        asyncio.get_running_loop().call_later(0.3, publisher.publish, _batch(4))
                    if len(_numbers(told)) == 5:
                        one.close()
            others.end()
            ask("whether others had their turn while it waited", lambda: others.count - before >= 3, True)
            return _numbers(told)

        ask("what is told on an event loop, until the end", lambda: asyncio.run(follow()), [0, 1, 2, 3, 4])

    with closing_all(publisher := _publisher(batches=2), _subscriber(publisher)) as (_, one):
        async def left() -> None:
            async for report in one:
                if isinstance(report, Applied):
                    return

        asyncio.run(left())
        publisher.publish(_batch(2))
        told = _read(one, 2)
        ask("what a poll tells behind an iteration on an event loop", lambda: _numbers(told), [1, 2])
    ask.raised("to poll a subscriber that was closed", lambda: one.poll(0), RuntimeError, "closed")
    ask("how often a closed one can be closed", one.close, None)
    ask("what iterating a closed one tells", lambda: list(one), [])


def _of_ranks(ask: Asking) -> None:
    """Each rank has a place of its own."""
    offset = ZmqEventPublisher.offset_endpoint_port
    for rank, given, wanted in ((2, "tcp://*:5557", "tcp://*:5559"), (0, "tcp://*:5557", "tcp://*:5557"),
                                (1, "ipc://a", "ipc://a_dp1"), (3, None, None), (1, ANY_PORT, ANY_PORT)):
        ask(f"the endpoint of rank {rank} where {given} is given", lambda: offset(given, rank), wanted)
    rank, port = _free_rank()
    base = f"ipc://{ask.folder}/kv"
    with closing_all(publisher := ZmqEventPublisher(rank, None, base), KVEventSubscriber(
            f"tcp://127.0.0.1:{port}", f"{base}_dp{rank}", poll_s=SILENT_S, answer_s=ANSWER_S)) as (_, one):
        ask("where it publishes that was told no place", lambda: publisher.address, f"tcp://127.0.0.1:{port}")
        ask("where it answers", lambda: publisher.replay_address, f"{base}_dp{rank}")
        publisher.publish(_batch(0))
        told = _read(one, 1)
        ask("the rank in its batch", lambda: [report.batch.data_parallel_rank for report in told if isinstance(
            report, Applied)], [rank])


def _free_rank() -> tuple[int, int]:
    """One by whose number the default port is free."""
    first = int(DEFAULT_ENDPOINT.rpartition(":")[2])
    for rank in range(40, 4000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", first + rank))
            except OSError:
                continue
            return rank, first + rank
    raise RuntimeError("there is no free port")


def _by_its_factory(ask: Asking) -> None:
    """The config says which publisher; one that somebody registered is called by vLLM's names."""
    create, calls = EventPublisherFactory.create, list[dict[str, Any]]()

    def registered(**given: Any) -> NullEventPublisher:
        calls.append(given)
        return NullEventPublisher(given["data_parallel_rank"])

    ask("who publishes by no config", lambda: type(create(None)).__name__, "NullEventPublisher")
    for config in (KVEventsConfig(enable_kv_cache_events=False, publisher="zmq"),
                   KVEventsConfig(enable_kv_cache_events=True, publisher="null")):
        ask(f"who publishes by {config.publisher}, {config.enable_kv_cache_events}",
            lambda: type(create(config)).__name__, "NullEventPublisher")
    ask.raised("a publisher that nobody knows", lambda: create(KVEventsConfig(
        enable_kv_cache_events=True, publisher="carrier-pigeon")), ValueError, "carrier-pigeon", "zmq")
    ask.raised("to register a name again", lambda: EventPublisherFactory.register_publisher("zmq", registered),
               KeyError, "zmq")
    EventPublisherFactory.register_publisher("mine", registered)
    mine = KVEventsConfig(enable_kv_cache_events=True, publisher="mine", endpoint="a", replay_endpoint="b",
                          buffer_steps=3, hwm=4, max_queue_size=5, topic="t")
    with closing_all(create(mine, 2)) as (null,):
        null.publish(_batch(0))
        ask("what one without a socket says of itself", null.get_publisher_config, None)
    given = {"data_parallel_rank": 2, "endpoint": "a", "replay_endpoint": "b", "buffer_steps": 3, "hwm": 4,
             "max_queue_size": 5, "topic": "t"}
    ask("what a registered one is told", lambda: calls, [given])
    config = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=f"ipc://{ask.folder}/made",
                            replay_endpoint=f"ipc://{ask.folder}/asked", bind=True, replay=False)
    with closing_all(made := create(config)) as _:
        ask("where the factory's publishes and answers", lambda: [made.address, made.replay_address],
            [f"ipc://{ask.folder}/made", None])
    ports = _Heard()
    with closing_all(ports, told := create(config, ports=ports)) as _:
        told.publish(_batch(0))
        ask("what ports are told that the factory was given", lambda: ports.heard.count("kv-published"), 1)


def _ends(ask: Asking) -> None:
    """Nothing of it is left. What was queued it has sent; how much of that arrives, its socket leaves open."""
    before = held()
    with closing_all(publisher := _publisher(), _subscriber(publisher)) as (_, one):
        publisher.publish(_batch(0))
        _read(one, 1)  # it is connected
        for number in range(1, 200):
            publisher.publish(_batch(number))
        ask("whether it runs threads of its own", lambda: threading.active_count() > before[1], True)
        publisher.shutdown()
        ask.raised("to publish then", lambda: publisher.publish(_batch(200)), RuntimeError, "closed")
        ask("how often it can be shut down", publisher.shutdown, None)
        ask("whether its threads are gone", lambda: until(lambda: threading.active_count() == before[1]), True)
        with closing_all(_publisher(0, publisher.address, publisher.replay_address)) as (again,):
            ask("whether its place is free", lambda: again.address == publisher.address, True)
    with closing_all(publisher := _publisher(replay=None)) as _:
        ask("where one answers that has no place for it", lambda: publisher.replay_address, None)
        for _ in range(2):  # the second comes when the first has heard something
            with closing(_subscriber(publisher)) as one:
                until(lambda: one.poll(0.02) or publisher.publish(_batch(0)))
        ask("whether what was lost is unknown", lambda: one.mirror.unknown_since, 0)
    ask("what is left of all of them", lambda: no_more(before), True)


def _fails(ask: Asking) -> None:
    """What cannot be opened leaves nothing open; what finds no room is told as lost, and all else comes."""
    before = held()
    for place in ("tcp://nowhere", "carrier-pigeon://*"):
        ask(f"to publish at {place}", lambda: ZmqEventPublisher(0, place, bind=True), "ZMQError")
        ask(f"to follow {place}", lambda: KVEventSubscriber(place), "ZMQError")
    ask.raised("an epoch that is none", lambda: ZmqEventPublisher(0, ANY_PORT, epoch=-1), ValueError)
    ask("what is left of those that failed", lambda: no_more(before), True)
    with closing_all(publisher := _publisher(max_queue_size=2), _subscriber(publisher)) as (_, one):
        publisher.publish(_batch(0))
        told = _read(one, 1)
        for number in range(1, 300):
            publisher.publish(_batch(number))
        until(lambda: told.extend(one.poll(0.05)) or _known(told) >= 300)
        ask("how many of 300 were told, or told as lost", lambda: _known(told), 300)


def _known(told: list[Report]) -> int:
    lost = sum(report.last - report.first + 1 for report in told if isinstance(report, Unrecoverable))
    return len(_numbers(told)) + lost


class closing_all(ExitStack):  # noqa: N801 - as `contextlib.closing`
    """-> what is given, closed or shut down at the end, the last one first."""

    def __init__(self, *opened: Any) -> None:
        super().__init__()
        self._opened = opened

    def __enter__(self) -> Any:
        super().__enter__()
        for one in self._opened:
            self.callback(getattr(one, "close", None) or one.shutdown)
        return self._opened
