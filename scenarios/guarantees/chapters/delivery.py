"""Promises about delivery between frontend and core: every frame, once, in order, whole, or its sender knows."""

from __future__ import annotations

from collections import Counter

from engine.messages import Outcome
from engine.topology import MESSAGE_CHANNELS, RING_CHANNELS, Channel, NodeKind
from scenarios.guarantees.base import DAMAGE, DEATHS, MEMORY, MESSAGE, ORDERINGS, Envelope, Finding, Guarantee, Where
from scenarios.history.history import FOREVER, Fate, Flow, History, Record
from scenarios.history.names import base, edge_without_lives

CHAPTER = "Transport between frontend and core"
SOURCE = "vLLM V1 ZMQ reliability analysis"
#: What a socket with libzmq's default high-water mark holds before it loses something.
DEFAULT_HWM = 1000
#: Frames of this size travel without a copy, so their buffer is in use after the send has returned.
ZERO_COPY_BYTES = 64 << 10

_CLIENT_CHANNELS = (Channel.REQUESTS, Channel.OUTPUTS)


def _lived_until(history: History, flow: Flow) -> float:
    """Until when both ends were alive and nobody had begun to leave. A client may never have come."""
    if history.is_attached(flow.target) and flow.target not in history.nodes:
        return 0.0
    times = [at(node) for node in (flow.source, flow.target) for at in (history.ends.at, history.closes_at)]
    for name in ("dying", "bye"):
        told = history.by_node(name)
        times += [told[node][0].at for node in (flow.source, flow.target) if node in told]
    return min(times)


def check_hwm0_no_loss(history: History) -> Finding:
    finding = Finding(history)
    bound = history.bounds.output_gap_s
    for flow in history.flows(*_CLIENT_CHANNELS):
        if len(flow.sends) > DEFAULT_HWM and flow.most_unread() > DEFAULT_HWM:
            finding.witness("{} frames stood unread at once on {}", flow.most_unread(), flow.name)
        for receive in flow.unsent:
            if any(send.digest == receive.digest for send in flow.sends):
                finding.broke("frame {} was received more often than it was sent on {}", receive.digest, flow.name,
                              at=receive.at, node=flow.target)
        if flow.unreceived:
            _judge_missing(finding, flow, bound)
    return finding


def _judge_missing(finding: Finding, flow: Flow, bound: float) -> None:
    history = finding.history
    until = _lived_until(history, flow)
    last_received = max((send.number for send, _ in flow.pairs), default=-1)
    born_at = min((record.at for record in history.by_node("born").get(flow.target, ())), default=0.0)
    for send in flow.unreceived:
        since = max(send.at, born_at)  # it waits for who comes later
        waited = min(until, history.ended_at) - since
        # A sender that stands still may not have handed over what it had noted; its I/O thread stands still, too.
        waited -= history.faults.frozen_s(flow.target, since, since + waited, flow.source)
        if send.number < last_received:
            finding.broke("a frame was lost on {}: later ones arrived", flow.name, at=send.at, node=flow.source)
        elif waited > bound:
            finding.broke("a frame sent on {} did not arrive within {:g} s while both ends lived", flow.name, bound,
                          at=send.at, node=flow.source, bound=bound, measured=waited)


def check_edge_fifo(history: History) -> Finding:
    finding = Finding(history)
    for flow in history.flows(*MESSAGE_CHANNELS, *RING_CHANNELS):
        sends, receives = flow.sends, flow.receives
        if len(receives) < 2:
            continue
        outstanding = sum(later.at < receive.at for (_, receive), later in zip(flow.pairs, sends[1:], strict=False)) \
            if flow.in_order else int(flow.most_unread() > 1)
        if outstanding:
            finding.witness("{} frames of {} had a successor under way when they were read", outstanding, flow.name,
                            times=outstanding)
        if not flow.in_order:
            _judge_order(finding, flow)
    return finding


def _judge_order(finding: Finding, flow: Flow) -> None:
    """Whatever was lost on the way: what arrived, less what was doubled, must be found in order in what was sent."""
    sent = Counter(send.digest for send in flow.sends)
    seen: Counter[str] = Counter()
    position, total = 0, len(flow.sends)
    for receive in flow.receives:
        seen[receive.digest] += 1
        if seen[receive.digest] > sent[receive.digest]:
            continue  # doubled, or changed: other promises speak of that
        start = position
        while position < total and flow.sends[position].digest != receive.digest:
            position += 1
        if position == total:
            finding.broke("frame {} arrived on {} after a frame that was sent behind it", receive.digest, flow.name,
                          at=receive.at, node=flow.target)
            position = start
        else:
            position += 1


def check_unroutable_is_known(history: History) -> Finding:
    finding = Finding(history)
    told = history.by_node("unroutable")
    for flow in history.flows(Channel.REQUESTS):
        if flow.edge.source.kind != NodeKind.FRONTEND:
            continue
        windows, gone_at = _disconnections(history, flow), history.ends.at(flow.target)
        words = [record for record in told.get(flow.source, ())]
        lost = {id(send) for send in flow.unreceived}
        for position, send in enumerate(flow.sends):
            after = flow.sends[position + 1].number if position + 1 < len(flow.sends) else FOREVER
            known = any(send.number < word.number < after for word in words)
            looked_s = send.at - gone_at - history.faults.frozen_s(flow.source, gone_at, send.at)
            if id(send) in lost and not known and (looked_s > history.bounds.detection_s or any(
                    begin + history.bounds.detection_s < send.at < end for begin, end in windows)):
                finding.broke("a frame for {} was dropped in silence while it was not connected", flow.target,
                              at=send.at, node=flow.source)
    for node, records in told.items():
        for record in records:
            _judge_told(finding, node, record)
    return finding


def _disconnections(history: History, flow: Flow) -> list[tuple[float, float]]:
    """While its connection was cut; what it says to who is gone is another matter."""
    here, there = base(flow.source), base(flow.target)
    ways = {f"{one}->{other}/{Channel.REQUESTS.value}:wire" for one, other in ((here, there), (there, here))}
    return [(r.at, r.over_at) for r in history.faults.receipts if r.fate == Fate.CUT and r.site in ways
            and not (r.fault is not None and r.fault.silent)]


def _judge_call_told(finding: Finding, node: str, record: Record, utility: str) -> None:
    """The caller of a utility that could not be sent is told at once, not at its deadline."""
    history = finding.history
    answer = next((answer for answer in history.by_node("utility").get(node, ()) if answer.number > record.number
                   and answer.data["method"] == utility and answer.data["failure"]), None)
    if answer is None:
        finding.hangs("utility call {}, which could not be sent,", utility, bound=history.bounds.detection_s,
                      since=record.at, node=node)
    elif finding.took("telling the caller of {} that it could not be sent", utility, at=answer.at, node=node,
                      bound=history.bounds.detection_s, measured=answer.at - record.at):
        finding.witness("{} learned that its call {} could not be sent", node, utility, at=record.at, node=node)


def _judge_told(finding: Finding, node: str, record: Record) -> None:
    history = finding.history
    request, utility = record.data.get("request"), record.data.get("utility")
    if utility is not None:
        _judge_call_told(finding, node, record, utility)
        return
    if request is None:  # an abort: the sender itself knows, nobody waits for tokens
        finding.witness("{} learned that a frame could not be routed", node, at=record.at, node=node)
        return
    concerned = [o for o in history.operations if o.node == node and o.request == request and o.began_at <= record.at]
    if not concerned:
        return
    operation = concerned[-1]
    if operation.ended_at is None:
        finding.hangs("request {!r}, which could not be sent,", request, bound=history.bounds.detection_s,
                      since=record.at, node=node)
    elif operation.outcome == Outcome.FINISHED:
        finding.broke("request {!r} was never sent and yet finished", request, at=operation.ended_at, node=node)
    elif finding.took("telling the caller of {!r} that it could not be sent", request, node=node, at=record.at,
                      bound=history.bounds.detection_s, measured=operation.ended_at - record.at):
        finding.witness("the caller of {!r} was told that the core was not connected ({})", request, operation.error,
                        at=operation.ended_at, node=node)


def check_frames_intact(history: History) -> Finding:
    finding = Finding(history)
    damaged = Counter(r.site.rpartition(":")[0] for r in history.faults.receipts if r.fate in DAMAGE)
    for flow in history.flows(*MESSAGE_CHANNELS):
        sent = {send.digest for send in flow.sends} if flow.unsent else set()
        strange = [receive for receive in flow.unsent if receive.digest not in sent]
        for receive in strange[damaged[edge_without_lives(flow.name)]:]:
            finding.broke("a frame arrived on {} that nobody sent: its bytes changed on the way", flow.name,
                          at=receive.at, node=flow.target)
        least = 0 if flow.edge.channel is Channel.OVERFLOW else ZERO_COPY_BYTES
        for send, receive in flow.pairs:
            if send.data.get("bytes", 0) >= least and _went_on(history, flow.source, send, receive.at):
                finding.witness("a large frame was still under way on {} when its sender went on, and arrived whole",
                                flow.name, at=receive.at, node=flow.target)
    return finding


def _went_on(history: History, node: str, send: Record, until: float) -> bool:
    """Whether the sending thread did anything else before the frame was read."""
    records = history.records(node)
    for record in records[send.number + 1: send.number + 200]:
        if record.at >= until:
            return False
        if record.thread == send.thread:
            return True
    return False


GUARANTEES = (
    Guarantee(
        id="hwm0-no-loss", chapter=CHAPTER, source=SOURCE, check=check_hwm0_no_loss,
        sentence="With no high-water mark on both ends and both processes alive and connected, every request frame "
                 "and every output frame that was sent is received exactly once, whatever the burst and however slow "
                 "the reader.",
        wrong="leaves a high-water mark on its sockets, and drops what is beyond",
        witness="more than 1,000 frames stood unread at once on an edge",
        envelope=Envelope(outside=(
            Where(MESSAGE, sites="*/requests:receive", why="the plan itself loses, doubles or changes"),
            Where(MESSAGE, sites="*/outputs:receive", why="the plan itself loses, doubles or changes"),
            Where(frozenset({Fate.CUT}), sites="*/requests:wire", why="the ends are not connected"),
            Where(frozenset({Fate.CUT}), sites="*/outputs:wire", why="the ends are not connected"),
            Where(DEATHS, nodes="frontend.*", why="an end is dead"),
            Where(DEATHS, nodes="core.*", why="an end is dead"),
        )),
    ),
    Guarantee(
        id="edge-fifo", chapter=CHAPTER, source=SOURCE, check=check_edge_fifo,
        sentence="Frames of one edge arrive in the order in which they were sent.",
        wrong="takes the newest frame first",
        witness="a frame was read while its successor was already under way on the same edge",
        envelope=Envelope(outside=(
            Where(ORDERINGS | {Fate.DUPLICATE}, sites="*:receive", why="the plan itself changes the order"),
        )),
    ),
    Guarantee(
        id="unroutable-is-known", chapter=CHAPTER, source=SOURCE, check=check_unroutable_is_known,
        sentence="A frame for an identity that is not connected is never dropped in silence: its sender learns of it, "
                 "as far as libzmq has noticed the disconnection.",
        wrong="uses a plain ROUTER, which drops such a frame without a word",
        witness="a frame was refused because its core was not connected, and its caller was told",
        envelope=Envelope(outside=(
            Where(DEATHS, nodes="frontend.*", why="the sender is dead"),
            Where(frozenset({Fate.DROP}), sites="*/requests:receive", why="the frame was routed, the plan lost it"),
        )),
    ),
    Guarantee(
        id="frames-intact", chapter=CHAPTER, source=SOURCE, check=check_frames_intact,
        sentence="What is decoded is what was encoded: no buffer is reused or freed while the socket may still send "
                 "it.",
        wrong="reuses a buffer that the socket has still to send",
        witness="a frame of 64 KiB and more (or a ring message that overflowed) was still under way when its sender "
                "went on, and arrived whole",
        envelope=Envelope(outside=(
            MEMORY,
        )),
    ),
)
