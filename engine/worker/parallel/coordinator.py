"""One group of ranks: what they compute together, and what each of them sends to the next.

Promises: the arithmetic of ranks is `engine.topology.Grid`'s, here are its groups as torch.distributed has them. A
group of one is a no-op. `cpu_group` carries control, `device_group` tensors; where ranks share a host and have no GPU
each, shared memory does that. Every operation ends within the group's time-out or raises.

    world      all ranks of an engine
    tp         the ranks of one stage
    pp         one rank of each stage, in a ring: the hidden states of a step go to the next one, the tokens that the
               last one sampled to the first
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from engine.ipc.group import from_process_group
from engine.worker.parallel.pipe import SharedMemoryPipe, pipe_bytes, slots_of
from engine.worker.parallel.shared_memory import SharedMemoryCommunicator, Waits, share_memory, size_of

#: Up to so many bytes per rank gloo's collectives go through rank 0 instead of round its ring. A ring makes every
#: rank wait for every other in turn, which costs time slices where cores are scarce. An all_reduce of 2 KiB on two
#: busy cores took (median / p90) 0.3 / 3.9 ms round the ring and 0.2 / 0.3 ms by the star with two ranks, 4 / 9 ms
#: and 0.5 / 3 ms with four. Beyond this size bandwidth counts, and the ring has more of it.
STAR_BYTES = 256 << 10
#: Objects of a group's own broadcasts.
_OBJECT_BYTES, _OBJECTS = 1 << 20, 4


class GroupCoordinator:
    """The group of `ranks`, on one of them. `staged`: tensors pass through host memory.

    `device_group` None: the default group; `cpu_group` the same where the device's is gloo.
    """

    def __init__(self, ranks: Sequence[int], rank: int, backend: str, device_group: Any, cpu_group: Any,
                 timeout_s: float, *, staged: bool = False) -> None:
        self.ranks, self.rank = tuple(ranks), rank
        self.world_size, self.rank_in_group = len(self.ranks), self.ranks.index(rank)
        self.backend, self.device_group, self.cpu_group = backend, device_group, cpu_group
        self.timeout_s = timeout_s
        self._names = [f"rank {other}" for other in self.ranks]
        self.mq_broadcaster: Any = None  # a `MessageQueue` that the first rank writes, once it is made
        self._staged = staged
        self._shared: SharedMemoryCommunicator | None = None
        self._pipe: SharedMemoryPipe | None = None
        self._sending: deque[tuple[Any, torch.Tensor]] = deque()  # a buffer lives until its send is over

    @property
    def first_rank(self) -> int:
        return self.ranks[0]

    @property
    def next_rank(self) -> int:
        return self.ranks[(self.rank_in_group + 1) % self.world_size]

    @property
    def prev_rank(self) -> int:
        return self.ranks[(self.rank_in_group - 1) % self.world_size]

    # -- how it is carried

    def share(self, waits: Waits) -> bool:
        """From here on collectives go through shared memory. All ranks call it. -> whether they can share any"""
        if self.world_size > 1:
            shared = share_memory(self.rank_in_group, size_of(self.world_size), self.tell)
            if shared is not None:
                memory, pids = shared
                self._shared = SharedMemoryCommunicator(self.rank_in_group, pids, self._names, memory, self.timeout_s,
                                                        waits)
        return self._shared is not None or self.world_size == 1

    def share_pipe(self, waits: Waits) -> bool:
        """The same for what goes from one to the next."""
        if self.world_size > 1:
            shared = share_memory(self.rank_in_group, pipe_bytes(self.world_size), self.tell)
            if shared is not None:
                memory, pids = shared
                self._pipe = SharedMemoryPipe(self.rank_in_group, pids, self._names, memory, self.timeout_s, waits)
        return self._pipe is not None or self.world_size == 1

    def tell(self, numbers: list[int]) -> list[list[int]]:
        """To all ranks. -> those of each"""
        mine = torch.tensor(numbers, dtype=torch.int64)
        told = [torch.empty_like(mine) for _ in self.ranks]
        dist.all_gather(told, mine, group=self.cpu_group)
        return [numbers.tolist() for numbers in told]

    # -- what they compute together

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, any shape, bitwise the same on each. May be done in place: use what is returned."""
        if self.world_size == 1:
            return tensor
        host = self._host(tensor)
        if self._shared is not None:
            total = self._shared.all_reduce(host)
        elif self._small(host):
            parts = self._to_first_rank(host)
            total = host.new_empty(host.shape) if parts is None else parts.sum(0)
            dist.broadcast(total, self.first_rank, group=self.device_group)
        else:
            total = host
            dist.all_reduce(total, group=self.device_group)
        return total.to(tensor.device) if self._staged else total

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The ranks' tensors, equal in shape, joined in rank order along `dim`."""
        if self.world_size == 1:
            return tensor
        host = self._host(tensor)
        joined = torch.cat(self._parts(host) if self._shared is None else self._shared.all_gather(host), dim=dim)
        return joined.to(tensor.device) if self._staged else joined

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """`tensor` as it is on the rank at place `source`. Done in place."""
        if self.world_size == 1:
            return tensor
        if self._shared is not None:
            return tensor.copy_(self._shared.broadcast(tensor.cpu(), source))
        host = self._host(tensor)
        dist.broadcast(host, self.ranks[source], group=self.device_group)
        return tensor.copy_(host) if self._staged else tensor

    def barrier(self) -> None:
        """Returns once every rank is here."""
        if self._shared is not None:
            self._shared.barrier()
        elif self.world_size > 1:
            dist.barrier(group=self.device_group)

    # -- from one to the next

    def send(self, step: int, tensor: torch.Tensor) -> None:
        """To the next rank, which receives it as what belongs to this step. Goes on at once."""
        host = self._host(tensor).contiguous()
        if self._pipe is not None:
            self._pipe.send(step, host)
            return
        while len(self._sending) >= slots_of(self.world_size):
            self._sending.popleft()[0].wait()
        self._sending.append((dist.isend(host, self.next_rank, group=self.device_group), host))

    def receive(self, step: int, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, filled with what the rank before sent for this step."""
        host = torch.empty_like(tensor, device="cpu") if self._staged else tensor
        if self._pipe is not None:
            self._pipe.receive(step, host)
        else:
            dist.recv(host, self.prev_rank, group=self.device_group)
        return tensor.copy_(host) if self._staged else tensor

    # -- objects

    def make_broadcaster(self, queues: Any) -> None:
        """From here on objects can be broadcast, through a queue of that class. All ranks call it."""
        if self.world_size > 1:
            self.mq_broadcaster = from_process_group(queues, self.cpu_group, _OBJECT_BYTES, _OBJECTS)

    def broadcast_object(self, value: Any = None) -> Any:
        """-> the first rank's value, on every rank"""
        if self.world_size == 1:
            return value
        if self.rank_in_group == 0:
            self.mq_broadcaster.enqueue(value, timeout=self.timeout_s)
            return value
        return self.mq_broadcaster.dequeue(timeout=self.timeout_s)

    def close(self) -> None:
        """Let go of what the ranks share; safe to call twice, and when peers are dead."""
        for shared in (self._shared, self._pipe):
            if shared is not None:
                shared.close()
        self._shared = self._pipe = None
        self._sending.clear()
        if self.mq_broadcaster is not None:
            self.mq_broadcaster.shutdown()

    def _host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu() if self._staged else tensor

    def _parts(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """-> every rank's, by torch.distributed"""
        parts = self._to_first_rank(tensor) if self._small(tensor) else None
        if parts is None:
            parts = tensor.new_empty((self.world_size, *tensor.shape))
        if self._small(tensor):
            dist.broadcast(parts, self.first_rank, group=self.device_group)
        else:
            dist.all_gather(list(parts.unbind(0)), tensor.contiguous(), group=self.device_group)
        return parts.unbind(0)

    def _small(self, tensor: torch.Tensor) -> bool:
        return self.backend == "gloo" and tensor.numel() * tensor.element_size() <= STAR_BYTES

    def _to_first_rank(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """-> [world_size, *shape] on the first rank, None on the others."""
        if self.rank_in_group:
            dist.gather(tensor.contiguous(), dst=self.first_rank, group=self.device_group)
            return None
        parts = tensor.new_empty((self.world_size, *tensor.shape))
        dist.gather(tensor.contiguous(), list(parts.unbind(0)), dst=self.first_rank, group=self.device_group)
        return parts
