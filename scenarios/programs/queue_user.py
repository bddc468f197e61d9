"""The processes of a real play of the queue: each uses a `MessageQueue` as any program would, and says what came of it.

See `scenarios.lab.queue_play`, whose plays these are: core.0 puts objects in, each worker.k takes them out, frontend.0
is the program beside them. The lab hands the handle on, and says whose turn it is when all have done their part.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from glob import glob
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

import msgspec

from engine.config import Bounds, RingConfig
from engine.errors import PeerDeadError, QueueCancelledError, QueueDecodeError, QueueError, QueueTimeoutError
from engine.ipc.framing import encode_chunk, pack, parts_of
from engine.ipc.group import from_process_group
from engine.ipc.handle import Handle
from engine.ipc.message_queue import MessageQueue
from engine.ipc.notify import NotifySocket
from engine.ipc.ring import EMPTY
from engine.ipc.segment import FOLDER, attach_segment
from engine.ipc.spill import SPILL_BYTES
from engine.ipc.wait import Spin, SpinThenNap
from engine.ports import RingSpec, SocketSpec
from engine.process.children import set_process_title
from engine.process.entry import open_ports
from engine.topology import Channel, Node, NodeKind, core, worker
from scenarios.lab.queue_asks import damages
from scenarios.lab.queue_objects import Raw, Sent, face, is_kept
from scenarios.lab.queue_play import END, FIRST_S, KEPT, LATE_S, PATIENCE_S, PLAYS, QueuePlay
from scenarios.lab.script import CLOSE, DONE, GO
from scenarios.worlds.caller import log_to

#: What the writer says to the lab, and the lab to all others, with the handle behind it.
HANDLE = b"handle "
_WAYS: dict[str, Callable[[], Any]] = {
    "": lambda: None, "spin": Spin, "nap": lambda: SpinThenNap(busy_s=0.01), "notify": NotifySocket}


class QueueRecipe(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    queue: str  # a row of PLAYS
    ring: RingConfig
    bounds: Bounds
    ports_factory: str
    ports_argument: bytes
    folder: str  # for what has no name of its own
    log: str


def main(recipe: bytes, connection: Connection) -> None:
    """Entry point of each process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle; it ends its processes
    asked = msgspec.msgpack.decode(recipe, type=QueueRecipe)
    node = Node.parse(asked.node)
    set_process_title(f"queue-{asked.node}")
    log_to(asked.log)
    tempfile.tempdir = asked.folder
    ports = open_ports(node, asked.ports_factory, asked.ports_argument)
    user = {NodeKind.CORE: Writer, NodeKind.WORKER: Reader}.get(node.kind, Program)(asked, node, ports, connection)
    user.run()
    ports.observe("bye", reason="done")
    ports.close()


class PortsOfAQueue:
    """The ports of a play; what leads to another host, or only wakes somebody, is no edge of any topology."""

    def __init__(self, ports: Any) -> None:
        self._ports = ports

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ports, name)

    def open_socket(self, spec: SocketSpec) -> Any:
        is_edge = spec.curve is None and not (spec.send_channel is None and spec.receive_channel is None)
        return (self._ports if is_edge else self._ports.inner).open_socket(spec)


class User:
    """What all of them do."""

    def __init__(self, asked: QueueRecipe, node: Node, ports: Any, connection: Connection) -> None:
        self.play: QueuePlay = PLAYS[asked.queue]
        self.node, self.ring, self.bounds = node, asked.ring, asked.bounds
        self.ports, self.now = PortsOfAQueue(ports), ports.clock.monotonic
        self._connection, self.folder = connection, asked.folder
        self.local = self.play.readers - self.play.remote
        self.spec = RingSpec(channel=Channel.RPC, writer=core(), readers=tuple(map(worker, range(self.local))),
                             max_chunks=self.ring.max_chunks, max_chunk_bytes=self.ring.max_chunk_bytes)

    def say(self, word: bytes) -> None:
        self._connection.send_bytes(word)

    def hear(self) -> bytes:
        """What the lab says; its silence means: leave."""
        try:
            return self._connection.recv_bytes()
        except EOFError:
            return CLOSE

    def observe(self, name: str, **data: Any) -> None:
        self.ports.observe(name, **data)

    def handle(self) -> Handle:
        return msgspec.msgpack.decode(self.hear()[len(HANDLE):], type=Handle)

    def opened(self, handle: Handle, rank: int, wait: Any = None) -> MessageQueue:
        return MessageQueue.create_from_handle(
            handle, rank, ports=self.ports, spec=self.spec if rank < self.local else None, wait=wait)

    def joined(self) -> MessageQueue:
        """The end of this rank of a process group: the readers, then the writer."""
        import torch.distributed as dist

        rank = self.node.index if self.node.kind is NodeKind.WORKER else self.play.readers
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{self.folder}/group", rank=rank,
                                world_size=self.play.readers + 1, timeout=timedelta(seconds=PATIENCE_S))
        try:
            queue = from_process_group(EndsOf(self), None, self.ring.max_chunk_bytes, self.ring.max_chunks,
                                       self.play.readers, wait=self.way())
        finally:
            dist.destroy_process_group()
        self.ask("whether it is ready when it has joined", lambda: queue.wait_until_ready(0.0), None)
        return queue

    def is_ready(self, queue: MessageQueue, readers: int) -> None:
        for seconds in (FIRST_S, self.bounds.rpc_s) if self.play.late else (self.bounds.rpc_s,):
            deadline = self.now() + seconds
            try:
                queue.wait_until_ready(seconds)
                self.observe("queue-ready", readers=readers, deadline=deadline)
                return
            except QueueTimeoutError as error:
                self.observe("queue-late", deadline=deadline, ended=self.now(), error=str(error))

    def way(self) -> Any:
        """How this end waits."""
        place = 0 if self.node.kind is NodeKind.CORE else 1 + self.node.index
        return _WAYS[self.play.ways[place] if self.play.ways else ""]()

    def leave(self, queue: MessageQueue) -> None:
        """Its part is done: look back when the lab says so, each alone, and go with all others."""
        self.when_all_are_done(lambda: self._look_back(queue))
        queue.shutdown()
        queue.shutdown()
        for words, use in self.uses(queue).items():
            self.ask(f"{words} when its end was shut down", use, QueueCancelledError)

    def when_all_are_done(self, look_back: Callable[[], None]) -> None:
        """And then until all shall go."""
        self.say(DONE)
        if self.hear() == GO:
            look_back()
            self.say(DONE)
            self.hear()

    def uses(self, queue: MessageQueue) -> dict[str, Callable[[], Any]]:
        """What this end may do, in words."""
        return {"to count": queue.stats, "to check": queue.check_integrity}

    def ask(self, words: str, ask: Callable[[], Any], wanted: Any) -> None:
        """`wanted`: an answer, or the class of an error."""
        try:
            answer = ask()
        except (QueueError, TypeError) as error:
            answer = type(error).__name__
        self.observe("queue-asked", words=words, answer=answer, wanted=getattr(wanted, "__name__", wanted))

    def questions(self, queue: MessageQueue) -> None:
        """What is refused, and changes nothing."""

    def _look_back(self, queue: MessageQueue) -> None:
        self.questions(queue)
        errors = queue.check_integrity()
        self.observe("queue-counts", **msgspec.to_builtins(queue.stats()), errors=errors)
        if errors or queue.handle.buffer_handle is None or self.node.index >= self.local:
            return
        memory = attach_segment(queue.handle.buffer_handle[3]).memory
        me = None if self.node.kind is NodeKind.CORE else self.node.index
        for what, where, value, damaged in damages(self.ring, memory, self.local, queue.position, me):
            was, memory[where] = memory[where], value
            found = queue.check_integrity()
            memory[where] = was
            self.observe("queue-check", state=what, damaged=damaged, found=found)


class EndsOf:
    """A `MessageQueue` whose ends use the ports of a play."""

    def __init__(self, user: User) -> None:
        self._user, self.create_from_handle = user, user.opened

    def __call__(self, *sizes: Any, **options: Any) -> MessageQueue:
        return MessageQueue(*sizes, ports=self._user.ports, spec=self._user.spec, name="rpc", **options)


class Program(User):
    """It waits for the others, and looks at the memory when they have done their part."""

    def run(self) -> None:
        buffer = self.handle().buffer_handle
        self.when_all_are_done(lambda: self._look(buffer))
        self.observe("closed", kept={})

    def _look(self, buffer: tuple[int, int, int, str] | None) -> None:
        self.observe("closing", kept={})
        if buffer is not None:
            memory = attach_segment(buffer[3]).memory
            flags = self.ring.max_chunks * self.ring.max_chunk_bytes
            self.observe("queue-memory", bytes=len(memory), tail=bytes(memory[flags:]).hex())


class Writer(User):
    """It puts all objects in, one after the other."""

    #: In bytes, of those that it has put in.
    largest = 0

    def run(self) -> None:
        queue = self.joined() if self.play.grouped else MessageQueue(
            self.play.readers, self.local, max_chunk_bytes=self.ring.max_chunk_bytes, max_chunks=self.ring.max_chunks,
            connect_ip="127.0.0.1", ports=self.ports, spec=self.spec, name="rpc", wait=self.way())
        self.say(HANDLE + msgspec.msgpack.encode(queue.export_handle()))
        try:
            self.is_ready(queue, self.play.readers)
            for sent in self.play.objects:
                if not isinstance(sent, Raw):
                    self._put(queue, sent, self.bounds.rpc_s)
            self._put(queue, Sent(lambda: END), None)
        except QueueError as error:
            self.observe("queue-failed", error=f"{type(error).__name__}: {error}")
        self.leave(queue)

    def uses(self, queue: MessageQueue) -> dict[str, Callable[[], Any]]:
        return {**super().uses(queue), "to put an object in": lambda: queue.enqueue(1, 0.0)}

    def questions(self, queue: MessageQueue) -> None:
        before = queue.position
        self.ask("to take an object out of the writer's end", lambda: queue.dequeue(0.0), QueueError)
        self.ask("to look for one there", queue.try_dequeue, QueueError)
        self.ask("to wait for -1 s", lambda: queue.enqueue(1, -1.0), QueueError)
        self.ask("to put in what cannot be pickled", lambda: queue.enqueue(Lock(), 1.0), TypeError)
        self.ask("how many objects were put in then", lambda: queue.position - before, 0)
        self.ask("whether payloads lay in shared memory", lambda: bool(
            glob(f"{FOLDER}/{queue.handle.buffer_handle[3]}-spill*")), self.largest >= SPILL_BYTES)

    def _put(self, queue: MessageQueue, sent: Sent, patience_s: float | None) -> None:
        obj = sent.make()
        encoded = encode_chunk(obj)
        packed = [encoded] if isinstance(encoded, bytes) else pack(encoded)
        self.largest = max(self.largest, sum(map(len, packed)))
        self.observe("queue-put", face=face(obj), beside=len(parts_of(packed)) - 1, wanted=sent.beside,
                     chunk=sum(map(len, packed)), readable=sent.readable)
        try:
            if patience_s is None:
                queue.broadcast_object(obj)
            else:
                queue.enqueue(obj, patience_s)
            self.observe("queue-put-at", position=queue.position - 1)
        except (QueueTimeoutError, QueueCancelledError) as error:
            self.observe("queue-not-put", error=f"{type(error).__name__}: {error}")
            if isinstance(error, PeerDeadError):
                raise


class Reader(User):
    """It takes all objects out, keeps some for a while, and is slow where the play wants it so."""

    def run(self) -> None:
        handle = None if self.play.grouped else self.handle()
        if self.play.late and self.node.index == self.play.readers - 1:
            time.sleep(LATE_S)
        self.observe("queue-came", rank=self.node.index)
        queue = self.joined() if handle is None else self.opened(handle, self.node.index, self.way())
        if handle is None:
            self.hear()  # the handle, which it has by then
        kept, let_go = deque[tuple[str, Any]](), list[tuple[str, str]]()
        try:
            self.is_ready(queue, 0)
            count, obj = 0, None
            while obj != END:
                count += 1
                if self.play.naps_s and self.node.index and count % 3 == 0:
                    time.sleep(self.play.naps_s)
                obj = self._take(queue, count)
                if isinstance(obj, QueueDecodeError):
                    continue
                if is_kept(obj):
                    kept.append((face(obj), obj))
                if len(kept) > KEPT:
                    was, old = kept.popleft()
                    let_go.append((was, face(old)))
                self.observe("queue-got", face=face(obj))
        except QueueError as error:
            self.observe("queue-failed", error=f"{type(error).__name__}: {error}")
        let_go += [(was, face(old)) for was, old in kept]
        self.observe("queue-kept", faces=[was for was, _ in let_go], now=[now for _, now in let_go])
        self.leave(queue)

    def uses(self, queue: MessageQueue) -> dict[str, Callable[[], Any]]:
        return {**super().uses(queue), "to take an object out": lambda: queue.dequeue(0.0),
                "to look for one": queue.try_dequeue}

    def questions(self, queue: MessageQueue) -> None:
        handle, stranger = queue.handle, self.play.readers + 5
        self.ask("to put an object into a reader's end", lambda: queue.enqueue(1, 0.0), QueueError)
        self.ask("to wait for -1 s", lambda: queue.dequeue(-1.0), QueueError)
        self.ask("what is there by now", lambda: queue.dequeue(0.0), QueueTimeoutError)
        self.ask("whether anything is there", lambda: queue.try_dequeue() is EMPTY, True)
        self.ask("an end for a rank without a place",
                 lambda: MessageQueue.create_from_handle(handle, stranger), QueueError)
        if self.node.index < self.local:
            self.ask("a second end for this rank",
                     lambda: MessageQueue.create_from_handle(handle, self.node.index), QueueError)

    def _take(self, queue: MessageQueue, count: int) -> Any:
        """The next object, or what it was lost by. Some are looked for before they are waited for."""
        while True:
            try:
                if count % 5 == 0:
                    return queue.broadcast_object()
                obj = queue.try_dequeue() if count % 4 == 0 else EMPTY
                return queue.dequeue(self.bounds.ring_recheck_s) if obj is EMPTY else obj
            except QueueTimeoutError:
                continue
            except QueueDecodeError as error:
                self.observe("queue-got", face="", error=str(error))
                return error
