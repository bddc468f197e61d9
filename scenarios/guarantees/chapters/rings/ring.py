"""Promises about the shared-memory ring and the queue on top of it.

    writer   cross "send" p -> stores reset, data, readers, written (the p-th of each) -> payload -> bell
    reader   store read (the p-th) -> payload, if it overflowed -> cross "receive" p

`send` is recorded when there is room, `read` before its store is done. So a `read` of message p stands before
the `reset` of message p + chunks, unless the writer did not wait for it.
"""

from __future__ import annotations

from engine.topology import RING_CHANNELS, Channel, Mark
from scenarios.guarantees.base import DAMAGE, MEMORY, Envelope, Finding, Guarantee, Where, has_workers, timer_s
from scenarios.history.history import FOREVER, Fate, Flow, History, Record
from scenarios.history.play import Play

CHAPTER = "Ring and collective RPC"
SOURCE = "vLLM V1 process architecture"

_OVERFLOW_LOST = Where(frozenset({Fate.DROP, Fate.CUT}) | DAMAGE, sites="*/overflow:*",
                       why="the plan itself loses the payload")


def hands_all_out(play: Play) -> bool:
    """Whether what is read from a ring is handed out; whom a signal handler breaks off may lose what it has in hand."""
    return has_workers(play) and play.options.queue != "broken off"


def chunks_of(history: History, channel: Channel) -> int:
    ring = history.play.config.ring
    return ring.max_chunks if channel is Channel.RPC else ring.response_chunks


def prefix_breaks(finding: Finding, flow: Flow) -> int:
    """Hold what one reader received against what was written. -> how many messages it received in their place"""
    if flow.in_order and not finding.history.faults.receipts and flow.positions == list(range(len(flow.positions))):
        return len(flow.positions)
    sends = finding.history.sends_by_position(flow)
    good = 0
    for expected, receive in enumerate(flow.receives):
        position = receive.data["position"]
        if position != expected:
            finding.broke("{} received message {} of {} where {} was next", flow.target, position, flow.name, expected,
                          at=receive.at, node=flow.target)
            return good
        sent = sends.get(position)
        if not sent:
            finding.broke("{} received message {} of {}, which was never written", flow.target, position, flow.name,
                          at=receive.at, node=flow.target)
            return good
        if receive.digest != sent[-1].digest and receive.digest not in [send.digest for send in sent]:
            finding.broke("message {} of {} is not what was written", position, flow.name, at=receive.at,
                          node=flow.target)
            return good
        if not _was_flagged(finding.history, flow, position, receive):
            finding.broke("{} received message {} of {} before its flag was raised", flow.target, position, flow.name,
                          at=receive.at, node=flow.target)
            return good
        good += 1
    return good


def _was_flagged(history: History, flow: Flow, position: int, receive: Record) -> bool:
    """Whether the flag of this message was up when it was read. Faults strike before the store is done."""
    if not history.faults.receipts:
        return True
    site = f"{flow.source.partition('@')[0]}/{flow.edge.channel.value}:store.written"
    hit = next((r for r in history.faults.receipts if r.site.endswith(site) and r.nth == position + 1
                and r.fate in (Fate.KILL, Fate.STALL, Fate.HANG)
                and history.engine_of(r.node) == history.engine_of(flow.source)), None)
    if hit is None:
        return True  # when the store was done is known only where a fault held it up
    return hit.fate != Fate.KILL and hit.released_at is not None and hit.released_at <= receive.at


def check_ring_exact_prefix(history: History) -> Finding:
    finding = Finding(history)
    for flow in history.flows(*RING_CHANNELS):
        good = prefix_breaks(finding, flow)
        rounds = (good - 1) // chunks_of(history, flow.edge.channel) if good else 0
        if rounds:
            finding.witness("{} messages of {} were read in place, the ring went round {} times", good, flow.name,
                            rounds, at=flow.receives[good - 1].at, node=flow.target)
    for hit in history.faults.receipts:
        if ":store." in hit.site:
            finding.witness("{} met {} at {}, and no reader saw a half-written message", hit.node, hit.fate, hit.site,
                            at=hit.at, node=hit.node)
    return finding


def stores(history: History, place: str, name: str) -> list[Record]:
    return history.crossings.get(f"{place}:store.{name}", [])


def reader_place(flow: Flow) -> str:
    """Where the reader of this edge stores its read flags."""
    if flow.edge.channel is Channel.RPC:
        return f"{flow.target}/rpc"
    return f"{flow.target}/response.{flow.edge.source.index}"


def check_ring_no_overwrite(history: History) -> Finding:
    finding, full_marks = Finding(history), history.marks(Mark.RING_FULL.value)
    for flow in history.flows(*RING_CHANNELS):
        chunks = chunks_of(history, flow.edge.channel)
        resets = stores(history, f"{flow.source}/{flow.edge.channel.value}", "reset")
        reads = stores(history, reader_place(flow), "read")
        if len(resets) > chunks and len(reads) >= len(flow.receives):
            for position in range(chunks, len(resets)):
                reset, gone = resets[position], history.ends.at(flow.target)
                read_at = reads[position - chunks].at if position - chunks < len(reads) else FOREVER
                if read_at > reset.at and gone > reset.at:
                    finding.broke("message {} of {} was written over message {}, which {} had not read", position,
                                  flow.name, position - chunks, flow.target, at=reset.at, node=flow.source)
                    break
        _judge_read_over(finding, flow, chunks)
        for node, full in full_marks:
            if node == flow.source and names_channel(full.data.get("ring"), flow.edge.channel) and any(
                    receive.at > full.at for receive in flow.receives):
                finding.witness("the ring {} was full, its writer waited, and {} read on", flow.name, flow.target,
                                at=full.at, node=node)
    return finding


def _judge_read_over(finding: Finding, flow: Flow, chunks: int) -> None:
    """What a reader took out of a chunk is its own message, and none that was written into that chunk later."""
    if flow.in_order:
        return
    sends = finding.history.sends_by_position(flow)
    last = max(sends, default=-1)
    for receive in flow.receives:
        position = receive.data["position"]
        if position not in sends or receive.digest in [send.digest for send in sends[position]]:
            continue
        over = next((later for later in range(position + chunks, last + 1, chunks)
                     if later in sends and receive.digest == sends[later][-1].digest), None)
        if over is not None:
            finding.broke("{} read message {} of {} where {} had stood", flow.target, over, flow.name, position,
                          at=receive.at, node=flow.target)


def names_channel(ring: str | None, channel: Channel) -> bool:
    return ring is None or channel.value in ring


def check_ring_overflow_ordered(history: History) -> Finding:
    finding = Finding(history)
    for flow in history.flows(*RING_CHANNELS):
        sends = history.sends_by_position(flow)
        overflowed = [p for p, sent in sends.items() if sent[-1].data.get("overflow")]
        if not overflowed:
            continue
        good = prefix_breaks(finding, flow)
        missing = [p for p in overflowed if p >= len(flow.receives)]
        _judge_lost_overflow(finding, flow, sends, missing)
        if len(flow.receives) in missing:
            _judge_passed_over(finding, flow, sends[len(flow.receives)][-1])
        late = [r for r in history.faults.hit(Fate.DELAY, Fate.REORDER, Fate.DUPLICATE, channel="overflow")
                if r.node == flow.target]
        for position in overflowed:
            if position >= good:
                continue
            sent, received = sends[position][-1], flow.receives[position]
            followers = sends.get(position + 1)
            timed_out = [wait for wait in history.by_node("queue-wait").get(flow.target, ())
                         if wait.data.get("outcome") == "timeout" and names_channel(wait.data.get("ring"),
                         flow.edge.channel) and sent.at <= wait.data["ended"] <= received.at]
            if followers and followers[-1].at < received.at and position + 1 < good:
                finding.witness("message {} of {} overflowed and was read in its place, though {} was there before it",
                                position, flow.name, position + 1, at=received.at, node=flow.target)
            elif timed_out:
                finding.witness("message {} of {} overflowed, a wait ended between its flag and its payload, and it "
                                "was read in its place", position, flow.name, at=received.at, node=flow.target)
            elif any(sent.at <= hit.at <= received.at for hit in late):
                finding.witness("the payload of message {} of {} met {} and was read in its place", position,
                                flow.name, late[0].fate, at=received.at, node=flow.target)
    return finding


def _judge_lost_overflow(finding: Finding, flow: Flow, sends: dict[int, list[Record]], missing: list[int]) -> None:
    """An overflow that never came, though its reader lived on. One that is to come behind the next waits for that."""
    history = finding.history
    closing_at = history.closes_at(flow.target)
    end = min(history.ends.at(flow.target), history.ends.at(flow.source), closing_at,
              history.ended_at)
    held = any(hit.node == flow.target and hit.released_at is None
               for hit in history.faults.hit(Fate.REORDER, channel="overflow"))
    if held or any(base in history.by_node("dying") for base in (flow.source, flow.target)):
        return
    for position in missing:
        sent = sends[position][-1]
        if _was_given_up(history, flow.source, sent):
            continue
        waited = end - sent.at - history.faults.frozen_s(flow.target, sent.at, end, flow.source)
        bound = timer_s(history.bounds, history.bounds.rpc_s)
        if waited > bound:
            finding.broke("message {} of {} overflowed and was not read within {:g} s", position, flow.name, bound,
                          at=sent.at, node=flow.target, bound=bound, measured=waited)


def _judge_passed_over(finding: Finding, flow: Flow, sent: Record) -> None:
    """A payload that is there is taken by the first wait that begins behind it, and no wait ends without it."""
    history, position = finding.history, sent.data["position"]
    if not flow.sends or _was_given_up(history, flow.source, sent):
        return  # to another host, or with one there: it is on record before there is room for it on the way
    late = [hit for hit in history.faults.hit(Fate.DELAY, Fate.REORDER, channel="overflow") if hit.node == flow.target]
    # A writer that stands still behind its flag has not sent the payload yet.
    sent_at = max([sent.at, *(stall.until for stall in history.faults.stalls if stall.node == flow.source)])
    since = max([hit.at + hit.lasted_s for hit in late], default=sent_at + history.bounds.detection_s)
    tell = finding.unclear if history.starved(history.bounds.detection_s) else finding.broke
    for wait in history.by_node("queue-wait").get(flow.target, ()):
        if wait.data.get("outcome") == "timeout" and names_channel(wait.data.get("ring"), flow.edge.channel) \
                and wait.data["began"] > since:
            tell("{} waited for message {} of {} in vain, although its payload was there", flow.target, position,
                 flow.name, at=wait.at, node=flow.target)
            return


def _was_given_up(history: History, node: str, sent: Record) -> bool:
    """A reader on another host had no room for it, and then its writer told whoever had put it in that it is not; or
    whoever puts the next one in, where it was interrupted.
    """
    after = [record.site for record in history.records(node)[sent.number:]
             if record.site.startswith("queue-put") or record.site in ("queue-not-put", "queue-interrupted")]
    return after[2 if after[:1] == ["queue-interrupted"] else 0:][:1] == ["queue-not-put"]


GUARANTEES = (
    Guarantee(
        id="ring-exact-prefix", chapter=CHAPTER, source=SOURCE, check=check_ring_exact_prefix, applies=hands_all_out,
        sentence="Every reader sees an exact prefix of what was written: whole messages, in order, none lost, none "
                 "twice, wherever any process dies.",
        wrong={
            "order": "moves on to another chunk when the next one is not ready",
            "whole": "raises the flag before the data is there",
        },
        witness="the ring went round at least once, or a process died or stopped at one of the ring's stores",
        envelope=Envelope(outside=(MEMORY, _OVERFLOW_LOST)),
    ),
    Guarantee(
        id="ring-no-overwrite", chapter=CHAPTER, source=SOURCE, check=check_ring_no_overwrite, applies=has_workers,
        sentence="No chunk is rewritten before every live reader has read it.",
        wrong="waits for the first reader instead of the slowest",
        witness="the ring was full, its writer waited, and a reader read on",
        envelope=Envelope(outside=(MEMORY,)),
    ),
    Guarantee(
        id="ring-overflow-ordered", chapter=CHAPTER, source=SOURCE, check=check_ring_overflow_ordered,
        applies=hands_all_out,
        sentence="A message of at least the chunk size goes by socket and keeps its place among the others; a burst "
                 "of them with a stalled reader loses none; a time-out between flag and payload loses and misplaces "
                 "none.",
        wrong={
            "place": "takes the next payload for the one that is owed",
            "time-out": "forgets at a time-out that a payload is owed, and reads on in the ring",
        },
        witness="a message that overflowed was read in its place although its successor was there first, its payload "
                "came late, or a wait for it had timed out",
        envelope=Envelope(outside=(MEMORY, _OVERFLOW_LOST)),
    ),
)
