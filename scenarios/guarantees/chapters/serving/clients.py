"""Promises about several clients that share engines which none of them owns."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from engine.messages import Outcome
from engine.topology import Channel, Mark, NodeKind, mark_site
from faults.journal import Record
from scenarios.guarantees.base import ORDERINGS, STALLS, Envelope, Finding, Guarantee
from scenarios.guarantees.fitting import may_not_fit
from scenarios.history.history import FOREVER, EngineLife, History, Operation
from scenarios.history.names import base, life_of, of_life, rank_of
from scenarios.history.play import Play
from scenarios.history.receipts import STOPPED_PART

CHAPTER, SOURCE = "Several clients", "vLLM V1 engine core client, client_index"


def is_shared(play: Play) -> bool:
    return bool(play.topology.launchers)


def _clients(history: History) -> list[str]:
    return [node for node in history.of_kind(NodeKind.FRONTEND) if history.is_attached(node)]


def _done_at(history: History, operation: Operation) -> float:
    """When its core had finished it, and nobody had asked it to stop; infinite if it did not."""
    node, internal = history.asked_of(operation).core, operation.internal
    acts = [record for record in history.by_node("request").get(node, ()) if record.data["request"] == internal]
    if operation.abort is not None or any(record.data["action"] != "add" for record in acts):
        return FOREVER
    freed = (record.at for record in history.by_node("freed").get(node, ()) if record.data["request"] == internal)
    return next(freed, FOREVER)


def check_routed(history: History) -> Finding:
    finding = Finding(history)
    for node, record in history.observed("stray"):
        finding.broke("{} was sent an output of {!r}, which another client has asked for", node, record.data["request"],
                      at=record.at, node=node)
    asked: dict[str, dict[str, Operation]] = {}  # by name, then client
    for o in history.operations:
        if not history.is_attached(o.node) or o.accepted is None:
            continue
        done_at, bound = _done_at(history, o), history.bounds.request_s
        if done_at < FOREVER and o.outcome != Outcome.FINISHED and not history.faults.receipts and \
                min(history.ends.at(o.node), o.over_at) > done_at + bound / 2:
            finding.broke("request {!r} of {} was finished by its core, and {} was not told", o.request, o.node, o.node,
                          at=done_at, node=o.node)
        asked.setdefault(o.request, {})[o.node] = o
    for name, by_client in asked.items():
        both = [o for o in by_client.values() if o.outcome == Outcome.FINISHED and o.deliveries]
        if len(both) > 1 and max(o.began_at for o in both) < min(o.over_at for o in both):
            finding.witness("{} asked for {!r} at once, and each got what is its own",
                            " and ".join(o.node for o in both), name)
    return finding


def check_isolated(history: History) -> Finding:
    """By the deaths of clients whose engines go on."""
    finding, bounds = Finding(history), history.bounds
    clients = _clients(history)
    _judge_limits(finding, clients)
    for client in clients:
        gone_at = history.ends.at(client)
        engines = history.engines_of(client)
        if gone_at >= min(history.closes_at(client), *(history.closing_at(engine) for engine in engines)):
            continue
        others_open = _judge_others(finding, client, gone_at)
        mine = [o for o in history.operations if o.node == client and o.accepted is not None
                and o.accepted.at <= gone_at and _done_at(history, o) > gone_at]
        held = 0
        for o in mine:
            core = history.asked_of(o).core
            took = [r for r in history.by_node("request").get(core, ()) if r.data["request"] == o.internal]
            freed = next((r.at for r in history.by_node("freed").get(core, ()) if r.data["request"] == o.internal),
                         None)
            if not any(r.data["action"] == "add" for r in took) or (
                    freed is None and history.ends.at(core) < gone_at + bounds.detection_s):
                continue
            cut = next((r.number for r in history.by_node("client-gone").get(core, ())
                        if r.at >= gone_at and r.data["client"] == rank_of(client)), None)
            if cut is not None and any(r.data["action"] == "add" and r.number > cut for r in took) and not (
                    history.faults.hit(*ORDERINGS, channel=Channel.REQUESTS.value)):
                finding.broke("{} took {!r} of {} when it had seen that this is gone", core, o.request, client,
                              at=gone_at, node=core)
            freed = min(history.ended_at, history.ends.at(core)) if freed is None else freed
            held += 1
            finding.took("freeing {!r} of {}, which was gone,", o.request, client, bound=bounds.detection_s,
                         measured=freed - gone_at - _longest_standstill_s(history, core, gone_at), at=freed, node=core)
        if held and others_open:
            finding.witness("{} was gone with {} requests, and {} of others went on", client, held, others_open,
                            at=gone_at, node=client)
    return finding


def _judge_limits(finding: Finding, clients: list[str]) -> None:
    """What a client may have in flight it may have, whatever others do."""
    history, limit = finding.history, finding.history.play.config.limits.max_requests
    struck = any(receipt.fate not in STALLS for receipt in history.faults.receipts)
    for node, records in history.by_node("request").items() if not struck else ():
        refused = {record.data["request"]: record for record in records
                   if record.data["action"] == "refused" and "in flight" in record.data["reason"]}
        for o in history.operations:
            record = refused.get(o.internal or "")
            if record is not None and o.node in clients and history.asked_of(o).core == node:
                finding.broke("{} refused {!r} of {}, which had no more than {} in flight", node, o.request, o.node,
                              limit, at=record.at, node=node)
    full = [_full(history, client, limit) for client in clients]
    if len(clients) > 1 and max(since for since, _ in full) < min(until for _, until in full):
        finding.witness("each of {} clients had {} requests in flight at once", len(clients), limit)


def _full(history: History, client: str, limit: int) -> tuple[float, float]:
    """From when, till when it had as many requests in flight as it may, the first time."""
    mine = [o for o in history.operations if o.node == client and o.accepted is not None]
    changes = sorted([(o.accepted.at, 1) for o in mine if o.accepted] + [(o.ends[0].at, -1) for o in mine if o.ends])
    open_then = list(accumulate(change for _, change in changes))
    if limit not in open_then:
        return FOREVER, FOREVER
    first = open_then.index(limit)
    return changes[first][0], changes[first + 1][0] if first + 1 < len(changes) else FOREVER


def _longest_standstill_s(history: History, core: str, since: float) -> float:
    """Who goes on behind one sees who is gone, however many there are."""
    return max((stall.until - max(stall.at, since) for stall in history.faults.stalls
                if stall.node == core and stall.until > since), default=0.0)


def _judge_others(finding: Finding, client: str, gone_at: float) -> int:
    """-> how many requests of other clients were under way"""
    history = finding.history
    theirs = [o for o in history.operations if o.node != client and history.is_attached(o.node)
              and o.accepted is not None and o.accepted.at < gone_at < o.over_at]
    hit = [r for r in history.faults.receipts if r.node != client and (
        r.fate not in STALLS or r.may_end_the_engine(min(history.bounds.step_s, history.bounds.request_s)))]
    for o in theirs if not hit else ():
        if o.ends and o.outcome not in (Outcome.FINISHED, Outcome.ABORTED) and \
                o.over_at < history.ends.at(o.node) and o.over_at < history.closes_at(o.node):
            finding.broke("request {!r} of {} ended {} behind the end of {}", o.request, o.node, o.outcome, client,
                          at=o.over_at, node=o.node)
    return len(theirs)


def _heard_by_its_core(history: History, engine: EngineLife, gone_at: float, told_at: float) -> float:
    """From when on clients can know of a launcher or worker that is gone: by its core, or as that stands still."""
    bounds = history.bounds
    return max((min(stall.until, stall.at + bounds.stall_s + bounds.heartbeat_s) for stall in history.faults.stalls
                if stall.node == engine.core and stall.at < told_at and stall.until > gone_at), default=gone_at)


def check_notice_to_all(history: History) -> Finding:
    finding, bound = Finding(history), history.bounds.detection_s
    for engine in history.engines:
        death = history.first_death(engine)
        if death is None or death.at >= history.closing_at(engine):
            continue
        told = 0
        for client in _clients(history):
            began = next((start for start in history.startups if start.node == client), None)
            until = history.ends.at(client)
            heard = history.heard_of("engine-dead", engine, client)
            if engine not in history.engines_of(client) or began is None or began.ready_at > death.at or (
                    not heard and until < death.at + bound):
                continue
            at = heard[0][1].at if heard else min(until, history.ended_at)
            since = death.at if death.node == engine.core else _heard_by_its_core(history, engine, death.at, at)
            frozen = history.faults.frozen_s(client, since, at)
            told += finding.took("word of the end of {} to {}", death.node, client, bound=bound,
                                 measured=at - since - frozen, at=at, node=client)
        if told > 1:
            finding.witness("{} ended, and {} clients were told", death.node, told, at=death.at, node=engine.core)
    return finding


def check_returns(history: History) -> Finding:
    """By those that came back to engines which went on meanwhile."""
    finding, bounds = Finding(history), history.bounds
    for client in filter(history.came_back, _clients(history)):
        before = of_life(base(client), life_of(client) - 1)
        start = next((one for one in history.startups if one.node == client), None)
        lived_until = min((history.ends.at(engine.core) for engine in history.engines_of(client)), default=FOREVER)
        struck = [r for r in history.faults.receipts if r.node != before and (
            r.fate not in STALLS or r.may_end_the_engine(min(bounds.step_s, bounds.request_s)))]
        if start is None or struck:
            continue
        patience, seen_until = bounds.handshake_s, min(history.ended_at, history.ends.at(client), lived_until)
        if start.ready_at == FOREVER and (start.end is not None or start.began.at + patience < seen_until):
            finding.broke("{} came in the place of {}, and the engines did not take it in", client, before,
                          at=start.began.at, node=client)
            continue
        mine = [o for o in history.operations if o.node == client and o.accepted is not None]
        for o in mine:
            if o.ends and o.outcome not in (Outcome.FINISHED, Outcome.ABORTED) and o.over_at < seen_until and \
                    not may_not_fit(history, o):
                finding.broke("request {!r} of {} ended {}", o.request, client, o.outcome, at=o.over_at, node=client)
        done = sum(o.outcome == Outcome.FINISHED for o in mine)
        if done:
            finding.witness("{} came in the place of {}, and {} of its requests were done", client, before, done,
                            at=start.ready_at, node=client)
    return finding


class _Word(NamedTuple):
    """What a launcher says of the end of one of its processes."""

    node: str
    record: Record


def check_launcher_says(history: History) -> Finding:
    finding = Finding(history)
    for launcher in history.of_kind(NodeKind.LAUNCHER):
        ready = history.crossings.get(mark_site(launcher, Mark.READY))
        engines = history.engines_of(launcher)
        until = min(history.ends.at(launcher), history.closing_at(engines[0]), history.ended_at)
        if not ready:
            _judge_unready(finding, launcher, until, [engine.core for engine in engines])
            continue
        hubs = {hub for engine in engines if (hub := history.hub_of(engine)) and history.owner_of(hub) == launcher}
        words = [_Word(next(one.core for one in engines if one.engine == record.data["core"]), record)
                 for record in history.by_node("engine-dead").get(launcher, ())]
        words += [_Word(hub, record) for hub in hubs
                  for record in history.by_node("coordinator-dead").get(launcher, ())]
        _judge_ready(finding, launcher, ready[0].at, [engine.core for engine in engines])
        for word in words:
            _judge_word(finding, launcher, word)
        for node in (*(engine.core for engine in engines), *sorted(hubs)):
            _judge_said(finding, launcher, node, (ready[0].at, until), words)
        _judge_last(finding, launcher, [engine.core for engine in engines], until)
    return finding


def _judge_unready(finding: Finding, launcher: str, until: float, cores: list[str]) -> None:
    """It says so when they serve."""
    history = finding.history
    starts = [records[0].at for core in cores if (records := history.by_node("ready").get(core))]
    if len(starts) == len(cores) and not any(
            receipt.at <= max(starts) or receipt.node == launcher for receipt in history.faults.receipts):
        silent_s = until - max(starts) - history.faults.frozen_s(launcher, max(starts), until, *cores)
        if silent_s > history.bounds.detection_s:
            finding.broke("{} never said that its cores serve, {:.3f} s behind the last one's start", launcher,
                          silent_s, at=until, node=launcher)


def _judge_ready(finding: Finding, launcher: str, at: float, cores: list[str]) -> None:
    """It has started them when they serve, and neither before nor much later."""
    history, bounds = finding.history, finding.history.bounds
    starts = [next(iter(history.by_node("ready").get(core, ())), None) for core in cores]
    if any(start is None or start.at > at for start in starts) and min(map(history.ends.at, cores)) > at:
        finding.broke("{} was ready before all of its cores were", launcher, at=at, node=launcher)
    elif starts and all(start is not None for start in starts) and not history.faults.receipts:
        finding.took("the start of {} behind its last core's", launcher, bound=bounds.detection_s, at=at, node=launcher,
                     measured=at - max(start.at for start in starts if start is not None))


def _judge_last(finding: Finding, launcher: str, cores: list[str], until: float) -> None:
    """Whoever asks it is told that no core is left, when that is so, and by whose end."""
    history, bounds = finding.history, finding.history.bounds
    last = max(history.ends.at(core) for core in cores)
    told = next(iter(history.by_node("none-left").get(launcher, ())), None)
    if told is None:
        if until - last - history.faults.frozen_s(launcher, last, until) > bounds.detection_s:
            finding.hangs("word of {} that no core is left", launcher, bound=bounds.detection_s, since=last,
                          node=launcher)
    elif last > told.at + bounds.detection_s and not history.starved(bounds.stall_s):
        finding.broke("{} said that no core is left, and one lived", launcher, at=told.at, node=launcher)
    elif not any(name in told.data["reason"] for name in (*map(base, cores), "coordinator.")):
        finding.broke("{} said {!r} of the end of all", launcher, told.data["reason"], at=told.at, node=launcher)


def _judge_word(finding: Finding, launcher: str, word: _Word) -> None:
    """It is true, and says of whom it speaks."""
    history, (node, record) = finding.history, word
    bounds, said = history.bounds, record.data["reason"]
    stood_s = max((min(stall.until, record.at) - stall.at for stall in history.faults.stalls
                   if stall.node in (node, launcher) and stall.at < record.at), default=0.0)
    stood = stood_s >= bounds.stall_s * STOPPED_PART
    if history.ends.at(node) > record.at + history.slack_s and not stood and not history.starved(bounds.stall_s):
        finding.broke("{} said of {} that it is dead, and it lived", launcher, node, at=record.at, node=launcher)
    elif base(node) not in said:
        finding.broke("{} said {!r} of the end of {}", launcher, said, node, at=record.at, node=launcher)


def _judge_said(finding: Finding, launcher: str, node: str, watched: tuple[float, float], words: list[_Word]) -> None:
    """`watched`: since when it looks after its processes, and until when."""
    history, (since, until) = finding.history, watched
    bounds, end = history.bounds, history.ends.at(node)
    still = next((stall.at + bounds.stall_s for stall in history.faults.stalls
                  if stall.node == node and stall.until - stall.at > bounds.stall_s + bounds.detection_s), FOREVER)
    gone_at = min(end, still)
    engine = history.engine_of(node)
    together = history.in_step(engine)  # then one word is of them all
    heard = [word.record for word in words if word.node == node or together]
    if not since < gone_at < until:
        return
    if not heard:
        if until - gone_at - history.faults.frozen_s(launcher, gone_at, until) > bounds.detection_s:
            finding.hangs("word of the end of {} by {}", node, launcher, bound=bounds.detection_s, since=gone_at,
                          node=launcher)
        return
    at = heard[0].at
    if finding.took("word of the end of {} by {}", node, launcher, bound=bounds.detection_s, at=at, node=launcher,
                    measured=at - gone_at - history.faults.frozen_s(launcher, gone_at, at)):
        finding.witness("{} said of the end of {}: {}", launcher, node, heard[0].data["reason"], at=at, node=launcher)
    others = [other for other in (one.core for one in history.engines_of(launcher)) if together and other != node]
    for other in others:
        finding.took("the end of {}, which stepped together with {},", other, node, bound=bounds.detection_s, at=at,
                     node=other, measured=min(history.ends.at(other), until) - at)


GUARANTEES = (
    Guarantee(
        id="client-routed", chapter=CHAPTER, source=SOURCE, check=check_routed, applies=is_shared,
        sentence="An output reaches exactly the client that has asked, whatever others call their requests.",
        wrong="sends all outputs to its first client",
        witness="two clients used one name at the same time",
        envelope=Envelope(),
    ),
    Guarantee(
        id="client-isolated", chapter=CHAPTER, source=SOURCE, check=check_isolated, applies=is_shared,
        sentence="What one client does, or its end, changes nothing for another one; and what it had asked for is "
                 "freed when it is gone.",
        wrong={"freed": "computes on what a client has asked for that is gone",
               "others": "gives up everything when one of its clients is gone",
               "limits": "counts what all of its clients have in flight against each"},
        witness="a client was gone with requests under way, and another one had some, too; or each had as many in "
                "flight as it may",
        envelope=Envelope(),
    ),
    Guarantee(
        id="client-returns", chapter=CHAPTER, source=SOURCE, check=check_returns, applies=is_shared,
        sentence="A client that comes in the place of one that is gone is taken in and served by the engines that went "
                 "on.",
        wrong="tells a client that it may be sent to once, when it starts",
        witness="a client came in the place of one that was gone, and was served",
        envelope=Envelope(),
    ),
    Guarantee(
        id="launcher-says", chapter=CHAPTER, source=SOURCE, check=check_launcher_says, applies=is_shared,
        sentence="A launcher says within the bound of detection that its cores serve, and by its name which core or "
                 "coordinator of its own has died or stands still, and of none that lives; it ends those that step "
                 "together with it, and says when none is left.",
        wrong={"ready": "waits for cores that have begun to serve",
               "died": "looks at no ends of what it has started",
               "group": "leaves those that stepped with the dead one to themselves"},
        witness="a core or a coordinator of a launcher died, and it said so",
        envelope=Envelope(),
    ),
    Guarantee(
        id="notice-to-all", chapter=CHAPTER, source=SOURCE, check=check_notice_to_all, applies=is_shared,
        sentence="Each client is told of the end of a core that it shares, within the bound of detection.",
        wrong="attaches to cores and does not look whether they live",
        witness="two clients were told of one end",
        envelope=Envelope(),
    ),
)
