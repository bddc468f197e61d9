"""What corruption and truncation do to bytes, to a message, and to a flag. Pure: the fault says where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from faults.plan import Fault


def corrupted_bytes(data: Any, byte: int) -> bytes:
    """`data` with all bits of one byte flipped: the given offset (wrapping round), -1 for the middle."""
    changed = bytearray(data)
    if changed:
        changed[len(changed) // 2 if byte < 0 else byte % len(changed)] ^= 0xFF
    return bytes(changed)


def corrupted(frames: Sequence[Any], fault: Fault) -> list[Any]:
    """The message with one byte of its last frame that is not empty flipped."""
    return _change_last(frames, lambda frame: corrupted_bytes(frame, fault.byte))


def truncated(frames: Sequence[Any], fault: Fault) -> list[Any]:
    """The message whose last frame that is not empty ends before the fault's byte (-1: its middle)."""
    def cut(frame: Any) -> bytes:
        size = memoryview(frame).nbytes
        return bytes(frame)[: size // 2 if fault.byte < 0 else min(fault.byte, size - 1)]

    return _change_last(frames, cut)


def without_last(frames: Sequence[Any]) -> list[Any]:
    """The message without its last frame."""
    return list(frames[:-1])


def swapped(frames: Sequence[Any]) -> list[Any]:
    """The message whose last two frames have changed places."""
    return [*frames[:-2], *reversed(frames[-2:])]


def _change_last(frames: Sequence[Any], change: Callable[[Any], bytes]) -> list[Any]:
    changed = list(frames)
    for index in reversed(range(len(changed))):
        if memoryview(changed[index]).nbytes:
            changed[index] = change(changed[index])
            break
    return changed
