"""Promises about several cores that one client spreads its requests over."""

from __future__ import annotations

from collections import Counter

from engine.messages import Outcome
from engine.topology import Channel, NodeKind
from scenarios.guarantees.base import Envelope, Finding, Guarantee
from scenarios.history.history import FOREVER, History, Record
from scenarios.history.names import base
from scenarios.history.play import Play

CHAPTER, SOURCE = "Data parallelism", "vLLM V1 data-parallel client"


def has_several(play: Play) -> bool:
    return any(len(client.engines) > 1 for client in play.topology.clients)


def check_dead_never_chosen(history: History) -> Finding:
    finding = Finding(history)
    for engine in history.engines:
        for client, told in history.heard_of("engine-dead", engine):
            if len(history.engines_of(client)) == 1:
                continue
            late = next((send for send in history.sends(f"{client}->{engine.core}/{Channel.REQUESTS.value}")
                         if send.number > told.number), None)
            if late is not None:
                finding.broke("{} sent to {} {:.4f} s after it had told that it is dead", client, engine.core,
                              late.at - told.at, at=late.at, node=client)
                continue
            after = [o for o in history.operations if o.node == client and o.accepted is not None
                     and o.accepted.number > told.number]
            if after:
                finding.witness("{} took {!r} in when {} was dead, and sent it to {}", client, after[0].request,
                                engine.core, history.asked_of(after[0]).core, at=after[0].began_at, node=client)
    return finding


def check_death_ends_group(history: History) -> Finding:
    finding = Finding(history)
    for engine in history.engines:
        for client, told in history.heard_of("engine-dead", engine):
            others = set(history.engines_of(client)) - {engine}
            lives = {other for other in others if all(record.number > told.number for _, record in
                                                      history.heard_of("engine-dead", other, client))}
            open_then = [o for o in history.operations if o.node == client and history.asked_of(o) in lives
                         and o.accepted is not None and o.accepted.number < told.number < _end_of(o.ends)]
            for o in open_then:
                mine = history.heard_of("engine-dead", history.asked_of(o), client)
                if o.outcome == Outcome.ENGINE_DEAD and not (mine and mine[0][1].number < _end_of(o.ends)) and \
                        history.before_closing(client, o.ends[0]):
                    finding.broke("request {!r}, which {} served, ended with the death of {}", o.request,
                                  history.asked_of(o).core, engine.core, at=o.ended_at, node=client)
            mine_then = [o for o in history.operations if o.node == client and history.asked_of(o) == engine
                         and o.accepted is not None and o.accepted.number < told.number < _end_of(o.ends)]
            for o in mine_then:
                reason = str(o.ends[0].data.get("reason", "")) if o.ends else ""
                if o.outcome == Outcome.ENGINE_DEAD and base(engine.core) not in reason:
                    finding.broke("request {!r} was told {!r}, and {} is what died", o.request, reason, engine.core,
                                  at=o.ended_at, node=client)
            if open_then and mine_then:
                finding.witness("{} died with {} requests of its own, and {} went on elsewhere", engine.core,
                                len(mine_then), len(open_then), at=told.at, node=client)
    return finding


def _end_of(ends: list[Record]) -> float:
    return ends[0].number if ends else FOREVER


def check_burst_spreads(history: History) -> Finding:
    finding = Finding(history)
    for client in history.of_kind(NodeKind.FRONTEND):
        cores = history.engines_of(client)
        if len(cores) == 1:
            continue
        for burst in _bursts(history, client):
            share = -(-len(burst) // len(cores))
            most, given = Counter(burst).most_common(1)[0]
            if given > share + 1:
                finding.broke("of a burst of {} requests to {} idle cores {} got {}", len(burst), len(cores),
                              f"core.{most}", given, node=client)
            elif len(burst) >= 2 * len(cores):
                finding.witness("of a burst of {} requests to {} idle cores none got more than {}", len(burst),
                                len(cores), given, node=client)
    return finding


def _bursts(history: History, client: str) -> list[list[int]]:
    """Which cores got what was asked before anything of it had ended, each time when nothing was open."""
    changes: list[tuple[int, int | None]] = []  # by number: a core that got a request, or None for an end
    for o in history.operations:
        if o.node == client and o.accepted is not None:
            changes.append((o.accepted.number, history.asked_of(o).engine))
            changes += [(end.number, None) for end in o.ends[:1]]
    dead = {record.number for node, record in history.observed("engine-dead") if node == client}
    found: list[list[int]] = []
    still_open, begins = 0, True
    for number, core in sorted(changes, key=lambda change: change[0]):
        if any(told < number for told in dead):
            break
        if core is None:
            still_open, begins = still_open - 1, False
        else:
            if not still_open:
                found.append([])
                begins = True
            if begins:
                found[-1].append(core)
            still_open += 1
    return found


GUARANTEES = (
    Guarantee(
        id="dp-dead-never-chosen", chapter=CHAPTER, source=SOURCE, check=check_dead_never_chosen, applies=has_several,
        sentence="When a client knows that one of its cores is dead, it sends nothing to it any more.",
        wrong="chooses a core by what it has to do, whether it lives or not",
        witness="a request was taken in after the death of a core",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-death-ends-group", chapter=CHAPTER, source=SOURCE, check=check_death_ends_group, applies=has_several,
        sentence="The death of one of several cores ends its own requests by its name, and none of another one's.",
        wrong={"others": "ends all requests when one core dies", "named": "does not say which core has died"},
        witness="a core died with requests under way, and another one had some, too",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-burst-spreads", chapter=CHAPTER, source=SOURCE, check=check_burst_spreads, applies=has_several,
        sentence="Of a burst of requests to idle cores none gets more than its share and one.",
        wrong="sends all of a burst to the same core",
        witness="twice as many requests as cores were asked for before the first of them had ended",
        envelope=Envelope(),
    ),
)
