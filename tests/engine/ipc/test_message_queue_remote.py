"""MessageQueue with readers on other hosts, through its public methods: CURVE or nothing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading

import msgspec
import pytest

from engine.errors import PeerDeadError, QueueError, QueueTimeoutError
from engine.ipc import remote
from engine.ipc.message_queue import MessageQueue
from engine.ipc.wait import SpinThenSleep
from scenarios.programs.asking import has_ipv6

zmq = pytest.importorskip("zmq")
if not zmq.has("curve"):
    pytest.skip("libzmq without CURVE", allow_module_level=True)

BOUND_S = 20.0
processes = multiprocessing.get_context("fork")


@pytest.fixture
def opened():
    queues = []

    def make(kind, *args, **options):
        queues.append(kind(*args, **options))
        return queues[-1]

    yield make
    for queue in reversed(queues):
        queue.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name == "zap"]


def pair(opened, local=0, ip="127.0.0.1"):
    """A writer, its one remote reader and its local ones, ready."""
    writer = opened(MessageQueue, local + 1, local, max_chunk_bytes=4096, max_chunks=3, connect_ip=ip)
    readers = [opened(MessageQueue.create_from_handle, writer.export_handle(), rank) for rank in range(local + 1)]
    thread = threading.Thread(target=writer.wait_until_ready, args=(BOUND_S,))
    thread.start()
    for reader in readers:
        reader.wait_until_ready(BOUND_S)
    thread.join()
    return writer, readers


@pytest.mark.parametrize("ip", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(
    not has_ipv6(), reason="no IPv6 here"))])
def test_a_remote_reader_gets_the_exact_sequence_of_all_sizes(opened, ip):
    writer, (reader,) = pair(opened, ip=ip)
    assert writer.export_handle().remote_addr_ipv6 is (":" in ip)
    messages = [os.urandom(size) for size in (0, 1, 5000, 1 << 20, 3 << 20, 2)]
    for message in messages:
        writer.enqueue(message, BOUND_S)
    assert [reader.dequeue(BOUND_S) for _ in messages] == messages
    assert reader.position == len(messages)


def test_local_and_remote_readers_of_one_queue_read_the_same(opened):
    writer, readers = pair(opened, local=1)
    for message in ("a", b"b" * 10_000, ["c"]):
        writer.enqueue(message, BOUND_S)
        assert [reader.dequeue(BOUND_S) for reader in readers] == [message] * 2


def test_a_remote_reader_without_keys_in_its_handle_is_refused_at_once(opened):
    writer = opened(MessageQueue, 1, 0, connect_ip="127.0.0.1")
    handle = msgspec.structs.replace(writer.export_handle(), remote_keys=None)
    with pytest.raises(QueueError, match="refused.*no CURVE keys"):
        MessageQueue.create_from_handle(handle, 0)


def test_a_writer_without_curve_refuses_remote_readers_at_once(monkeypatch):
    monkeypatch.setattr(zmq, "has", lambda what: False)
    with pytest.raises(QueueError, match="without CURVE"):
        MessageQueue(1, 0, connect_ip="127.0.0.1")


def stranger_keys(handle):
    """As one who knows the server's public key and has a key of its own."""
    _, (_, public, secret) = remote.new_keys()
    return msgspec.structs.replace(handle, remote_keys=(handle.remote_keys[0], public, secret))


def test_a_reader_with_a_strangers_key_is_not_let_in_and_gets_nothing(opened):
    writer = opened(MessageQueue, 1, 0, connect_ip="127.0.0.1")
    reader = opened(MessageQueue.create_from_handle, stranger_keys(writer.export_handle()), 0)
    with pytest.raises(PeerDeadError, match="did not authenticate"):
        reader.wait_until_ready(BOUND_S)
    with pytest.raises(QueueTimeoutError, match=r"ranks \[0\]"):
        writer.wait_until_ready(0.3)


class Planted:
    loaded = False

    def __reduce__(self):
        return _planted, ()


def _planted():
    Planted.loaded = True


@pytest.mark.parametrize("with_curve", [False, True])
def test_bytes_of_one_who_does_not_own_the_writers_key_are_never_unpickled(opened, with_curve):
    import pickle

    writer = opened(MessageQueue, 1, 0, connect_ip="127.0.0.1")
    context = zmq.Context()
    impostor = context.socket(zmq.XPUB)
    impostor.linger = 0
    if with_curve:
        impostor.curve_publickey, impostor.curve_secretkey = zmq.curve_keypair()
        impostor.curve_server = True
    port = impostor.bind_to_random_port("tcp://127.0.0.1")
    handle = msgspec.structs.replace(writer.export_handle(), remote_subscribe_addr=f"tcp://127.0.0.1:{port}")
    reader = opened(MessageQueue.create_from_handle, handle, 0)
    for _ in range(50):
        impostor.send_multipart([pickle.dumps(Planted()), b"RTpos" + bytes(8)], zmq.NOBLOCK)
    with pytest.raises((PeerDeadError, QueueTimeoutError)):
        reader.dequeue(1.0)
    assert not Planted.loaded
    context.destroy()


def test_the_shutdown_of_the_writer_ends_a_remote_readers_wait_after_what_was_sent(opened):
    writer, (reader,) = pair(opened)
    writer.enqueue("last")
    writer.shutdown()
    assert reader.dequeue(BOUND_S) == "last"
    with pytest.raises(PeerDeadError, match="shut down|has ended"):
        reader.dequeue(BOUND_S)


def writes_until_killed(pipe):
    queue = MessageQueue(1, 0, connect_ip="127.0.0.1")
    pipe.send(queue.export_handle())
    queue.wait_until_ready(BOUND_S)
    queue.enqueue("only")
    pipe.recv()


def test_the_death_of_the_writer_ends_a_remote_readers_wait_by_name(opened):
    ours, theirs = processes.Pipe()
    child = processes.Process(target=writes_until_killed, args=(theirs,), daemon=True)
    child.start()
    reader = opened(MessageQueue.create_from_handle, ours.recv(), 0)
    reader.wait_until_ready(BOUND_S)
    assert reader.dequeue(BOUND_S) == "only"
    child.kill()
    child.join()
    with pytest.raises(PeerDeadError, match="connection to the writer"):
        reader.dequeue(BOUND_S)


def test_a_remote_reader_that_leaves_is_told_to_the_writer_by_name(opened):
    writer, (reader,) = pair(opened)
    reader.shutdown()
    with pytest.raises(PeerDeadError, match="remote reader of rank 0 is gone"):
        for _ in range(10_000):
            writer.enqueue("x", BOUND_S)
            threading.Event().wait(0.001)


def test_a_second_remote_reader_of_a_rank_is_refused_and_the_first_goes_on(opened):
    writer, (reader,) = pair(opened)
    second = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    refused = []

    def wait():
        with pytest.raises(QueueError, match="refused: a reader with this rank is there already") as said:
            second.wait_until_ready(BOUND_S)
        refused.append(said)

    thread = threading.Thread(target=wait)
    thread.start()
    sent = 0
    while thread.is_alive():  # the writer looks who has come at each message
        writer.enqueue(sent, BOUND_S)
        assert reader.dequeue(BOUND_S) == sent
        sent += 1
        thread.join(0.001)
    assert len(refused) == 1
    second.shutdown()
    for number in range(sent, sent + 50):
        writer.enqueue(number, BOUND_S)
        assert reader.dequeue(BOUND_S) == number


def test_a_writer_waits_for_a_remote_reader_that_is_too_far_behind_and_loses_nothing(opened, monkeypatch):
    monkeypatch.setattr(remote, "REMOTE_BOUND", 4)
    writer, (local, reader) = pair(opened, local=1)
    payload, sent = os.urandom(1 << 20), 0
    with pytest.raises(QueueTimeoutError, match="a reader on another host is too far behind"):
        for sent in range(1000):
            writer.enqueue((sent, payload), 0.3)
            assert local.dequeue(BOUND_S)[0] == sent
    assert 4 <= sent < 100, "more waits than the two sides and the sockets' buffers hold"
    with pytest.raises(QueueTimeoutError):
        local.dequeue(0)  # what was refused was sent to nobody
    assert writer.stats().waits >= 1
    for number in range(sent):
        assert reader.dequeue(BOUND_S) == (number, payload)
    writer.enqueue((sent, b"on"), BOUND_S)
    assert (reader.dequeue(BOUND_S), local.dequeue(BOUND_S)) == ((sent, b"on"), (sent, b"on"))


def test_nothing_is_sent_before_all_remote_readers_are_there(opened):
    writer = opened(MessageQueue, 1, 0, connect_ip="127.0.0.1")
    with pytest.raises(QueueError, match="after wait_until_ready"):
        writer.enqueue("x")


class Group:
    """A process group of threads, as `create_from_process_group` needs one."""

    def __init__(self, rank, world_size, board):
        self.rank, self.world_size, self._board = rank, world_size, board

    def all_gather_obj(self, obj):
        values, barrier = self._board["values"], self._board["barrier"]
        values[self.rank] = obj
        barrier.wait(BOUND_S)
        found = list(values)
        barrier.wait(BOUND_S)
        return found

    def broadcast_obj(self, obj, src):
        return self.all_gather_obj(obj)[src]


class Counting(SpinThenSleep):
    """How often its end waited."""

    waits = 0

    def wait(self, bell, seen, timeout_s):
        self.waits += 1
        return super().wait(bell, seen, timeout_s)


def test_the_ranks_of_a_process_group_make_one_queue(opened):
    board = {"values": [None] * 3, "barrier": threading.Barrier(3)}
    queues = [None] * 3
    ways = [Counting() for _ in range(3)]

    def join(rank):
        queues[rank] = opened(MessageQueue.create_from_process_group, Group(rank, 3, board), 4096, 3, writer_rank=1,
                              wait=ways[rank])

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    queues[1].broadcast_object("x")
    assert [queues[0].broadcast_object(), queues[2].broadcast_object()] == ["x", "x"]
    with pytest.raises(QueueTimeoutError):
        queues[0].dequeue(0.01)
    assert ways[0].waits and not ways[1].waits  # each passes the time its own way


def in_a_torch_group(rank, folder, pipe):
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    queue = MessageQueue.create_from_process_group(dist.group.WORLD, 4096, 3)
    pipe.send(queue.broadcast_object("from rank 0" if rank == 0 else None))
    pipe.recv()
    queue.shutdown()
    dist.destroy_process_group()


def test_the_ranks_of_a_torch_process_group_make_one_queue(tmp_path):
    pytest.importorskip("torch")
    ends = [processes.Pipe() for _ in range(2)]
    children = [processes.Process(target=in_a_torch_group, args=(rank, tmp_path, ends[rank][1]), daemon=True)
                for rank in range(2)]
    for child in children:
        child.start()
    said = []
    for ours, _ in ends:
        assert ours.poll(60)
        said.append(ours.recv())
    for ours, _ in ends:
        ours.send("end")
    for child in children:
        child.join(BOUND_S)
    assert said == ["from rank 0"] * 2 and [child.exitcode for child in children] == [0, 0]


def dropped_without_shutdown(pipe):
    queue = MessageQueue(2, 1, max_chunk_bytes=4096, max_chunks=2, connect_ip="127.0.0.1")
    handle, before = queue.export_handle(), threading.active_count()
    reader = MessageQueue.create_from_handle(handle, 0)
    queue._cycle = queue  # so that the collector finds it, and nothing sooner
    del queue
    gc.collect()
    told = None
    try:
        reader.dequeue(BOUND_S)
    except PeerDeadError as error:
        told = str(error)
    pipe.send((before, threading.active_count(), told, os.path.exists(f"/dev/shm/{handle.buffer_handle[3]}"),
               os.path.exists(handle.local_subscribe_addr.removeprefix("ipc://"))))
    del reader


def test_an_end_that_is_dropped_without_shutdown_leaves_nothing_and_its_readers_are_told():
    """Also with the thread alive that lets remote readers in; in a process of its own, for what if it hangs?"""
    ours, theirs = processes.Pipe()
    child = processes.Process(target=dropped_without_shutdown, args=(theirs,), daemon=True)
    child.start()
    try:
        assert ours.poll(BOUND_S), "the collection did not come to its end"
        before, after, told, *left = ours.recv()
        assert (before, after, left) == (2, 1, [False, False])
        assert "the writer was shut down" in told
        child.join(BOUND_S)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()
