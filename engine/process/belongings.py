"""What a real process opens, and gives back: files, sockets, ring ends, its heartbeat, its rank of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from engine.effects import (
    ClaimFiles,
    Close,
    CreateRing,
    EndPublisher,
    HoldFiles,
    MakeWorker,
    OpenHeartbeat,
    OpenRing,
    OpenSocket,
    ReadModel,
    RemoveFiles,
    StartPublisher,
)
from engine.ports import Doorbell, Ports, RingSpec, Socket
from engine.process.files import EngineFiles
from engine.process.runtime_dir import RuntimeDir, sweep


class Opens(Protocol):
    """What loops know by name, and what the rest of a process does with it: `engine.process.shell.Process`."""

    ports: Ports
    sockets: dict[str, Socket]
    queues: Any
    bells: dict[str, Doorbell]
    rings: dict[str, RingSpec]
    worker: Any
    heartbeat: memoryview | None

    def add_bell(self, name: str, bell: Doorbell) -> None: ...
    def left(self, deadline: float | None, most_s: float) -> float: ...
    def close(self) -> None: ...


class Belongings:
    def __init__(self, process: Opens) -> None:
        self._process = process
        self._runtime: dict[str, RuntimeDir] = {}
        self._ends: dict[str, Any] = {}  # MessageQueue, by the ring's name
        self._publisher: Any = None
        self.answers: dict[type, Callable[[Any], Any]] = {
            ClaimFiles: self._claim,
            HoldFiles: lambda effect: self._files(effect.files).hold(),
            RemoveFiles: lambda effect: self._files(effect.files).remove(),
            OpenHeartbeat: self._open_heartbeat,
            OpenSocket: self._open_socket,
            CreateRing: self._create_ring,
            OpenRing: self._open_ring,
            MakeWorker: self._make_worker,
            ReadModel: self._read_model,
            StartPublisher: self._start_publisher,
            EndPublisher: self._end_publisher,
            Close: self._close,
        }

    # -- files

    def _claim(self, effect: ClaimFiles) -> EngineFiles:
        sweep()
        runtime = RuntimeDir.create(effect.runtime_dir)
        self._runtime[runtime.engine_id] = runtime
        return runtime.files

    def _files(self, files: EngineFiles) -> RuntimeDir:
        runtime = self._runtime.get(files.engine_id)
        if runtime is None:
            runtime = self._runtime[files.engine_id] = RuntimeDir.of(files)
        return runtime

    # -- sockets and shared memory

    def _open_heartbeat(self, effect: OpenHeartbeat) -> None:
        self._process.heartbeat = self._process.ports.shared_word(effect.name, create=effect.create)

    def _open_socket(self, effect: OpenSocket) -> str:
        socket = self._process.sockets[effect.spec.name] = self._process.ports.open_socket(effect.spec)
        return socket.address

    def _create_ring(self, effect: CreateRing) -> tuple[Any, bytes]:
        from engine.ipc.message_queue import create_ring

        bell = self._ends[effect.rings].bell_address if effect.rings else None
        self._ends[effect.name], queue = create_ring(self._process, effect, bell)
        return queue, msgspec.msgpack.encode(self._ends[effect.name].export_handle())

    def _open_ring(self, effect: OpenRing) -> Any:
        from engine.ipc.message_queue import open_ring

        self._ends[effect.name], queue = open_ring(self._process, effect)
        return queue

    # -- the model

    def _make_worker(self, effect: MakeWorker) -> None:
        from engine.worker.worker import Worker

        self._process.worker = Worker(effect.config, effect.rank, effect.world_size, effect.init_method,
                                      make_group=self._process.ports.process_group)

    def _read_model(self, effect: ReadModel) -> Any:
        from engine.model_config import read_servable_model

        return read_servable_model(effect.config)

    # -- KV events

    def _start_publisher(self, effect: StartPublisher) -> Any:
        from engine.kv_events.publisher.process import EventPublisherFactory

        self._publisher = EventPublisherFactory.create(
            effect.config, effect.data_parallel_rank, ports=self._process.ports)
        if self._publisher.queue is not None:
            self._process.queues["kv"] = self._publisher.queue
        return self._publisher.log

    def _end_publisher(self, effect: EndPublisher) -> None:
        if self._publisher is not None:
            self._publisher.shutdown()

    # -- the end

    def _close(self, effect: Close) -> None:
        if effect.linger_s is not None:
            for socket in self._process.sockets.values():
                socket.close(effect.linger_s)
        for end in self._ends.values():
            end.shutdown()
        self._process.close()
        self._process.ports.close()
