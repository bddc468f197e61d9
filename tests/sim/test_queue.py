"""The engine's own message queue, run by the twin: every reader gets an exact prefix whatever is done to it."""

import pytest

from engine.effects import Now, Receive
from engine.errors import QueueTimeoutError
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.ring import RingLayout, RingReader, RingWriter
from engine.ports import RingSpec, SocketSpec
from engine.topology import Channel, NodeKind, core, tensor_parallel, worker
from faults.plan import Fate, Fault, Until, delay, kill, plan, stall
from sim.process.effects import Sleep
from sim.simulation import Simulation

READERS = (worker(0), worker(1))
SPEC = RingSpec(channel=Channel.RPC, writer=core(), readers=READERS, max_chunks=3, max_chunk_bytes=64)
LAYOUT = RingLayout(2, 64, 3)
#: Small ones, one that overflows the chunk, small ones.
MESSAGES = [b"%d" % n if n != 4 else b"4" * 200 for n in range(9)]


class Broadcast:
    """core.0 sends MESSAGES to two workers by `QueueWriter.enqueue`, one a millisecond; they `dequeue` for 2 s."""

    def __init__(self, the_plan=None, write_s=5.0):
        self.sim = Simulation(tensor_parallel(2), the_plan)
        self.write_s = write_s
        self.read = {node: [] for node in map(str, READERS)}
        self.sim.host.create_segment("rpc", LAYOUT.total_bytes)
        self.core = self.sim.start_process(core(), self._write)
        for node in READERS:
            self.sim.start_process(node, self._read)
        self.sim.run(20.0)

    def _ends(self, process):
        process.ports.add_ring("rpc", SPEC)
        process.ports.add_bell("rpc", "rpc/readers", "core.0/rpc:doorbell" if process is self.core else None)
        process.ports.add_bell("rpc space", "rpc/writer")
        process.recheck_s = 0.1
        return process.ports.attach_ring(SPEC, "rpc")

    def _write(self, process):
        ring = self._ends(process)
        process.ports.open_socket(SocketSpec(name="overflow", kind="XPUB", peer_kind=NodeKind.WORKER, bind=True,
                                       send_channel=Channel.OVERFLOW, address="ipc:///run/overflow"))
        writer = QueueWriter("rpc", RingWriter(LAYOUT, ring.memory, ring.fence), 2, bell="rpc", space_bell="rpc space",
                             overflow_outbox="overflow")
        for _ in READERS:
            yield Receive(("overflow",), None)
        for message in MESSAGES:
            yield from writer.enqueue([message], (yield Now()) + self.write_s)
            yield Sleep(0.001)

    def _read(self, process):
        ring = self._ends(process)
        process.ports.open_socket(SocketSpec(name="overflow", kind="SUB", peer_kind=NodeKind.CORE, bind=False,
                                       receive_channel=Channel.OVERFLOW, address="ipc:///run/overflow"))
        reader = QueueReader("rpc", RingReader(LAYOUT, ring.memory, ring.fence, process.node.index), bell="rpc",
                             space_bell="rpc space", overflow_inbox="overflow", recheck_s=0.1)
        while True:
            try:
                parts = yield from reader.dequeue((yield Now()) + 2.0)
            except QueueTimeoutError:
                return
            self.read[process.name].append(b"".join(map(bytes, parts)))


def stores(place, names):
    return [f"{place}:store.{name}" for name in names]


def test_all_read_all():
    """A ring of three chunks, nine messages, one of them by way of the overflow socket: both readers get each."""
    assert list(Broadcast().read.values()) == [MESSAGES, MESSAGES]


@pytest.mark.parametrize("site", [*stores("core.0/rpc", ("reset", "data", "readers", "written")),
                                  "core.0->worker.1/rpc:send", "core.0/rpc:doorbell"])
@pytest.mark.parametrize("nth", [1, 5, 6])
def test_a_dead_writer_leaves_the_same_prefix_to_all(site, nth):
    """Wherever the writer dies, both readers have read the same whole messages from the first on."""
    first, second = Broadcast(plan(kill("core.0", at=site, nth=nth))).read.values()
    published = nth if site.endswith("doorbell") else nth - 1
    assert first == second == MESSAGES[:published] or (first == second == MESSAGES[:4] and nth == 5)


@pytest.mark.parametrize("site", [*stores("core.0/rpc", ("reset", "data", "readers", "written")),
                                  *stores("worker.1/rpc", ("read",)), "core.0->worker.1/rpc:receive"])
@pytest.mark.parametrize("nth", [1, 4, 5, 9])
def test_a_stop_between_any_two_stores_changes_nothing(site, nth):
    """Stopped for 300 ms there and let go on, everybody reads everything once."""
    node = site.split("->")[-1].split("/")[0] if "->" in site else site.split("/")[0]
    the_plan = plan(stall(node, at=site, nth=nth, until=Until(seconds=0.3)))
    assert list(Broadcast(the_plan).read.values()) == [MESSAGES, MESSAGES]


def test_a_late_overflow_payload_keeps_its_place():
    late = delay("core.0->worker.1/overflow", until=Until(seconds=0.5))
    assert list(Broadcast(plan(late)).read.values()) == [MESSAGES, MESSAGES]


def test_a_lost_doorbell_is_made_up_for_by_the_recheck():
    lost = Fault(id="", site="core.0/rpc:doorbell", fate=Fate.DROP, nth=9)
    assert list(Broadcast(plan(lost)).read.values()) == [MESSAGES, MESSAGES]


def test_a_writer_facing_a_dead_reader_fails_at_its_deadline():
    """The ring fills, the wait ends with the queue's own error, and the living reader has an exact prefix."""
    broadcast = Broadcast(plan(kill("worker.1", at="worker.1/rpc:store.read", nth=2)), write_s=0.5)
    assert isinstance(broadcast.core.error, QueueTimeoutError)
    read = broadcast.read["worker.0"]
    assert read == MESSAGES[:len(read)] and len(read) == 4
