"""What the nodes of one play have in common: the play itself, the engine's names, and the lab's side of it.

The nodes in `sim.nodes` are the shells of the twin: they wire the engine's pure loops to SimPy as `EngineCoreProc`,
`WorkerProc` and the client wire them to threads and sockets. What they decide, the engine's own files decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from engine.config import EngineConfig
from engine.topology import Node, Topology
from engine.wire.wiring import KV, REPLAY
from sim.process.process import SimProcess
from sim.simulation import Simulation

#: Base ports of the sockets of events, far enough apart for some ranks.
EVENT_PORTS = {KV: 5557, REPLAY: 5657}


class Model(Protocol):
    """Stands in for the weights: what it takes to answer a step."""

    collectives: int  # all-reduces of one step

    last_token: int  # what comes after all that is known

    def continuation(self, prompt: tuple[int, ...]) -> Sequence[int]:
        """The tokens that follow this prompt, as far as they are known."""
        ...


class DrivesClient(Protocol):
    """What the frontend's workload must be able to do: see `scenarios.workloads.workload.Driver`."""

    def start(self) -> list[Any]: ...
    def ended(self, request_id: str) -> list[Any]: ...
    def answered(self, ticket: int, failed: bool) -> list[Any]: ...
    def died(self) -> list[Any]: ...


class Stage(msgspec.Struct):
    """One play in the twin."""

    sim: Simulation
    topology: Topology
    config: EngineConfig
    model: Any
    vocab_size: int
    max_model_len: int
    make_driver: Any  # () -> DrivesClient
    engine_id: str = "e0"
    life: int = 0
    await_death_s: float = 0.0  # after the workload, the caller waits so long for the engine's death
    said: Any = None  # (word) -> None: the caller speaks to the lab

    @property
    def num_gpu_blocks(self) -> int:
        """As configured, else as many as a small device would have."""
        return self.config.cache.num_gpu_blocks or 64

    def segment(self, name: str) -> str:
        return f"ringtwin-{self.engine_id}-{name}"

    def address(self, name: str) -> str:
        """Of a socket of this engine. Those of its events are configured: they are the same in each life."""
        if name not in EVENT_PORTS:
            return f"ipc://{self.engine_id}/{name}.ipc"
        # As in the lab of real processes: where socket buffers are to be small, by tcp.
        by_tcp = self.config.kv_events.socket_buffer_bytes
        return f"tcp://127.0.0.1:{EVENT_PORTS[name]}" if by_tcp else f"ipc://{name}.ipc"

    def node(self, node: Node) -> Node:
        """The node in this life of the engine."""
        return msgspec.structs.replace(node, life=self.life)

    @property
    def members(self) -> list[SimProcess]:
        """The engine's processes, subscribers not among them."""
        return [p for p in self.sim.processes.values()
                if p.context.get("engine") == self.engine_id and p.name.split(".")[0] != "subscriber"]

    def born(self, process: SimProcess) -> None:
        """First record of a process."""
        process.context["engine"] = self.engine_id
        process.observe("born", {
            "pid": process.pid, "ppid": process.parent.pid if process.parent else 1, "start_time": process.pid,
            "segments": [self.segment("")], "paths": [self.engine_id]})

    def claim(self) -> None:
        """The engine's directory and lock exist from now on."""
        self.sim.host.paths[self.engine_id] = self.engine_id

    def remove_files(self) -> list[str]:
        """Segments, sockets, directory and lock of this engine. -> what was removed"""
        return remove_files(self.sim, self.engine_id)


def remove_files(sim: Simulation, engine_id: str) -> list[str]:
    removed = [name for name in sim.host.segments if name.startswith(f"ringtwin-{engine_id}-")]
    for name in removed:
        sim.host.unlink_segment(name)
    for path in [path for path in sim.host.paths if path == engine_id or path.startswith(f"{engine_id}/")]:
        del sim.host.paths[path]
        removed.append(path)
    return removed


def sweep(sim: Simulation) -> list[str]:
    """Remove what engines left whose processes are all dead, and nothing else. -> what was removed"""
    alive = {p.context.get("engine") for p in sim.processes.values() if p.alive}
    engines = [path for path in sim.host.paths if "/" not in path]
    return [path for engine_id in engines if engine_id not in alive for path in remove_files(sim, engine_id)]
