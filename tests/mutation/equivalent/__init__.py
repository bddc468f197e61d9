"""Mutants that no play can tell from the engine as it is: no input differs. Each by name, with the reason."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.mutation.equivalent import core, executor, frontend, ipc, kv_events, kv_subscriber, shells, together, waits
from tests.mutation.equivalent.base import Equivalent
from tests.mutation.operators import Mutant, source_of

EQUIVALENT: tuple[Equivalent, ...] = (
    *core.EQUIVALENT, *executor.EQUIVALENT, *frontend.EQUIVALENT, *ipc.EQUIVALENT, *kv_events.EQUIVALENT,
    *kv_subscriber.SUBSCRIBER, *shells.SHELLS, *together.TOGETHER, *waits.WAITS)
_ROOT = Path(__file__).parents[3]
_BY_PLACE: dict[tuple[str | None, ...], list[Equivalent]] = defaultdict(list)
for _one in EQUIVALENT:
    _BY_PLACE[_one.file, _one.function, _one.operator, _one.old, _one.new].append(_one)


def why_equivalent(mutant: Mutant) -> str | None:
    """The reason where it is one of the table, by its file, function and change; lines may have moved."""
    places = ((mutant.file, mutant.function, mutant.operator, mutant.old, new) for new in (mutant.new, None))
    return next((one.reason for place in places for one in _BY_PLACE.get(place, ())
                 if not one.behind or _before(mutant).endswith(one.behind)), None)


def _before(mutant: Mutant) -> str:
    return source_of(mutant.file, _ROOT)[:mutant.begin].decode()
