"""A second engine on the host of a real play, without faults: alive and serving, whatever befalls the first.

As another data-parallel rank (`rank` not None) it publishes KV events on the base endpoints of the first, and has a
subscriber of its own. Both record, but not into the run: the lab keeps what became of the stream (`Lab.other_rank`).

    lab --fork server--> caller (frontend) --fork--> core --fork--> workers
        --fork server--> listener (its rank's subscriber)
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.ipc.presence import start_time
from engine.topology import Node, core, subscriber
from faults.journal import journal_path, read_journal
from faults.plan import Plan
from faults.real.board import create_board
from faults.real.ports import FACTORY, argument_for
from scenarios.history.other_rank import stream_of
from scenarios.history.run import RankStream
from scenarios.workloads.workload import Workload, utility
from scenarios.worlds import caller, listener
from scenarios.worlds.addresses import address_of_rank
from scenarios.worlds.leftovers import engine_files


class Neighbour:
    """`act(target, recipe, name)` starts a process of the lab; `folder` is to be made, and the neighbour's alone.

    It serves in rounds: beside the first engine's play, if it is a rank, and after it.
    """

    def __init__(self, config: EngineConfig, workload: Workload, folder: Path, log: str, rank: int | None,
                 nodes: tuple[str, ...], act: Callable[[Any, msgspec.Struct, str], Any]) -> None:
        self.rank = rank
        self.folder = folder
        self._rounds = 0
        self._board: Any = None
        self._act = act
        self._records = folder / "records"
        events = msgspec.structs.replace(config.kv_events, enable_kv_cache_events=rank is not None)
        self.config = msgspec.structs.replace(config, runtime_dir=str(folder), kv_events=events,
                                              data_parallel_rank=rank or 0)
        factory, self._argument = "", b""
        folder.mkdir()
        if rank is not None:
            (self._records / "journals").mkdir(parents=True)
            self._board = create_board(self._records, Plan(), tuple({*nodes, str(subscriber())}))
            factory, self._argument = FACTORY, argument_for(self._records, Plan())
            workload = _from_an_empty_cache(workload)
        self.caller = act(caller.main, caller.CallerRecipe(
            config=self.config, workload=workload, ports_factory=factory, ports_argument=self._argument, log=log),
            "neighbour")
        self.listener: Any = None
        self.files: set[str] = set()  # its own, from when it was ready

    def settle(self) -> None:
        """It is ready: from now on nobody may touch what it has."""
        self.files = set(engine_files(self.folder))

    def touched(self) -> list[str]:
        return sorted(self.files - set(engine_files(self.folder)))

    def follow(self) -> None:
        """Start its rank's subscriber."""
        events, bounds = self.config.kv_events, self.config.bounds
        if self.rank is None:
            return
        live, replay = (address_of_rank(base, self.rank) for base in (events.endpoint, events.replay_endpoint))
        self.listener = self._act(listener.main, listener.ListenerRecipe(
            index=0, endpoint=live, replay_endpoint=replay if events.replay else None, hwm=events.subscriber_hwm,
            buffer_bytes=events.socket_buffer_bytes, replay_s=bounds.replay_s, ports_factory=FACTORY,
            ports_argument=self._argument), "neighbour's subscriber")

    @property
    def followed(self) -> bool:
        """Whether its subscriber has heard of its publisher, or never will."""
        return self.listener is None or bool(self.listener.said) or self.listener.gone

    @property
    def left(self) -> bool:
        """Whether its subscriber is done."""
        return self.listener is None or self.listener.has_said(listener.DONE) or self.listener.gone

    def serve(self) -> None:
        """Begin a round."""
        self._rounds += 1
        self.caller.tell(caller.GO)

    @property
    def has_served(self) -> bool:
        """Whether every round is over."""
        return self.caller.said.count(caller.DONE) == self._rounds or self.caller.gone

    def seen(self, touched: list[str]) -> dict[str, Any]:
        """For `Lab.neighbour`: to be asked while it should be alive."""
        return {"alive": not self.caller.gone, "served": self.caller.said.count(caller.DONE) == self._rounds,
                "touched": touched}

    def stream(self) -> RankStream | None:
        """What became of its rank's events. To be asked when its processes have ended."""
        if self.rank is None:
            return None
        return stream_of(self.rank, self._recorded(core()), self._recorded(subscriber()))

    def close(self) -> None:
        """End its subscriber, if it is still there: nobody else would, where its publisher never answers."""
        if self._board is None:
            return
        born = self._board.process(str(subscriber()), 0)
        self._board.close()
        if born is not None:
            with contextlib.suppress(OSError):  # it is gone
                fd = os.pidfd_open(born[0])
                try:
                    if start_time(born[0]) == born[1]:
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)

    def _recorded(self, node: Node) -> list[Any]:
        path = journal_path(self._records / "journals", str(node), 0)
        return read_journal(path).records if path.exists() else []


def _from_an_empty_cache(workload: Workload) -> Workload:
    """A second round would find all blocks cached, and publish nothing."""
    first, *rest = workload.played().phases
    first = msgspec.structs.replace(first, actions=[utility("reset_prefix_cache"), *first.actions])
    return msgspec.structs.replace(workload, phases=[first, *rest])
