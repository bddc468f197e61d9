"""A play in miniature: a run directory, a board, and ports over fakes or over the real thing."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.ports import RingMemory, RingSpec, SocketSpec, Unroutable
from engine.topology import Channel, Mark, Node, NodeKind, Topology, core, frontend, tensor_parallel, worker
from faults.journal import Kind, Record, journal_path, open_journal, read_journal
from faults.plan import Plan
from faults.real.board import Board, create_board, open_board
from faults.real.ports import FaultyPorts
from faults.real.processes import start_ticks

TOPOLOGY = tensor_parallel(2, subscribers=2)
OUTPUTS = "core.0->frontend.0/outputs"
REQUESTS = "frontend.0->core.0/requests"


class FakeNetwork:
    """Addresses of one play: what was sent to each and not yet taken."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, bool], deque] = {}
        self.wakes: dict[tuple[str, bool], int] = {}

    def end(self, address: str, bound: bool) -> tuple[str, bool]:
        key = (address, bound)
        if key not in self.queues:
            self.queues[key] = deque()
            self.wakes[key] = os.eventfd(0, os.EFD_NONBLOCK)
        return key

    def close(self) -> None:
        for descriptor in self.wakes.values():
            os.close(descriptor)


class FakeSocket:
    """One connection: what one end sends, the other takes."""

    def __init__(self, network: FakeNetwork, spec: SocketSpec) -> None:
        self.address = spec.address
        self.closed = False
        self._network, self._spec = network, spec
        self._mine = network.end(spec.address, spec.bind)
        self._other = network.end(spec.address, not spec.bind)

    def send(self, frames: Sequence[Any], peer: Any = 0) -> None:
        if self._spec.kind == "ROUTER" and peer == 99:
            raise Unroutable("peer 99 is not connected")
        self._network.queues[self._other].append([bytes(frame) for frame in frames])
        os.eventfd_write(self._network.wakes[self._other], 1)

    def try_receive(self) -> Any:
        try:
            os.eventfd_read(self._network.wakes[self._mine])
        except BlockingIOError:
            pass
        queue = self._network.queues[self._mine]
        return (self._spec.peer, queue.popleft()) if queue else None

    def fileno(self) -> int:
        return self._network.wakes[self._mine]

    def close(self, linger_s: float | None = None) -> None:
        self.closed = True


class FakeBell:
    def __init__(self) -> None:
        self.rung = 0

    def ring(self) -> None:
        self.rung += 1

    def seen(self) -> int:
        return self.rung

    def wait(self, seen: int, timeout_s: float) -> bool:
        return self.rung != seen

    def close(self) -> None:
        pass


class FakeGroup:
    rank, world_size = 1, 2

    def __init__(self) -> None:
        self.calls: list[str] = []

    def all_reduce(self, value: int) -> int:
        self.calls.append("all_reduce")
        return 2 * value

    def barrier(self) -> None:
        self.calls.append("barrier")

    def meet_engines(self, place: int, names: Sequence[str], where: str, timeout_s: float, meet_s: float) -> None:
        self.calls.append("meet_engines")

    def keep_step(self, wave: int, step: int) -> None:
        self.calls.append(f"keep_step {wave} {step}")

    def close(self) -> None:
        self.calls.append("close")


class FakeConsensus:
    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[str] = []

    def meet(self, deadline: float, wait: Any) -> None:
        self.calls.append("meet")

    def reduce(self, op: str, values: Sequence[int], deadline: float, wait: Any) -> list[int]:
        self.calls.append(op)
        return list(values)

    def close(self) -> None:
        self.calls.append("close")


class FakePorts:
    """`engine.ports.Ports` without anything real but the clock."""

    clock = time
    parent = None

    def __init__(self, node: Node, network: FakeNetwork) -> None:
        self.node = node
        self.network = network
        self.observed: list[tuple[str, dict]] = []
        self.marked: list[Mark] = []
        self.bells: list[FakeBell] = []
        self.group = FakeGroup()

    def open_socket(self, spec: SocketSpec) -> FakeSocket:
        return FakeSocket(self.network, spec)

    def create_ring(self, spec: RingSpec, name: str, size: int = 0) -> RingMemory:
        return RingMemory(memoryview(bytearray(size)), lambda: None)

    attach_ring = create_ring

    def shared_word(self, name: str, *, create: bool) -> str:
        return f"word {name}"

    def doorbell(self, name: str, memory: Any, offset: int) -> FakeBell:
        assert isinstance(memory, memoryview), "a bell needs the real memory"
        self.bells.append(FakeBell())
        return self.bells[-1]

    def ring_crossing(self, spec: RingSpec, operation: str, position: int, parts: Any, overflow: bool) -> None:
        pass

    def process_group(self, *args: Any) -> FakeGroup:
        return self.group

    def consensus_group(self, name: str, rank: int, members: Any, where: str) -> FakeConsensus:
        self.consensus = FakeConsensus(name)
        return self.consensus

    def start_child(self, node: Node, target: str, start_method: str) -> str:
        return f"child {node}"

    def mark(self, mark: Mark, **data: Any) -> None:
        self.marked.append(mark)

    def observe(self, name: str, **data: Any) -> None:
        self.observed.append((name, data))

    def describe(self, name: str, describe: Callable[[], dict[str, Any]]) -> None:
        self.observed.append((name, describe()))

    def close(self) -> None:
        pass


class Stage:
    """One play's directory and board; opens ports for its nodes."""

    def __init__(self, path: Path, plan: Plan, topology: Topology = TOPOLOGY) -> None:
        plan.check(topology)
        self.path, self.plan = path, plan
        (path / "journals").mkdir(exist_ok=True)
        self.board = create_board(path, plan, topology)
        self.network = FakeNetwork()

    def ports(self, node: Node, inner: Any = None, board: Board | None = None) -> FaultyPorts:
        """In this process, over fakes unless `inner` says otherwise."""
        inner = inner or FakePorts(node, self.network)
        board = board or open_board(self.path)
        board.seat(str(node), node.life).enter(os.getpid(), start_ticks(os.getpid()))
        name = str(node).partition("@")[0]
        return FaultyPorts(inner, self.plan, board, open_journal(self.path / "journals", name, node.life,
                                                                 time.monotonic))

    def records(self, node: str, kind: Kind | None = None, life: int = 0) -> list[Record]:
        file = read_journal(journal_path(self.path / "journals", node, life))
        assert not file.torn
        return [record for record in file.records if kind is None or record.kind is kind]

    def fork(self, node: Node, work: Callable[[FaultyPorts], None], inner: Callable[[Node], Any] | None = None) -> int:
        """Run `work` in a process of its own, over fakes or `inner(node)`; it exits 0 when that returns. -> its pid"""
        ready_read, ready_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.close(ready_read)
                ports = self.ports(node, inner(node) if inner else None)
                os.write(ready_write, b"x")
                work(ports)
                code = 0
            except SystemExit as leaving:
                code = leaving.code
            except BaseException:
                code = 71
            finally:
                os._exit(code)
        os.close(ready_write)
        assert os.read(ready_read, 1) == b"x"
        os.close(ready_read)
        return pid


def wait_for(condition: Callable[[], Any], timeout_s: float = 5.0) -> Any:
    """Poll until it is true. -> its value"""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.001)
    return value


def end_of(pid: int) -> int:
    """Wait for a child. -> its exit code, negative for the signal that killed it"""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def push(address: str = "fake", **more: Any) -> SocketSpec:
    """The core's end of the outputs edge."""
    return SocketSpec(name="outputs", kind="PUSH", peer_kind=NodeKind.FRONTEND, send_channel=Channel.OUTPUTS,
                      bind=False, address=address, **more)


def pull(address: str = "fake", **more: Any) -> SocketSpec:
    """The frontend's end of the outputs edge."""
    return SocketSpec(name="outputs", kind="PULL", peer_kind=NodeKind.CORE, receive_channel=Channel.OUTPUTS,
                      bind=True, address=address, **more)


def rpc_ring() -> RingSpec:
    return RingSpec(channel=Channel.RPC, writer=core(), readers=(worker(0), worker(1)), max_chunks=2,
                    max_chunk_bytes=64)


def response_ring(rank: int = 1) -> RingSpec:
    return RingSpec(channel=Channel.RESPONSE, writer=worker(rank), readers=(core(),), max_chunks=2,
                    max_chunk_bytes=64)


def drained(socket: Any) -> list[bytes]:
    """The last frames of all messages that can be taken now."""
    taken = []
    while (message := socket.try_receive()) is not None:
        taken.append(bytes(message[1][-1]))
    return taken


__all__ = ["OUTPUTS", "REQUESTS", "TOPOLOGY", "FakePorts", "Stage", "core", "drained", "end_of", "frontend", "pull",
           "push", "response_ring", "rpc_ring", "wait_for", "worker"]
