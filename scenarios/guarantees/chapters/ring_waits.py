"""Promises about waiting at the ring: nobody sleeps through a message, and no wait is without end."""

from __future__ import annotations

from engine.topology import RING_CHANNELS, Channel, Mark
from scenarios.guarantees.base import MEMORY, Envelope, Finding, Guarantee, has_workers, timer_s
from scenarios.guarantees.chapters.ring import CHAPTER, SOURCE, names_channel, stores
from scenarios.guarantees.chapters.rpc import answers_by_call, is_answered
from scenarios.history.history import FOREVER, Fate, Flow, History, Record, kind_of


def reader_waits(history: History, flow: Flow) -> list[Record]:
    """Waits of this edge's reader that slept. A core's ring names say which rank they come from."""
    name, rank = flow.edge.channel.value, f".{flow.edge.source.index}"
    waits = history.by_node("queue-wait").get(flow.target, ())
    if flow.edge.channel is Channel.RPC:
        return [wait for wait in waits if name in (wait.data.get("ring") or name)]
    return [wait for wait in waits if name in (ring := wait.data.get("ring") or "")
            and (f"worker{rank}/" in ring or ring.endswith(rank))]


def check_ring_no_lost_wakeup(history: History) -> Finding:
    finding = Finding(history)
    bound = history.bounds.ring_recheck_s + history.bounds.detection_s
    for flow in history.flows(*RING_CHANNELS):
        sends = history.sends_by_position(flow)
        dropped = [r.at for r in history.faults.hit(Fate.DROP, operation=":doorbell")
                   if r.site.startswith(f"{flow.source.partition('@')[0]}/{flow.edge.channel.value}")]
        received, receives, frozen_s = 0, flow.receives, history.faults.frozen_s
        written = stores(history, f"{flow.source}/{flow.edge.channel.value}", "written")
        for wait in sorted(reader_waits(history, flow), key=_ended):
            data = wait.data
            began, ended, outcome = data["began"], data["ended"], data.get("outcome")
            while received < len(receives) and receives[received].number < wait.number and \
                    receives[received].at < began:
                received += 1
            if received >= len(receives) and received not in sends:
                continue
            position = receives[received].data["position"] if received < len(receives) else received
            published = _published_at(written, sends, position)
            if published is None or published > ended or outcome in ("cancelled", "peer-dead") or \
                    position not in sends or sends[position][-1].data.get("overflow"):
                continue
            since = max(published, began)
            slept = ended - since - frozen_s(flow.target, since, ended)
            if not finding.took("noticing message {} of {}", position, flow.name, bound=bound, measured=slept,
                                at=ended, node=flow.target):
                continue
            if outcome == "ok" and published >= began:
                lost = any(began <= at <= ended for at in dropped)
                finding.witness("{} slept, message {} of {} was published{}, and it noticed after {:.4f} s",
                                flow.target, position, flow.name, " and its doorbell lost" if lost else "", slept,
                                at=ended, node=flow.target)
        for at in dropped:
            if flow.receives and flow.receives[-1].at > at:
                finding.witness("a doorbell of {} was lost and {} read on", flow.name, flow.target, at=at,
                                node=flow.target)
        _judge_never_noticed(finding, flow, sends, bound, dropped, written)
    return finding


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
    closing_at = history.closing_at(history.engine_of(flow.target))
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
    until = min(history.ends.at(node), history.closing_at(history.engine_of(node)), history.ended_at)
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
        until = min(dying, history.ends.at(core), history.closing_at(history.engine_of(core)), history.ended_at)
        ready = next((record.at for record in history.by_node("ready").get(core, ())), FOREVER)
        tp = history.tp_of(core)
        for call in calls:
            if call.data["call"] in failed or is_answered(tp, call, answers):
                continue
            allowed = bounds.startup_s if call.at < ready else \
                bounds.step_s if call.data.get("method") == "execute_model" else bounds.rpc_s
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
    late = history.bounds.detection_s
    if deadline is not None and not finding.took(
            "a wait on {} of {} with a deadline {:.3f} s ahead, its end beyond that", data.get("ring"), node,
            deadline - began, bound=late, at=ended, node=node,
            measured=ended - deadline - history.faults.frozen_s(node, deadline, max(ended, deadline))):
        return
    if outcome == "timeout" and deadline is None:
        finding.broke("a wait on {} of {} without a deadline ended by one", data.get("ring"), node, at=ended, node=node)
        return
    if dead < ended and outcome != "ok":
        bound = history.bounds.orphan_s if kind_of(node) == "worker" else late
        since = max(began, dead)
        if not finding.took("ending a wait of {} on a dead peer", node, bound=bound, at=ended, node=node,
                            measured=ended - since - history.faults.frozen_s(node, since, ended)):
            return
    if outcome in ("timeout", "cancelled", "peer-dead", "failed"):
        finding.witness("a wait of {} on {} ended by {} after {:.3f} s", node, data.get("ring"), outcome, ended - began,
                        at=ended, node=node)


GUARANTEES = (
    Guarantee(
        id="ring-no-lost-wakeup", chapter=CHAPTER, source=SOURCE, check=check_ring_no_lost_wakeup, applies=has_workers,
        sentence="A reader that sleeps when idle sees a published message within the re-check bound even if its "
                 "doorbell is lost.",
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
