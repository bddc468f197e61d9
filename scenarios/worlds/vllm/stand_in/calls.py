"""Calls that a caller may put to all workers of the stand-in by `collective_rpc`, each with an answer that is known.

They pass the mark executing, as a step does: a plan may hit a worker, or its core, while a call is open.
"""

from __future__ import annotations

#: What a worker that is to fail says: its call's own word stands behind it.
AS_ASKED = "as asked: "


class Odd:
    """What no encoder of vLLM's takes."""


class Called:
    """Of a worker that can say which call it executes."""

    def _executing(self, method: str) -> None:
        raise NotImplementedError

    def told(self, word: int) -> int:
        """-> the word that its caller gave it"""
        self._executing("told")
        return word

    def fails(self, word: int) -> None:
        self._executing("fails")
        raise ValueError(f"{AS_ASKED}{word}")

    def odd(self) -> Odd:
        """-> what cannot be sent"""
        self._executing("odd")
        return Odd()

    def reset_encoder_cache(self) -> None:
        """A pause that clears caches asks for it; there is none."""
