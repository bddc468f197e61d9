"""One process's ports, wrapped in another `Ports` that plays a plan and records.

Promises: every crossing of `engine.topology` is counted where it happens, recorded before anything follows from
it, and met with the fate that the plan has for it; all else passes to the inner ports unchanged. With an empty
plan the wrapper only records. Nothing of this is loaded where no play asked for it: a process's recipe names
`FACTORY`, and `argument_for` says what it is given.

    open_socket       edge:send before the put, edge:receive at the take, edge:wire in a proxy (faults.real.wire)
    create, attach    ring memory whose stores are sites (faults.memory)
    doorbell          the writer's bell for its readers: drop, or a process fate
    ring_crossing     edge:send per reader before the write, edge:receive after the read
    process_group     node/collective:enter before each collective
    consensus_group   node/consensus:enter before each all-reduce
    start_child       edge:send before a recipe is written, edge:receive as a word is read (faults.real.pipes)
    parent            the same of what this process tells whoever started it
    mark              node/mark:name
    observe           into the journal
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import QueueError
from engine.ports import Child, Ports, ReadAs, RingMemory, RingSpec, SocketSpec, Told
from engine.topology import Channel, Mark, Node, NodeKind, at, mark_site
from faults.journal import Journal, digest_of, open_journal
from faults.memory import FaultyMemory
from faults.plan import Fate, Fault, Plan, plan_from_json, plan_to_json
from faults.real.board import Board, open_board
from faults.real.crossings import Crossings
from faults.real.pipes import FaultyChild, FaultyParent
from faults.real.processes import start_ticks
from faults.real.sockets import FaultySocket
from faults.real.unsteady import Unsteady
from faults.sites import SocketSites, bare, birth_edge, born_by, ring_sites, store_place, store_sites

#: `engine.process.children` opens a process's ports by this name.
FACTORY = "faults.real.ports:open_ports"


class PortsArgument(msgspec.Struct, frozen=True):
    """What travels to each process of a play."""

    run_dir: str
    plan: bytes  # JSON
    unsteady: float = 0.0  # as `Unsteady` has its share
    seed: int = 0


def argument_for(run_dir: Path, plan: Plan, unsteady: float = 0.0, seed: int = 0) -> bytes:
    """The factory's argument. The lab has made the board and the folder `journals` in `run_dir` before."""
    return msgspec.msgpack.encode(PortsArgument(str(run_dir), plan_to_json(plan), unsteady, seed))


def open_ports(node: Node, argument: bytes, open_real: Callable[[Node], Ports]) -> FaultyPorts:
    """The ports of a process that takes part in a play. Raises BoardError or OSError where there is no play."""
    given = msgspec.msgpack.decode(argument, type=PortsArgument)
    run_dir = Path(given.run_dir)
    board = open_board(run_dir)
    inner = open_real(node)
    journal = open_journal(run_dir / "journals", bare(str(node)), node.life, inner.clock.monotonic)
    board.seat(str(node), node.life).enter(os.getpid(), start_ticks(os.getpid()))
    unsteady = Unsteady(given.unsteady, given.seed, str(node)) if given.unsteady else None
    return FaultyPorts(inner, plan_from_json(given.plan), board, journal, unsteady)


class FaultyPorts:
    """See `engine.ports.Ports`."""

    def __init__(self, inner: Any, plan: Plan, board: Board, journal: Journal,
                 unsteady: Unsteady | None = None) -> None:
        self.inner = inner
        self.node: Node = inner.node
        self.clock = inner.clock
        self.board = board
        self.crossings = Crossings(plan, inner.node, board, journal, inner.clock, unsteady)
        self._name = self.crossings.name
        self.parent = self._at_birth(inner.parent)
        self._children: list[FaultyChild] = []
        self._rings: list[tuple[FaultyMemory, RingSpec, Any, bool]] = []
        self._proxies: list[Any] = []
        self._edges: dict[tuple[Channel, Node, str], tuple[str, ...]] = {}

    # -- messages

    def open_socket(self, spec: SocketSpec) -> FaultySocket:
        """Raises QueueError for one on which the readers of a ring wait: what it says is no message of any edge."""
        if spec.kind in ("PUB", "SUB") and spec.send_channel is None and spec.receive_channel is None:
            raise QueueError(f"{spec.name}: a notify socket is no site of a fault plan; choose another way to wait")
        sites = SocketSites(spec, self.node, self.board.topology)
        return FaultySocket(self.inner.open_socket(self._through_a_proxy(spec, sites)), spec, self.crossings, sites)

    def reserve_address(self, address: str) -> str:
        reserved: str = self.inner.reserve_address(address)  # nothing is said there yet
        return reserved

    def _through_a_proxy(self, spec: SocketSpec, sites: SocketSites) -> SocketSpec:
        """The spec with which to connect: to a proxy, if the plan cuts this wire."""
        if spec.bind:
            return spec
        up, down = (site if site is not None and self.crossings.judge.names(site) else None
                    for site in sites.wires())
        if up is None and down is None:
            return spec
        from faults.real.wire import WireProxy

        clock, crossings = self.clock, self.crossings
        proxy = WireProxy(
            spec.address, up=up, down=down, cross=crossings.cross, on_release=crossings.released, now=clock.monotonic,
            is_over=lambda fault, since: crossings.is_over(fault, since, clock.monotonic()))
        self._proxies.append(proxy)
        return msgspec.structs.replace(spec, address=proxy.address)

    # -- rings

    def create_ring(self, spec: RingSpec, name: str, *rest: Any, **named: Any) -> RingMemory:
        return self._wrap(spec, self.inner.create_ring(spec, name, *rest, **named))

    def attach_ring(self, spec: RingSpec, name: str, *rest: Any, **named: Any) -> RingMemory:
        return self._wrap(spec, self.inner.attach_ring(spec, name, *rest, **named), attached=True)

    def _wrap(self, spec: RingSpec, ring: RingMemory, attached: bool = False) -> RingMemory:
        from engine.ipc.ring import RingLayout

        layout = RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)
        sites = store_sites(spec, self._name)
        cross = self.crossings.cross

        def on_store(name: str) -> Fault | None:
            return cross(sites[name])[0]

        memory = FaultyMemory(ring.memory, layout, on_store)
        self._rings.append((memory, spec, layout, attached))
        return RingMemory(memory, ring.fence)

    def shared_word(self, name: str, *, create: bool) -> memoryview:
        word: memoryview = self.inner.shared_word(name, create=create)  # a heartbeat is no message
        return word

    def doorbell(self, name: str, memory: Any, offset: int) -> Any:
        bell = self.inner.doorbell(name, memory.inner if isinstance(memory, FaultyMemory) else memory, offset)
        spec = self._rung_by_its_writer(memory, offset)
        if spec is None:
            return bell
        return FaultyDoorbell(bell, at(store_place(spec, self._name), "doorbell"), self.crossings)

    def _rung_by_its_writer(self, memory: Any, offset: int) -> RingSpec | None:
        """The ring of this writer whose readers wait for this bell; None for the bells of a reader."""
        for place, spec, layout, attached in self._rings:
            if place is memory and bare(str(spec.writer)) == self._name:
                # A writer attaches to another ring where its readers' bell lies: any offset is that bell.
                return spec if attached or layout.store_name(offset) == "bell:readers" else None
        return None

    def ring_crossing(self, spec: RingSpec, operation: str, position: int, parts: Sequence[Any],
                      overflow: bool) -> None:
        key = (spec.channel, spec.writer, operation)
        sites = self._edges.get(key)
        if sites is None:
            sites = self._edges[key] = ring_sites(spec, self._name, operation)
        digest = digest_of(parts)
        data = {"position": position, "bytes": sum(memoryview(part).nbytes for part in parts), "overflow": overflow}
        noted = [(site, *self.crossings.note(site, frames=parts, channel=spec.channel, digest=digest, data=data))
                 for site in sites]
        for site, fault, nth in noted:
            if fault is not None:
                self.crossings.perform(fault, site, nth)
        self.inner.ring_crossing(spec, operation, position, parts, overflow)

    def ring_writer(self, spec: RingSpec, name: str, position: Callable[[], int],
                    parts_of: Callable[[Sequence[Any]], Sequence[Any]]) -> tuple[Told, Told]:
        return (lambda packed: self.ring_crossing(spec, "send", position(), parts_of(packed), False),
                partial(self._waited, name))

    def ring_reader(self, spec: RingSpec, name: str, position: Callable[[], int], objects: ReadAs, buffers: ReadAs,
                    ) -> tuple[ReadAs, Told, Told]:
        return (buffers, lambda parts: self.ring_crossing(spec, "receive", position() - 1, parts, False),
                partial(self._waited, name))

    def _waited(self, ring: str, wait: tuple[float, float | None, float, str]) -> None:
        began, deadline, ended, outcome = wait
        self.observe("queue-wait", ring=ring, began=began, deadline=deadline, ended=ended, outcome=outcome)

    # -- collectives, processes, marks

    def process_group(self, rank: int, world_size: int, init_method: str, device: str, timeout_s: float,
                      communicator: str, tp: int | None = None) -> Any:
        group = self.inner.process_group(rank, world_size, init_method, device, timeout_s, communicator, tp)
        return FaultyGroup(group, self._name, self.crossings, alone=self.node.kind is not NodeKind.WORKER)

    def introduce(self, card: Any, size: int, where: str, deadline: float, wait: Callable[[list[int], float], object],
                  ) -> Any:
        return self.inner.introduce(card, size, where, deadline, wait)

    def consensus_group(self, name: str, rank: int, members: Sequence[Any], where: str) -> FaultyConsensus:
        return FaultyConsensus(self.inner.consensus_group(name, rank, members, where), self._name, self.crossings)

    def start_child(self, node: Node, target: str, start_method: str) -> Child:
        child: Child = self.inner.start_child(node, target, start_method)
        says, hears = (birth_edge(self.board.topology, *way) for way in ((self.node, node), (node, self.node)))
        if says is None or hears is None:
            return child
        self._children.append(faulty := FaultyChild(child, self.crossings, says, hears))
        return faulty

    def _at_birth(self, parent: Any) -> Any:
        """The pipe to whoever started this process, where that is a process of the play."""
        hears = born_by(self.board.topology, self.node)
        if parent is None or hears is None:
            return parent
        return FaultyParent(parent, self.crossings, msgspec.structs.replace(
            hears, source=hears.target, target=hears.source), hears)

    def mark(self, mark: Mark, **data: Any) -> None:
        self.crossings.cross(mark_site(self._name, mark), data=data or None)
        self.inner.mark(mark, **data)

    def observe(self, name: str, **data: Any) -> None:
        self.crossings.observe(name, data)
        self.inner.observe(name, **data)

    def describe(self, name: str, describe: Callable[[], dict[str, Any]]) -> None:
        self.crossings.observe(name, describe())
        self.inner.describe(name, describe)

    def close(self) -> None:
        self._rings.clear()  # no reference of ours may keep a mapping open
        self.inner.close()
        for proxy in self._proxies:
            proxy.close()
        self._proxies.clear()
        for child in self._children:
            child.close()
        self._children.clear()


class FaultyDoorbell:
    """The writer's bell: each `ring()` is a crossing, and may be lost."""

    def __init__(self, inner: Any, site: str, crossings: Crossings) -> None:
        self._inner = inner
        self._site = site
        self._cross = crossings.cross
        self.seen = inner.seen
        self.wait = inner.wait
        self.close = inner.close

    def ring(self) -> None:
        fault, _ = self._cross(self._site)
        if fault is None or fault.fate is not Fate.DROP:
            self._inner.ring()


class FaultyGroup:
    """A process group: each collective, send and receive is a crossing, before it begins. Others are an error.

    `alone`: a group of one, whose own collectives are nobody's. What it enters with other engines is.
    """

    def __init__(self, inner: Any, node: str, crossings: Crossings, *, alone: bool = False) -> None:
        self._inner, self._cross, self._alone = inner, crossings.cross, alone
        self._enters = at(f"{node}/collective", "enter")
        self._sends, self._receives = at(f"{node}/pipe", "send"), at(f"{node}/pipe", "receive")
        self.rank, self.world_size = inner.rank, inner.world_size
        self.close = inner.close

    def all_reduce(self, tensor: Any) -> Any:
        return self._enter("all_reduce", tensor)

    def all_gather(self, tensor: Any, dim: int = -1) -> Any:
        return self._enter("all_gather", tensor, dim)

    def broadcast(self, tensor: Any, source: int = 0) -> Any:
        return self._enter("broadcast", tensor, source)

    def barrier(self) -> None:
        self._enter("barrier")

    def meet_engines(self, *arguments: Any) -> None:
        self._inner.meet_engines(*arguments)

    def keep_step(self, wave: int, step: int) -> None:
        self._cross(self._enters, data={"operation": "keep_step", "wave": wave, "step": step})
        self._inner.keep_step(wave, step)

    def _enter(self, operation: str, *arguments: Any) -> Any:
        if not self._alone:
            self._cross(self._enters, data={"operation": operation})
        return getattr(self._inner, operation)(*arguments)

    def send(self, what: str, step: int, tensor: Any) -> None:
        self._cross(self._sends, data={"what": what, "step": step})
        self._inner.send(what, step, tensor)

    def receive(self, what: str, step: int, tensor: Any) -> Any:
        self._cross(self._receives, data={"what": what, "step": step})
        return self._inner.receive(what, step, tensor)


class FaultyConsensus:
    """Processes that decide together: each all-reduce is a crossing, before it begins. Others are an error."""

    def __init__(self, inner: Any, node: str, crossings: Crossings) -> None:
        self._inner, self._cross = inner, crossings.cross
        self._enters = at(f"{node}/{Channel.CONSENSUS.value}", "enter")
        self.name, self.meet, self.close = inner.name, inner.meet, inner.close

    def reduce(self, op: str, *arguments: Any) -> list[int]:
        self._cross(self._enters, data={"group": self.name, "operation": op})
        answer: list[int] = self._inner.reduce(op, *arguments)
        return answer
