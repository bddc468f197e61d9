"""The collectives of one rank, and the choice of device and backend that they need.

Promises: `ProcessGroup` is all of torch.distributed that a model sees: what the ranks of a stage compute together
(all_reduce, all_gather, broadcast, barrier), and what goes to the next stage (send, receive). With a world of 1 it is a
no-op and torch.distributed is never initialised. nccl is used when every rank has a GPU of its own, gloo otherwise: on
CPU, and where ranks share a GPU (then tensors pass through host memory, and a log line says so).

The object is small on purpose: the fault layer wraps it to count what is entered, sent and received, and to stop a
process there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from engine.errors import ConfigError
from engine.topology import Grid
from engine.worker.parallel.across import AcrossEngines
from engine.worker.parallel.coordinator import GroupCoordinator
from engine.worker.parallel.shared_memory import Waits

logger = logging.getLogger(__name__)

def choose_device(wanted: Literal["auto", "cpu", "cuda"], rank: int, world_size: int = 1,
                  local_dp_rank: int = 0) -> str:
    """'cpu' or 'cuda:k'. With 'auto' ranks beyond the number of GPUs share them in turn.

    The GPUs of an engine come behind those of the engines before it on this host, of which there are `local_dp_rank`.

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
    return f"cuda:{(local_dp_rank * world_size + rank) % count}"


def choose_backend(device: str, world_size: int) -> str:
    """nccl needs a GPU for each rank: it refuses two ranks on one device."""
    return "nccl" if device.startswith("cuda") and world_size <= torch.cuda.device_count() else "gloo"


class ProcessGroup:
    """Rank `rank` of `world_size` that meet at `init_method` (`file:///path`, a fresh file each time).

    `tp`: how many of them a stage has; None: there is one stage. `world`, `tp` and `pp` are its groups.
    `communicator`: what carries tensors where it is not nccl. Raises what torch.distributed raises when the ranks do
    not meet within `timeout_s`, ConfigError where shared memory was asked for by name and is not to be had.
    """

    def __init__(self, rank: int, world_size: int, init_method: str, device: str, timeout_s: float,
                 communicator: Literal["auto", "shm", "gloo"] = "auto", tp: int | None = None) -> None:
        self.rank, self.world_size = rank, tp or world_size
        grid = Grid(self.world_size, world_size // self.world_size)
        self.backend = self.carrier = "none"  # who the ranks meet by, and what carries their tensors
        self._staged = False
        self._made: list[GroupCoordinator] = []
        self._waits = Waits()
        self._shares = communicator != "gloo"
        self.dp: AcrossEngines | None = None
        if world_size > 1:
            self._meet(rank, world_size, init_method, device, timeout_s)
            logger.info("rank %d of %d joined by %s on %s", rank, world_size, self.backend, device)
        self.world = self._coordinator([tuple(range(world_size))], timeout_s)
        self.tp = self._coordinator([grid.tp_group(first) for first in range(0, world_size, grid.tp)], timeout_s)
        self.pp = self._coordinator([grid.pp_group(first) for first in range(grid.tp)], timeout_s)
        self.carrier = self.backend
        if self.backend == "gloo" and communicator != "gloo":
            shares = self.tp.share(self._waits), self.pp.share_pipe(self._waits)
            if all(told == [1, 1] for told in self.world.tell([int(share) for share in shares])):
                self.carrier = "shm"
            elif communicator == "shm":
                raise ConfigError("device_communicator 'shm' was asked for, but the ranks cannot share memory: that "
                                  "needs memfd_create, and a /proc in which they see each other; use 'gloo'")
            else:
                self.tp.close()
                self.pp.close()

    def _meet(self, rank: int, world_size: int, init_method: str, device: str, timeout_s: float) -> None:
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

    def _coordinator(self, groups: list[tuple[int, ...]], timeout_s: float) -> GroupCoordinator:
        """Of those groups the one that this rank is in. All ranks make all groups, in one order."""
        mine = next(ranks for ranks in groups if self.rank in ranks)
        device_group = cpu_group = None  # the default one
        if len(mine) not in (1, dist.get_world_size() if self.backend != "none" else 1):
            device_group = _new_group(groups, self.rank, self.backend, timeout_s)
        if self.backend == "nccl" and len(mine) > 1:
            cpu_group = _new_group(groups, self.rank, "gloo", timeout_s)
        made = GroupCoordinator(mine, self.rank, self.backend, device_group, cpu_group or device_group, timeout_s,
                                staged=self._staged)
        self._made.append(made)
        return made

    def meet_engines(self, place: int, names: Sequence[str], where: str, timeout_s: float, meet_s: float) -> None:
        """Join the ranks of the same place in the engines that step together with this one; all of them call it."""
        self.dp = AcrossEngines(place, names, where, timeout_s, self._waits, meet_s=meet_s, shares=self._shares)

    def keep_step(self, wave: int, step: int) -> None:
        """See `AcrossEngines`: once in each forward."""
        assert self.dp is not None, "meet_engines comes first"
        self.dp.keep_step(wave, step)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `GroupCoordinator`; of the ranks of a stage, as the other collectives."""
        return self.tp.all_reduce(tensor)

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return self.tp.all_gather(tensor, dim)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        return self.tp.broadcast(tensor, source)

    def barrier(self) -> None:
        self.tp.barrier()

    def send(self, what: str, step: int, tensor: torch.Tensor) -> None:
        """To the next stage, from the last one to the first. `what` it is, for whoever counts."""
        self.pp.send(step, tensor)

    def receive(self, what: str, step: int, tensor: torch.Tensor) -> torch.Tensor:
        """-> `tensor`, filled by the stage before"""
        return self.pp.receive(step, tensor)

    def close(self) -> None:
        """Leave the groups; safe to call twice, and when peers are dead."""
        self._waits.close()
        for group in self._made:
            group.close()
        if self.dp is not None:
            self.dp.close()
        if self.backend != "none" and dist.is_initialized():
            dist.destroy_process_group()


def _new_group(groups: list[tuple[int, ...]], rank: int, backend: str, timeout_s: float) -> Any:
    made = {ranks: dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s), backend=backend)
            for ranks in groups}
    return next(group for ranks, group in made.items() if rank in ranks)
