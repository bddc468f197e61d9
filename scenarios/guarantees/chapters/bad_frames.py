"""The promise about frames that are none: malformed, truncated, unknown."""

from __future__ import annotations

from collections import Counter

import msgspec

from engine.messages import EngineCoreRequestType, Outcome
from engine.topology import Channel, NodeKind
from scenarios.guarantees.base import (
    DAMAGE,
    DAMAGED_ELSEWHERE,
    DEATHS,
    LOSSES,
    Envelope,
    Finding,
    Guarantee,
    Where,
)
from scenarios.guarantees.chapters.delivery import CHAPTER, SOURCE
from scenarios.guarantees.fitting import BAD_REQUEST, may_not_fit
from scenarios.history.history import FOREVER, Fate, History, Receipt, Record, kind_of

#: The types of requests that a core knows, as its words have them.
_KNOWN = frozenset(kind.hex() for kind in (
    EngineCoreRequestType.ADD, EngineCoreRequestType.ABORT, EngineCoreRequestType.UTILITY))
#: Calls by which a client has the scheduler pause, run some steps and go on.
_STEERING = frozenset({"pause_scheduler", "run_steps", "resume_scheduler"})


def check_bad_frame_isolated(history: History) -> Finding:
    finding = Finding(history)
    bad = history.observed("bad-frame")
    _judge_noise(finding)
    _judge_intruders(finding)
    hits = history.faults.hit(*DAMAGE)
    raw = _raw_frames(history)
    if not history.faults.receipts:
        _judge_strangers(finding)
    if not bad and not hits and not raw:
        return finding
    # Those that the workload sends go out with its first requests.
    first = min([record.at for _, record in bad] + [hit.at for hit in hits]
                + [o.began_at for o in history.operations if raw])
    if raw and len(bad) < raw:
        finding.broke("{} frames that were no requests were sent, and {} were told of", raw, len(bad), at=first)
    lost = history.observed("start-failed") and any(
        history.faults.hit(*LOSSES, channel=channel) for channel in ("handshake", "birth"))
    for death in () if lost else history.ends.deaths:  # what ends a start takes all that it has started with it
        by_itself = not death.planned and first <= death.at < _closed_at(history, death.node)
        if by_itself and not _is_others_doing(history, death.node, death.at):
            finding.broke("{} died ({}) after a bad frame", death.node, death.how, at=death.at, node=death.node)
            break
    planned = [r for r in history.faults.receipts if r.fate in DEATHS]
    for node, record in history.observed("engine-dead"):
        by_itself = first <= record.at < _closed_at(history, node) and not planned
        if by_itself and history.before_closing(node, record) and not _is_others_doing(history, node, record.at):
            finding.broke("the engine died after a bad frame: {}", record.data.get("reason"), at=record.at, node=node)
    logged = Counter(node for node, _ in bad)
    for node, cut in Counter(hit.node for hit in unreadable(history)).items():
        if logged[node] < cut:
            finding.broke("{} took, or dropped without a word, {} of {} messages that were not whole", node,
                          cut - logged[node], cut, node=node)
    on_outputs = any("/outputs:" in hit.site for hit in hits)
    paused = _left_paused(history)
    failed = [o for o in history.operations if o.outcome == Outcome.FAILED and o.over_at >= first
              and not (o.error == BAD_REQUEST and (o.accepted is None or may_not_fit(history, o)))
              and not (o.error == "RequestTimeoutError" and (o.node in paused or _lost_others(history)))]
    # What the workload sends beside its requests is none of them; a frame that was hit may have been one.
    if not on_outputs and not planned and len(failed) > len(hits):
        finding.broke("{} requests failed, and {} of their frames were bad", len(failed), len(hits),
                      at=failed[-1].ended_at, node=failed[-1].node)
    _judge_answers(finding)
    for node, record in bad:
        said, unknown, kind = str(record.data.get("error")).partition("unknown request type ")
        if unknown and not said and kind in _KNOWN:
            finding.broke("{} called {} a type that it does not know", node, kind, at=record.at, node=node)
        served = next((o for o in history.operations if o.outcome == Outcome.FINISHED and o.over_at > record.at), None)
        if served is not None:
            finding.witness("{} dropped a bad frame ({}) and {!r} was served afterwards", node,
                            record.data.get("error"), served.request, at=record.at, node=node)
    return finding


def _closed_at(history: History, node: str) -> float:
    """When one of several who have started what it lives with had begun to end that."""
    engine = history.engine_of(node)
    group = {*history.joined(engine), *history.coordinated(engine)}
    return min(map(history.closing_at, group)) if history.is_apart(engine) else FOREVER


def unreadable(history: History) -> list[Receipt]:
    """Messages that have lost their end, a frame or the order of their frames, so that they mean nothing, and those
    that were changed and have a checksum; what is left of a subscription by name is one to all.
    """
    hits = [hit for hit in history.faults.hit(Fate.TRUNCATE, Fate.OMIT, Fate.SWAP)
            if kind_of(hit.node) != NodeKind.COORDINATOR]
    changed = history.faults.hit(Fate.CORRUPT, channel="replay", operation="receive")
    return hits + [hit for hit in changed if _has_checksum(history, hit)]


def _has_checksum(history: History, hit: Receipt) -> bool:
    """Of what a publisher answers it is the report at the end of it and the place of a piece that has one, and a tag;
    of questions none.
    """
    return kind_of(hit.node) == NodeKind.SUBSCRIBER and any(
        "tag" in record.data and (record.site, record.nth) == (hit.site, hit.nth)
        for record in history.records(hit.node))


def is_of_a_group_that_was_called(history: History, node: str) -> bool:
    """Whether a frame to one of those that step together was hit: the others do what a call asks, and wait for it."""
    return any("/requests:" in hit.site for hit in history.faults.hit(*DAMAGE)) and any(
        history.in_step(engine) for engine in history.engines_of(node))


def _is_others_doing(history: History, node: str, at: float) -> bool:
    """Whether those that it steps together with may have ended it, for whom no frame has to be bad."""
    return is_of_a_group_that_was_called(history, node) or history.is_in_vain(node, at)


def _judge_answers(finding: Finding) -> None:
    """Whose request could still be told is answered, unless it had come whole: then nothing happens to it. No rank is
    asked for a token that no model has.
    """
    history = finding.history
    told = {record.data["request"]: (node, record) for node, record in history.observed("bad-frame")
            if record.data.get("request") is not None}
    for operation in history.operations:
        if operation.internal in told and _had_come(history, *told[operation.internal]):
            if operation.error == "BadRequestError":
                finding.broke("request {!r} had come whole before a damaged copy of it, and its caller was told {}",
                              operation.request, operation.error, at=operation.ended_at, node=operation.node)
        elif operation.internal in told and operation.outcome in (Outcome.FAILED, Outcome.FINISHED) and \
                operation.error != "BadRequestError":
            finding.broke("request {!r} came damaged, the core could read whose it was, and its caller was told {}",
                          operation.request, operation.error or "nothing of that", at=operation.ended_at,
                          node=operation.node)
    refused = {r.data["request"] for _, r in history.observed("request") if r.data["action"] == "refused"}
    for name in _named_by_raw_frames(history):
        if name not in refused and not history.faults.receipts:
            finding.broke("a malformed request names {!r}, and the core did not refuse it", name)
    for node, record in history.observed("step"):
        for request, tokens, *_ in record.data["new"]:
            if tokens and min(tokens) < 0:
                finding.broke("{} was asked for token {} of {!r}", node, min(tokens), request, at=record.at, node=node)


def _had_come(history: History, core: str, bad: Record) -> bool:
    """Whether the core says itself that it took the request before the frame that it could not read."""
    return any(record.data["action"] == "add" and record.data["request"] == bad.data["request"]
               and record.number < bad.number for record in history.by_node("request").get(core, ()))


def _named_by_raw_frames(history: History) -> list[str]:
    """Requests of the workload's raw frames that could not be read and still say whose they are."""
    found = []
    for frames in history.play.raw:
        try:
            body = msgspec.msgpack.decode(frames[1])
        except (IndexError, msgspec.DecodeError, ValueError, RecursionError):
            continue
        if isinstance(body, list) and body and isinstance(body[0], str):
            found.append(body[0])
    return [name for name in found if name not in {stranger.request_id for stranger in history.play.strangers}]


def _judge_strangers(finding: Finding) -> None:
    """A request that no client of the core has sent is served or fails like any other; what goes nowhere is told of."""
    history = finding.history
    for stranger in history.play.strangers:
        name, core = stranger.request_id, history.engines[0].core
        for what, records in (("took", history.by_node("request")), ("freed", history.by_node("freed"))):
            if not any(record.data["request"] == name for record in records.get(core, ())):
                finding.broke("{} never {} request {!r}, which came by itself", core, what, name, node=core)
        longest = history.play.config.scheduler.max_model_len
        if longest is not None and len(stranger.prompt_token_ids) >= longest and any(
                came[0] == name for _, step in history.observed("step") for came in step.data["new"]):
            finding.broke("{} computed {!r}, which came by itself and leaves no room for an answer", core, name,
                          node=core)
        if stranger.client_index and not any(
                record.data["edge"] == "outputs" for record in history.by_node("bad-frame").get(core, ())):
            finding.broke("{} has no client {} and did not say so", core, stranger.client_index, node=core)


def _judge_noise(finding: Finding) -> None:
    """Each message that was no message of a publisher is dropped as such by who heard it."""
    history = finding.history
    for node, records in history.by_node("malformed").items():
        heard, dropped = (Counter(record.data["edge"] for record in found) for found in (
            records, history.by_node("bad-frame").get(node, ())))
        for edge, count in heard.items():
            if node in history.by_node("bye") and (dropped[edge] < count or (
                    dropped[edge] > count and not history.faults.hit(*DAMAGE))):
                finding.broke("{} heard {} messages of {} that are none, and dropped {}", node, count, edge,
                              dropped[edge], at=records[-1].at, node=node)


def _judge_intruders(finding: Finding) -> None:
    """Each message of somebody who is no peer is named by who has the socket, as none or as what cannot be."""
    history = finding.history
    for channel in {intruder.channel for intruder in history.play.options.intruders}:
        for node in {*history.by_node("bye"), *(death.node for death in history.ends.deaths if not death.planned)}:
            said = sum(len(one.bad) for one in history.play.options.intruders
                       if one.channel is channel and history.meets(node, one))
            named = sum(str(record.data["edge"]).rpartition("/")[2] == channel.value
                        for record in history.by_node("bad-frame").get(node, ()))
            named += sum(record.data["cause"] in _ODD.get(channel, ())
                         for record in history.by_node("odd").get(node, ()))
            if named < said:
                finding.broke("{} heard {} messages on {} that nobody may send, and named {}", node, said,
                              channel.value, named, node=node)


#: What a coordinator says of what it can read on a channel, and what cannot be.
_ODD = {Channel.STATS: {"first-request"}, Channel.WAVE: {"subscription"},
        Channel.REPORT: {"counts", "start-wave", "wave-complete"}}


def _left_paused(history: History) -> set[str]:
    """Clients whose call that steers the scheduler failed, by a frame of its own: their requests wait as they asked."""
    return {node for node, r in history.observed("utility") if r.data["method"] in _STEERING and r.data["failure"]}


def _lost_others(history: History) -> bool:
    """Whether the plan has lost or held back other messages, too, for which somebody waited."""
    fates = (Fate.DROP, Fate.CUT, Fate.DELAY, Fate.REORDER)
    return any(history.faults.hit(*fates, channel=channel) for channel in ("requests", "outputs"))


def _raw_frames(history: History) -> int:
    """How many messages that are no requests the workload sends and no fault loses."""
    return max(0, history.play.raw_messages - len(history.faults.hit(Fate.DROP, Fate.CUT, channel="requests")))


GUARANTEES = (
    Guarantee(
        id="bad-frame-isolated", chapter=CHAPTER, source=SOURCE, check=check_bad_frame_isolated,
        sentence="A malformed, truncated or unknown frame, one that fails its checksum, and a message that has lost or "
                 "mixed up its buffers, is answered, or logged and dropped; it never kills a process or another "
                 "request.",
        wrong={
            "process": "lets the decoder's exception end the thread that reads the socket",
            "request": "gives up everybody after a frame that it cannot read",
            "silence": "does not say that somebody who is no peer speaks with it",
            "buffers": "takes the buffers of a message as they come, not as its body names them",
            "checksum": "carries a checksum of what it says and never looks at it",
        },
        witness="a bad frame was dropped and a request that ended later was served",
        envelope=Envelope(outside=(
            Where(DEATHS | {Fate.STALL, Fate.HANG}, why="the engine goes down for another reason"),
            *DAMAGED_ELSEWHERE,
        )),
    ),
)
