"""Where the runs of a report come from, all of them together: `results.json` and the page say the same.

Runs that were recorded before this was kept say nothing of it: then it is not known, which is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from reports.formats import count, listed
from scenarios.history.play import Provenance
from scenarios.history.run import Run

NOT_KNOWN = "not known"
_SHORT_COMMIT = 12


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Each value once, sorted. Of a run without provenance only seed, versions and schema are known."""

    runs: int
    known: int  # runs that say where they come from
    first: str | None  # when the first of them began, UTC
    last: str | None
    hosts: list[str]
    pythons: list[str]
    cores: list[int]
    commits: list[str]
    commands: list[str]
    seeds: list[int]
    versions: dict[str, list[str]]
    record_schemas: list[int]
    edits: list[str] = []  # functions of an engine that is not ours were changed


def origin_of(runs: Sequence[Run]) -> Origin:
    said = [run.play.provenance for run in runs if run.play.provenance is not None]
    began = sorted(one.began_at for one in said)
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.play.versions.items():
            versions.setdefault(name, set()).add(version)
    return Origin(
        runs=len(runs), known=len(said), first=began[0] if began else None, last=began[-1] if began else None,
        hosts=_each(f"{one.system}, {one.machine}" for one in said), pythons=_each(one.python for one in said),
        cores=_each(one.cores for one in said), commits=_each(map(commit_of, said)),
        commands=_each(one.command for one in said), seeds=_each(run.play.seed for run in runs),
        versions={name: sorted(found) for name, found in sorted(versions.items())},
        record_schemas=_each(run.play.schema for run in runs),
        edits=_each(name for run in runs for name in run.play.options.edits))


def _each(values: Iterable[Any]) -> list[Any]:
    return sorted(set(values))


def commit_of(said: Provenance) -> str:
    """As a person says it: 0123456789ab, with changes."""
    if said.commit is None:
        return "no git checkout"
    doubt = {None: ", perhaps with changes", True: ", with changes", False: ""}[said.changed]
    return said.commit[:_SHORT_COMMIT] + doubt


def line_of(origin: Origin) -> str:
    """The most of it in a line."""
    if not origin.runs:
        return ""
    if not origin.known:
        return "When, where and from which commit this was played is not known."
    return (f"Played {_time(origin.first)} on {listed(origin.hosts, 3)}, {_cores(origin)}; "
            f"commit {listed(origin.commits, 3)}.")


def rows_of(origin: Origin, schema: int) -> list[tuple[str, list[str]]]:
    """(what, its values) for a reader; `schema` is that of results.json."""
    if not origin.runs:
        return []
    time = _time(origin.first) if origin.first == origin.last else f"{_time(origin.first)} to {_time(origin.last)}"
    rows = [("played", [time] if origin.known else []), ("host", origin.hosts), ("Python", origin.pythons),
            ("cores", [_cores(origin)] if origin.known else []), ("commit of Ringtwin", origin.commits),
            ("command", origin.commands), ("seed", [str(seed) for seed in origin.seeds]),
            ("versions", [f"{name} {' / '.join(found)}" for name, found in origin.versions.items()]),
            ("schema", [f"records {' / '.join(map(str, origin.record_schemas))}, results {schema}"])]
    rows = [(what, values or [NOT_KNOWN]) for what, values in rows]
    if origin.edits:
        rows.append(("edited", origin.edits))
    if 0 < origin.known < origin.runs:
        rows.append(("not known of", [f"{origin.runs - origin.known:,} of {count(origin.runs, 'run')}"]))
    return rows


def _time(stamp: str | None) -> str:
    return (stamp or NOT_KNOWN).replace("T", " ").replace("Z", " UTC")


def _cores(origin: Origin) -> str:
    return " or ".join(map(str, origin.cores)) + (" core" if origin.cores == [1] else " cores")
