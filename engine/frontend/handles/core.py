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
        self.files = files
        yield OpenHeartbeat(files.segment("beat"), create=True, of=self.node)

    @property
    def member(self) -> Member:
        """As other cores know it."""
        return Member(self.name, self.process, self.files.segment("beat"))

    def tell(self, config: EngineConfig, handshake_address: str, frontend: Identity, clients: tuple[int, ...],
             ranks: tuple[Member, ...]) -> Loop[None]:
        yield TellChild(self.node, CoreRecipe(
            config=config, files=self.files, handshake_address=handshake_address, beat=self.files.segment("beat"),
            frontend=frontend, engine_index=self.node.index, clients=clients, ranks=ranks))
