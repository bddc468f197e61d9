"""How an engine's files and segments are called (pure). All bear its id, so whoever finds one knows whose it is."""

from __future__ import annotations

import msgspec

PREFIX = "ringtwin-"


class EngineFiles(msgspec.Struct, frozen=True):
    """One engine's names: `path` is its directory."""

    engine_id: str
    path: str

    def segment(self, name: str) -> str:
        return f"{PREFIX}{self.engine_id}-{name}"

    def socket(self, name: str) -> str:
        return f"ipc://{self.path}/{name}"

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"
