"""A thread of a process, as every life starts one (pure): its end is put on record, whatever ends it."""

from __future__ import annotations

from typing import Any

from engine.effects import Loop, Observe, StartThread
from engine.errors import QueueCancelledError


def beside(name: str, loop: Loop[Any], told: str | None = None) -> StartThread:
    """To start a thread that runs `loop`. `told`: the queue that hears of its failure."""
    return StartThread(name, _to_its_end(name, loop), told=told)


def _to_its_end(name: str, loop: Loop[Any]) -> Loop[None]:
    try:
        yield from loop
    except QueueCancelledError:
        yield Observe("thread-ended", {"thread": name, "why": "cancelled"})
        raise
    except (Exception, SystemExit) as error:
        yield Observe("thread-ended", {"thread": name, "why": "failed", "error": f"{type(error).__name__}: {error}"})
        raise
    yield Observe("thread-ended", {"thread": name, "why": "done"})
