"""Publishes KV-cache events over ZMQ: PUB for live batches, ROUTER for replays, each on a thread of its own.

Promises
- `publish` never waits. A batch that finds the queue full keeps its number and is lost; subscribers are told.
- A long replay does not hold back live batches, nor the other replays.
- After `shutdown` no thread runs and every port is free, whatever the state of queue and peers: what is queued is
  published first if that takes less than `SHUTDOWN_TIMEOUT`.
- What is lost and who cannot be answered is logged, each kind now and then, and never by the thread that hands over.
- Arguments, frames and bytes are vLLM's (codec.py says what is added). One difference: without an `endpoint` the
  publisher binds loopback, not every interface.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from engine.config import KVEventsConfig
from engine.kv_events.codec import END
from engine.kv_events.publisher.handover import NappingQueue
from engine.kv_events.publisher.life import SHUTDOWN_S, end_publisher, start_publisher
from engine.kv_events.publisher.log import hand_over
from engine.messages import EventBatch
from engine.ports import Ports
from engine.process.real_ports import RealPorts
from engine.process.shell import Process
from engine.topology import core
from engine.wire.wiring import KV, REPLAY, offset_endpoint_port


class EventPublisher(ABC):
    """Takes batches of events, in order. One per data-parallel rank."""

    def __init__(self, data_parallel_rank: int = 0) -> None:
        self._data_parallel_rank = data_parallel_rank

    @abstractmethod
    def publish(self, events: EventBatch) -> None:
        """Hand over one batch. Never waits."""

    @abstractmethod
    def shutdown(self) -> None:
        """Release everything. May be called twice."""

    def get_publisher_config(self) -> KVEventsConfig | None:
        """What it came to, addresses resolved; None where there is nothing to say."""
        return None


class NullEventPublisher(EventPublisher):
    """Publishes nothing."""

    def publish(self, events: EventBatch) -> None:
        return

    def shutdown(self) -> None:
        return


class ZmqEventPublisher(EventPublisher):
    """See the top of this file.

    `endpoint`: bound if it has a `*` or `::`, or is ipc or inproc; else connected to. None binds
    `tcp://127.0.0.1:5557`. Each rank adds its number to the port. `replay_endpoint` is always bound. Where they ended
    up, a port of `*` resolved, stands in `address` and `replay_address`.
    `buffer_steps`: batches that can be replayed. `hwm`: messages that wait for one subscriber. `max_queue_size`:
    batches that wait for the publisher (0: any number, as in vLLM). `epoch`: differs between lives of the same
    publisher (from the clock if None). Raises zmq.ZMQError where an address cannot be bound.
    """

    SHUTDOWN_TIMEOUT: float = SHUTDOWN_S
    #: The number in an end marker.
    END_SEQ: bytes = END

    def __init__(self, data_parallel_rank: int, endpoint: str | None = None, replay_endpoint: str | None = None,
                 buffer_steps: int = 10_000, hwm: int = 100_000, max_queue_size: int = 100_000, topic: str = "", *,
                 ports: Ports | None = None, epoch: int | None = None, socket_buffer_bytes: int = 0,
                 bind: bool | None = None) -> None:
        super().__init__(data_parallel_rank)
        self._own_ports = RealPorts(core(data_parallel_rank)) if ports is None else None
        ports = ports or self._own_ports
        self._process = Process(ports)
        self.queue = self._process.queues[KV] = NappingQueue()
        self._config = KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint, replay_endpoint=replay_endpoint, bind=bind,
            buffer_steps=buffer_steps, hwm=hwm, max_queue_size=max_queue_size, topic=topic,
            socket_buffer_bytes=socket_buffer_bytes, replay=replay_endpoint is not None)
        self._closed = False
        self._ending = threading.RLock()
        try:
            self.log = self._process.run(start_publisher(self._config, data_parallel_rank, epoch=epoch))
        except BaseException:
            self._release()
            raise
        sockets = self._process.sockets
        self.address: str = sockets[KV].address
        self.replay_address: str | None = sockets[REPLAY].address if REPLAY in sockets else None

    def get_publisher_config(self) -> KVEventsConfig:
        return msgspec.structs.replace(self._config, endpoint=self.address, replay_endpoint=self.replay_address)

    @staticmethod
    def offset_endpoint_port(endpoint: str | None, data_parallel_rank: int) -> str | None:
        """The endpoint of one rank: see `engine.wire.wiring`. None stays None."""
        return None if endpoint is None else offset_endpoint_port(endpoint, data_parallel_rank)

    def publish(self, events: EventBatch) -> None:
        """Raises RuntimeError after `shutdown`."""
        if self._closed:
            raise RuntimeError("Publisher is closed")
        if self._own_ports is None:  # whoever brought the ports wants to know what happens
            self._process.run(hand_over(self.log, events))
            return
        number, room = self.log.number()
        if room:
            self.queue.put((number, events))

    def shutdown(self) -> None:
        """From any thread: the second caller returns when the first has done it."""
        with self._ending:  # reentrant: a signal handler may come in between
            if self._closed:
                return
            self._closed = True
            self._end()

    def _end(self) -> None:
        if self._process.run(end_publisher(self.log, self._config, patience_s=self.SHUTDOWN_TIMEOUT)):
            self._release()

    def _release(self) -> None:
        self._process.close()
        if self._own_ports is not None:
            self._own_ports.close()


class EventPublisherFactory:
    """Publishers by name, as the config calls them."""

    _registry: dict[str, Callable[..., EventPublisher]] = {"null": NullEventPublisher}

    @classmethod
    def register_publisher(cls, name: str, constructor: Callable[..., EventPublisher]) -> None:
        """Raises KeyError where the name is taken."""
        if name in cls._registry:
            raise KeyError(f"publisher {name!r} is registered already")
        cls._registry[name] = constructor

    @classmethod
    def create(cls, config: KVEventsConfig | None, data_parallel_rank: int = 0, *,
               ports: Ports | None = None) -> EventPublisher:
        """The publisher that the config asks for. Raises ValueError where nobody knows its name.

        A registered one is called by vLLM's keywords; what is our own is told to our own alone.
        """
        if config is None or not config.enable_kv_cache_events or config.publisher == "null":
            return NullEventPublisher(data_parallel_rank)
        constructor = cls._registry.get(config.publisher)
        if constructor is None:
            raise ValueError(f"unknown publisher {config.publisher!r}; known: {', '.join(sorted(cls._registry))}")
        ours = {}
        if isinstance(constructor, type) and issubclass(constructor, ZmqEventPublisher):
            ours = {"ports": ports, "socket_buffer_bytes": config.socket_buffer_bytes, "bind": config.bind}
        return constructor(
            data_parallel_rank=data_parallel_rank, endpoint=config.endpoint,
            replay_endpoint=config.replay_endpoint if config.replay else None, buffer_steps=config.buffer_steps,
            hwm=config.hwm, max_queue_size=config.max_queue_size, topic=config.topic, **ours)


EventPublisherFactory.register_publisher("zmq", ZmqEventPublisher)
