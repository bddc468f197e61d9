"""What a client hears of its coordinator, and tells it; offline what it knows of its group itself (pure).

Promises
- What cannot be read, or cannot be, changes nothing and is named.
- "old": of requests that were sent to a group that the client believes at rest, the coordinator is told the first one,
  in the wave that the client believes in by then. It is told in the client's next tick, behind what has arrived till
  then: so the first protocol's clients do it, which send in one task and tell in another. Nothing repeats it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.coordinator.board import Notice
from engine.coordinator.sockets import STATS
from engine.coordinator.words import FirstRequest, decode_notice, encode_first_request
from engine.effects import Loop, Observe, Send
from engine.errors import BadFrameError
from engine.frontend.session import ClientSession
from engine.topology import Channel, Edge, Node, coordinator


class CoordinatorLink:
    """Of the client that runs in process `node`."""

    def __init__(self, node: Node, config: EngineConfig, session: ClientSession, cores: tuple[int, ...]) -> None:
        self._node = node
        self._session = session
        self._cores = cores
        self._tells = config.is_lockstep and config.has_coordinator and config.data_parallel.wave_protocol == "old"
        self._ranks = config.data_parallel_size
        self._offline = config.is_offline
        self._untold: list[int] = []  # cores that were sent a request

    def hear(self, frames: list[Any]) -> Loop[None]:
        """A notice has come."""
        try:
            notice = decode_notice(frames)
            self._session.on_notice(self._own(notice))
        except BadFrameError as error:
            edge = Edge(coordinator(), self._node.first_life, Channel.STATS)
            yield Observe("bad-frame", {"edge": str(edge), "error": str(error)})
            return
        yield Observe("view", {"counts": None if notice.counts is None else [list(one) for one in notice.counts],
                               "wave": notice.wave, "running": notice.running})

    def _own(self, notice: Notice) -> Notice:
        """Of this client's cores, where others have others. Raises BadFrameError where that cannot be."""
        counts = notice.counts
        if counts is None or len(self._cores) == self._ranks:
            return notice
        if len(counts) != self._ranks:
            raise BadFrameError(f"counts of {len(counts)} ranks, there are {self._ranks}")
        return msgspec.structs.replace(notice, counts=tuple(counts[core] for core in self._cores))

    def sent(self, core: int) -> None:
        """A request went to this core."""
        if self._offline:
            self._session.balance.sent()
        if self._tells:
            self._untold.append(core)

    def tell(self) -> Loop[None]:
        """Of requests that nothing was told of yet."""
        while self._untold and self._session.dead is None:
            first = self._session.balance.first_request(self._untold.pop(0))
            if first is not None:
                rank, wave = first
                yield Observe("first-request", {"rank": rank, "wave": wave})
                yield Send(STATS, encode_first_request(FirstRequest(self._node.index, rank, wave)))
