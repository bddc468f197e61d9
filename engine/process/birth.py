"""What a judge needs to find a process and its files later (pure)."""

from __future__ import annotations

from typing import Any

from engine.effects import Identity
from engine.process.files import EngineFiles


def birth_certificate(me: Identity, *files: EngineFiles) -> dict[str, Any]:
    """The data of a process's first record."""
    return {"pid": me.pid, "ppid": me.ppid, "start_time": me.start_time,
            "segments": [one.segment("") for one in files], "paths": [one.path for one in files]}
