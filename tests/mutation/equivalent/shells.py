"""Of files that only real processes run, waits apart."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_TITLE = "a name for people, in `ps` and in logs"

SHELLS: tuple[Equivalent, ...] = (
    Equivalent("engine/process/children.py", "set_process_title", "off-by-one", "15", _TITLE),
)
