"""One finding: a promise of vLLM's that a release of it breaks, why, and what shows that it is that."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from scenarios.worlds.vllm.findings.known import Known


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`rows`: scenarios, or scenarios with their value, which declare it broken: globs as `ringtwin run` takes them."""

    id: str
    title: str
    release: str  # in which it was found
    breaks: tuple[str, ...]  # guarantees
    source: str  # where vLLM promises it, in our words
    rows: tuple[str, ...]
    mechanism: str
    control: str  # the mend that turns its plays green: a name of `scenarios.worlds.vllm.edits.mends`
    by_hand: str  # the program of `by_hand` that shows it without the lab
    by_chance: bool = False  # few of many plays show it: rows that were red by it are played with its control
    by_http: bool = False  # whether a client of the HTTP server can bring it about: a matter of security, perhaps
    known: tuple[Known, ...] = ()

    def shows(self, scenario: str, guarantee: str) -> bool:
        function = scenario.partition("[")[0]
        return guarantee in self.breaks and any(
            row in (scenario, function) or fnmatchcase(function, row) for row in self.rows)
