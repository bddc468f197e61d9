"""Edits by their names."""

from __future__ import annotations

from collections.abc import Iterable

from scenarios.worlds.vllm.edits.edit import Edit, EditError
from scenarios.worlds.vllm.edits.mends import MENDS
from scenarios.worlds.vllm.edits.planted import PLANTED

EDITS: dict[str, tuple[Edit, ...]] = {name: one.edits for table in (PLANTED, MENDS) for name, one in table.items()}


def edits_of(names: Iterable[str]) -> list[Edit]:
    """Of all these. Raises EditError for one that nobody knows."""
    names = list(names)
    for name in names:
        if name not in EDITS:
            raise EditError(f"no edit of vLLM is called {name!r}; there are {', '.join(sorted(EDITS))}")
    return [edit for name in names for edit in EDITS[name]]
