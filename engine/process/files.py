"""How an engine's files and segments are called (pure). All bear its id, so whoever finds one knows whose it is.

So does a judge, who is told by each process's first record.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.effects import Identity

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


def birth_certificate(me: Identity, *files: EngineFiles) -> dict[str, Any]:
    """The data of a process's first record: what a judge needs to find it and its files later."""
    return {"pid": me.pid, "ppid": me.ppid, "start_time": me.start_time,
            "segments": [one.segment("") for one in files], "paths": [one.path for one in files]}
