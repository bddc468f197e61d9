"""Engines that step together: what the ranks of one place in all of them tell each other in each forward (pure).

Promises: in each forward, real or dummy, each of them brings `contribution(wave, step)`. Where they are not all at the
same step, every one of them is told who is where: who skipped a dummy batch, or ran one more, is found in the first
forward that it is wrong in, before anybody computes with anybody else's step. The numbers do not touch the tokens.

All parts are compared, and not their sum with what it has to be: one that is ahead makes up for one that is behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.errors import CollectiveError


def contribution(wave: int, step: int) -> list[int]:
    return [1, wave, step]


def check(names: Sequence[str], parts: Sequence[Sequence[int]]) -> None:
    """`parts`: what each of them brought. Raises CollectiveError where they are not in step."""
    if len({tuple(part) for part in parts}) == 1:
        return
    at = Counter(tuple(part) for part in parts)
    usual, count = at.most_common(1)[0]
    if 2 * count > len(parts):  # of two nobody knows which one is wrong
        odd = [f"{name} is at {_place(part)}" for name, part in zip(names, parts, strict=True) if tuple(part) != usual]
        where = f"{', '.join(odd)}, the others at {_place(usual)}"
    else:
        where = ", ".join(f"{name} is at {_place(part)}" for name, part in zip(names, parts, strict=True))
    raise CollectiveError(f"the engines are out of step: {where}")


def _place(part: Sequence[int]) -> str:
    _, wave, step = part
    return f"wave {wave}, step {step}"
