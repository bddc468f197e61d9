"""Promises about waiting at the ring: nobody sleeps through a message, and no wait is without end."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from engine.topology import RING_CHANNELS, Channel, Mark
from scenarios.guarantees.base import MEMORY, ROUNDING_S, Envelope, Finding, Guarantee, has_workers, timer_s
from scenarios.guarantees.chapters.rings.ring import CHAPTER, SOURCE, chunks_of, names_channel, stores
from scenarios.guarantees.chapters.rings.rpc_calls import allowed_s, answers_by_call, is_answered
from scenarios.history.history import FOREVER, Fate, Flow, History, Record, kind_of

#: In the twin, where nothing befell anybody, a sleeper wakes within this: its re-check is for bells that are lost.
PROMPT_S = 2.5e-3
_NUMBER = attrgetter("number")


def reader_waits(history: History, flow: Flow) -> list[Record]:
    """Waits of this edge's reader that slept. A core's ring names say which rank they come from."""
    channel, rank = flow.edge.channel, f".{flow.edge.source.index}"
    waits, name, path = history.by_node("queue-wait").get(flow.target, ()), channel.value, f"worker{rank}/"
    if channel is Channel.RPC:
        return [wait for wait in waits if name in (wait.data.get("ring") or name)]
    rings = {ring for wait in waits if (ring := wait.data.get("ring")) and name in ring and (
        path in ring or ring.endswith(rank))}
    return [wait for wait in waits if wait.data.get("ring") in rings] if rings else []


def check_ring_no_lost_wakeup(history: History) -> Finding:
    finding = Finding(history)
    # A writer with a reader on another host waits for its socket, too, which does not say when it has room.
    calm = history.simulated and not history.faults.receipts and "far" not in history.play.options.queue
    bound = PROMPT_S if calm else history.bounds.ring_recheck_s + history.bounds.detection_s
    if calm:
        _judge_room(finding, bound)
        _judge_rings(finding)
    for flow in history.flows(*RING_CHANNELS):
        sends = history.sends_by_position(flow)
        dropped = [r.at for r in history.faults.hit(Fate.DROP, operation=":doorbell")
                   if r.site.startswith(f"{flow.source.partition('@')[0]}/{flow.edge.channel.value}")]
        written = stores(history, f"{flow.source}/{flow.edge.channel.value}", "written")
        begun = 0
        for wait in sorted(reader_waits(history, flow), key=_ended):
            first, begun = begun, bisect_right(flow.receives, wait.number, key=_NUMBER)
            woken = [receive for receive in flow.receives[first:begun] if receive.at >= wait.data["began"]]
            for receive in woken:
                _judge_noticed(finding, flow, wait, receive.data["position"], receive.at, bound, written, dropped)
            if not woken and wait.data.get("outcome") not in ("cancelled", "peer-dead"):
                _judge_noticed(finding, flow, wait, begun, wait.data["ended"], bound, written, dropped)
        for at in dropped:
            if flow.receives and flow.receives[-1].at > at:
                finding.witness("a doorbell of {} was lost and {} read on", flow.name, flow.target, at=at,
                                node=flow.target)
        _judge_never_noticed(finding, flow, sends, bound, dropped, written)
    return finding


def _judge_noticed(finding: Finding, flow: Flow, wait: Record, position: int, at: float, bound: float,
                   written: list[Record], dropped: list[float]) -> None:
    """A sleeper read this message then; or it had not, and was awake then, and ought to have."""
    history, sends = finding.history, finding.history.sends_by_position(flow)
    published = _published_at(written, sends, position)
    if published is None or published > at or position not in sends or sends[position][-1].data.get("overflow"):
        return
    began = wait.data["began"]
    since = max(published, began)
    slept = at - since - history.faults.frozen_s(flow.target, since, at)
    if finding.took("noticing message {} of {}", position, flow.name, bound=bound, measured=slept, at=at,
                    node=flow.target) and wait.data.get("outcome") == "ok" and published >= began:
        lost = any(began <= drop <= at for drop in dropped)
        finding.witness("{} slept, message {} of {} was published{}, and it noticed after {:.4f} s", flow.target,
                        position, flow.name, " and its doorbell lost" if lost else "", slept, at=at, node=flow.target)


def _judge_rings(finding: Finding) -> None:
    """Each message rings once: a bell that rings for nothing takes somebody's sleep."""
    history = finding.history
    for flow in history.flows(Channel.RPC):
        place = f"{flow.source}/{flow.edge.channel.value}"
        rings = len(history.crossings.get(f"{place}:doorbell", ()))
        if rings > len(history.sends_by_position(flow)):
            finding.broke("{} rang {} times for {} messages", place, rings, len(history.sends_by_position(flow)),
                          node=flow.source)


def _judge_room(finding: Finding, bound: float) -> None:
    """A writer that waits for room goes on when its slowest reader has read what stands there."""
    history = finding.history
    for node, waits in history.by_node("queue-wait").items():
        flows = [flow for flow in history.flows(*RING_CHANNELS) if flow.source == node and flow.sends]
        by_ring = {ring: [flow for flow in flows if names_channel(ring, flow.edge.channel)]
                   for ring in {wait.data.get("ring") for wait in waits}}
        for wait in waits:
            mine = by_ring[wait.data.get("ring")]
            if not mine or wait.data.get("outcome") != "ok":
                continue
            sent = next((send for flow in mine for send in flow.sends if send.number > wait.number), None)
            if sent is not None:
                _judge_the_room(finding, node, wait, mine, sent, bound)


def _judge_the_room(finding: Finding, node: str, wait: Record, mine: list[Flow], sent: Record, bound: float) -> None:
    history = finding.history
    freed = sent.data["position"] - chunks_of(history, mine[0].edge.channel)
    reads = [flow.receives[freed].at for flow in mine if 0 <= freed < len(flow.receives)]
    since = max([wait.data["began"], *reads])
    finding.took("noticing the room for message {} in {}", sent.data["position"], wait.data.get("ring"), bound=bound,
                 at=wait.at, node=node, measured=wait.data["ended"] - since - sum(
                     history.faults.frozen_s(other, since, wait.data["ended"])
                     for other in {node, *(flow.target for flow in mine)}))


def _ended(wait: Record) -> float:
    return float(wait.data["ended"])


def _published_at(written: list[Record], sends: dict[int, list[Record]], position: int) -> float | None:
    if position < len(written):
        return written[position].at
    return sends[position][-1].at if position in sends and not written else None


def _judge_never_noticed(finding: Finding, flow: Flow, sends: dict[int, list[Record]], bound: float,
                         dropped: list[float], written: list[Record]) -> None:
    """A message whose doorbell was lost, and which a live reader never read although it had the time."""
    history = finding.history
    position = len(flow.receives)
    if position not in sends or sends[position][-1].data.get("overflow"):
        return
    published = _published_at(written, sends, position)
    closing_at = history.closes_at(flow.target)
    end = min(history.ends.at(flow.target), history.ends.at(flow.source), closing_at,
              history.ended_at)
    if published is None or not any(at >= published for at in dropped):
        return
    finding.took("noticing message {} of {}, whose doorbell was lost,", position, flow.name, bound=bound,
                 node=flow.target, at=published,
                 measured=end - published - history.faults.frozen_s(flow.target, published, end))


def check_ring_bounded_wait(history: History) -> Finding:
    finding = Finding(history)
    for node, waits in history.by_node("queue-wait").items():
        dead = min((history.ends.at(peer) for peer in _peers(history, node)), default=FOREVER)
        in_time = None
        for wait in waits:
            data = wait.data
            if data.get("outcome") == "ok" and data["ended"] <= (data.get("deadline") or FOREVER):
                in_time = wait  # one stands for all of them
            else:
                _judge_wait(finding, node, wait, dead)
        if in_time is not None:
            _judge_wait(finding, node, in_time, dead)
    _judge_open_calls(finding)
    for node, full in history.marks(Mark.RING_FULL.value):
        _judge_full(finding, node, full)
    return finding


def _judge_full(finding: Finding, node: str, full: Record) -> None:
    """A writer without room sends, or says how its wait ended; a reader's death ends it sooner than its deadline."""
    history, bounds, ring = finding.history, finding.history.bounds, full.data.get("ring")
    if any(record.number > full.number and record.thread == full.thread for record in history.records(node)):
        return
    until = min(history.ends.at(node), history.closes_at(node), history.ended_at)
    dead = [history.ends.at(flow.target) for flow in history.flows(*RING_CHANNELS)
            if flow.source == node and names_channel(ring, flow.edge.channel)]
    since = max(full.at, min(dead, default=FOREVER))
    if since < until and not finding.took("the wait of {} for room in {}, with a reader of it dead,", node, ring,
                                          bound=bounds.detection_s, at=since, node=node,
                                          measured=until - since - history.faults.frozen_s(node, since, until)):
        return
    if history.ends.at(node) >= full.at + bounds.rpc_s:
        finding.hangs("a write into the full ring of {}", node, bound=timer_s(bounds, max(bounds.rpc_s, bounds.step_s)),
                      since=full.at, node=node)


def _judge_open_calls(finding: Finding) -> None:
    """A wait that never ended left no record of itself: a call without its answers tells of it."""
    history, bounds = finding.history, finding.history.bounds
    for core, calls in history.by_node("rpc-call").items():
        answers = answers_by_call(history.by_node("rpc-reply").get(core, []))
        failed = {record.data["call"] for record in history.by_node("rpc-failed").get(core, ())}
        dying = next((record.at for record in history.by_node("dying").get(core, ())), FOREVER)
        until = min(dying, history.ends.at(core), history.closes_at(core), history.ended_at)
        ready = next((record.at for record in history.by_node("ready").get(core, ())), FOREVER)
        tp = history.ranks_of(core)
        for call in calls:
            if call.data["call"] in failed or is_answered(tp, call, answers):
                continue
            allowed = bounds.startup_s if call.at < ready else allowed_s(bounds, call)
            finding.took("the wait of {} for call {} ({})", core, call.data["call"], call.data.get("method"),
                         bound=allowed + bounds.detection_s, at=call.at, node=core,
                         measured=until - call.at - history.faults.frozen_s(core, call.at, until))


def _peers(history: History, node: str) -> list[str]:
    return list({flow.target if flow.source == node else flow.source for flow in history.flows(*RING_CHANNELS)
                 if node in (flow.source, flow.target)})


def _judge_wait(finding: Finding, node: str, wait: Record, dead: float) -> None:
    """`dead`: when the first of its peers was."""
    history, data = finding.history, wait.data
    began, ended, deadline, outcome = data["began"], data["ended"], data.get("deadline"), data.get("outcome")
    late = PROMPT_S if history.simulated else history.bounds.detection_s
    if deadline is not None and not finding.took(
            "a wait on {} of {} with a deadline {:.3f} s ahead, its end beyond that", data.get("ring"), node,
            deadline - began, bound=late, at=ended, node=node,
            measured=ended - deadline - history.faults.frozen_s(node, deadline, max(ended, deadline))):
        return
    if outcome == "ok" and deadline is not None and ended >= deadline and (kind_of(node) == "worker") == names_channel(
            data.get("ring"), Channel.RPC) and not _has_read(history, node, wait):
        finding.broke("a wait on {} of {} is said to have ended well at its deadline, and brought nothing",
                      data.get("ring"), node, at=ended, node=node)
        return
    if outcome == "timeout" and deadline is None:
        finding.broke("a wait on {} of {} without a deadline ended by one", data.get("ring"), node, at=ended, node=node)
        return
    if outcome == "timeout" and deadline is not None and ended < deadline - ROUNDING_S:
        finding.broke("a wait on {} of {} timed out {:.4f} s before its deadline", data.get("ring"), node,
                      deadline - ended, at=ended, node=node)
        return
    if dead < ended and outcome != "ok":
        bound = history.bounds.orphan_s if kind_of(node) == "worker" else history.bounds.detection_s
        since = max(began, dead)
        if not finding.took("ending a wait of {} on a dead peer", node, bound=bound, at=ended, node=node,
                            measured=ended - since - history.faults.frozen_s(node, since, ended)):
            return
    if outcome in ("timeout", "cancelled", "peer-dead", "failed"):
        finding.witness("a wait of {} on {} ended by {} after {:.3f} s", node, data.get("ring"), outcome, ended - began,
                        at=ended, node=node)


def _has_read(history: History, node: str, wait: Record) -> bool:
    """Whether it read a message while it waited: that comes right before the end of the wait is told."""
    for record in reversed(history.records(node)[:wait.number]):
        if record.at < wait.data["began"]:
            return False
        if record.thread == wait.thread and record.site.endswith(":receive"):
            return True
    return False


GUARANTEES = (
    Guarantee(
        id="ring-no-lost-wakeup", chapter=CHAPTER, source=SOURCE, check=check_ring_no_lost_wakeup, applies=has_workers,
        sentence="A reader that sleeps when idle sees a published message, and a writer that waits for room sees that "
                 "there is some, when it is rung, and within the re-check bound even if the doorbell is lost.",
        wrong="sleeps until the doorbell rings, and nothing else",
        witness="a sleeping reader woke for a message, or a doorbell was lost and its reader read on",
        envelope=Envelope(outside=(MEMORY,)),
    ),
    Guarantee(
        id="ring-bounded-wait", chapter=CHAPTER, source=SOURCE, check=check_ring_bounded_wait, applies=has_workers,
        sentence="No wait on a ring outlives its deadline; a writer facing a dead reader fails with a named error, "
                 "and an expired deadline never turns into \"for ever\".",
        wrong={
            "deadline": 'hands a negative rest of time to a poll that takes it for "for ever"',
            "dead-reader": "waits for room that only a dead reader could make",
        },
        witness="a wait ended within its bound by its deadline, by cancellation or by the death of its peer",
        envelope=Envelope(),
    ),
)
