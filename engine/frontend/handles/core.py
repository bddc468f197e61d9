"""One core as its client has it (pure)."""

from __future__ import annotations

import msgspec

from engine.config import Bounds
from engine.effects import Loop, Now, OpenHeartbeat, TellChild
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

    def tell(self, recipe: CoreRecipe) -> Loop[None]:
        """What it is: that recipe, of its own files."""
        start_by = (yield Now()) + recipe.config.bounds.startup_s
        yield TellChild(self.node, msgspec.structs.replace(
            recipe, files=self.files, beat=self.beats_at, engine_index=self.node.index, start_by=start_by,
            dp_rank=recipe.config.data_parallel_rank))
