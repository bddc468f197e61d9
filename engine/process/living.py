"""A process of an engine: beside what every process does it opens ring ends, runs a rank of the model, joins groups."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.effects import CreateRing, MakeWorker, OpenRing, ReadModel
from engine.kv_events.publisher.handover import NappingQueue
from engine.ports import Ports
from engine.process.answers.consensus import Groups
from engine.process.shell import LOOK_UP_S, Process
from engine.wire.wiring import KV


class EngineProcess(Process):
    """What a part needs is imported when it is asked for: a frontend has no ring and no model."""

    def __init__(self, ports: Ports, recheck_s: float = LOOK_UP_S) -> None:
        super().__init__(ports, recheck_s)
        self._ends: dict[str, Any] = {}  # MessageQueue, by the ring's name
        self.queues[KV] = NappingQueue()
        self._groups = Groups(self)
        self.answers.update({
            CreateRing: self._create_ring,
            OpenRing: self._open_ring,
            MakeWorker: self._make_worker,
            ReadModel: self._read_model,
            **self._groups.answers,
        })

    def close(self) -> None:
        for end in self._ends.values():
            end.shutdown()
        self._groups.close()
        super().close()

    def _create_ring(self, effect: CreateRing) -> tuple[Any, bytes]:
        from engine.ipc.message_queue import create_ring

        bell = self._ends[effect.rings].bell_address if effect.rings else None
        self._ends[effect.name], queue = create_ring(self, effect, bell)
        return queue, msgspec.msgpack.encode(self._ends[effect.name].export_handle())

    def _open_ring(self, effect: OpenRing) -> Any:
        from engine.ipc.message_queue import open_ring

        self._ends[effect.name], queue = open_ring(self, effect)
        return queue

    def _make_worker(self, effect: MakeWorker) -> None:
        from engine.worker.worker import Worker

        self.worker = Worker(effect.config, effect.rank, effect.world_size, effect.init_method,
                             across=effect.across, local_dp_rank=effect.local_dp_rank,
                             make_group=self.ports.process_group)

    def _read_model(self, effect: ReadModel) -> Any:
        from engine.model_config import read_servable_model

        return read_servable_model(effect.config)
