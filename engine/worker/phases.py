"""The two calls of a step on one rank (pure): `execute_model` keeps what it computed, `sample_tokens` takes it.

Promises: between two executes with tokens lies one sample, or the second is refused by its name; what is kept is let
go of before anything is done with it, so that a sample that fails is not made twice. After an execute that failed
there is nothing to sample.
"""

from __future__ import annotations

from typing import Generic, TypeVar

#: As what the stages of a step know a dummy batch: no step has this number.
DUMMY = 1 << 63

_Kept = TypeVar("_Kept")


class Phases(Generic[_Kept]):
    """Where one rank stands in its step."""

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def execute(self) -> None:
        """A step begins. Raises RuntimeError where the one before it was not sampled."""
        if self._kept is not None:
            raise RuntimeError("the last step has not been sampled: sample_tokens comes before the next execute_model")

    def keep(self, computed: _Kept) -> None:
        self._kept = computed

    def sample(self) -> _Kept | None:
        """-> what the step has computed; None where nothing was executed"""
        kept, self._kept = self._kept, None
        return kept
