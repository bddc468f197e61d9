"""What a process of the twin touches the world with, by the names that effects use: sockets, rings, bells, queues.

Promises: ring memory is bare unless the plan names a store of this process into the ring; then each store is counted,
and the process can be stopped before it.
"""

from __future__ import annotations

from typing import Protocol

from engine.ipc.ring import RingLayout
from engine.ports import RingMemory, RingSpec, SocketSpec
from engine.topology import Channel, Topology
from faults.plan import Fate, Fault
from faults.sites import ring_sites, store_place, store_sites
from sim.process.crossings import Crossings
from sim.process.queues import BellEnd, Queues, SimQueue
from sim.process.sockets import SocketPort
from sim.process.thread import SimThread
from sim.transport.host import Host
from sim.transport.ring_memory import SteppedMemory, StoppedInOperation, fence
from sim.transport.zmq_model import SocketOwner


class PortsOwner(SocketOwner, Protocol):
    """What its ports know of a process."""

    def befall(self, thread: SimThread, fault: Fault, site: str, nth: int) -> bool:
        """Meet a process fate at a crossing. -> True if the thread stops here, to `go_on_with` the rest later"""


class RingSites(dict[tuple[str, str], tuple[Channel, tuple[str, ...]]]):
    """By ring and operation its channel, and the sites that one of its messages crosses in this process: an edge per
    reader when it is sent.
    """

    def __init__(self, rings: dict[str, RingSpec], process: str) -> None:
        super().__init__()
        self._rings, self._process = rings, process

    def __missing__(self, key: tuple[str, str]) -> tuple[Channel, tuple[str, ...]]:
        ring, operation = key
        spec = self._rings[ring]
        found = self[key] = spec.channel, ring_sites(spec, self._process, operation)
        return found


class SimPorts:
    def __init__(self, owner: PortsOwner, host: Host, topology: Topology, crossings: Crossings) -> None:
        self._owner = owner
        self._host = host
        self._topology = topology
        self._crossings = crossings
        self.doorbells = host.bells  # of the whole play
        self.sockets: dict[str, SocketPort] = {}
        self.queues: dict[str, SimQueue] = Queues(crossings.kernel.costs.thread_wake_s)
        self.bells: dict[str, BellEnd] = {}
        self.rings: dict[str, RingSpec] = {}
        self.stepped: dict[str, SteppedMemory] = {}  # by `store_place`
        self.current_thread: SimThread | None = None  # which is in the middle of a ring operation
        self.ring_sites = RingSites(self.rings, crossings.name)

    # -- opening them

    def open_socket(self, spec: SocketSpec) -> SocketPort:
        """Known to the loops by `spec.name`. Raises OSError where the address is taken."""
        port = self.sockets[spec.name] = SocketPort(
            self._host.network.open(self._owner, spec), spec, self._topology, self._crossings, self._owner.deliver)
        return port

    def create_ring(self, spec: RingSpec, name: str, size: int) -> RingMemory:
        """A segment of this name, zeroed. Raises FileExistsError."""
        self._host.create_segment(name, size)
        return self.attach_ring(spec, name)

    def attach_ring(self, spec: RingSpec, name: str) -> RingMemory:
        """Raises FileNotFoundError."""
        segment = self._host.segments.get(name)
        if segment is None:
            raise FileNotFoundError(f"no segment {name}")
        sites = store_sites(spec, self._crossings.name)
        if not self._crossings.any_special(sites.values()):
            return RingMemory(segment.memory, fence)
        layout = RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)
        stepped = SteppedMemory(segment.memory, layout, lambda store: self._store(sites[store]))
        self.stepped[store_place(spec, self._crossings.name)] = stepped
        return RingMemory(stepped, fence)

    def add_ring(self, name: str, spec: RingSpec) -> None:
        """Under which name the effects speak of this ring."""
        self.rings[name] = spec

    def add_bell(self, name: str, key: str, site: str | None = None) -> None:
        """`key` names the bell for all processes; `site` is where this process's ringing is counted."""
        self.bells[name] = BellEnd(self._host.bells.bell(key), site)

    # -- rings, as crossings know them

    def stepped_memory(self, ring: str) -> SteppedMemory | None:
        """This process's view of a ring before whose stores it may stop; None where it never does."""
        spec = self.rings.get(ring) if self.stepped else None
        return None if spec is None else self.stepped.get(store_place(spec, self._crossings.name))

    def _store(self, site: str) -> Fault | None:
        """A store of a ring operation is about to be done."""
        thread = self.current_thread
        assert thread is not None, "a ring operation runs inside of an Attempt"
        fault = self._crossings.store(site, thread.name)
        if fault is None or fault.fate is Fate.CORRUPT:
            return fault
        if self._owner.befall(thread, fault, site, self._crossings.counts[site]):
            raise StoppedInOperation(resumes=self._owner.alive)
        return None

    # -- their end

    def close(self) -> None:
        """Take nothing more; what is unsent stays for the linger of its socket."""
        for port in self.sockets.values():
            port.socket.close()

    @property
    def lingering(self) -> bool:
        """Whether a closed socket still holds something."""
        return any(port.socket.lingering is not None for port in self.sockets.values())

    def untie(self) -> None:
        """The play is over."""
        for port in self.sockets.values():
            port.socket.untie()
        for ties in (self.sockets, self.queues, self.bells, self.rings, self.stepped):
            ties.clear()
        self.current_thread = None
        del self._owner, self._host
