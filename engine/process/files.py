"""How an engine's files and segments are called (pure). All bear its id, so whoever finds one knows whose it is.

So does a judge, who is told by each process's first record.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.effects import Identity
from engine.topology import Node

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


def birth_certificate(me: Identity, *files: EngineFiles) -> dict[str, Any]:
    """The data of a process's first record: what a judge needs to find it and its files later."""
    return {"pid": me.pid, "ppid": me.ppid, "start_time": me.start_time,
            "segments": [one.segment("") for one in files], "paths": [one.path for one in files]}


def files_gone(of: Node | None) -> str:
    """What who comes too late is told. `of`: whose they are, where they are not its own."""
    return f"{'' if of is None else f'{of}: '}the engine's files are gone: whoever started it has left"
