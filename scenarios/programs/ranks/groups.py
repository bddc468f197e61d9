"""A program whose ranks find each other's queue by a process group of its own, as the ranks of vLLM do."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

from engine.ipc.message_queue import MessageQueue
from scenarios.programs.asking import PATIENCE_S, Asking, held, no_more
from scenarios.programs.queues.opening import CHUNK_BYTES, CHUNKS, LOOPBACK


class Group:
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
        group = Group(3, afar)
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
        group = Group(size)
        ask(f"a writer {place} in a group of {size}",
            lambda: group.run(lambda rank: MessageQueue.create_from_process_group(
                group, CHUNK_BYTES, CHUNKS, place)), ["QueueError"] * size)


class _Broken(Group):
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
    writer, group = MessageQueue(2, 2, max_chunk_bytes=CHUNK_BYTES, max_chunks=CHUNKS), Group(2)
    ends = group.run(lambda rank: MessageQueue.create_from_process_group(
        group, CHUNK_BYTES, CHUNKS, 0, writer.export_handle(), False))
    writer.wait_until_ready(PATIENCE_S)
    writer.enqueue("from outside")
    ask("what a group gets from outside", lambda: [end.dequeue(PATIENCE_S) for end in ends], ["from outside"] * 2)
    for end in (*ends, writer):
        end.shutdown()
