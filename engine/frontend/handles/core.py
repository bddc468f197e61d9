"""One core as its client has it (pure)."""

from __future__ import annotations

from engine.config import Bounds, EngineConfig
from engine.effects import Identity, Loop, OpenHeartbeat, TellChild
from engine.frontend.handles.handle import Handle
from engine.process.consensus.effects import Member
from engine.process.files import EngineFiles
from engine.process.recipes import CoreRecipe
from engine.topology import Node
from engine.wire.wiring import outputs_of


class CoreHandle(Handle):
    files: EngineFiles  # its own, once they were claimed

    def __init__(self, node: Node, bounds: Bounds) -> None:
        super().__init__(node, bounds)
        self.inbox: str = outputs_of(node.index)

    def claim(self, files: EngineFiles) -> Loop[None]:
        """These names are its. -> None"""
        self.files, self.beats_at = files, files.segment("beat")
        yield OpenHeartbeat(self.beats_at, create=True, of=self.node)

    @property
    def member(self) -> Member:
        """As other cores know it."""
        return Member(self.name, self.identity, self.beats_at)

    def tell(self, config: EngineConfig, handshake_address: str, frontend: Identity, clients: tuple[int, ...],
             ranks: tuple[Member, ...], launcher: int | None) -> Loop[None]:
        yield TellChild(self.node, CoreRecipe(
            config=config, files=self.files, handshake_address=handshake_address, beat=self.beats_at,
            frontend=frontend, engine_index=self.node.index, clients=clients, launcher=launcher, ranks=ranks))
