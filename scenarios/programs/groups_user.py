"""A program whose ranks find each other's queue by a process group of its own, as the ranks of vLLM do; and ranks that
meet where nobody has told them of each other, beside strangers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from engine.errors import CollectiveError
from engine.ipc.message_queue import MessageQueue
from engine.process.consensus.effects import Card, Member
from engine.process.consensus.introductions import introduce
from engine.process.consensus.meeting import PORTS_TRIED, meeting_at
from engine.process.identity import own_identity
from scenarios.programs.asking import PATIENCE_S, Asking, held, no_more, until
from scenarios.programs.queues_user import CHUNK_BYTES, CHUNKS, LOOPBACK


class _Group:
    """A process group of a program's own: threads stand in for its ranks. `afar`: who says it is on another host."""

    def __init__(self, size: int, afar: tuple[int, ...] = ()) -> None:
        self.world_size, self._afar = size, afar
        self._meet, self._said = threading.Barrier(size), dict[int, Any]()
        self._place = threading.local()

    @property
    def rank(self) -> int:
        return self._place.rank

    def all_gather_obj(self, obj: Any) -> list[Any]:
        self._said[self.rank] = f"{obj} elsewhere" if self.rank in self._afar else obj
        self._meet.wait(PATIENCE_S)
        return [self._said[rank] for rank in range(self.world_size)]

    def broadcast_obj(self, obj: Any, src: int) -> Any:
        if self.rank == src:
            self._said[src] = obj
        self._meet.wait(PATIENCE_S)
        return self._said[src]

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """By every rank at once. -> what each has of it, or by which error it ended"""
        found: list[Any] = [None] * self.world_size

        def one(rank: int) -> None:
            self._place.rank = rank
            try:
                found[rank] = work(rank)
            except Exception as error:
                found[rank] = type(error).__name__

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


def ask_groups(ask: Asking) -> None:
    """Ranks of one host read from the ring, others by the network; all are ready when they have it."""
    before = held()
    for afar in ((), (2,), (0, 2)):
        group = _Group(3, afar)
        ends = group.run(lambda rank: MessageQueue.create_from_process_group(
            group, CHUNK_BYTES, CHUNKS, 1, connect_ip=LOOPBACK))
        handle = ends[1].export_handle()
        ask(f"who reads from where with {afar} elsewhere",
            lambda: [handle.local_reader_ranks, handle.remote_reader_ranks],
            [[rank for rank in (0, 2) if rank not in afar], list(afar)])
        ask("whether all are ready", lambda: [end.wait_until_ready(0.0) for end in ends], [None] * 3)
        ends[1].enqueue("to all", PATIENCE_S)
        ask("what its readers get", lambda: [ends[rank].dequeue(PATIENCE_S) for rank in (0, 2)], ["to all", "to all"])
        for end in ends:
            end.shutdown()
    _by_a_writer_outside(ask)
    _breaks(ask)
    gc.collect()
    ask("what is left of their queues", lambda: no_more(before), True)
    for size, place in ((1, 0), (2, 2), (2, -1)):
        group = _Group(size)
        ask(f"a writer {place} in a group of {size}",
            lambda: group.run(lambda rank: MessageQueue.create_from_process_group(
                group, CHUNK_BYTES, CHUNKS, place)), ["QueueError"] * size)


class _Broken(_Group):
    def broadcast_obj(self, obj: Any, src: int) -> Any:
        raise ConnectionError


def _breaks(ask: Asking) -> None:
    """What the group raises comes out, and the queue that was to be handed out is gone."""
    group, before = _Broken(2), held()
    ask("a group that breaks", lambda: group.run(lambda rank: MessageQueue.create_from_process_group(
        group, CHUNK_BYTES, CHUNKS)), ["ConnectionError"] * 2)
    gc.collect()
    ask("what is left of its queue", lambda: no_more(before), True)


def _by_a_writer_outside(ask: Asking) -> None:
    """All ranks of the group read."""
    writer, group = MessageQueue(2, 2, max_chunk_bytes=CHUNK_BYTES, max_chunks=CHUNKS), _Group(2)
    ends = group.run(lambda rank: MessageQueue.create_from_process_group(
        group, CHUNK_BYTES, CHUNKS, 0, writer.export_handle(), False))
    writer.wait_until_ready(PATIENCE_S)
    writer.enqueue("from outside")
    ask("what a group gets from outside", lambda: [end.dequeue(PATIENCE_S) for end in ends], ["from outside"] * 2)
    for end in (*ends, writer):
        end.shutdown()


# -- ranks that meet where nobody has told them of each other

#: For who waits in vain.
SOON_S = 0.3
NAMES = ["core.0", "core.1", "core.2"]
#: What a stranger says: nothing, no card, a length that nobody has, and half of what it has begun.
STRANGE = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\4abcd", b"\xff\xff\xff\xff", b"\0\0\1\0half of it"]


def ask_meetings(ask: Asking) -> None:
    port = _free()
    ask("what two find at a free port", lambda: _store(port, (0, 1)), ["left here", "left here"])
    before = held()  # with what is loaded once and kept
    for where in (f"ipc://{ask.folder}/ranks.ipc", f"tcp://{LOOPBACK}:{_free()}", f"tcp://[::1]:{_free('::1')}"):
        _meet(ask, where)
    stale = f"{ask.folder}/stale.ipc"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(stale)
    ask("who meets where a file was left", lambda: _all(f"ipc://{stale}", (0, 1, 2)), [NAMES] * 3)
    ask("what is left there", lambda: os.path.exists(stale), False)
    ask.raised("a folder that is none", lambda: _introduce("ipc:///nowhere/at/all", 0, 2), CollectiveError,
               "nobody can meet at")
    _find(ask)
    ask("what is left of all meetings", lambda: no_more(before), True)


def _meet(ask: Asking, where: str) -> None:
    kind = where.partition(":")[0]
    for order in ((0, 1, 2), (2, 1, 0)):
        ask(f"who meets by {kind} in the order {order}", lambda: _all(where, order), [NAMES] * 3)
    for said in STRANGE:
        ask(f"who meets by {kind} beside one that says {said!r}", lambda: _all(where, (0, 1, 2), said), [NAMES] * 3)
    ask(f"who hears by {kind} that two are rank 1", lambda: ["both came as rank 1" in told
                                                            for told in _all(where, (0, 1, 1))], [True] * 3)
    ask(f"who hears by {kind} that two are rank 0", lambda: ["both came as rank 0" in told
                                                            for told in _all(where, (0, 0))], [True] * 2)
    ask(f"who is missed by {kind}", lambda: ["core.2 (rank 2) of 3 did not come" in told
                                            for told in _all(where, (0, 1), within_s=SOON_S)], [True] * 2)
    ask(f"who misses the first by {kind}", lambda: ["core.0 (rank 0) of 3 did not answer" in told
                                                   for told in _all(where, (1, 2), within_s=SOON_S)], [True] * 2)


def _introduce(where: str, rank: int, size: int, within_s: float = PATIENCE_S, name: int | None = None) -> list[str]:
    card = Card(Member(f"core.{rank if name is None else name}", own_identity()), rank, {"size": size})
    return [one.member.name for one in introduce(
        card, size, where, time.monotonic() + within_s,
        lambda descriptors, seconds: select.select(descriptors, [], [], seconds), time.monotonic)]


def _all(where: str, ranks: tuple[int, ...], stranger: bytes | None = None, within_s: float = PATIENCE_S) -> list[Any]:
    """All at once, of three; where there is a stranger it speaks with the first before another one comes."""
    size, found = 2 if ranks == (0, 0) else 3, list[Any]([None] * len(ranks))

    def one(place: int) -> None:
        try:
            rank, name = ranks[place], ranks[place] + ranks[:place].count(ranks[place])
            within = within_s if place == 0 or 0 not in ranks else PATIENCE_S  # the first one says it to all
            found[place] = _introduce(where, rank, size, within, name)
        except Exception as error:
            found[place] = str(error)

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(ranks))]
    with contextlib.ExitStack() as stack:
        for place, thread in enumerate(threads):
            if place == 1 and stranger is not None:
                stack.enter_context(_connected(where)).sendall(stranger)
            thread.start()
        for thread in threads:
            thread.join()
    return found


def _connected(where: str) -> socket.socket:
    """To whoever listens there, as soon as somebody does."""
    found: list[socket.socket] = []

    def connect() -> bool:
        with contextlib.suppress(OSError):
            if where.startswith("ipc://"):
                found.append(socket.socket(socket.AF_UNIX))
                found[-1].connect(where.removeprefix("ipc://"))
            else:
                host, _, port = where.removeprefix("tcp://").rpartition(":")
                found.append(socket.create_connection((host.strip("[]"), int(port))))
            return True
        return False

    until(connect)
    for one in found[:-1]:
        one.close()
    return found[-1]


def _free(host: str = LOOPBACK) -> int:
    """The first of some ports in a row that nobody has, and that no system hands out: each program begins elsewhere."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for first in range(20_000 + os.getpid() % 1000 * 10, 30_000, PORTS_TRIED):
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            for port in range(first, first + PORTS_TRIED):
                taken.enter_context(socket.create_server((host, port), family=family))
            return first
    raise OSError("no ports in a row are free")


def _find(ask: Asking) -> None:
    """The store of a group, at a port that others have, and where strangers listen."""
    first = _free()
    with socket.create_server((LOOPBACK, first)), socket.create_server((LOOPBACK, first + 1)) as another:
        speaking = threading.Thread(target=_say, args=(another, b"another group 5\n"))
        speaking.start()
        ask("what two find behind ports of others", lambda: _store(first, (0, 1)), ["left here", "left here"])
        another.shutdown(socket.SHUT_RDWR)
        speaking.join()
        another.close()
        ask("who knows of no group", lambda: _store(first, (1,), within_s=SOON_S), ["TimeoutError"])
        with contextlib.ExitStack() as others:
            for port in range(first + 1, first + PORTS_TRIED):
                others.enter_context(socket.create_server((LOOPBACK, port)))
            ask("who finds all ports taken", lambda: _store(first, (0,)), ["OSError"])


def _say(listener: socket.socket, line: bytes) -> None:
    """To all that come, until nobody listens any more."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as asking:
                asking.sendall(line)


def _store(port: int, ranks: tuple[int, ...], within_s: float = PATIENCE_S) -> list[str]:
    """What each reads there that the first one has left."""
    met = threading.Barrier(len(ranks))

    def one(rank: int) -> str:
        with meeting_at(f"tcp://{LOOPBACK}:{port}", rank, 2, "a group", time.monotonic() + within_s) as (store, _):
            if rank == 0:
                store.set("what", "left here")
            found: str = store.get("what").decode()
            met.wait(PATIENCE_S)
            return found

    return _Group(len(ranks)).run(lambda place: one(ranks[place]))
