"""What stands between a loop and whoever answers it. Pure, for both worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.effects import Effect, Loop


def between(loop: Loop[None], answer: Callable[[Effect], Loop[Any]]) -> Loop[None]:
    """`loop`, whose every effect is answered by `answer(effect)`: a loop that may ask for others, or for none.

    What that raises is raised in `loop`, where it asked.
    """
    step, given = loop.send, None
    while True:
        try:
            effect = step(given)
        except StopIteration:
            return
        try:
            step, given = loop.send, (yield from answer(effect))
        except Exception as error:
            step, given = loop.throw, error
