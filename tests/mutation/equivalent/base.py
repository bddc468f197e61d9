"""One entry of the tables."""

from __future__ import annotations

from typing import NamedTuple


class Equivalent(NamedTuple):
    """`old` is the text that is changed; `new` what stands there instead, None for whatever it is."""

    file: str
    function: str  # its qualified name
    operator: str
    old: str
    reason: str
    new: str | None = None
    behind: str = ""  # what stands right before it, where the same text stands in several places
