"""Promises about requests and their tokens: what a caller may rely on."""

from __future__ import annotations

from engine.messages import Outcome
from engine.topology import Channel, Mark
from scenarios.guarantees.base import (
    ALL_FATES,
    DAMAGE,
    DEATHS,
    LOSSES,
    MEMORY,
    STALLS,
    Envelope,
    Finding,
    Guarantee,
    Where,
    timer_s,
)
from scenarios.guarantees.fitting import BAD_REQUEST, judge_bad, judge_effect, never_fits
from scenarios.guarantees.readers.missing import judge_gap, missing_s
from scenarios.guarantees.readers.odd import asked_oddly, judge_odd_requests
from scenarios.guarantees.tokens import check_tokens_in_order, check_tokens_match_reference
from scenarios.history.history import FOREVER, EngineLife, Fate, History, Operation, Receipt, Record

CHAPTER = "Requests and tokens"
#: Why real callers do not see an engine that tells more than the end.
ENDED = "who iterates over a stream reads on to its end, and no further"

#: A step may be about to begin when the thread beside it has read an abort: the one behind it knows.
_STEPS_TO_HEAR = 1
#: Threads of a real process take turns.
_STEPS_TO_HEAR_ON_A_BUSY_MACHINE = 8

_CALLER = Where(DEATHS | STALLS, nodes="frontend.*", why="the caller itself is hit", passing=False)


def _caller_lives(history: History, operation: Operation) -> bool:
    """Whether the caller's process could still be told: it lives, or left on its own feet."""
    return history.ends.at(operation.node) == FOREVER or operation.node in history.by_node("bye")


def check_ends_once(history: History) -> Finding:
    finding = Finding(history)
    for operation in history.operations:
        ends, node = operation.ends, operation.node
        if len(ends) > 1:
            finding.broke("request {!r} got {} ends: {}", operation.request, len(ends),
                          ", ".join(str(end.data.get("outcome")) for end in ends), at=ends[1].at, node=node)
        elif not ends:
            if _caller_lives(history, operation):
                finding.hangs("request {!r}", operation.request, bound=history.bounds.request_s,
                              since=operation.last_progress_at, node=node)
        elif operation.accepted and ends[0].data.get("internal", operation.internal) != operation.internal \
                and not history.play.options.synchronous:  # such a program knows no id but its own
            finding.broke("request {!r} was accepted as {!r} and ended as {!r}", operation.request, operation.internal,
                          ends[0].data["internal"], at=ends[0].at, node=node)
        elif operation.call is None and operation.accepted is None:
            finding.broke("request {!r} ended without ever having been called", operation.request, at=ends[0].at,
                          node=node)
        elif operation.outcome != Outcome.FINISHED:
            finding.witness("request {!r} ended once: {}", operation.request, operation.outcome, at=ends[0].at,
                            node=node)
    return finding


def check_abort_is_final(history: History) -> Finding:
    finding = Finding(history)
    used: dict[tuple[str, str], Operation] = {}
    for operation in history.operations:
        earlier = used.get((operation.node, operation.request))
        if earlier is not None and earlier.outcome == Outcome.ABORTED and operation.accepted:
            _judge_reuse(finding, earlier, operation)
        if operation.call is not None:
            used[operation.node, operation.request] = operation
        if operation.outcome != Outcome.ABORTED:
            continue
        if operation.after_end:
            finding.broke("request {!r} was aborted and yet delivered tokens", operation.request,
                          at=operation.after_end[0].at, node=operation.node)
        _judge_freed(finding, operation, "aborted")
    _judge_ids(finding)
    return finding


def _judge_ids(finding: Finding) -> None:
    """An ABORT names the id inside: one that is given twice lets it reach a request that nobody aborted."""
    for node, records in finding.history.by_node("accepted").items():
        known: set[str] = set()
        for record in records:
            internal = record.data.get("internal", "")
            if internal in known:
                finding.broke("request {!r} is called {!r} inside, as one before it was", record.data["request"],
                              internal, at=record.at, node=node)
            known.add(internal)


def _judge_reuse(finding: Finding, earlier: Operation, operation: Operation) -> None:
    """The id of an aborted request is used again: nothing of the old one may touch the new one."""
    history, node = finding.history, operation.node
    late = [record for _, record in history.observed("request")
            if record.data.get("request") == earlier.internal and "abort" in record.data.get("action", "")
            and operation.accepted and record.at > operation.accepted.at]
    if operation.ended_at is None:
        if _caller_lives(history, operation):
            finding.hangs("request {!r}, whose id had been used before,", operation.request,
                          bound=history.bounds.request_s, since=operation.last_progress_at, node=node)
    elif operation.outcome == Outcome.ABORTED and operation.abort is None:
        finding.broke("request {!r} was aborted, but only an earlier request of that id had been", operation.request,
                      at=operation.ended_at, node=node)
    elif operation.outcome == Outcome.FAILED and operation.error != BAD_REQUEST and not _held_up(history, operation):
        finding.broke("request {!r} failed ({}) after an earlier one of that id was aborted", operation.request,
                      operation.error, at=operation.ended_at, node=node)
    elif late and operation.outcome == Outcome.FINISHED:
        finding.witness("the ABORT of an earlier {!r} came after the new one was accepted, which finished",
                        operation.request, at=late[0].at, node=node)


def _held_up(history: History, operation: Operation) -> bool:
    """Whether a standstill of its engine, or a message that the plan lost, may have run out its own time-out."""
    engine = history.asked_of(operation)
    lost = history.faults.hit(*(LOSSES | DAMAGE | {Fate.REORDER}))
    if any(r.at >= operation.began_at and ("/requests:" in r.site or "/outputs:" in r.site) and
           history.is_of(r.node, engine) for r in lost):
        return True
    return any(stall.until - stall.at >= history.bounds.request_s / 2 and stall.until >= operation.began_at
               for stall in history.faults.stalls if history.is_of(stall.node, engine))


def _judge_freed(finding: Finding, operation: Operation, why: str) -> None:
    """What the core still held when the caller's stream had ended must be free once the core is idle."""
    history, internal = finding.history, operation.internal
    for node, records in history.by_node("request").items():
        mine = [record for record in records if record.data.get("request") == internal]
        added = next((record for record in mine if record.data.get("action") == "add"), None)
        if added is None:
            continue
        freed = next((r for r in history.by_node("freed").get(node, ()) if r.data.get("request") == internal), None)
        if _is_unheeded(history, operation, node, mine, freed):
            finding.broke("request {!r} was {} while {} held it, and {} computed on", operation.request, why, node,
                          node, at=operation.ended_at, node=node)
            continue
        idle = next((r for r in history.by_node("blocks").get(node, ()) if r.at > max(operation.over_at, added.at)
                     and not r.data.get("requests")), None)
        if freed is None:
            if idle is not None:
                finding.broke("request {!r} was {} and its blocks were not freed by the time the core was idle",
                              operation.request, why, at=idle.at, node=node)
        elif idle is not None and idle.number < freed.number:
            finding.broke("request {!r} was {}, its blocks were freed only after the core had been idle",
                          operation.request, why, at=freed.at, node=node)
        elif any(record.data.get("action") == "abort" for record in mine):
            finding.witness("request {!r} was {} while the core held it, and the core freed it", operation.request,
                            why, at=freed.at, node=node)


def _is_unheeded(history: History, operation: Operation, core: str, mine: list[Record], freed: Record | None) -> bool:
    """Whether it went on with a request of which it was told that nobody waits for it: it frees it by an abort, or says
    that it does not hold it any more."""
    engine, told = history.engine_of(core), operation.over_at
    if any(record.data.get("action") == "abort" for record in mine) or not history.is_asked_of(operation, engine):
        return False
    held_until = freed.at if freed is not None else FOREVER
    came = next(record.number for record in mine if record.data.get("action") == "add")
    unknown = [record for record in mine if record.data.get("action") == "unknown-abort"]
    if any(record.number < came for record in unknown):  # what came behind it was heeded before it
        return not (_never_came(history, engine) or _on_requests(history, engine, frozenset({Fate.DELAY})))
    if any(record.at < held_until for record in unknown):
        return True
    leaves = min([history.ends.at(core), history.closing_at(engine), history.ended_at,
                  *(record.at for record in history.by_node("dying").get(core, ()))])
    if unknown or min(held_until, leaves) <= told or _never_came(history, engine):
        return False
    return _steps_since_told(history, operation, core, min(held_until, leaves)) > (
        _STEPS_TO_HEAR if history.simulated else _STEPS_TO_HEAR_ON_A_BUSY_MACHINE)


def _steps_since_told(history: History, operation: Operation, core: str, until: float) -> int:
    """How many steps the core began when it had read all that its client sent before the end was told, and nothing
    held that up any more.
    """
    held = [hit.over_at for hit in _on_requests(history, history.engine_of(core), STALLS | {Fate.DELAY})]
    end, flows = operation.ends[0].number, [flow for flow in history.flows(Channel.REQUESTS)
                                            if flow.source == operation.node]
    reads = [read.at for flow in flows for send, read in flow.pairs if send.number < end]
    if not reads or (history.ends.at(core) < FOREVER and len(reads) < sum(
            send.number < end for flow in flows for send in flow.sends)):
        return 0
    since = max(reads + held)
    return sum(node == core and since < mark.at < until for node, mark in history.marks(Mark.STEP.value))


def _never_came(history: History, engine: EngineLife) -> bool:
    """Whether the plan has lost or changed what that engine's client sent, or put something else before it."""
    return bool(_on_requests(history, engine, LOSSES | DAMAGE | {Fate.REORDER}))


def _on_requests(history: History, engine: EngineLife, fates: frozenset[Fate]) -> list[Receipt]:
    return [hit for hit in history.faults.hit(*fates) if "/requests:" in hit.site and history.is_of(hit.node, engine)]


def _judge_unservable(finding: Finding) -> None:
    """What the workload says cannot be served is refused by name, before anything of it is sent."""
    history = finding.history
    why = {request.get("index", place): request["unservable"]
           for place, request in enumerate(history.play.workload.get("requests", ())) if request.get("unservable")}
    for operation in history.operations:
        reason = why.get(operation.index)
        if reason is None or not operation.ends:
            continue
        if operation.error != BAD_REQUEST or reason not in operation.ends[0].data["reason"]:
            finding.broke("request {!r} ended {} ({!r}), but it cannot be served: {}", operation.request,
                          operation.outcome, operation.ends[0].data.get("reason"), reason, at=operation.ended_at,
                          node=operation.node)
        elif operation.accepted is not None:
            finding.broke("request {!r} was sent although it cannot be served", operation.request,
                          at=operation.accepted.at, node=operation.node)


def check_bad_request_isolated(history: History) -> Finding:
    finding = Finding(history)
    if asked_oddly(history):
        judge_odd_requests(finding)
        return finding
    _judge_unservable(finding)
    for operation in history.operations:
        if never_fits(history, operation) and operation.accepted and operation.ends and not operation.abort \
                and not history.faults.receipts:
            judge_bad(finding, operation)
    bad = [o for o in history.operations if o.error == BAD_REQUEST]
    if not bad:
        return finding
    for operation in bad:
        if not operation.ends[0].data.get("reason"):
            finding.broke("request {!r} failed without a message that says why", operation.request,
                          at=operation.ended_at, node=operation.node)
        judge_effect(finding, operation)
    first = bad[0].over_at
    for node, record in history.observed("engine-dead"):
        if not history.faults.receipts and first <= record.at <= history.closes_at(node) and \
                history.before_closing(node, record):
            finding.broke("the engine died after a bad request: {}", record.data.get("reason"), at=record.at, node=node)
    for operation in history.operations:
        if not history.faults.receipts and operation.outcome == Outcome.FAILED and operation.error != BAD_REQUEST \
                and operation.over_at >= first:
            finding.broke("request {!r} failed ({}) beside a bad one", operation.request, operation.error,
                          at=operation.ended_at, node=operation.node)
        elif operation.ended_at is None and _caller_lives(history, operation):
            finding.hangs("request {!r}, beside a bad one,", operation.request, bound=history.bounds.request_s,
                          since=operation.last_progress_at, node=operation.node)
    for operation in bad:
        served = next((o for o in history.operations if o.outcome == Outcome.FINISHED
                       and o.over_at > operation.over_at), None)
        if served is not None:
            finding.witness("{!r} failed alone ({}), {!r} was served afterwards", operation.request,
                            operation.ends[0].data.get("reason"), served.request, at=operation.ended_at,
                            node=operation.node)
    return finding


def check_lost_request_is_bounded(history: History) -> Finding:
    finding, bounds = Finding(history), history.bounds
    losses = [r for r in history.faults.receipts if r.fate in LOSSES | DAMAGE
              and any(f"/{channel.value}:" in r.site for channel in (Channel.REQUESTS, Channel.OUTPUTS))]
    first_loss = losses[0].at if losses else FOREVER
    for operation in history.operations:
        heard, node = operation.last_progress_at, operation.node
        if operation.ended_at is None:
            if _caller_lives(history, operation):
                finding.hangs("request {!r}", operation.request, bound=timer_s(bounds, bounds.request_s), since=heard,
                              node=node)
            continue
        waited = operation.ended_at - heard
        patience_s = bounds.output_gap_s if history.faults.at("/outputs:") else bounds.request_s
        if operation.error == "RequestTimeoutError" and missing_s(history, operation) < patience_s:
            finding.broke("request {!r} was given up {:.3f} s after it was heard of", operation.request, waited,
                          at=operation.ended_at, node=node)
        if not finding.took("the silence before the end of {!r}", operation.request, node=node, at=operation.ended_at,
                            bound=timer_s(bounds, max(bounds.request_s, bounds.output_gap_s)),
                            measured=waited - history.faults.frozen_s(node, heard, operation.ended_at)):
            continue
        judge_gap(finding, operation)
        if operation.ended_at < first_loss or operation.outcome != Outcome.FAILED or operation.error == BAD_REQUEST:
            continue
        if not operation.ends[0].data.get("may_have_taken_effect") and operation.error != "UnroutableError":
            finding.broke("request {!r} lost a frame, and its error does not say that it may have taken effect",
                          operation.request, at=operation.ended_at, node=node)
            continue
        finding.witness("request {!r} lost a frame and its wait ended after {:.3f} s with {}", operation.request,
                        waited, operation.error, at=operation.ended_at, node=node)
        _judge_freed_if_lost(finding, operation)
    return finding


def _judge_freed_if_lost(finding: Finding, operation: Operation) -> None:
    counted = finding.witnesses
    _judge_freed(finding, operation, "given up")
    finding.witnesses = counted  # the wait is what this promise is about


GUARANTEES = (
    Guarantee(
        id="ends-once", chapter=CHAPTER, source="vLLM V1 engine core", check=check_ends_once,
        sentence="Every accepted request gets exactly one terminal outcome: finished, aborted, failed, refused or "
                 "engine-dead.",
        wrong={
            "forgets": "forgets whatever does not simply finish",
            "twice": "ends a request by what it was asked and by what the core says, too",
        },
        blind_in={
            "twice in engine": ENDED,
        },
        witness="a request ended otherwise than by finishing",
        envelope=Envelope(outside=(_CALLER,)),
    ),
    Guarantee(
        id="tokens-in-order", chapter=CHAPTER, source="vLLM V1 engine core", check=check_tokens_in_order,
        sentence="Streamed tokens of a request arrive once each, in order, never after its end, never from another "
                 "request.",
        wrong={
            "once": "delivers what comes twice twice",
            "order": "hands every output to its stream as it comes, however many tokens precede it",
            "after-end": "hands on what comes when a stream has ended",
            "whose": "does not look whose an output is",
        },
        blind_in={
            "after-end in engine": ENDED,
        },
        witness="streams were delivered interleaved, or an output frame was lost, doubled, late or swapped in the "
                "middle of one",
        envelope=Envelope(outside=(
            Where(frozenset({Fate.CORRUPT}), why="the wire has no checksum: changed bytes may be other tokens"),
        )),
    ),
    Guarantee(
        id="tokens-match-reference", chapter=CHAPTER, source="vLLM", check=check_tokens_match_reference,
        sentence="Greedy tokens equal what transformers' generate gives on the same checkpoint, and so does what "
                 "may be drawn from one choice alone; one seed draws the same again. Which token ended a stream is "
                 "told. Under a fault a stream is equal, or a clean prefix that ends in an error or an abort.",
        wrong={
            "blocks": "reads a wrong block of the cache", "sum": "leaves out one rank's partial sum",
            "end": "cuts a stream short, or adds to it", "seed": "takes the seed 0 for none",
        },
        blind_in={
            "blocks in sim": "the twin's model knows the answers and reads no cache",
            "sum in sim": "the twin's model knows the answers and adds nothing",
            "seed in sim": "the twin's model knows the answers and draws nothing",
        },
        witness="a greedy request of two tokens and more finished equal to its reference",
        envelope=Envelope(outside=(
            Where(frozenset({Fate.CORRUPT}), why="the wire has no checksum: changed bytes may be other tokens"),
        )),
    ),
    Guarantee(
        id="abort-is-final", chapter=CHAPTER, source="vLLM", check=check_abort_is_final,
        sentence="Once the client's stream has ended by abort, no output of that request appears and its blocks "
                 "become free; reuse of a request id never lets an old abort kill a new request.",
        wrong={
            "silent": "goes on with the stream of what was aborted",
            "freed": "keeps computing what was aborted",
            "reuse": "uses the caller's id inside the core",
        },
        blind_in={
            "silent in engine": ENDED,
        },
        witness="the core freed a request that it held when it was aborted, or an old ABORT came after its id was in "
                "use again",
        envelope=Envelope(outside=(
            _CALLER, MEMORY,
            Where(frozenset({Fate.DROP}) | DAMAGE, sites="*/requests:receive", why="the ABORT itself is lost"),
            Where(frozenset({Fate.CUT}), sites="*/requests:wire", why="the ABORT itself is lost"),
        )),
    ),
    Guarantee(
        id="bad-request-isolated", chapter=CHAPTER, source="vLLM", check=check_bad_request_isolated,
        sentence="A request that cannot be served fails alone, with a message that says why; what its client can see "
                 "is refused before anything is sent.",
        wrong={
            "alone": "lets the exception of one request's checks end the thread that reads them all",
            "why": "fails it with a message that says nothing",
            "before": "sends what its client could have refused",
        },
        witness="a bad request failed by name and a request that ended later was served",
        envelope=Envelope(outside=(Where(ALL_FATES - {Fate.DUPLICATE, Fate.DELAY, Fate.REORDER},
                                         why="others may fail for another reason"),)),
    ),
    Guarantee(
        id="lost-request-is-bounded", chapter=CHAPTER, source="vLLM V1 ZMQ reliability analysis",
        check=check_lost_request_is_bounded,
        sentence="If a request or output frame is lost, the client's wait ends within the client time-out with an "
                 "error that says that the request may have taken effect; the core frees it on abort.",
        wrong={
            "wait": "waits for a lost frame for ever",
            "effect": "says that a request without an answer had no effect",
            "freed": "lets the core compute what was given up",
        },
        witness="a request failed by time-out after one of its frames was lost",
        envelope=Envelope(outside=(_CALLER,)),
    ),
)
