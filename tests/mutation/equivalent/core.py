"""Of the core."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

EQUIVALENT: tuple[Equivalent, ...] = ()
