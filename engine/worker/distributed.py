"""The collectives of one rank, and the choice of device and backend that they need.

Promises: `ProcessGroup` is all of torch.distributed that a model sees: all_reduce, all_gather, broadcast,
barrier, close. With a world of 1 it is a no-op and torch.distributed is never initialised. nccl is used when
every rank has a GPU of its own, gloo otherwise: on CPU, and where ranks share a GPU (then tensors pass
through host memory, and a log line says so). Every collective ends within the group's time-out or raises.

The object is small on purpose: the fault layer wraps it to count collectives and to stop a process in one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from engine.errors import ConfigError
from engine.worker.shared_memory import SharedMemoryCommunicator, open_communicator

logger = logging.getLogger(__name__)

#: Up to so many bytes per rank gloo's collectives go through rank 0 instead of round its ring. A ring makes every
#: rank wait for every other in turn, which costs time slices where cores are scarce. An all_reduce of 2 KiB on two
#: busy cores took (median / p90) 0.3 / 3.9 ms round the ring and 0.2 / 0.3 ms by the star with two ranks, 4 / 9 ms
#: and 0.5 / 3 ms with four. Beyond this size bandwidth counts, and the ring has more of it.
STAR_BYTES = 256 << 10


def choose_device(wanted: Literal["auto", "cpu", "cuda"], rank: int, world_size: int = 1) -> str:
    """'cpu' or 'cuda:k'. With 'auto' ranks beyond the number of GPUs share them in turn.

    Asks CUDA, so it must not be called in a process that forks workers afterwards.
    Raises ConfigError where CUDA was asked for and there is none, or not one for each rank.
    """
    count = torch.cuda.device_count() if wanted != "cpu" else 0
    if count == 0:
        if wanted == "cuda":
            raise ConfigError("device 'cuda' was asked for, but torch finds no CUDA device; use --device cpu")
        return "cpu"
    if wanted == "cuda" and world_size > count:
        raise ConfigError(f"device 'cuda' was asked for {world_size} ranks, but torch finds {count} CUDA device(s); "
                          "with device 'auto' ranks share GPUs, at the price of their collectives")
    return f"cuda:{rank % count}"


def choose_backend(device: str, world_size: int) -> str:
    """nccl needs a GPU for each rank: it refuses two ranks on one device."""
    return "nccl" if device.startswith("cuda") and world_size <= torch.cuda.device_count() else "gloo"


class ProcessGroup:
    """Collectives among `world_size` ranks that meet at `init_method` (`file:///path`, a fresh file each time).

    `communicator`: what carries them where it is not nccl. Raises what torch.distributed raises when the ranks do not
    meet within `timeout_s`, ConfigError where shared memory was asked for by name and is not to be had.
    """

    def __init__(self, rank: int, world_size: int, init_method: str, device: str, timeout_s: float,
                 communicator: Literal["auto", "shm", "gloo"] = "auto") -> None:
        self.rank = rank
        self.world_size = world_size
        self.backend = self.carrier = "none"  # who the ranks meet by, and what carries their collectives
        self._staged = False
        self._shared: SharedMemoryCommunicator | None = None
        if world_size == 1:
            return
        self.backend = choose_backend(device, world_size)
        self._staged = self.backend == "gloo" and device != "cpu"
        if self._staged:
            logger.warning("rank %d of %d shares %s with other ranks: collectives use gloo through host memory",
                           rank, world_size, device)
        # One host: the loopback always exists, while the name of the host may not even resolve.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        extra = {"device_id": torch.device(device)} if self.backend == "nccl" else {}
        dist.init_process_group(self.backend, init_method=init_method, rank=rank, world_size=world_size,
                                timeout=timedelta(seconds=timeout_s), **extra)
        if self.backend == "gloo" and communicator != "gloo":
            self._shared = open_communicator(rank, world_size, timeout_s, self._tell)
            if self._shared is None and communicator == "shm":
                raise ConfigError("device_communicator 'shm' was asked for, but the ranks cannot share memory: that "
                                  "needs memfd_create, and a /proc in which they see each other; use 'gloo'")
        self.carrier = self.backend if self._shared is None else "shm"
        logger.info("rank %d of %d joined over %s on %s", rank, world_size, self.carrier, device)

    def _tell(self, numbers: list[int]) -> list[list[int]]:
        """To all ranks. -> those of each"""
        mine = torch.tensor(numbers, dtype=torch.int64)
        told = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(told, mine)
        return [numbers.tolist() for numbers in told]

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, any shape, bitwise the same on each. May be done in place: use what is returned."""
        if self.world_size == 1:
            return tensor
        host = tensor.cpu() if self._staged else tensor
        if self._shared is not None:
            total = self._shared.all_reduce(host)
        elif self._small(host):
            parts = self._to_first_rank(host)
            total = host.new_empty(host.shape) if parts is None else parts.sum(0)
            dist.broadcast(total, 0)
        else:
            total = host
            dist.all_reduce(total)
        return total.to(tensor.device) if self._staged else total

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The ranks' tensors, equal in shape, joined in rank order along `dim`."""
        if self.world_size == 1:
            return tensor
        host = tensor.cpu() if self._staged else tensor
        joined = torch.cat(self._parts(host) if self._shared is None else self._shared.all_gather(host), dim=dim)
        return joined.to(tensor.device) if self._staged else joined

    def _parts(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """-> every rank's, by torch.distributed"""
        parts = self._to_first_rank(tensor) if self._small(tensor) else None
        if parts is None:
            parts = tensor.new_empty((self.world_size, *tensor.shape))
        if self._small(tensor):
            dist.broadcast(parts, 0)
        else:
            dist.all_gather(list(parts.unbind(0)), tensor.contiguous())
        return parts.unbind(0)

    def _small(self, tensor: torch.Tensor) -> bool:
        return self.backend == "gloo" and tensor.numel() * tensor.element_size() <= STAR_BYTES

    def _to_first_rank(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """-> [world_size, *shape] on rank 0, None on the others."""
        if self.rank != 0:
            dist.gather(tensor.contiguous())
            return None
        parts = tensor.new_empty((self.world_size, *tensor.shape))
        dist.gather(tensor.contiguous(), list(parts.unbind(0)))
        return parts

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """`tensor` as it is on rank `source`. Done in place."""
        if self.world_size == 1:
            return tensor
        if self._shared is not None:
            return tensor.copy_(self._shared.broadcast(tensor.cpu(), source))
        if self._staged:
            host = tensor.cpu()
            dist.broadcast(host, source)
            return tensor.copy_(host)
        dist.broadcast(tensor, source)
        return tensor

    def barrier(self) -> None:
        """Returns once every rank is here."""
        if self._shared is not None:
            self._shared.barrier()
        elif self.world_size > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the group; safe to call twice, and when peers are dead."""
        if self._shared is not None:
            self._shared.close()
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()
