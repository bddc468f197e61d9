"""Promises about a coordinator: whom it waits for at the start, what clients learn by it, and who hears of its end."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine.topology import Channel, Mark, NodeKind, mark_site
from faults.journal import Kind
from scenarios.guarantees.base import (
    DAMAGE,
    DEATHS,
    LOSSES,
    MESSAGE,
    ORDERINGS,
    STALLS,
    Envelope,
    Finding,
    Guarantee,
    Where,
)
from scenarios.guarantees.chapters.serving.cores import CHAPTER
from scenarios.guarantees.readers.group.hub import Hub, Notice, Word, hear, word_of
from scenarios.guarantees.readers.group.quiet import Quiet, counts_in, quiets
from scenarios.history.history import FOREVER, Fate, History, Receipt, Record
from scenarios.history.names import base, kind_of, life_of, of_life, rank_of
from scenarios.history.play import Play
from scenarios.history.receipts import STALL_FATES

SOURCE = "vLLM V1 data-parallel coordinator"
#: The inbox by which cores subscribe.
_WAVES = "waves"


def has_coordinator(play: Play) -> bool:
    return bool(play.topology.coordinators)


def check_start_needs_all(history: History) -> Finding:
    finding = Finding(history)
    for hub in history.of_kind(NodeKind.COORDINATOR):
        engines = history.engines_of(hub)
        subscribed = [(record.data["index"], record) for record in history.by_node("subscribed").get(hub, ())
                      if record.data["inbox"] == _WAVES]
        for said in history.by_node("all-subscribed").get(hub, ())[:1]:
            seen = {index for index, record in subscribed if record.number < said.number}
            if missing := [engine.core for engine in engines if engine.engine not in seen]:
                finding.broke("{} said that all have subscribed, and {} had not", hub, " and ".join(missing),
                              at=said.at, node=hub)
        for engine in engines:
            _judge_ready(finding, hub, engine.core)
    return finding


#: Where it says where it is bound: from then on it counts the time.
_BOUND = f"/{Channel.BIRTH.value}:send"
#: What it says, by itself.
_SAID = ("start", "notice")
#: In the twin, where a turn takes no time but its own.
SLACK_S = 0.005

#: What a message met that is taken in all the same: nothing, a standstill of its reader, or the end of somebody else.
_HEARD = (None, Fate.STALL, Fate.HANG, Fate.DUPLICATE, Fate.TERMINATE, Fate.KILL)


def _judge_ready(finding: Finding, hub: str, core: str) -> None:
    """A core that is ready has heard that all are heard."""
    history = finding.history
    ready = history.crossings.get(mark_site(core, Mark.READY))
    if not ready:
        return
    edge = f"{hub}->{core}/wave"
    heard = [record for record in history.receives(edge)
             if record.data.get("ready") and (record.data.get("fate") in _HEARD or history.delivered_at.get(
                 (record.site, record.nth), FOREVER) <= ready[0].at)]
    if not heard or heard[0].number > ready[0].number:
        finding.broke("{} was ready before it had heard that all have subscribed", core, at=ready[0].at, node=core)
    elif any(_is_of_a_subscription(receipt) and receipt.at < ready[0].at for receipt in history.faults.receipts):
        finding.witness("a subscription came late, twice or not at all, and {} was ready when all had come", core,
                        at=ready[0].at, node=core)


def _is_of_a_subscription(receipt: Receipt) -> bool:
    return "->coordinator." in receipt.site and receipt.site.endswith(("/wave:receive", "/wave:wire"))


def check_coordinator_death_is_told(history: History) -> Finding:
    finding = Finding(history)
    bounds = history.bounds
    for hub in history.of_kind(NodeKind.COORDINATOR):
        since, how = _when_gone(history, hub)
        for client in history.of_kind(NodeKind.FRONTEND):
            start = next((one for one in history.startups if one.node == client), None)
            if since == FOREVER or life_of(client) != life_of(hub) or start is None or not start.ready_at < since or \
                    not set(history.engines_of(client)) & set(history.engines_of(hub)):
                continue
            told = _told_of(history, client, base(hub))
            end = min(history.ends.at(client), history.closes_at(client), history.ended_at)
            until = end if told is None else told.at
            late = until - since - history.faults.frozen_s(client, since, until)
            if told is None and late <= bounds.detection_s:
                continue  # nobody was there any more to tell
            if not finding.took("word of the end of {} ({}) at {}", hub, how, client, bound=bounds.detection_s,
                                measured=late, at=until, node=client):
                continue
            if any(o.node == client and not (o.ends and o.ends[0].at < since) for o in history.operations):
                finding.witness("{} ended ({}) with requests under way or to come, and {} said so", hub, how, client,
                                at=until, node=client)
    return finding


def _told_of(history: History, client: str, hub: str) -> Record | None:
    """When that client spoke of its end first."""
    found = [record for name in ("coordinator-dead", "engine-dead") for record in history.by_node(name).get(client, ())
             if hub in str(record.data.get("reason", ""))]
    return min(found, key=lambda record: record.number, default=None)


def _when_gone(history: History, hub: str) -> tuple[float, str]:
    """When it was gone, or had stood still for as long as it may; and how."""
    death = next((death for death in history.ends.deaths if death.node == hub), None)
    first = history.engines_of(hub)[0]
    follows = death is not None and not death.planned and history.in_step(first) and (any(
        other.at <= death.at and other.node != hub and history.lives_with(first, other.node)
        for other in history.ends.deaths) or any(  # it was ended with all others, by who had told of their end
            record.at <= death.at for record in history.by_node("engine-dead").get(history.owner_of(hub), ())))
    if death is not None and not follows and (death.planned or death.at < history.closes_at(hub)):
        return death.at, death.how
    stalls = [receipt.at for receipt in history.faults.receipts if of_life(base(receipt.node), life_of(hub)) == hub
              and receipt.fate in STALL_FATES and receipt.lasted_s > history.bounds.stall_s]
    return (min(stalls) + history.bounds.stall_s, "it stood still") if stalls else (FOREVER, "")


# -- what clients learn by it


def is_counted(play: Play) -> bool:
    """Whether a coordinator tells of counts: not where whoever asks chooses the core."""
    return has_coordinator(play) and play.config.data_parallel.load_balancing != "external"


def check_view_converges(history: History) -> Finding:
    finding = Finding(history)
    for hub in history.of_kind(NodeKind.COORDINATOR):
        engines = history.engines_of(hub)
        for start in history.startups:
            client = start.node
            if (kind_of(client) == NodeKind.FRONTEND and life_of(client) == life_of(hub) and start.ready_at < FOREVER
                    and set(history.engines_of(client)) & set(engines)):
                for quiet in quiets(history, hub, client, engines, start.ready_at):
                    _judge_view(finding, hub, client, quiet)
    return finding


def _judge_view(finding: Finding, hub: str, client: str, quiet: Quiet) -> None:
    history, options = finding.history, finding.history.play.config.data_parallel
    bound = options.unchanged_s + options.changed_s + 2 * options.settle_s + history.bounds.detection_s
    edge = f"{base(hub)}->{base(client)}/{Channel.STATS.value}"
    struck = [receipt for receipt in history.faults.receipts if receipt.site.rpartition(":")[0] == edge
              and life_of(receipt.node) == life_of(client) and receipt.at < quiet.until]
    since = max([quiet.since, *(receipt.over_at if receipt.holds else receipt.at for receipt in struck)])
    seen = [record for record in history.by_node("view").get(client, ())
            if record.data["counts"] is not None and record.at < quiet.until]
    known = [record for record in seen if record.at < quiet.since][-1:]
    known += [record for record in seen if record.at >= quiet.since]
    wrong = [place for place, record in enumerate(known)
             if counts_in(record) != quiet.requests]
    right = known[wrong[-1] + 1 if wrong else 0:]
    until = right[0].at if right else quiet.until
    late = until - since - history.faults.frozen_s(client, since, until, hub, *(
        engine.core for engine in history.engines_of(hub)))
    if not right and late <= bound:
        return  # it was over too soon
    kept = finding.took("{} believed that of the cores' requests {} wait and run, and it was {}: that", client,
                        _told_in(known), list(quiet.requests), bound=bound, measured=late, at=until, node=client)
    if kept and any(quiet.since <= receipt.at <= until and receipt.fate in LOSSES | ORDERINGS or
                    _is_deaf_by(history, edge, receipt, quiet, until) for receipt in struck):
        finding.witness("{} did not hear of a count, or late, and knew {:.4f} s behind the last change that of the "
                        "cores' requests {} wait and run", client, until - quiet.since, list(quiet.requests), at=until,
                        node=client)


def _is_deaf_by(history: History, edge: str, receipt: Receipt, quiet: Quiet, until: float) -> bool:
    """Whether a connection was lost before the last change, and what was said of that behind it found nobody."""
    heard = history.crossings.get(f"{edge}:receive", ())
    said = [record for record in history.crossings.get(f"{edge}:send", ()) if quiet.since <= record.at < until
            and record.data.get("counts") is not None and counts_in(record) == quiet.requests]
    return receipt.fate == Fate.CUT and len(said) > 1 and not any(receipt.at < one.at < said[-1].at for one in heard)


def _told_in(views: list[Record]) -> str:
    return str(list(counts_in(views[-1]))) if views else "no"


def check_coordinator_in_turn(history: History) -> Finding:
    finding = Finding(history)
    intruders = history.play.options.intruders
    for hub in history.of_kind(NodeKind.COORDINATOR):
        ready = history.crossings.get(mark_site(hub, Mark.READY))
        if ready and not any(history.meets(hub, intruder) for intruder in intruders):
            said = [record for record in history.records(hub) if record.site.endswith(_BOUND)]
            _judge_turns(finding, hub, (*said, *ready)[0])
    return finding


def _judge_turns(finding: Finding, hub: str, ready: Record) -> None:
    """Each word that it says, beside what it was told by then. `ready`: when it begins."""
    history, due = finding.history, list[Word]()
    first = history.engines_of(hub)[0]
    rules = Hub(len(history.engines_of(hub)), history.play.config.data_parallel, ready.at,
                lockstep=history.in_step(first), counted=is_counted(history.play))
    told_at, slack = ready.at, SLACK_S if history.simulated else history.bounds.detection_s
    for record in _behind_its_words(_turns(history, hub, ready), due):
        until = max(rules.publish_at, told_at)  # what it is told may make it due at once
        if not due and not finding.took(
                "telling clients of counts, in {},", hub, bound=slack, at=record.at, node=hub,
                measured=record.at - until - history.faults.frozen_s(hub, until, record.at)):
            return
        if record.site in _SAID:
            word = word_of(record)
            if not due:
                if record.at < rules.publish_at - slack:
                    finding.broke("{} told clients at {:.4f}, and that was due at {:.4f}", hub, record.at,
                                  rules.publish_at, at=record.at, node=hub)
                    return
                if rules.has_news:
                    finding.witness("clients were told of counts that had changed", at=record.at, node=hub)
                due.extend(rules.publish(record.at))
            if word != (meant := due.pop(0)):
                finding.broke("{} said {}, and by what it was told it had to say {}", hub, word, meant, at=record.at,
                              node=hub)
                return
        elif due:
            finding.broke("{} heard of something else before it had said {}", hub, due[0], at=record.at, node=hub)
            return
        elif "scheduler_stats" in record.data and not is_counted(history.play):
            finding.broke("{} was told of counts, which nobody wants to know", hub, at=record.at, node=hub)
            return
        elif "scheduler_stats" in record.data and history.in_step(first) and "counted_at" not in record.data:
            finding.broke("{} was told of counts, and not of which step they are", hub, at=record.at, node=hub)
            return
        else:
            told_at, teller = record.at, record.site.partition("->")[0]
            due.extend(hear(rules, record, rank_of(teller) if kind_of(teller) == NodeKind.CORE else None))
            if "start_wave" in record.data and not any(isinstance(word, Notice) for word in due):
                finding.witness("{} told of wave {}, which ran or seemed over", teller, record.data["start_wave"],
                                at=record.at, node=hub)


def _behind_its_words(turns: Iterator[Record], due: list[Word]) -> Iterator[Record]:
    """What is let go while it still has words to say it hears behind them. `due`: these, as they become fewer."""
    let_go: list[Record] = []
    for record in turns:
        if due and record.data.get("fate") == Fate.DELAY and record.site not in _SAID:
            let_go.append(record)
        else:
            yield record
        while let_go and not due:
            yield let_go.pop(0)


def _turns(history: History, hub: str, ready: Record) -> Iterator[Record]:
    """What it says, and what it is told, in its own order, until it leaves, or is told otherwise than it was sent.

    What comes late it was told when that was let go.
    """
    edges = {f"{base(peer)}->{base(hub)}/{channel}:receive" for peer, channel in (
        *((engine.core, Channel.REPORT.value) for engine in history.engines_of(hub)),
        *((client, Channel.STATS.value) for client in history.of_kind(NodeKind.FRONTEND)))}
    held: dict[tuple[str, int], Record] = {}
    for record in history.records(hub):
        if record.site == "dying":
            return
        fate = record.data.get("fate")
        if record.kind is Kind.RELEASE:
            late = held.pop((record.data.get("site", ""), record.data.get("nth", 0)), None)
            if late is not None:
                yield msgspec.structs.replace(late, at=record.at, number=record.number)
        elif record.number < ready.number or (record.site not in _SAID and record.site not in edges):
            continue
        elif fate == Fate.DELAY:
            held[record.site, record.nth] = record
        elif fate in ORDERINGS | DAMAGE | {Fate.DUPLICATE}:
            return
        elif fate not in LOSSES:
            yield record


GUARANTEES = (
    Guarantee(
        id="dp-start-needs-all", chapter=CHAPTER, source=SOURCE, check=check_start_needs_all, applies=has_coordinator,
        sentence="No core is ready before its coordinator has seen the subscriptions of all cores, each by its own.",
        wrong={"count": "counts subscriptions, and does not look whose they are",
               "waits": "is ready before it has heard that all have subscribed"},
        witness="a subscription was late, doubled or lost, and all cores became ready",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-coordinator-death-is-told", chapter=CHAPTER, source=SOURCE, check=check_coordinator_death_is_told,
        applies=has_coordinator,
        sentence="When the coordinator dies, or makes no progress for longer than its bound, every client says so by "
                 "its name.",
        wrong="watches its cores alone",
        witness="the coordinator was gone while requests were under way or to come",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-view-converges", chapter=CHAPTER, source=SOURCE, check=check_view_converges, applies=is_counted,
        sentence="When no core has got, begun, put off or been done with a request for as long as a coordinator takes "
                 "to publish counts that have changed, and once more those that have not, and for the detection bound, "
                 "each client knows how many requests wait at each core, and how many run.",
        wrong={"repeat": "publishes counts when they have changed, and never again",
               "falls": "tells what it has to do when that grows, and not when it falls",
               "rests": "takes counts while a wave runs, and none at rest",
               "begins": "tells what it has to do, and not how much of that has begun"},
        witness="a notice of counts was lost, late or overtaken, and its client knew them in time",
        envelope=Envelope(outside=(
            Where(STALLS, passing=False, why="who stands still for good tells nothing: see stall-is-told"),
            Where(MESSAGE | LOSSES, sites=f"core.*->coordinator.*/{Channel.REPORT.value}:*",
                  why="a core tells its counts when they change, once: they are advice"),
            Where(DEATHS, sites=f"core.*->coordinator.*/{Channel.REPORT.value}:*",
                  why="who fails as it tells its counts has not told them"),
            Where(MESSAGE | LOSSES, sites=f"frontend.*->coordinator.*/{Channel.STATS.value}:*",
                  why="a client asks for them once"))),
    ),
    Guarantee(
        id="dp-coordinator-in-turn", chapter=CHAPTER, source=SOURCE, check=check_coordinator_in_turn,
        applies=has_coordinator,
        sentence="A coordinator says what follows from what it was told, in turn: each START and its notice once, a "
                 "START that a core asks for also where its wave seems over, counts of steps that all cores have told "
                 "of, and those that have changed soon.",
        wrong={"once": "starts a wave that runs",
               "passes": "keeps to itself what a core asks for in a wave that seems over",
               "whole": "tells counts of which some are of the next step",
               "soon": "tells of counts that have changed as seldom as of those that have not"},
        witness="clients were told of counts that had changed, or a core told of a wave that ran or seemed over",
        envelope=Envelope(),
    ),
)
