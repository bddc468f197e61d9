"""Wrapped ports, over fakes: each kind of site is counted, recorded and met with its fate."""

import os
import threading
import time

import msgspec
import pytest

from engine.errors import PeerDeadError, QueueError, QueueTimeoutError
from engine.ipc.message_queue import MessageQueue
from engine.ipc.notify import NotifySocket
from engine.ipc.ring import RingLayout, RingReader, RingWriter
from engine.ports import Ports, SocketSpec, Unroutable
from engine.process.real_ports import RealPorts
from engine.topology import Channel, Mark, NodeKind
from faults.journal import Kind, digest_of, journal_path, open_journal, read_journal
from faults.plan import Fate, Fault, Plan, corrupt, delay, drop, duplicate, plan, raises, reorder, truncate, until
from faults.real.board import create_board
from faults.real.ports import FaultyGroup, FaultyPorts
from faults.real.processes import start_ticks
from tests.faults.stage import (
    OUTPUTS,
    REQUESTS,
    TOPOLOGY,
    FakeNetwork,
    FakePorts,
    Stage,
    core,
    drained,
    frontend,
    pull,
    push,
    response_ring,
    rpc_ring,
    worker,
)


@pytest.fixture
def stage(tmp_path):
    stages = []

    def make(*faults):
        stages.append(Stage(tmp_path, plan(*faults)))
        return stages[-1]

    yield make
    for made in stages:
        made.network.close()


def outputs_edge(stage):
    """-> (the core's socket, the frontend's)"""
    return stage.ports(core()).open_socket(push()), stage.ports(frontend()).open_socket(pull())


def send_numbers(socket, count, first=0):
    for number in range(first, first + count):
        socket.send([b"%d" % number])


def test_with_an_empty_plan_the_wrapper_only_records(stage):
    play = stage()
    sender, receiver = outputs_edge(play)
    send_numbers(sender, 3)
    assert drained(receiver) == [b"0", b"1", b"2"]
    sends, receives = play.records("core.0"), play.records("frontend.0")
    assert [(r.kind, r.site, r.nth) for r in sends] == [(Kind.CROSSING, f"{OUTPUTS}:send", n) for n in (1, 2, 3)]
    assert [r.digest for r in receives] == [r.digest for r in sends] == [digest_of([b"%d" % n]) for n in range(3)]
    assert receiver.fileno() == receiver.inner.fileno()


def test_equal_messages_are_told_apart_by_their_occurrence(stage):
    play = stage()
    sender, receiver = outputs_edge(play)
    for _ in range(3):
        sender.send([b"same"])
    drained(receiver)
    assert [r.occurrence for r in play.records("frontend.0")] == [0, 1, 2]


@pytest.mark.parametrize(("fault", "arrives"), [
    (drop(OUTPUTS, nth=2), ["0", "2", "3"]),
    (drop(OUTPUTS, nth=2, times=2), ["0", "3"]),
    (duplicate(OUTPUTS, nth=2), ["0", "1", "1", "2", "3"]),
    (reorder(OUTPUTS, nth=2), ["0", "2", "1", "3"]),
    (corrupt(OUTPUTS, nth=2), ["0", "\xce", "2", "3"]),
    (truncate(OUTPUTS, nth=2), ["0", "", "2", "3"]),
    (delay(OUTPUTS, nth=2, until=until(OUTPUTS, 4)), ["0", "2", "3", "1"]),
    (delay(OUTPUTS, nth=1, until=until(OUTPUTS, 1)), ["0", "1", "2", "3"]),
], ids=lambda value: value.fate.value if isinstance(value, Fault) else "")
def test_what_befalls_an_arriving_message(stage, fault, arrives):
    sender, receiver = outputs_edge(stage(fault))
    send_numbers(sender, 4)
    assert [data.decode("latin-1") for data in drained(receiver)] == arrives


def test_every_fault_leaves_a_receipt_and_its_crossing_says_so(stage):
    play = stage(drop(OUTPUTS, nth=2))
    sender, receiver = outputs_edge(play)
    send_numbers(sender, 2)
    drained(receiver)
    (receipt,) = play.records("frontend.0", Kind.RECEIPT)
    assert receipt.site == "f1"
    assert receipt.data == {"site": f"{OUTPUTS}:receive", "nth": 2, "fate": "drop", "victim": "frontend.0"}
    assert play.records("frontend.0", Kind.CROSSING)[1].data == {"fate": "drop", "fault": "f1"}
    assert play.board.fired() == ("f1",)


def test_a_delayed_message_is_recorded_when_it_arrives_and_when_it_is_released(stage):
    play = stage(delay(OUTPUTS, nth=1, until=until(OUTPUTS, 2)))
    sender, receiver = outputs_edge(play)
    send_numbers(sender, 2)
    assert drained(receiver) == [b"1", b"0"]
    kinds = [(r.kind, r.nth) for r in play.records("frontend.0")]
    assert kinds == [(Kind.CROSSING, 1), (Kind.RECEIPT, 1), (Kind.CROSSING, 2), (Kind.RELEASE, 1)]
    assert play.board.released_at("f1") is not None


def test_a_delay_may_wait_for_another_process(stage):
    play = stage(delay(OUTPUTS, nth=1, until=until("core.0/mark:step", 2)))
    core_ports = play.ports(core())
    sender, receiver = core_ports.open_socket(push()), play.ports(frontend()).open_socket(pull())
    send_numbers(sender, 1)
    assert drained(receiver) == []
    core_ports.mark(Mark.STEP)
    assert drained(receiver) == []
    core_ports.mark(Mark.STEP)
    assert drained(receiver) == [b"0"]


def test_faults_of_one_process_count_after_those_of_another(stage):
    later = Fault(id="late", site=f"{OUTPUTS}:receive", fate=Fate.DROP, after="f1")
    play = stage(raises("core.0", at="core.0/mark:step"), later)
    core_ports = play.ports(core())
    sender, receiver = core_ports.open_socket(push()), play.ports(frontend()).open_socket(pull())
    send_numbers(sender, 1)
    assert drained(receiver) == [b"0"]
    with pytest.raises(RuntimeError, match="planted"):
        core_ports.mark(Mark.STEP)
    send_numbers(sender, 2, first=1)
    assert drained(receiver) == [b"2"]


def test_a_sender_that_raises_has_sent_nothing(stage):
    sender, receiver = outputs_edge(stage(raises("core.0", at=f"{OUTPUTS}:send", nth=2)))
    sender.send([b"0"])
    with pytest.raises(RuntimeError):
        sender.send([b"1"])
    sender.send([b"2"])
    assert drained(receiver) == [b"0", b"2"]


def test_a_receiver_that_raises_has_lost_nothing(stage):
    sender, receiver = outputs_edge(stage(raises("frontend.0", at=f"{OUTPUTS}:receive", nth=1, text="boom")))
    send_numbers(sender, 2)
    with pytest.raises(RuntimeError, match="boom"):
        receiver.try_receive()
    assert drained(receiver) == [b"0", b"1"]


def test_a_message_that_could_not_be_routed_is_told_apart_from_a_lost_one(stage):
    play = stage()
    router = play.ports(frontend()).open_socket(SocketSpec(
        name="requests", kind="ROUTER", peer_kind=NodeKind.CORE, send_channel=Channel.REQUESTS, bind=True,
        address="fake"))
    with pytest.raises(Unroutable):
        router.send([b"x"], 99)
    (unsent,) = play.records("frontend.0", Kind.OBSERVATION)
    assert (unsent.site, unsent.data) == ("not-sent", {"site": "frontend.0->core.99/requests:send", "nth": 1})


def test_a_publisher_s_message_crosses_one_edge_for_each_subscriber_of_the_play(stage):
    play = stage()
    publisher = play.ports(core()).open_socket(SocketSpec(
        name="kv", kind="PUB", peer_kind=NodeKind.SUBSCRIBER, send_channel=Channel.KV, bind=True, address="fake"))
    publisher.send([b"", b"0" * 8, b"x"])
    assert [r.site for r in play.records("core.0")] == [f"core.0->subscriber.{k}/kv:send" for k in (0, 1)]


def test_a_socket_without_channels_is_not_counted(stage):
    play = stage()
    socket = play.ports(core()).open_socket(SocketSpec(
        name="x", kind="PUSH", peer_kind=NodeKind.FRONTEND, bind=False, address="fake"))
    socket.send([b"x"])
    assert socket.try_receive() is None
    assert play.records("core.0") == []


def test_a_match_on_the_message_reaches_the_right_one(stage):
    play = stage(drop(REQUESTS, match={"type": "ABORT"}))
    spec = SocketSpec(name="r", kind="DEALER", peer_kind=NodeKind.CORE, send_channel=Channel.REQUESTS, bind=True,
                      address="fake")
    there = SocketSpec(name="r", kind="DEALER", peer_kind=NodeKind.FRONTEND, receive_channel=Channel.REQUESTS,
                       bind=False, address="fake")
    sender, receiver = play.ports(frontend()).open_socket(spec), play.ports(core()).open_socket(there)
    for message in ([b"\x00", b"\x90"], [b"\x01", b"\x91\xa1r"], [b"\x02", b"w"]):
        sender.send(message)
    assert drained(receiver) == [b"\x90", b"w"]


def test_marks_are_counted_and_still_reach_the_inner_ports(stage):
    play = stage()
    ports = play.ports(core())
    ports.mark(Mark.SCHEDULED, step=4)
    assert ports.inner.marked == [Mark.SCHEDULED]
    (crossing,) = play.records("core.0")
    assert (crossing.site, crossing.nth, crossing.data) == ("core.0/mark:scheduled", 1, {"step": 4})


def test_observations_go_into_the_journal_with_whatever_they_hold(stage):
    play = stage()
    play.ports(core()).observe("request", request="r", odd=complex(1, 2))
    play.ports(core()).describe("step", lambda: {"call": 3})
    seen = [(record.site, record.data) for record in play.records("core.0", Kind.OBSERVATION)]
    assert seen == [("request", {"request": "r", "odd": "(1+2j)"}), ("step", {"call": 3})]


def test_all_else_passes_to_the_inner_ports(stage):
    ports = stage().ports(core())
    assert ports.start_child(worker(7), "a:b", "spawn") == "child worker.7"  # of no topology: nothing of it is played
    assert ports.parent is None
    assert ports.clock is FakePorts.clock


def test_a_collective_is_counted_and_may_raise(stage):
    play = stage(raises("worker.1", at="worker.1/collective:enter", nth=2))
    ports = play.ports(worker(1))
    group = ports.process_group(1, 2, "file:///x", "cpu", 1.0, "gloo")
    assert (group.all_reduce(4), group.rank) == (8, 1)
    with pytest.raises(RuntimeError):
        group.barrier()
    assert ports.inner.group.calls == ["all_reduce"]
    assert [(r.nth, r.data["operation"]) for r in play.records("worker.1", Kind.CROSSING)] == [
        (1, "all_reduce"), (2, "barrier")]


def test_keeping_step_with_other_engines_is_a_collective_and_meeting_them_is_none(stage):
    play = stage(raises("worker.1", at="worker.1/collective:enter", nth=2))
    ports = play.ports(worker(1))
    group = ports.process_group(1, 2, "file:///x", "cpu", 1.0, "gloo")
    group.meet_engines(0, ["worker.1", "worker.1.1"], "file:///y", 1.0, 1.0)
    group.keep_step(2, 7)
    with pytest.raises(RuntimeError):
        group.keep_step(2, 8)
    assert ports.inner.group.calls == ["meet_engines", "keep_step 2 7"]
    assert [r.data for r in play.records("worker.1", Kind.CROSSING)][0] == {
        "operation": "keep_step", "wave": 2, "step": 7}


def test_what_cores_decide_together_is_counted_before_it_is_entered(tmp_path):
    """The topology of a play names this site once it has such cores: here the plan is its own."""
    the_plan = plan(raises("core.0", at="core.0/consensus:enter", nth=2))
    (tmp_path / "journals").mkdir()
    board = create_board(tmp_path, the_plan, TOPOLOGY)
    board.seat("core.0").enter(os.getpid(), start_ticks(os.getpid()))
    network = FakeNetwork()
    inner = FakePorts(core(), network)
    ports = FaultyPorts(inner, the_plan, board, open_journal(tmp_path / "journals", "core.0", 0, time.monotonic))
    group = ports.consensus_group("dp", 0, (), "file:///x")
    group.meet(1.0, None)
    assert group.reduce("sum", [1, 2], 1.0, None) == [1, 2]
    with pytest.raises(RuntimeError):
        group.reduce("max", [3], 1.0, None)
    group.close()
    assert inner.consensus.calls == ["meet", "sum", "close"]
    crossings = [r for r in read_journal(journal_path(tmp_path / "journals", "core.0", 0)).records
                 if r.kind is Kind.CROSSING]
    assert [(r.site, r.nth, r.data["group"], r.data["operation"]) for r in crossings] == [
        ("core.0/consensus:enter", 1, "dp", "sum"), ("core.0/consensus:enter", 2, "dp", "max")]


def ring_of(ports, spec):
    layout = RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)
    return layout, ports.create_ring(spec, "ring", layout.total_bytes)


@pytest.mark.parametrize(("node", "spec", "writes", "site"), [
    (core(), rpc_ring(), True, "core.0/rpc:store.written"),
    (worker(1), rpc_ring(), False, "worker.1/rpc:store.read"),
    (worker(1), response_ring(), True, "worker.1/response:store.reset"),
    (core(), response_ring(), False, "core.0/response.1:store.read"),
], ids=["writer of rpc", "reader of rpc", "writer of response", "reader of response"])
def test_stores_belong_to_who_makes_them(stage, node, spec, writes, site):
    play = stage(raises(str(node), at=site))
    layout, ring = ring_of(play.ports(node), spec)
    with pytest.raises(RuntimeError):
        if writes:
            RingWriter(layout, ring.memory, ring.fence).try_write([b"x"])
        else:
            RingWriter(layout, ring.memory.inner, ring.fence).try_write([b"x"])
            RingReader(layout, ring.memory, ring.fence, len(spec.readers) - 1).try_read(bytes)
    assert play.records(str(node), Kind.RECEIPT)[0].data["site"] == site


def test_the_bell_of_the_writer_may_be_lost_and_no_other_bell_is_counted(stage):
    play = stage(Fault(id="", site="core.0/rpc:doorbell", fate=Fate.DROP, nth=2))
    ports = play.ports(core())
    layout, ring = ring_of(ports, rpc_ring())
    bell = ports.doorbell("rpc", ring.memory, layout.readers_bell_offset)
    own = ports.doorbell("rpc", ring.memory, layout.writer_bell_offset)
    for _ in range(3):
        bell.ring()
        own.ring()
    assert [inner.rung for inner in ports.inner.bells] == [2, 3]
    assert (bell.seen(), bell.wait(0, 0.0)) == (2, True)
    assert [r.nth for r in play.records("core.0", Kind.CROSSING)] == [1, 2, 3]


def test_a_reader_rings_without_being_counted(stage):
    play = stage()
    ports = play.ports(worker(1))
    layout, ring = ring_of(ports, rpc_ring())
    ports.doorbell("rpc", ring.memory, layout.writer_bell_offset).ring()
    assert play.records("worker.1") == []


def test_the_bell_of_an_answer_is_counted_where_it_is_rung_although_it_lies_in_another_ring(stage):
    play = stage(Fault(id="", site="worker.1/response:doorbell", fate=Fate.DROP))
    ports = play.ports(worker(1))
    spec = response_ring(1)
    rpc_layout, _ = ring_of(ports, rpc_ring())
    layout, own = ring_of(ports, spec)
    bell = ports.doorbell("answer", ports.attach_ring(spec, "rpc").memory, rpc_layout.writer_bell_offset)
    ports.doorbell("space", own.memory, layout.writer_bell_offset).ring()
    bell.ring()
    bell.ring()
    assert ports.inner.bells[0].rung == 1
    assert [r.site for r in play.records("worker.1", Kind.CROSSING)] == ["worker.1/response:doorbell"] * 2


def test_a_ring_message_crosses_one_edge_for_each_reader(stage):
    play = stage(raises("core.0", at="core.0->worker.1/rpc:send", nth=2))
    ports = play.ports(core())
    ports.ring_crossing(rpc_ring(), "send", 0, [b"abc", b"de"], False)
    with pytest.raises(RuntimeError):
        ports.ring_crossing(rpc_ring(), "send", 1, [b"f"], True)
    crossings = play.records("core.0", Kind.CROSSING)
    assert [r.site for r in crossings] == [f"core.0->worker.{k}/rpc:send" for k in (0, 1)] * 2
    assert crossings[0].data == {"position": 0, "bytes": 5, "overflow": False}
    assert crossings[0].digest == digest_of([b"abc", b"de"])
    assert crossings[3].data == {"position": 1, "bytes": 1, "overflow": True, "fate": "raise", "fault": "f1"}


def test_a_ring_message_is_received_on_the_reader_s_own_edge(stage):
    play = stage()
    play.ports(core()).ring_crossing(response_ring(), "receive", 7, [b"x"], False)
    (crossing,) = play.records("core.0")
    assert (crossing.site, crossing.data["position"]) == ("worker.1->core.0/response:receive", 7)


def test_a_site_of_a_second_life_is_played_there(tmp_path):
    play = Stage(tmp_path, plan(raises("core.0@1", at="core.0@1/mark:step")))
    play.ports(core()).mark(Mark.STEP)
    with pytest.raises(RuntimeError):
        play.ports(core(life=1)).mark(Mark.STEP)
    assert [r.site for r in play.records("core.0", Kind.CROSSING, life=1)] == ["core.0/mark:step"]
    play.network.close()


def test_threads_of_one_process_count_together(stage):
    """Four threads cross one site 250 times each: every number from 1 to 1000 is given once."""
    play = stage()
    ports = play.ports(core())

    def work():
        for _ in range(250):
            ports.mark(Mark.IDLE)

    threads = [threading.Thread(target=work, name=f"t{n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = play.records("core.0")
    assert sorted(r.nth for r in records) == list(range(1, 1001))
    assert [r.number for r in records] == list(range(1000))
    assert {r.thread for r in records} == {"t0", "t1", "t2", "t3"}


def test_an_exit_is_a_system_exit_with_its_code(stage):
    ports = stage(Fault(id="", site="core.0/mark:step", fate=Fate.EXIT, code=7)).ports(core())
    with pytest.raises(SystemExit) as leaving:
        ports.mark(Mark.STEP)
    assert leaving.value.code == 7


def test_an_empty_plan_needs_no_timer(tmp_path):
    play = Stage(tmp_path, Plan())
    sender, receiver = outputs_edge(play)
    sender.close()
    receiver.close()
    assert sender.inner.closed
    play.network.close()


def protocol_members(protocol) -> set[str]:
    return {name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith("_")}


def test_every_port_is_wrapped_or_passed_on_by_its_name(stage):
    """And one that the fault layer does not know is an error, not a hole."""
    ports = stage().ports(core())
    known = {*vars(FaultyPorts), *vars(ports)}
    assert protocol_members(Ports) - known == set()
    ports.inner.a_port_of_tomorrow = lambda: None
    with pytest.raises(AttributeError):
        _ = ports.a_port_of_tomorrow


def test_ports_that_count_nothing_reach_the_inner_ones(stage):
    ports = stage().ports(core())
    assert ports.start_child(worker(7), "module:main", "fork") == "child worker.7"
    assert ports.parent is ports.inner.parent and ports.shared_word("beat", create=True) == "word beat"


def test_a_notify_socket_is_refused_by_its_name(tmp_path):
    """With the plan's ports around it, a queue that would wait on one does not open, and leaves nothing."""
    ports = Stage(tmp_path, Plan()).ports(core(), RealPorts(core()))
    with pytest.raises(QueueError, match="ring.notify: a notify socket is no site of a fault plan"):
        MessageQueue(1, 1, max_chunk_bytes=4096, max_chunks=3, ports=ports, wait=NotifySocket())
    ports.close()


def test_an_end_that_writes_or_reads_without_a_loop_crosses_as_a_loop_does(tmp_path):
    """One crossing per message and edge, before the first store, after the flag of the read; the bytes are the same."""
    play = Stage(tmp_path, plan(raises("core.0", at="core.0->worker.0/rpc:send", nth=2)))
    ring = msgspec.structs.replace(rpc_ring(), readers=(worker(0),), max_chunk_bytes=4096)
    ends = [play.ports(node, RealPorts(node)) for node in (core(), worker(0))]
    writer = MessageQueue(1, 1, max_chunk_bytes=4096, max_chunks=2, ports=ends[0], spec=ring)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0, ports=ends[1], spec=ring)
    writer.enqueue({"a": 1})
    assert reader.dequeue(10.0) == {"a": 1}
    with pytest.raises(RuntimeError):
        writer.enqueue("never sent")
    writer.enqueue("b")
    assert reader.dequeue(10.0) == "b"
    sent, received = play.records("core.0", Kind.CROSSING), play.records("worker.0", Kind.CROSSING)
    edge = [r for r in sent if r.site == "core.0->worker.0/rpc:send"]
    assert [(r.nth, r.data["position"]) for r in edge] == [(1, 0), (2, 1), (3, 1)] and edge[1].data["fate"] == "raise"
    got = [r for r in received if r.site == "core.0->worker.0/rpc:receive"]
    assert [(r.digest, r.data) for r in got] == [(r.digest, r.data) for r in (edge[0], edge[2])]
    assert [r.site.partition(":")[2] for r in sent[:6]] == [
        "send", "store.reset", "store.data", "store.readers", "store.written", "doorbell"]
    assert [r.site.partition(":")[2] for r in received[:2]] == ["store.read", "receive"]
    reader.shutdown(), writer.shutdown()
    for ports in ends:
        ports.close()


def test_every_collective_of_a_worker_s_group_is_counted_or_unknown(stage):
    torch = pytest.importorskip("torch")
    from engine.worker.parallel.distributed import ProcessGroup

    assert torch and protocol_members(ProcessGroup) - {*vars(FaultyGroup), "rank", "world_size", "close"} == set()
    group = stage().ports(worker(1)).process_group(1, 2, "file:///x", "cpu", 1.0, "gloo")
    with pytest.raises(AttributeError):
        _ = group.all_to_all


def test_a_wait_without_a_loop_is_told_to_the_judges_as_one_with(tmp_path):
    """However it ends: with a message, at its deadline, with the writer's end; and a full ring is marked."""
    play = Stage(tmp_path, Plan())
    ring = msgspec.structs.replace(rpc_ring(), readers=(worker(0),), max_chunk_bytes=4096)
    ends = [play.ports(node, RealPorts(node)) for node in (core(), worker(0))]
    writer = MessageQueue(1, 1, max_chunk_bytes=4096, max_chunks=2, ports=ends[0], spec=ring, name="rpc")
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0, ports=ends[1], spec=ring)
    with pytest.raises(QueueTimeoutError):
        reader.dequeue(0.01)
    writer.enqueue(1), writer.enqueue(2)
    for timeout in (0, 0.01):
        with pytest.raises(QueueTimeoutError):
            writer.enqueue(3, timeout)
    assert [reader.dequeue(0), reader.dequeue(0)] == [1, 2]
    sender = threading.Timer(0.05, writer.enqueue, [4])
    sender.start()
    assert reader.dequeue(10.0) == 4
    sender.join()
    writer.shutdown()
    with pytest.raises(PeerDeadError):
        reader.dequeue(10.0)

    def waits(node):
        return [(r.data["ring"], r.data["outcome"]) for r in play.records(node, Kind.OBSERVATION)
                if r.site == "queue-wait"]

    assert waits("worker.0") == [("rpc", outcome) for outcome in ("timeout", "ok", "peer-dead")]
    assert waits("core.0") == [("rpc", "timeout")]
    assert [r.data for r in play.records("core.0", Kind.CROSSING) if r.site == "core.0/mark:ring-full"] == [
        {"ring": "rpc"}] * 2
    reader.shutdown()
    for ports in ends:
        ports.close()
