"""Writes docs/GUARANTEES.md from the registry: `python -m scenarios.guarantees.document > docs/GUARANTEES.md`."""

from __future__ import annotations

from scenarios.guarantees.base import ALL_FATES, DAMAGE, DEATHS, MESSAGE, PROCESS, STALLS, Envelope, Guarantee, Where
from scenarios.guarantees.deciders import DECIDERS
from scenarios.guarantees.registry import GUARANTEES
from scenarios.history.history import Fate

_HEAD = """\
# Guarantees

What Ringtwin promises about its engine, and how each promise is judged. This page is written by
`python -m scenarios.guarantees.document`; change the registry, not the page.

- **Envelope**: the faults that the promise must survive. If a fault outside of it fired, its cell is OUTSIDE: shown,
  never red.
- **Witness**: an occasion on which the *wrong engine* that is named would have failed. A run without one says nothing
  about the promise and is UNTESTED.
- **Wrong engine**: each was planted in each world and seen red by this promise (`tests/mutants`). Where a sentence
  promises several things there is one for each half. **Blind** says where a world cannot have it, or not see it, and
  why.
- **Bounds** come from the configuration that the run recorded (`engine/config.py`, `Bounds`). A time-out may be told
  `heartbeat_s + detection_s` after it is over. Longer is BROKEN; on real processes it is UNKNOWN where the lab's own
  heartbeat was late by as much.
- An operation that never ends is BROKEN, not UNKNOWN: in the twin always, on real processes once it has been open for
  three times its bound. Only a planned delay that itself never ended makes it UNKNOWN.
"""

#: Names for sets of fates, largest first, so that a list of fates reads as words.
_SETS = (
    ("every fault", ALL_FATES), ("whatever befalls a process", PROCESS), ("whatever befalls a message", MESSAGE),
    ("any death", DEATHS), ("stall or hang", STALLS), ("damage to a message", DAMAGE),
)


def document() -> str:
    """The page, as text."""
    parts = [_HEAD, *_table()]
    chapter = ""
    for entry in sorted(GUARANTEES.values(), key=_by_chapter):
        if entry.chapter != chapter:
            chapter = entry.chapter
            parts.append(f"\n## {chapter}\n")
        parts.append(_section(entry))
    parts += ["\n## Which record decides\n", *_deciders()]
    return "\n".join(parts).rstrip() + "\n"


def _deciders() -> list[str]:
    lines = ["A judge does not consult the accused where somebody else saw it. *The engine itself* stands where nobody",
             "else could know; the last column says what a wrong word of it, or its silence, would hide.", "",
             "| promise | decided by | written by | blind for |", "|---|---|---|---|"]
    for entry in sorted(GUARANTEES.values(), key=_by_chapter):
        decider = DECIDERS[entry.id]
        name, writers = f"[`{entry.id}`](#{entry.id})", ", ".join(decider.writers)
        lines.append(f"| {name} | {decider.record} | {writers} | {decider.blind} |")
    return lines


def _by_chapter(entry: Guarantee) -> int:
    return list(dict.fromkeys(g.chapter for g in GUARANTEES.values())).index(entry.chapter)


def _table() -> list[str]:
    count = len(GUARANTEES)
    names = ", ".join(f"[`{entry.id}`](#{entry.id})" for entry in sorted(GUARANTEES.values(), key=_by_chapter))
    return [f"\n{count} guarantees: {names}."]


def _section(entry: Guarantee) -> str:
    return (f"### {entry.id}\n\n{entry.sentence}\n\n"
            f"- Envelope: {describe(entry.envelope)}\n"
            f"- Witness: {entry.witness}.\n"
            f"{_wrong_engines(entry)}"
            f"- Source: {entry.source}.\n")


def _wrong_engines(entry: Guarantee) -> str:
    if isinstance(entry.wrong, str):
        engines = f"- Wrong engine: one that {entry.wrong}.\n"
    else:
        engines = "- Wrong engines:\n" + "".join(f"  - `{half}`: one that {wrong}.\n"
                                                 for half, wrong in entry.wrong.items())
    return engines + "".join(f"- Blind, `{where}`: {why}.\n" for where, why in entry.blind_in.items())


def describe(envelope: Envelope) -> str:
    """An envelope in words."""
    inside = "; ".join(_where(where) for where in envelope.inside)
    if not envelope.outside:
        return f"{inside}."
    return f"{inside}, except " + "; ".join(
        _where(where) + (f" ({where.why})" if where.why else "") for where in envelope.outside) + "."


def _where(where: Where) -> str:
    places = [f"at `{where.sites}`"] if where.sites != "*" else []
    places += [f"of `{where.nodes}`"] if where.nodes != "*" else []
    return " ".join([_fates(where.fates), *places])


def _fates(fates: frozenset[Fate]) -> str:
    for name, members in _SETS:
        if fates == members:
            return name
    words, rest = [], set(fates)
    for name, members in _SETS:
        if members <= rest:
            words.append(name)
            rest -= members
    return ", ".join([*words, *sorted(str(fate) for fate in rest)])


if __name__ == "__main__":
    print(document(), end="")
