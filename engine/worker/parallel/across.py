"""One rank among those of the same place in other engines: processes that no world of torch.distributed joins.

Promises: as `GroupCoordinator`'s, for numbers: who shares a host with all of them meets them in shared memory, and is
told by name who died, did not enter or is out of step; else gloo carries them, in a group of its own. Every operation
ends within the time-out, or raises.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from engine.errors import CollectiveError
from engine.process.consensus.gloo import gather, joined
from engine.worker.parallel.lockstep import check, contribution
from engine.worker.parallel.shared_memory import SharedMemoryCommunicator, Waits, share_memory, size_of


class AcrossEngines:
    """Place `place` of those called `names`, who meet at `where` (`file:///path` or `tcp://host:port`), all at once.

    `waits`: what tells the rank's other groups that it waits here. `shares`: whether shared memory may carry them.
    `meet_s`: how long the others may take to come at first.
    """

    def __init__(self, place: int, names: Sequence[str], where: str, timeout_s: float, waits: Waits, *,
                 meet_s: float | None = None, shares: bool = True) -> None:
        self.names, self.timeout_s = tuple(names), timeout_s
        self._shared: SharedMemoryCommunicator | None = None
        ends = time.monotonic() + (timeout_s if meet_s is None else meet_s)
        with joined(place, len(names), where, f"{' '.join(names)} at {where}", ends) as self._group:
            self._tell([place])
        mapped = share_memory(place, size_of(len(names)), self._tell) if shares else None
        if mapped is not None:
            memory, pids = mapped
            self._shared = SharedMemoryCommunicator(place, pids, self.names, memory, timeout_s, waits)

    @property
    def carrier(self) -> str:
        return "gloo" if self._shared is None else "shm"

    def keep_step(self, wave: int, step: int) -> None:
        """The exchange of one forward. Raises CollectiveError where the others are elsewhere, or not there."""
        mine = contribution(wave, step)
        if self._shared is not None:
            check(self.names, [part.tolist() for part in self._shared.all_gather(torch.tensor(mine))])
            return
        try:
            parts = self._tell(mine)
        except RuntimeError as error:
            raise CollectiveError(f"wave {wave}, step {step} of {' and '.join(self.names)}: {error}") from error
        check(self.names, parts)

    def close(self) -> None:
        """Safe to call twice, and when the others are dead."""
        if self._shared is not None:
            self._shared.close()
        self._shared = self._group = None

    def _tell(self, numbers: list[int]) -> list[list[int]]:
        return gather(self._group, numbers, self.timeout_s)
