"""Follows the KV-cache events of one publisher over ZMQ, ours or vLLM's.

    with KVEventSubscriber("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558") as subscriber:
        for report in subscriber:
            ...  # Applied, Gap, Healed, Unrecoverable, Restarted, Malformed: see reports.py

Promises
- Batches come once each and in order; every loss is told, and healed by replay where the publisher still has it.
- No thread runs: reading, asking and detecting happen while the caller polls. What comes between two calls waits in
  ZMQ, up to its high-water mark, and a loss beyond it is a gap. Only `async for` polls on a thread of its own.
- Who leaves an iteration early finds the rest with the next poll or iteration.
- An exception out of a call (a signal handler that raises) loses nothing that was read: the next call tells it. Where
  it struck in the midst of a message, the reader starts over, and that is told as `Restarted`.
- `mirror` is the publisher's cache as far as the reports returned so far tell, in an iteration as well.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import msgspec

from engine.effects import Loop
from engine.errors import QueueCancelledError
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.reports import Report
from engine.kv_events.subscriber.follow import feed
from engine.kv_events.subscriber.follower import KVEventFollower
from engine.kv_events.subscriber.life import ENDINGS, SubscriberRecipe, open_sockets, reading_of, subscriber_life
from engine.ports import Ports
from engine.process.real_ports import RealPorts
from engine.process.shell import LocalQueue, Process
from engine.topology import subscriber
from engine.wire.wiring import identity_of

#: How long the thread of an asynchronous iteration polls at a time: who leaves it and polls waits that long at most.
ASYNC_POLL_S = 0.2


class KVEventSubscriber:
    """See the top of this file. Not for several threads at once.

    `poll_s`: silence after which the publisher is asked. `answer_s`: a question without an answer is repeated.
    `tries`: then its hole counts as unrecoverable. `hwm`: messages that wait for the reader. `core_index`: the
    publisher's data-parallel rank. Raises zmq.ZMQError for an address that is none.
    """

    def __init__(self, endpoint: str, replay_endpoint: str | None = None, topic: str = "", *, poll_s: float = 5.0,
                 answer_s: float = 5.0, tries: int = 3, hwm: int = 100_000, socket_buffer_bytes: int = 0,
                 identity: bytes | None = None, core_index: int = 0, ports: Ports | None = None) -> None:
        self._own_ports = RealPorts(subscriber()) if ports is None else None
        ports = ports or self._own_ports
        self._process = Process(ports)
        self._closed = False
        recipe = SubscriberRecipe(
            endpoint=endpoint, replay_endpoint=replay_endpoint, topic=topic, poll_s=poll_s, answer_s=answer_s,
            tries=tries, hwm=hwm, socket_buffer_bytes=socket_buffer_bytes, core_index=core_index)
        self._reading = reading_of(recipe, _new_tag)
        self._fed = 0  # how many of what was read the mirror knows: none, unless telling was broken off
        self.mirror = KVCacheMirror()
        self._thread: ThreadPoolExecutor | None = None
        self._polling: Future[None] | None = None
        try:
            self._process.run(open_sockets(recipe, identity))
        except BaseException:
            self.close()
            raise

    @property
    def follower(self) -> KVEventFollower:
        return self._reading.follower

    def poll(self, timeout_s: float | None = None) -> list[Report]:
        """Batches and notices, in order, as soon as there are any, and all that are there; empty after `timeout_s`.

        `timeout_s` None: no limit; 0: what has arrived by now.
        Raises RuntimeError after `close`.
        """
        if self._closed:
            raise RuntimeError("the subscriber is closed")
        self._await_thread()
        self._read(timeout_s)
        for report in islice(self._reading.told, self._fed, None):
            feed(self.mirror, report)
            self._fed += 1
        told = list(self._reading.told)
        self._fed = 0
        self._reading.told.clear()
        return told

    def _read(self, timeout_s: float | None) -> None:
        """Until something is ready to be told, at most `timeout_s`."""
        deadline = None if timeout_s is None else self._process.ports.clock.monotonic() + timeout_s
        self._process.run(self._reading.until_told(deadline))

    def _await_thread(self) -> None:
        """An asynchronous iteration that was left may still be reading."""
        polling = self._polling
        if polling is not None:
            try:
                polling.result()
            finally:
                if polling.done():
                    self._polling = None

    def _next(self) -> Report:
        if not self._fed:
            feed(self.mirror, self._reading.told[0])
            self._fed = 1
        self._fed -= 1
        return self._reading.told.popleft()

    def close(self) -> None:
        """May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._process.cancel(QueueCancelledError("the subscriber was closed"))
            self._thread.shutdown()
        self._process.close()
        if self._own_ports is not None:
            self._own_ports.close()

    def __iter__(self) -> Iterator[Report]:
        while not self._closed:
            self._await_thread()
            self._read(None)
            while self._reading.told:
                yield self._next()

    async def __aiter__(self) -> AsyncIterator[Report]:
        """Ends when the subscriber is closed."""
        self._thread = self._thread or ThreadPoolExecutor(1, "kv-subscriber")
        while True:
            while self._reading.told:
                yield self._next()
            if self._closed:
                return
            polling = self._polling = self._polling or self._thread.submit(self._read, ASYNC_POLL_S)
            try:
                await asyncio.shield(asyncio.wrap_future(polling))
            except QueueCancelledError:
                pass
            finally:
                if self._polling is polling and polling.done():
                    self._polling = None

    def __enter__(self) -> KVEventSubscriber:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def subscriber_main(ports: Ports, recipe_bytes: bytes) -> None:
    """Entry point of a subscriber process: follows, observes, and ends at SIGTERM or with its parent.

    It is its node's index that answers are addressed to, so a plan can tell the subscribers apart.
    """
    recipe = msgspec.msgpack.decode(recipe_bytes, type=SubscriberRecipe)
    run_life(ports, subscriber_life(recipe, identity_of(ports.node.index), _new_tag))


def run_life(ports: Ports, life: Loop[None]) -> None:
    """Live the life of a subscriber in this process."""
    process = Process(ports)
    process.queues[ENDINGS] = LocalQueue()
    process.run(life)


def _new_tag() -> int:
    return int.from_bytes(os.urandom(6), "big")
