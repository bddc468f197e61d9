"""Plays of the engine's queue without an engine: core.0 puts objects into it, one after the other; each worker.k takes
them out, the last of them may be late, or on another host; frontend.0 is the program that waits for them (pure).

Promises: each says what it did with the queue and what came of it, as a user sees it, in observations whose names begin
with `queue-`; of its inside nothing is asked but the memory, whose layout is documented. Whoever died or left is
noticed as by a `MessageQueue`: each end looks every `PEER_CHECK_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from engine.config import Bounds, RingConfig
from engine.effects import (
    Attempt,
    Cancel,
    Close,
    CreateRing,
    Loop,
    Now,
    Observe,
    OpenSocket,
    RingBell,
    RingCrossing,
    StartThread,
    WaitBell,
)
from engine.errors import PeerDeadError, QueueCancelledError, QueueDecodeError, QueueError, QueueTimeoutError
from engine.ipc.framing import ReceiveBuffers, decode, encode_chunk, object_taker, pack, parts_of, rehearsal, unpack
from engine.ipc.presence import PEER_CHECK_S, TOPIC, Presence, RemoteReaders
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.readiness import look_at_remotes, wait_for_readers, wait_for_writer
from engine.ipc.remote import RemoteReader, reader_socket, writer_socket
from engine.ports import RingSpec
from engine.topology import Channel, Node, core, frontend, worker
from scenarios.lab.queue_asks import (
    FAR_ADDRESS,
    KEYS,
    PATIENCE_S,
    SEGMENT,
    damages,
    finds_nothing,
    guests,
    questions,
    sees_who_leaves,
    sees_who_left_from_afar,
)
from scenarios.lab.queue_loops import NOTHING, Halves, Interrupted, in_parts, interrupted, no_edge, without_marks
from scenarios.lab.queue_objects import FAR, FEW, LARGE, MANY, RAW, SHAPES, SMALL, STRANGE, Raw, Sent, face, is_kept

#: How many objects a reader keeps while it reads on.
KEPT = 4
#: How long who is early waits at first, and how late who is late comes.
FIRST_S, LATE_S = 0.1, 0.8
#: How long a reader waits at most, then it asks again; and a writer that was broken off, then it goes on.
READ_S, BROKEN_OFF_S = 0.13, 0.3
_REMOTE = "remote"
#: The last object.
END = "the end"
_RING = RingConfig(max_chunks=3, max_chunk_bytes=256)


class QueuePlay(msgspec.Struct, frozen=True, kw_only=True):
    """One such play. `ring` stands for the sizes of the play's configuration."""

    objects: tuple[Sent | Raw, ...]
    ring: RingConfig = _RING
    readers: int = 2
    remote: bool = False  # the last reader is on another host
    naps_s: float = 0.0  # how long the last reader takes for every third object
    late: bool = False  # the last reader comes when the others have given up waiting once
    interrupted: bool = False  # a signal handler raises in the middle of every other put
    breaks_off: bool = False  # so it does in the first reader, at every third object, and the writer is patient
    asks: bool = False  # its program asks for places and sizes, and its last reader leaves before the others
    guests: bool = False  # some come to the socket for other hosts whom nobody has given a place
    strangers: bool = False  # as vLLM's: readers say no names, and payloads not where they belong
    grouped: bool = False  # real ends find each other by a process group
    ways: tuple[str, ...] = ()  # by which the writer and each reader wait in a real play; by default as all do
    swept: bool = False  # every fault is played in it

    @property
    def is_for_programs(self) -> bool:
        """Whether programs that use the queue can do all of it; but for bytes that somebody else has written."""
        return not (self.interrupted or self.breaks_off or self.asks or self.guests or self.strangers) and any(
            isinstance(sent, Sent) for sent in self.objects)


PLAYS = {
    "few": QueuePlay(objects=FEW, ring=RingConfig(max_chunks=4, max_chunk_bytes=256), late=True, asks=True),
    "objects": QueuePlay(objects=(*SHAPES, MANY), ring=RingConfig(max_chunks=3, max_chunk_bytes=160 << 10), naps_s=0.01,
                         swept=True),
    "large": QueuePlay(objects=LARGE, ring=RingConfig(max_chunks=3, max_chunk_bytes=1200 << 10), naps_s=0.01,
                       grouped=True, ways=("notify", "notify", "nap")),
    "far": QueuePlay(objects=FAR, remote=True, late=True, naps_s=0.02, swept=True),
    "raw": QueuePlay(objects=RAW),
    "far and visited": QueuePlay(objects=SMALL, remote=True, late=True, naps_s=0.06, guests=True),
    "interrupted": QueuePlay(objects=SMALL, interrupted=True),
    "broken off": QueuePlay(objects=SMALL[:43], breaks_off=True),
    "slow": QueuePlay(objects=SMALL[:14], naps_s=1.5),
    "slow and far": QueuePlay(objects=FAR, remote=True, naps_s=1.5),
    "far and interrupted": QueuePlay(objects=SMALL, remote=True, interrupted=True, swept=True),
    "strangers": QueuePlay(objects=STRANGE, ring=RingConfig(max_chunks=1, max_chunk_bytes=256), strangers=True,
                           late=True, naps_s=0.01),
}


class Bench(msgspec.Struct, frozen=True):
    """What a world lends to such a play."""

    wait: Callable[[Callable[[], bool], float], Any]  # -> the effect that waits until this holds, or then
    changed: Callable[[], None]  # whoever waits looks again
    is_gone: Callable[[Node], bool]
    memory: Callable[[], Any]  # of the queue's segment
    open_reader: Callable[[Node, bytes, RingSpec, bool], Loop[QueueReader]]
    name_ring: Callable[[Node, str, RingSpec], None]  # by which name effects of that process speak of its queue


class Stage:
    """What the parts of one play share besides the queue: its handle, who is done, and whether all is over."""

    def __init__(self, play: QueuePlay, bounds: Bounds, bench: Bench) -> None:
        self.play, self.bounds, self.bench = play, bounds, bench
        self.handle: bytes | None = None
        self.done: set[str] = set()
        self.halves = Halves()
        self.over = self.parting = False
        self.last_by = 0.0  # until when there is room for the last object, at least
        local = play.readers - play.remote
        self.spec = self._spec(tuple(worker(rank) for rank in range(local)))
        self.far_spec = self._spec((worker(local),))

    def _spec(self, readers: tuple[Node, ...]) -> RingSpec:
        return RingSpec(channel=Channel.RPC, writer=core(), readers=readers, max_chunks=self.play.ring.max_chunks,
                        max_chunk_bytes=self.play.ring.max_chunk_bytes)

    def is_done(self, node: Node) -> None:
        self.done.add(str(node))
        self.bench.changed()

    def until(self, condition: Callable[[], bool], seconds: float = PATIENCE_S) -> Loop[Any]:
        return (yield self.bench.wait(condition, (yield Now()) + seconds))


# -- the program ---------------------------------------------------------------------------------------------------


def program(stage: Stage, everybody: Callable[[], bool]) -> Loop[None]:
    """`everybody`: whether each of the others has done its part or is gone."""
    for asked in questions(stage.play.ring, [node.index for node in stage.spec.readers]) if stage.play.asks else ():
        yield Observe("queue-asked", {"words": asked.words, "answer": asked.answer, "wanted": asked.wanted})
    if stage.play.guests:
        yield from guests(stage, LATE_S - 0.02)
    yield from stage.until(everybody)
    yield Observe("closing", {"kept": {}})
    yield Observe("queue-memory", {"bytes": len(stage.bench.memory()), "tail": bytes(stage.bench.memory()[
        stage.play.ring.max_chunks * stage.play.ring.max_chunk_bytes:]).hex()})
    stage.over = True
    stage.bench.changed()
    yield Observe("closed", {"kept": {}})
    yield Observe("bye", {"reason": "done"})


def _leave(stage: Stage, node: Node) -> Loop[None]:
    stage.is_done(node)
    parent = frontend() if node == core() else core()
    yield from stage.until(lambda: stage.over or stage.bench.is_gone(parent), 2 * PATIENCE_S)
    yield Observe("bye", {"reason": "done"})


# -- the writer ----------------------------------------------------------------------------------------------------


def writes(node: Node, stage: Stage) -> Loop[None]:
    queue, stage.handle = yield CreateRing("rpc", stage.spec, SEGMENT, "run/queue.ipc")
    if stage.play.remote:
        rank = stage.far_spec.readers[0].index
        yield OpenSocket(no_edge(writer_socket(_REMOTE, FAR_ADDRESS, "", KEYS)))
        queue.remotes, queue.remote_outbox = RemoteReaders("rpc", [rank]), _REMOTE
        queue.n_readers += 1
    stage.bench.changed()
    stage.last_by = (yield Now()) + PATIENCE_S / 2
    try:
        yield from _is_ready(stage, queue.n_readers, lambda deadline: wait_for_readers(queue, deadline))
        yield StartThread("look", _look(stage, queue.readers.presence))
        for number, sent in enumerate(stage.play.objects):
            yield from _put_raw(stage, queue, sent) if isinstance(sent, Raw) else _put(stage, queue, number, sent)
        yield from _put(stage, queue, 0, Sent(lambda: END))
        if stage.play.asks:
            yield from sees_who_leaves(stage, queue)
        if stage.play.guests:
            yield from sees_who_left_from_afar(stage, queue)
    except QueueError as error:
        yield Observe("queue-failed", {"error": f"{type(error).__name__}: {error}"})
    yield from _leave(stage, node)
    yield from _counts(stage, queue)


def _is_ready(stage: Stage, readers: int, wait: Callable[[float], Loop[None]]) -> Loop[None]:
    for seconds in (FIRST_S, stage.bounds.rpc_s) if stage.play.late else (stage.bounds.rpc_s,):
        deadline = (yield Now()) + seconds
        try:
            yield from wait(deadline)
            yield Observe("queue-ready", {"readers": readers, "deadline": deadline})
            return
        except QueueTimeoutError as error:
            yield Observe("queue-late", {"deadline": deadline, "ended": (yield Now()), "error": str(error)})


def _put(stage: Stage, queue: QueueWriter, number: int, sent: Sent) -> Loop[None]:
    """As `MessageQueue.enqueue` does it: an object becomes a chunk, or what goes beside the ring."""
    obj = sent.make()
    encoded = encode_chunk(obj)
    packed = [encoded] if isinstance(encoded, bytes) else pack(encoded)
    parts = parts_of(packed)
    yield Observe("queue-put", {"face": face(obj), "beside": len(parts) - 1, "wanted": sent.beside,
                                "chunk": sum(map(len, packed)), "readable": sent.readable})
    if queue.remotes is not None:
        yield from look_at_remotes(queue.remotes, _REMOTE)
    deadline = (yield Now()) + (PATIENCE_S / 2 if stage.play.breaks_off else stage.bounds.rpc_s)
    if obj == END:
        deadline = max(deadline, stage.last_by)
    past = number % 2 and not (queue.remotes or sent.beside) and stage.play.swept
    loop = _write(queue, packed[0], parts, deadline) if past else queue.enqueue(parts, deadline)
    if stage.play.strangers:
        loop = without_marks(loop)
    if stage.play.interrupted:
        loop = stage.halves.put(loop, number)
    try:
        position = yield from loop
        queue.stats.bytes += len(parts[0]) if past else 0
        yield Observe("queue-put-at", {"position": position})
    except Interrupted:
        yield Observe("queue-interrupted", {})
        if queue.unsent is not None and not stage.play.swept:  # else a fault may strike in between
            yield from stage.until(lambda: False, BROKEN_OFF_S)
    except (QueueTimeoutError, QueueCancelledError) as error:
        yield Observe("queue-not-put", {"error": f"{type(error).__name__}: {error}"})
        if isinstance(error, QueueCancelledError):
            raise


def _put_raw(stage: Stage, queue: QueueWriter, sent: Raw) -> Loop[None]:
    yield Observe("queue-put", {"face": face(sent.obj), "beside": 0, "wanted": 0, "chunk": len(sent.chunk), "raw": True,
                                "readable": sent.readable})
    parts = unpack(memoryview(sent.chunk)) if sent.readable else NOTHING
    assert isinstance(parts, list)
    position = yield from _write(queue, sent.chunk, parts, (yield Now()) + stage.bounds.rpc_s)
    yield Observe("queue-put-at", {"position": position})


def _write(queue: QueueWriter, chunk: bytes, parts: list[Any], deadline: float) -> Loop[int]:
    """Past the queue's own loop, as `MessageQueue` writes what fits. -> its number. Raises QueueTimeoutError."""
    while not (yield Attempt(queue.name, queue.writer.free)):
        if (yield Now()) >= deadline:
            raise QueueTimeoutError(f"{queue.name}: {queue.no_room()}")
        yield WaitBell(queue.space_bell, deadline)
    position = queue.position
    yield RingCrossing(queue.name, "send", position, parts)
    yield Attempt(queue.name, lambda: queue.writer.try_write([chunk]))
    yield RingBell(queue.bell)
    return position


# -- readers -------------------------------------------------------------------------------------------------------


def reads(node: Node, stage: Stage) -> Loop[None]:
    yield from _comes(node, stage)
    queue = yield from stage.bench.open_reader(node, stage.handle or b"", stage.spec, stage.play.strangers)
    taken: list[Any] = []
    if node.index:  # as a `MessageQueue` takes them; the others as an engine's workers do
        take = object_taker(ReceiveBuffers().own)
        rehearsal(take)()

        def taking(view: Any) -> Any:
            taken[:] = [unpack(view)]
            return take(view)

        queue.take = taking
    yield from _read(node, stage, queue, taken)


def reads_from_afar(node: Node, stage: Stage) -> Loop[None]:
    stage.bench.name_ring(node, "rpc", stage.far_spec)
    yield from _comes(node, stage)
    topic = b"%s%d:afar" % (TOPIC, node.index)
    spec = no_edge(reader_socket(_REMOTE, FAR_ADDRESS, topic, KEYS))
    if stage.play.guests:  # what it subscribes to may come in any order
        spec = msgspec.structs.replace(spec, topic=topic, more_topics=(spec.topic,))
    yield OpenSocket(spec)

    def check() -> None:
        if stage.bench.is_gone(core()):
            raise PeerDeadError("the connection to the writer has ended")

    yield from _read(node, stage, RemoteReader("rpc", inbox=_REMOTE, topic=topic, check=check,
                                               recheck_s=PEER_CHECK_S), [])


def _comes(node: Node, stage: Stage) -> Loop[None]:
    yield from stage.until(lambda: stage.handle is not None or stage.bench.is_gone(core()))
    if stage.play.late and node.index == stage.play.readers - 1:
        yield from stage.until(lambda: False, LATE_S)


def _read(node: Node, stage: Stage, queue: Any, taken: list[Any]) -> Loop[None]:
    kept, let_go = deque[tuple[str, Any]](), list[tuple[str, str]]()
    count, naps = 0, stage.play.naps_s if node.index else 0.0
    yield Observe("queue-came", {"rank": node.index})
    try:
        yield from _is_ready(stage, 0, lambda deadline: wait_for_writer(queue, deadline))
        if isinstance(queue, QueueReader) and queue.presence is not None:
            yield StartThread("look", _look(stage, queue.presence))
        while True:
            count += 1
            if naps and count % 3 == 0:
                yield from stage.until(lambda: False, naps)
            try:
                obj = yield from _take(stage, queue, taken, count if node.index == 0 else 0)
            except Interrupted:
                yield Observe("queue-interrupted", {})
                continue
            if obj is None:
                break
            if not isinstance(obj, QueueDecodeError):
                got = face(obj)
                if is_kept(obj):
                    kept.append((got, obj))
                if len(kept) > KEPT:
                    was, old = kept.popleft()
                    let_go.append((was, face(old)))
                yield Observe("queue-got", {"face": got})
                if obj == END:
                    break
    except QueueError as error:
        yield Observe("queue-failed", {"error": f"{type(error).__name__}: {error}"})
    if stage.play.asks:
        yield from finds_nothing(queue)
    if stage.play.asks and node.index == stage.play.readers - 1:
        stage.parting = True
        yield Attempt(queue.name, queue.presence.withdraw)
        yield Observe("queue-left", {})
    let_go += [(was, face(obj)) for was, obj in kept]
    if stage.play.guests and isinstance(queue, RemoteReader):
        yield Close()
    yield Observe("queue-kept", {"faces": [was for was, _ in let_go], "now": [now for _, now in let_go]})
    yield from _leave(stage, node)
    yield from _counts(stage, queue)


def _take(stage: Stage, queue: Any, taken: list[Any], count: int) -> Loop[Any]:
    """-> the next object, what it was lost by, or None where all is over. Raises Interrupted."""
    while not stage.over:
        loop = in_parts(queue.dequeue((yield Now()) + READ_S), queue, taken)
        if stage.play.breaks_off and count % 3 == 2:
            loop = interrupted(loop, count // 3 % 5, True)
        try:
            message = yield from loop
            return message[0] if type(message) is tuple else decode(message)
        except QueueTimeoutError:
            continue
        except QueueDecodeError as error:
            yield Observe("queue-got", {"face": "", "error": str(error)})
            return error
    return None


# -- what both do --------------------------------------------------------------------------------------------------


def _look(stage: Stage, presence: Presence) -> Loop[None]:
    while not stage.over and not stage.parting:
        try:
            yield from presence.check()
        except PeerDeadError as error:
            yield Cancel(error)
            return
        yield from stage.until(lambda: stage.over, PEER_CHECK_S)


def _counts(stage: Stage, queue: Any) -> Loop[None]:
    """What an end says of itself when all is over, and whether it finds what is done to its ring then."""
    depth = yield Attempt(queue.name, queue.depth)
    errors = yield Attempt(queue.name, queue.check_integrity)
    stats = msgspec.to_builtins(msgspec.structs.replace(queue.stats, messages=queue.position, depth=depth))
    yield Observe("queue-counts", {**stats, "errors": errors})
    if errors or isinstance(queue, RemoteReader) or stage.play.interrupted:
        return
    memory, readers = stage.bench.memory(), len(stage.spec.readers)
    me, position = (None, queue.position) if isinstance(queue, QueueWriter) else (
        queue.reader.reader, queue.reader.position)
    for what, where, value, damaged in damages(stage.play.ring, memory, readers, position, me):
        was, memory[where] = memory[where], value
        found = yield Attempt(queue.name, queue.check_integrity)
        memory[where] = was
        yield Observe("queue-check", {"state": what, "damaged": damaged, "found": found})
