"""The twin's plays of the queue alone: see `scenarios.lab.queue_play`."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from engine.effects import Loop, OpenRing
from engine.ipc.queue import QueueReader
from engine.ipc.ring import RingLayout, RingReader
from engine.ports import RingSpec
from engine.topology import Node, core, frontend, worker
from engine.wire.wiring import overflow_socket
from scenarios.history.play import Lab, Play
from scenarios.lab.queue_play import PLAYS, SEGMENT, Bench, Stage, program, reads, reads_from_afar, writes
from scenarios.worlds.twin.alone import played_out
from sim.process.effects import AwaitCondition
from sim.process.process import SimProcess
from sim.simulation import Simulation


class QueueBench:
    """See `queue_play.Bench`."""

    def __init__(self, simulation: Simulation, recheck_s: float) -> None:
        self._sim, self._recheck_s = simulation, recheck_s

    def start(self, node: Node, loop: Any) -> SimProcess:
        process = self._sim.start_process(node, loop)
        process.recheck_s = self._recheck_s
        process.when_gone(self.changed)
        return process

    def changed(self) -> None:
        for process in self._sim.processes.values():
            process.look_again()

    def is_gone(self, node: Node) -> bool:
        process = self._sim.processes.get(str(node))
        return process is not None and not process.alive

    def memory(self) -> Any:
        return self._sim.host.segments[SEGMENT].memory

    def name_ring(self, node: Node, name: str, spec: RingSpec) -> None:
        self._sim.processes[str(node)].ports.add_ring(name, spec)

    def open_reader(self, node: Node, handle: bytes, spec: RingSpec, stranger: bool) -> Loop[QueueReader]:
        if stranger:
            return self._stranger(self._sim.processes[str(node)], node.index, spec)
        return (yield OpenRing("rpc", handle, node.index, spec))

    def _stranger(self, process: SimProcess, rank: int, spec: RingSpec) -> QueueReader:
        """A reader that says nowhere who it is."""
        ports = process.ports
        opened = ports.attach_ring(spec, SEGMENT)
        ports.add_ring("rpc", spec)
        ports.add_bell("rpc.bell", f"{SEGMENT}/bell")
        ports.add_bell("rpc.space", f"{SEGMENT}/space")
        ports.open_socket(overflow_socket(spec, "run/queue.ipc", "rpc.overflow", writer=False))
        layout = RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)
        return QueueReader("rpc", RingReader(layout, opened.memory, opened.fence, rank), bell="rpc.bell",
                           space_bell="rpc.space", overflow_inbox="rpc.overflow", recheck_s=process.recheck_s)

    def lent(self) -> Bench:
        return Bench(AwaitCondition, self.changed, self.is_gone, self.memory, self.open_reader, self.name_ring)


def play_queue(play: Play, simulation: Simulation) -> Lab:
    """Play it to its end, on a simulation that is new."""
    asked, bounds = PLAYS[play.options.queue], play.config.bounds
    bench = QueueBench(simulation, bounds.ring_recheck_s)
    stage = Stage(msgspec.structs.replace(asked, ring=play.config.ring), bounds, bench.lent())
    far = asked.readers - 1 if asked.remote else asked.readers
    parts = [bench.start(core(), lambda process: writes(process.node, stage))]
    parts += [bench.start(worker(rank), partial(_reader, stage, rank >= far)) for rank in range(asked.readers)]
    bench.start(frontend(), lambda process: program(stage, lambda: all(
        part.label in stage.done or not part.alive for part in parts)))
    return played_out(simulation)


def _reader(stage: Stage, far: bool, process: SimProcess) -> Any:
    return (reads_from_afar if far else reads)(process.node, stage)
