"""Promises about the ranks of a group: what they enter together, and when they may leave it."""

from __future__ import annotations

from scenarios.guarantees.base import MEMORY, Envelope, Finding, Guarantee, has_workers
from scenarios.history.history import FOREVER, History, Record
from scenarios.history.names import ACROSS

CHAPTER = "Ring and collective RPC"
_ENTER = "/collective:enter"


def check_groups_agree(history: History) -> Finding:
    finding = Finding(history)
    crossings = history.crossings
    for engine in history.engines:
        grid = history.play.topology.engine(engine.engine).grid
        for first in range(0, grid.size, grid.tp) if grid.tp > 1 else ():
            ranks = [engine.worker(rank) for rank in grid.tp_group(first)]
            group = {node: crossings[node + _ENTER] for node in ranks if node + _ENTER in crossings}
            if group:
                _judge_order(finding, group)
                _judge_early(finding, ranks, group)
    return finding


def _judge_order(finding: Finding, group: dict[str, list[Record]]) -> None:
    longest = max(group, key=lambda node: len(group[node]))
    theirs = [entry.data.get("operation") for entry in group[longest]]
    for node, entries in group.items():
        mine = [entry.data.get("operation") for entry in entries]
        if mine != theirs[:len(mine)]:
            place = next(n for n, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1])
            finding.broke("{} entered {} as its collective {}, and {} entered {}", node, mine[place], place, longest,
                          theirs[place], at=entries[place].at, node=node)
    if len(group) > 1 and len(set(theirs)) > 1:
        shared = min(len(entries) for entries in group.values())
        finding.witness("{} collectives of several kinds were entered by all ranks in one order", shared, times=shared)


def _judge_early(finding: Finding, ranks: list[str], group: dict[str, list[Record]]) -> None:
    """Who enters a collective has left the one before, into which everybody had come."""
    came = {node: _came(finding.history, node, group.get(node, [])) for node in ranks}
    whole = [max(times) for times in zip(*came.values(), strict=False)]  # when everybody had come into each
    for node, times in came.items():
        early = next((n for n, at in enumerate(times[1:len(whole) + 1]) if at < whole[n]), None)
        if early is None and len(times) > len(whole) + 1:
            early = len(whole)
        if early is not None:
            behind = [other for other, at in came.items() if len(at) <= early or at[early] > times[early + 1]]
            finding.broke("{} left collective {}, and {} had not entered it", node, early, " and ".join(behind),
                          at=times[early + 1], node=node)
            return
    if any(len(times) > len(whole) for times in came.values()) and any(
            sum(map(_is_own, group.get(node, ()))) > len(times) for node, times in came.items()):
        finding.witness("a rank never came into collective {}, and who was there did not go on", len(whole))


def _came(history: History, node: str, entries: list[Record]) -> list[float]:
    """When a rank was in each: later than it came, where something kept it at the door."""
    times = history.faults.through_at(node, entries)
    came = times[:-1] if times and times[-1] == FOREVER else times
    return [at for at, entry in zip(came, entries, strict=False) if entry.data.get("operation") != ACROSS]


def _is_own(entry: Record) -> bool:
    """Whether the rank entered it with the others of its group, and not with those of other engines."""
    return entry.data.get("operation") != ACROSS


GUARANTEES = (
    Guarantee(
        id="groups-agree", chapter=CHAPTER, source="vLLM V1 worker", check=check_groups_agree, applies=has_workers,
        sentence="All ranks of a group enter the same collectives in the same order, and none leaves one that another "
                 "has not entered.",
        wrong={"order": "lets a rank enter its collectives in an order of its own",
               "early": "lets a rank go on as soon as it has brought its own part"},
        witness="collectives of several kinds were entered by all ranks, or others waited for one that never came",
        envelope=Envelope(outside=(MEMORY,)),
    ),
)
