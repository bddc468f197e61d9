"""A thread of a process, as every life starts one (pure): its end is put on record, whatever ends it."""

from __future__ import annotations

from typing import Any

from engine.effects import ExitNow, LogLine, Loop, Observe, StartThread
from engine.errors import QueueCancelledError


def beside(name: str, loop: Loop[Any], told: str | None = None) -> StartThread:
    """To start a thread that runs `loop`. `told`: the queue that hears of its failure."""
    return StartThread(name, _to_its_end(name, loop), told=told)


def needed(name: str, loop: Loop[Any]) -> StartThread:
    """The same for a thread without which its process is of no use: what it fails with ends the process."""
    return StartThread(name, _or_leave(name, _to_its_end(name, loop)))


def _or_leave(name: str, loop: Loop[None]) -> Loop[None]:
    try:
        yield from loop
    except QueueCancelledError:
        raise
    except (Exception, SystemExit) as error:
        text = f"its {name} thread failed: {type(error).__name__}: {error}"
        yield LogLine(text, error)
        yield Observe("bye", {"reason": text})
        yield ExitNow(1)


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
