"""Of the frontend."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

EQUIVALENT: tuple[Equivalent, ...] = ()
