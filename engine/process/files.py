"""How an engine's files and segments are called (pure). All bear its id, so whoever finds one knows whose it is."""

from __future__ import annotations

import msgspec

PREFIX = "ringtwin-"


class EngineFiles(msgspec.Struct, frozen=True):
    """One engine's names: `path` is its directory. `part` tells those of several cores apart."""

    engine_id: str
    path: str
    part: str = ""

    def of_core(self, index: int) -> EngineFiles:
        """The names of one of several cores: the first has the plain ones."""
        return msgspec.structs.replace(self, part=f"{index}." if index else "")

    def segment(self, name: str) -> str:
        return f"{PREFIX}{self.engine_id}-{self.part}{name}"

    def socket(self, name: str) -> str:
        return f"ipc://{self.path}/{self.part}{name}"

    def file(self, name: str) -> str:
        return f"{self.path}/{self.part}{name}"
