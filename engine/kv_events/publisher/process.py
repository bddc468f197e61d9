"""Publishes KV-cache events over ZMQ: PUB for live batches, ROUTER for replays, each on a thread of its own.

Promises
- `publish` never waits. A batch that finds the queue full keeps its number and is lost; subscribers are told.
- A long replay does not hold back live batches, nor the other replays.
- After `shutdown` no thread runs and every port is free, whatever the state of queue and peers: what is queued is
  published first if that takes less than `SHUTDOWN_TIMEOUT`.
- Where nobody records, what is lost and who cannot be answered is logged, each kind at most once in `LOG_S`, and never
  by the thread that hands over.
- Arguments, frames and bytes are vLLM's (kv_codec says what is added). One difference: without an `endpoint` the
  publisher binds loopback, not every interface.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec

from engine.config import KVEventsConfig
from engine.errors import QueueCancelledError
from engine.kv_events.codec import END
from engine.kv_events.publisher.handover import NappingQueue
from engine.kv_events.publisher.log import KVEventLog, hand_over, publish_loop, replay_loop
from engine.messages import EventBatch
from engine.ports import Ports
from engine.process.real_ports import RealPorts
from engine.process.shell import Process
from engine.topology import core
from engine.wire.wiring import kv_socket, offset_endpoint_port, replay_hwm, replay_socket

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5557"
#: What is logged again and again is logged so often.
LOG_S = 10.0
#: What an operator wants to know, of all that is observed.
LOGGED = ("kv-lost", "kv-unsent", "bad-frame", "replay-ended")

logger = logging.getLogger(__name__)


class EventPublisher(ABC):
    """Takes batches of events, in order. One per data-parallel rank."""

    def __init__(self, data_parallel_rank: int = 0) -> None:
        self._data_parallel_rank = data_parallel_rank

    #: What a core that drives the hand-over itself needs: the log, and the queue it hands over to.
    log: KVEventLog | None = None
    queue: NappingQueue | None = None

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


class _LoggingPorts:
    """Ports whose observations nobody records: what an operator wants to know is logged."""

    def __init__(self, ports: Ports) -> None:
        self.clock = ports.clock
        self._ports = ports
        self._logged: dict[str, tuple[float, int]] = {}  # by kind: when, and how many were passed over since

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ports, name)

    def observe(self, name: str, **data: Any) -> None:
        if name not in LOGGED:
            return
        now = self.clock.monotonic()
        at, passed_over = self._logged.get(name, (now - LOG_S, 0))
        if now - at < LOG_S:
            self._logged[name] = at, passed_over + 1
            return
        self._logged[name] = now, 0
        more = f" ({passed_over} more since the last line)" if passed_over else ""
        logger.warning("%s: %s%s", name, ", ".join(f"{key} {value}" for key, value in data.items()), more)


class _WatchedQueue(NappingQueue):
    """Who takes tells what those who put found no room for: they wait for nothing, not even for a log."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def take(self, timeout_s: float) -> list[Any]:
        items = super().take(timeout_s)
        self._look()
        return items


class ZmqEventPublisher(EventPublisher):
    """See the top of this file.

    `endpoint`: bound if it has a `*` or `::`, or is ipc or inproc; else connected to. None binds
    `tcp://127.0.0.1:5557`. Each rank adds its number to the port. `replay_endpoint` is always bound. Where they ended
    up, a port of `*` resolved, stands in `address` and `replay_address`.
    `buffer_steps`: batches that can be replayed. `hwm`: messages that wait for one subscriber. `max_queue_size`:
    batches that wait for the publisher (0: any number, as in vLLM). `epoch`: differs between lives of the same
    publisher (from the clock if None). Raises zmq.ZMQError where an address cannot be bound.
    """

    SHUTDOWN_TIMEOUT: float = 1.0
    #: The number in an end marker.
    END_SEQ: bytes = END

    def __init__(self, data_parallel_rank: int, endpoint: str | None = None, replay_endpoint: str | None = None,
                 buffer_steps: int = 10_000, hwm: int = 100_000, max_queue_size: int = 100_000, topic: str = "", *,
                 ports: Ports | None = None, epoch: int | None = None, socket_buffer_bytes: int = 0,
                 bind: bool | None = None) -> None:
        super().__init__(data_parallel_rank)
        self._own_ports = RealPorts(core(data_parallel_rank)) if ports is None else None
        ports = ports or self._own_ports
        self._logs = getattr(type(ports), "observe", None) is RealPorts.observe
        if self._logs:
            ports = _LoggingPorts(ports)
        if epoch is None:
            epoch = round(ports.clock.time() * 1e6)
        self.log = KVEventLog(buffer_steps=buffer_steps, max_queue_size=max_queue_size, topic=topic,
                              data_parallel_rank=data_parallel_rank, epoch=epoch,
                              wall_offset_s=ports.clock.time() - ports.clock.monotonic())
        self._process = Process(ports)
        self.queue = _WatchedQueue(self._tell_full) if self._logs else NappingQueue()
        self._process.queues["kv"] = self.queue
        self._told_full = 0
        self._config = KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint, replay_endpoint=replay_endpoint, bind=bind,
            buffer_steps=buffer_steps, hwm=hwm, max_queue_size=max_queue_size, topic=topic,
            socket_buffer_bytes=socket_buffer_bytes, replay=replay_endpoint is not None)
        self._closed = False
        self._ending = threading.RLock()
        try:
            live = self._process.sockets["kv"] = ports.open_socket(kv_socket(
                offset_endpoint_port(endpoint or DEFAULT_ENDPOINT, data_parallel_rank),
                bind=(endpoint is None or is_bound(endpoint)) if bind is None else bind, hwm=hwm,
                buffer_bytes=socket_buffer_bytes))
            self.address: str = live.address
            self.replay_address: str | None = None
            loops: dict[str, Any] = {"zmq-publisher": publish_loop(self.log)}
            if replay_endpoint is not None:
                replay = self._process.sockets["replay"] = ports.open_socket(replay_socket(
                    offset_endpoint_port(replay_endpoint, data_parallel_rank), hwm=replay_hwm(buffer_steps),
                    buffer_bytes=socket_buffer_bytes))
                self.replay_address = replay.address
                loops["zmq-replay"] = replay_loop(self.log)
        except BaseException:
            self._release()
            raise
        self._threads = [threading.Thread(target=self._run, args=(loop,), name=name, daemon=True)
                         for name, loop in loops.items()]
        for thread in self._threads:
            thread.start()

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
        if not self._logs:  # whoever brought the ports wants to know what happens
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
        self.queue.put(None)
        publisher, *others = self._threads
        publisher.join(self.SHUTDOWN_TIMEOUT)
        self.log.stop()
        self._process.cancel(QueueCancelledError("the publisher was shut down"))
        for thread in (publisher, *others):
            thread.join(self.SHUTDOWN_TIMEOUT)
        if not any(thread.is_alive() for thread in self._threads):  # a socket in use must not be closed
            self._release()

    def _tell_full(self) -> None:
        lost = self.log.lost_at_full_queue
        if lost != self._told_full:
            found_full, self._told_full = lost - self._told_full, lost
            self._process.ports.observe("kv-lost", batches=found_full, reason=f"{self.log.max_queue_size} wait already")

    def _run(self, loop: Any) -> None:
        try:
            self._process.run(loop)
        except QueueCancelledError:
            pass

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


def is_bound(endpoint: str) -> bool:
    """Stable addresses are bound, volatile ones connected to: vLLM's rule."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))
