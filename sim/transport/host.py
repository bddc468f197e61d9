"""What the processes of a play share, whoever of them opened it: memory, doorbells, process groups, files, the network.

All of it outlives the process that made it, as it does on a real host.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.process.consensus.register import Register
from engine.topology import Node
from sim.kernel.kernel import Kernel
from sim.transport.collectives import CollectiveGroup
from sim.transport.consensus import Gathering
from sim.transport.network import Network
from sim.transport.pipes import Pipe
from sim.transport.ring_memory import Bells, Segment
from sim.transport.waits import Waits


class Host:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.paths: dict[str, str] = {}  # files that exist, with the name of their owner
        self.segments: dict[str, Segment] = {}
        self.claims = 0  # of files, by engines so far
        self.bells = Bells(kernel)
        self.network = Network(kernel, self.paths)
        self._groups: dict[str, CollectiveGroup] = {}
        self._pipes: dict[str, Pipe] = {}
        self._gatherings: dict[str, Gathering] = {}
        self._registers: dict[str, Register] = {}
        self._waits = Waits()

    def create_segment(self, name: str, size: int) -> Segment:
        """Raises FileExistsError."""
        if name in self.segments:
            raise FileExistsError(f"segment {name} exists")
        segment = self.segments[name] = Segment(name, bytearray(size))
        return segment

    def unlink_segment(self, name: str) -> None:
        self.segments.pop(name, None)

    def collective(self, key: str, ranks: Sequence[Node | str], timeout_s: float, *,
                   shared: bool = True) -> CollectiveGroup:
        """The process group of that name."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = CollectiveGroup(self._kernel, key, [str(rank) for rank in ranks], timeout_s,
                                                        shared=shared, waits=self._waits)
        return group

    def pipe(self, key: str, ranks: Sequence[Node | str], timeout_s: float, *, shared: bool = True) -> Pipe:
        """What joins these ranks of several stages."""
        pipe = self._pipes.get(key)
        if pipe is None:
            pipe = self._pipes[key] = Pipe(self._kernel, key, [str(rank) for rank in ranks], timeout_s, shared=shared,
                                           waits=self._waits)
        return pipe

    def gathering(self, where: str, size: int) -> Gathering:
        """What the members of a group that meets there bring."""
        gathering = self._gatherings.get(where)
        if gathering is None:
            gathering = self._gatherings[where] = Gathering(self._kernel, where, size)
        return gathering

    def register(self, where: str, size: int) -> Register:
        """Of those who meet there: the next one, once all of one have come, or never will."""
        register = self._registers.get(where)
        if register is None or register.refusal or register.cards is not None:
            register = self._registers[where] = Register(size, where)
        return register

    def rank_died(self, rank: str) -> None:
        """Its process is gone: every group and pipe that it belongs to learns of it."""
        for group in self._groups.values():
            group.died(rank)
        for pipe in self._pipes.values():
            pipe.died(rank)
        for gathering in self._gatherings.values():
            gathering.died(rank)

    def leftovers(self) -> list[str]:
        """Segments and files that exist now."""
        return [f"segment {name}" for name in self.segments] + [f"file {path}" for path in self.paths]

    def untie(self) -> None:
        """The play is over."""
        self.network.untie()
        self.bells.untie()
        self._groups.clear()
        self._pipes.clear()
        self._gatherings.clear()
        self._waits.untie()
        self._registers.clear()
