"""Of executors, workers, the wire and processes."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

EQUIVALENT: tuple[Equivalent, ...] = ()
