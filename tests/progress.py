"""How far something long has come."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track

#: So often a line is written where there is no terminal to draw a bar on.
EVERY_S = 60.0

Each = TypeVar("Each")


def tracked(found: Iterable[Each], what: str, total: int, console: Console, every_s: float = EVERY_S) -> Iterator[Each]:
    """The same, one by one, and meanwhile a bar, or a line now and then."""
    if console.is_terminal:
        yield from track(found, what, total=total, console=console)
        return
    began = said = time.monotonic()
    for number, one in enumerate(found, 1):
        now = time.monotonic()
        if now - said >= every_s:
            said = now
            console.print(f"{what}: {number} of {total}, {now - began:.0f} s", highlight=False)
        yield one
