"""A `MessageQueue` for the ranks of a process group: one of them writes, the others read.

The handle, keys included, travels by the group's own broadcast: the group is trusted, as its collectives are.
Works with torch's groups and with any object that has `rank`, `world_size`, `broadcast_obj(obj, src)` and
`all_gather_obj(obj)`.
"""

from __future__ import annotations

import os
from typing import Any

from engine.errors import QueueError
from engine.ipc.handle import Handle


def from_process_group(queues: Any, pg: Any, max_chunk_bytes: int, max_chunks: int, writer_rank: int = 0,
                       external_writer_handle: Handle | None = None, blocking: bool = True, **options: Any) -> Any:
    """The end of this rank, of the class `queues`; called by every rank of the group.

    `writer_rank` and the readers' ranks count in the group. Ranks that see the writer's shared memory read from the
    ring, others by TCP. With `external_writer_handle` the group's writer is a reader of that queue, as rank
    `writer_rank`, like all the others. `blocking` waits until all are ready. `options` go to the constructor
    (`connect_ip`, ...); a reader heeds `wait`, each rank its own. Raises QueueError, and what the group raises.
    """
    rank, size = _place(pg)
    if not 0 <= writer_rank < size or size < 2:
        raise QueueError(f"a queue with writer {writer_rank} needs a process group with that rank and one more, "
                         f"this one has {size}")
    hosts = _gather(pg, _host(), size)
    handle = external_writer_handle
    queue = None
    if rank == writer_rank and handle is None:
        local = [other for other in range(size) if other != rank and hosts[other] == hosts[rank]]
        remote = [other for other in range(size) if hosts[other] != hosts[rank]]
        queue = queues(size - 1, len(local), local, max_chunk_bytes, max_chunks, remote_reader_ranks=remote,
                       **options)
        handle = queue.export_handle()
    try:
        handle = _broadcast(pg, handle, writer_rank)
        if queue is None:
            queue = queues.create_from_handle(handle, rank, wait=options.get("wait"))
        if blocking:
            queue.wait_until_ready()
    except BaseException:
        if queue is not None:
            queue.shutdown()
        raise
    return queue


def _host() -> str:
    """The same for two processes exactly if they share memory and see each other's process ids."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    shm = os.stat("/dev/shm")
    return f"{boot} {shm.st_dev} {shm.st_ino} {os.readlink('/proc/self/ns/pid')}"


def _is_torch(pg: Any) -> bool:
    return not hasattr(pg, "broadcast_obj")


def _place(pg: Any) -> tuple[int, int]:
    if not _is_torch(pg):
        return pg.rank, pg.world_size
    import torch.distributed as dist

    return dist.get_rank(pg), dist.get_world_size(pg)


def _gather(pg: Any, mine: Any, size: int) -> list[Any]:
    if not _is_torch(pg):
        return pg.all_gather_obj(mine)
    import torch.distributed as dist

    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, mine, group=pg)
    return everybody


def _broadcast(pg: Any, value: Any, source: int) -> Any:
    if not _is_torch(pg):
        return pg.broadcast_obj(value, source)
    import torch.distributed as dist

    box = [value]
    dist.broadcast_object_list(box, src=dist.get_global_rank(pg, source) if pg is not None else source, group=pg)
    return box[0]
