"""A thread may lose its processor between any two effects, as threads of real processes do. Pure.

Promises
- A loop does what it did, in its order; between two effects virtual time may pass, in which others go on. No effect is
  left out, doubled or moved to another thread.
- The same random numbers give the same play.

What is put on record behind an act then comes later than the act, and behind what others do meanwhile: a judge that
takes records of two processes for simultaneous is wrong, and seen so here without a real machine.
"""

from __future__ import annotations

from random import Random
from typing import Any

from engine.effects import Loop
from sim.process.effects import Sleep


class Preemption:
    """Before `share` of all effects a thread stands for up to `most_s`, short standstills being the usual ones."""

    def __init__(self, seed: int, *, share: float = 0.02, most_s: float = 4e-3) -> None:
        self._random = Random(seed)
        self._share = share
        self._most_s = most_s

    def amid(self, loop: Loop[Any]) -> Loop[Any]:
        """The same loop on a thread that is preempted."""
        random, share = self._random.random, self._share
        try:
            effect = next(loop)
            while True:
                try:
                    if random() < share:
                        yield Sleep(self._most_s * random() ** 3)
                    value = yield effect
                except GeneratorExit:
                    loop.close()
                    raise
                except BaseException as error:
                    effect = loop.throw(error)
                else:
                    effect = loop.send(value)
        except StopIteration as stop:
            return stop.value
