"""The coordinator as whoever started it has it (pure). It serves from the moment on when its sockets are bound."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.effects import HearChildren, Identity, Loop, Now, OpenHeartbeat, TellChild
from engine.errors import StartupError
from engine.frontend.handles.handle import Handle
from engine.process.files import EngineFiles
from engine.process.recipes import CoordinatorReady, CoordinatorRecipe, Garbled, misread

_BEAT = "coordinator.beat"


class CoordinatorHandle(Handle):
    def open(self, config: EngineConfig, files: EngineFiles, frontend: Identity, clients: tuple[int, ...],
             ) -> Loop[CoordinatorReady]:
        """Tell it what it is. -> where it is bound. Raises StartupError when it fails, dies or is late."""
        self.beats_at = files.segment(_BEAT)
        yield OpenHeartbeat(self.beats_at, create=True, of=self.node)
        yield TellChild(self.node, CoordinatorRecipe(
            config=config, files=files, beat=self.beats_at, frontend=frontend, clients=clients))
        heard = yield HearChildren((self.node,), (yield Now()) + config.bounds.handshake_s)
        if heard is None:
            raise StartupError(f"{self.name} did not say where it is bound in time")
        if isinstance(heard[1], CoordinatorReady):
            return heard[1]
        if isinstance(heard[1], Garbled):
            yield misread(heard[1].error)
            raise StartupError(f"what {self.name} says cannot be read: {heard[1].error}")
        self.hear(heard[1])
        raise (yield from self.why_it_failed())
