"""Mutants that no play can tell from the engine as it is: no input differs. Each by name, with the reason."""

from __future__ import annotations

from tests.mutation.equivalent import core, executor, frontend, ipc, kv_events, kv_subscriber, shells, waits
from tests.mutation.equivalent.base import Equivalent
from tests.mutation.operators import Mutant

EQUIVALENT: tuple[Equivalent, ...] = (
    *core.EQUIVALENT, *executor.EQUIVALENT, *frontend.EQUIVALENT, *ipc.EQUIVALENT, *kv_events.EQUIVALENT,
    *kv_subscriber.SUBSCRIBER, *shells.SHELLS, *waits.WAITS)
_BY_PLACE = {(one.file, one.function, one.operator, one.old, one.new): one for one in EQUIVALENT}


def why_equivalent(mutant: Mutant) -> str | None:
    """The reason where it is one of the table, by its file, function and change; lines may have moved."""
    places = ((mutant.file, mutant.function, mutant.operator, mutant.old, new) for new in (mutant.new, None))
    return next((_BY_PLACE[place].reason for place in places if place in _BY_PLACE), None)
