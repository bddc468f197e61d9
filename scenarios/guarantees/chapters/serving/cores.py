"""Promises about several cores that one client spreads its requests over."""

from __future__ import annotations

import re

from engine.messages import Outcome
from engine.topology import Channel, NodeKind
from scenarios.guarantees.base import Envelope, Finding, Guarantee
from scenarios.guarantees.chapters.closing import gone_with_the_head, word_is_lost
from scenarios.history.history import FOREVER, EngineLife, History, Record
from scenarios.history.names import base
from scenarios.history.operations import Operation
from scenarios.history.play import Play

CHAPTER, SOURCE = "Data parallelism", "vLLM V1 data-parallel client"
#: What a client says of others than the first one that it has noticed: who, what, for how long.
_OTHERS = re.compile(r"(\w+\.\d+) (died, too|has been silent for ([\d.]+) s)")


def has_several(play: Play) -> bool:
    return any(len(client.engines) > 1 for client in play.topology.clients)


def has_company(play: Play) -> bool:
    """Whether the end of a core may concern another one's requests."""
    return has_several(play) or bool(play.topology.stepping)


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
        if history.in_step(engine):
            if engine == history.joined(engine)[0]:
                _judge_group(finding, engine)
            continue
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


def _judge_group(finding: Finding, engine: EngineLife) -> None:
    """Of those that step together, by the first of them: what ends one ends all, and says who it was."""
    history, group = finding.history, finding.history.joined(engine)
    bound, death = history.bounds.detection_s, history.first_death(engine)
    for client in history.of_kind(NodeKind.FRONTEND):
        own = [other for other in group if other in history.engines_of(client)]
        if not own:
            continue
        ears = [other.core for other in own] if history.is_apart(engine) else []  # by whom it hears of the others
        told = [history.heard_of("engine-dead", other, client) for other in own]
        first = min((records[0][1] for records in told if records), key=lambda record: record.number, default=None)
        asked = [(o, o.accepted.number) for o in history.operations if o.node == client and o.accepted is not None]
        if first is None:
            last = min(history.ends.at(client), history.closes_at(client), history.ended_at)
            if death is not None and any(o.began_at <= death.at for o, _ in asked) and any(
                    start.ready_at <= death.at for start in history.startups if start.node == client):
                finding.took("word of the end of {}, which {} steps with,", death.node, engine.core, bound=bound,
                             node=client,
                             measured=last - death.at - history.faults.frozen_s(client, death.at, last, *ears))
            continue
        if not history.before_closing(client, first):
            continue
        silent = [other.core for other, records in zip(own, told, strict=True)
                  if not records or records[0][1].at > first.at + bound]
        if silent and history.ends.at(client) > first.at + bound:
            finding.broke("{} told of the end of one core, and of {}, which step with it, it did not", client,
                          ", ".join(silent), at=first.at, node=client)
        open_then = [o for o, number in asked if number < first.number < _end_of(o.ends)]
        for o in open_then:
            if o.ends and o.outcome != Outcome.ENGINE_DEAD and o.abort is None and not (
                    o.error == "UnroutableError" or _let_go(history, o, first.at)):  # or it was not told yet
                finding.broke("request {!r} ended {} behind the end of those that step together", o.request, o.outcome,
                              at=o.ended_at, node=client)
        reason = str(first.data.get("reason", ""))
        _judge_others(finding, group, reason, first.at, client)
        guilty = _who_ended(history, engine, first.at)
        guilty |= _gone_along(history, guilty) if history.is_apart(engine) else frozenset()
        is_own = any(base(other.core) in guilty for other in own)
        guilty |= gone_with_the_head(history, engine, first.at, knows_why=is_own) if guilty else frozenset()
        if history.faults.frozen_s(client, 0.0, first.at):  # who looks late finds several gone, and not who was first
            guilty |= {base(node) for node in history.nodes if history.lives_with(engine, node)
                       and history.ends.at(node) <= first.at}
        unheard = history.is_apart(engine) and word_is_lost(history)  # all that it knows is what its own core says
        if guilty and not unheard and not any(name in reason for name in guilty):
            finding.broke("{} was told {!r}, and {} is what ended them", client, reason, " or ".join(sorted(guilty)),
                          at=first.at, node=client)
        if death is not None and death.at < first.at and open_then:
            finding.took("word of the end of {}", death.node, bound=bound, at=first.at, node=client,
                         measured=first.at - death.at - history.faults.frozen_s(client, death.at, first.at, *ears))
        asked_then = {history.asked_of(o).core for o in open_then}
        if len(asked_then) > 1 or (asked_then and guilty and _led(history, engine, guilty).isdisjoint(
                map(base, asked_then))):
            finding.witness("{} ended, and with it {} requests, not all of them its own", " or ".join(sorted(guilty)),
                            len(open_then), at=first.at, node=client)


def _judge_others(finding: Finding, group: tuple[EngineLife, ...], reason: str, at: float, client: str) -> None:
    """Of whom it says that they died, too, or were silent, that is so."""
    history = finding.history
    cores = {base(other.core): other.core for other in group}
    for part in reason.split("; ")[1:]:
        for name, how, seconds in _OTHERS.findall(part):
            if how == "died, too" and name in cores and history.ends.at(cores[name]) > at + history.slack_s:
                finding.broke("{} was told that {} died, too, and it lived", client, name, at=at, node=client)
            elif seconds and float(seconds) < history.bounds.heartbeat_s:
                finding.broke("{} was told that {} has been silent for {} s, which is nothing", client, name, seconds,
                              at=at, node=client)


def _who_ended(history: History, engine: EngineLife, at: float) -> frozenset[str]:
    """Names of those of a group that were gone or struck by then."""
    gone = (death.node for death in history.ends.deaths if history.lives_with(engine, death.node)
            and not _follows(history, death.node, death.at)
            and (death.at < at or (death.planned and death.onset <= at)))
    struck = (receipt.node for receipt in history.faults.receipts if receipt.at <= at
              and history.lives_with(engine, receipt.node) and receipt.may_end_the_engine(history.bounds.collective_s))
    left = (node for node, records in history.by_node("dying").items()
            if records[0].at <= at and history.lives_with(engine, node) and not _follows(history, node, records[0].at))
    return frozenset(base(node) for node in (*gone, *struck, *left, *history.missed(engine, at)))


def _led(history: History, engine: EngineLife, names: frozenset[str]) -> frozenset[str]:
    """Who of these was the first: others may have followed before anything was told."""
    since = {node: min([history.ends.at(node), *(record.at for record in history.by_node("dying").get(node, ())),
                        *(receipt.at for receipt in history.faults.receipts if receipt.node == node)])
             for node in history.nodes if base(node) in names and history.lives_with(engine, node)}
    first = min(since.values(), default=FOREVER)
    return frozenset(base(node) for node, at in since.items() if at == first) if first < FOREVER else names


def _gone_along(history: History, names: frozenset[str]) -> frozenset[str]:
    """Who was started by the same one as any of these, and is ended by it at once: from outside nobody can tell who was
    the first."""
    owners = {history.owner(engine) for name in names for engine in history.engines_of(name)[:1]}
    return frozenset(base(node) for node in history.of_kind(NodeKind.CORE) + history.of_kind(NodeKind.COORDINATOR)
                     if history.owner(history.engine_of(node)) in owners)


def _follows(history: History, node: str, at: float) -> bool:
    """Whether a rank without a coordinator goes because another one has gone, or stands still."""
    engine = history.engine_of(node)
    return history.is_apart(engine) and not any(
        receipt.node == node for receipt in history.faults.receipts) and (history.ends_with_another(engine, at) or any(
            receipt.at <= at and history.engine_of(receipt.node) != engine for receipt in history.faults.stalls))


def _let_go(history: History, operation: Operation, by: float) -> bool:
    """The core had done with it: what it said was on its way."""
    node, internal = history.asked_of(operation).core, operation.internal
    return any(record.data["request"] == internal and record.at <= by and record.data.get("action") != "add"
               for name in ("freed", "request") for record in history.by_node(name).get(node, ()))


def _end_of(ends: list[Record]) -> float:
    return ends[0].number if ends else FOREVER


GUARANTEES = (
    Guarantee(
        id="dp-dead-never-chosen", chapter=CHAPTER, source=SOURCE, check=check_dead_never_chosen, applies=has_several,
        sentence="When a client knows that one of its cores is dead, it sends nothing to it any more.",
        wrong="chooses a core by what it has to do, whether it lives or not",
        witness="a request was taken in after the death of a core",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-death-ends-group", chapter=CHAPTER, source=SOURCE, check=check_death_ends_group, applies=has_company,
        sentence="The death of one of several cores ends its own requests by its name, and none of another one's; of "
                 "cores that step together it ends all, and so does that of their coordinator.",
        wrong={"others": "ends all requests when one core dies", "named": "does not say which core has died",
               "group": "lets cores that step together go on without one, or without their coordinator"},
        witness="a core died with requests under way, and another one had some, too",
        envelope=Envelope(),
    ),
)
