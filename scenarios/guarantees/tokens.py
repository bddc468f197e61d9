"""Judges of what a stream delivered: each token once, in its place, to its own request, and the right one."""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import Any

from engine.messages import FinishReason, Outcome
from engine.topology import Channel
from scenarios.guarantees.base import Finding
from scenarios.history.history import Fate, History, Operation
from scenarios.history.names import base

#: What the most probable token of any model has more than.
_NOTHING_BESIDE = 1e-6


def check_tokens_in_order(history: History) -> Finding:
    finding = Finding(history)
    references = references_of(history)
    for operation in history.operations:
        _judge_places(finding, operation, references)
        expected = 0
        for delivery in operation.deliveries:
            offset = delivery.data["offset"]
            if offset != expected:
                finding.broke("request {!r}: tokens from {} were delivered where {} was next", operation.request,
                              offset, expected, at=delivery.at, node=operation.node)
                break
            expected = offset + len(delivery.data["tokens"])
        if operation.after_end:
            finding.broke("request {!r}: tokens were delivered after its end", operation.request,
                          at=operation.after_end[0].at, node=operation.node)
        if operation.call is None and operation.deliveries:
            finding.broke("tokens for request {!r}, which nobody called", operation.request,
                          at=operation.deliveries[0].at, node=operation.node)
        if history.simulated and not history.faults.receipts and len(operation.deliveries) == 1 < len(
                operation.tokens) <= _frames_meanwhile(history, operation):
            finding.broke("request {!r}: all {} tokens came at once", operation.request, len(operation.tokens),
                          at=operation.ended_at, node=operation.node)
    _judge_sent(finding)
    for node, records in history.by_node("tokens").items():
        streams = {record.data["request"] for record in records}
        if len(streams) > 1:
            switches = sum(a.data["request"] != b.data["request"] for a, b in pairwise(records))
            if switches >= len(streams):  # fewer: one stream after the other
                finding.witness("{} streams of {} were delivered interleaved, {} switches", len(streams), node,
                                switches, node=node)
    hits = history.faults.hit(Fate.DROP, Fate.DUPLICATE, Fate.REORDER, Fate.DELAY, Fate.TRUNCATE, Fate.OMIT, Fate.SWAP,
                              channel="outputs")
    for hit in hits:
        if any(o.deliveries and o.began_at < hit.at for o in history.operations):
            finding.witness("an output frame met {} in the middle of a stream", hit.fate, at=hit.at, node=hit.node)
    _witness_of_cuts(finding)
    return finding


def _witness_of_cuts(finding: Finding) -> None:
    """An output was lost with its connection while a stream was open that has begun: its client may read that later."""
    history = finding.history
    for flow in history.flows(Channel.OUTPUTS):
        if any(hit.site.startswith(f"{flow.name}:") for hit in history.faults.hit(Fate.CUT)):
            begun = [o for o in history.operations
                     if o.deliveries and base(history.asked_of(o).core) == base(flow.source)]
            lost = next((send for send in flow.unreceived
                         if any(o.began_at < send.at < o.over_at for o in begun)), None)
            if lost is not None:
                finding.witness("an output was lost with its connection in the middle of a stream", at=lost.at,
                                node=flow.source)


def _frames_meanwhile(history: History, operation: Operation) -> int:
    """How many messages of outputs its client has read from its acceptance to its end."""
    if operation.accepted is None or not operation.ends:
        return 0
    first, last = operation.accepted.number, operation.ends[0].number
    return sum(first < receive.number < last for flow in history.flows(Channel.OUTPUTS)
               if flow.target == operation.node for receive in flow.receives)


def _recorded(history: History) -> dict[Any, dict[str, Any]]:
    """What is on record of the requests of the workload that have one answer, by index."""
    return {index: request for index, request in _requests(history).items() if _is_certain(request)}


def _requests(history: History) -> dict[Any, dict[str, Any]]:
    return {request.get("index", position): request
            for position, request in enumerate(history.play.workload.get("requests", ()))}


def references_of(history: History) -> dict[Any, list[int]]:
    return {index: list(request["reference_token_ids"]) for index, request in _recorded(history).items()}


def _judge_places(finding: Finding, operation: Operation, references: dict[Any, list[int]]) -> None:
    """Where a delivery belongs is told by its tokens, not by who delivers it: to which stream, and to which place."""
    reference, at = references.get(operation.index), 0
    if reference is None:
        return
    for delivery in operation.deliveries:
        tokens = delivery.data["tokens"]
        if tokens == reference[at:at + len(tokens)]:
            at += len(tokens)
            continue
        right = _in_common(tokens, reference[at:])
        at += right
        strange = tokens[right:]
        place, known = _found_in(reference, strange)
        other = max((index for index in references if index != operation.index), default=None,
                    key=lambda index: _found_in(references[index], strange)[1])
        if other is not None and _found_in(references[other], strange)[1] > known:
            finding.broke("request {!r}: tokens of request {} were delivered to it", operation.request, other,
                          at=delivery.at, node=operation.node)
        elif known:
            finding.broke("request {!r}: the tokens from {} were delivered where those from {} were next",
                          operation.request, place, at, at=delivery.at, node=operation.node)
        return


def _in_common(tokens: list[int], others: list[int]) -> int:
    """How many they begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, others, strict=False)))


def _found_in(reference: list[int], tokens: list[int]) -> tuple[int, int]:
    """(where, how many): the longest beginning of `tokens` that stands in the reference."""
    best = 0, 0
    for place in range(len(reference)):
        known = _in_common(tokens, reference[place:])
        if known > best[1]:
            best = place, known
    return best


def _judge_sent(finding: Finding) -> None:
    """A core sends each output once; what a thread had in its hand that failed may be sent once more in its place.

    What it is asked twice it answers twice.
    """
    history = finding.history
    if history.faults.hit(Fate.DUPLICATE, channel=Channel.REQUESTS.value):
        return
    failed = {node for node, record in history.observed("thread-ended") if record.data["why"] == "failed"}
    for flow in history.flows(Channel.OUTPUTS):
        twice = next((send for send in flow.sends if send.occurrence and send.digest), None)
        if twice is not None and flow.source not in failed:
            finding.broke("{} sent an output twice", flow.source, at=twice.at, node=flow.source)


def check_tokens_match_reference(history: History) -> Finding:
    finding = Finding(history)
    recorded = _recorded(history)
    for operation in history.operations:
        request = recorded.get(operation.index)
        if request is None:
            continue
        reference, tokens = list(request["reference_token_ids"]), operation.tokens
        if tokens != reference[:len(tokens)]:
            wrong = next((n for n, (a, b) in enumerate(zip(tokens, reference, strict=False)) if a != b), len(reference))
            finding.broke("request {!r}: token {} is {}, the reference has {}", operation.request, wrong,
                          tokens[wrong], reference[wrong] if wrong < len(reference) else "ended",
                          at=operation.ended_at, node=operation.node)
        elif operation.outcome == Outcome.FINISHED:
            if len(tokens) != len(reference) and not _stopped_by_text(operation, request):
                finding.broke("request {!r} finished with {} of {} tokens", operation.request, len(tokens),
                              len(reference), at=operation.ended_at, node=operation.node)
            elif len(tokens) == len(reference) and _wrong_finish(history, operation, request):
                finding.broke("request {!r} finished by {}, the reference by {}", operation.request,
                              operation.ends[0].data.get("finish_reason"), _finish_of(history, request),
                              at=operation.ended_at, node=operation.node)
            elif len(tokens) == len(reference) and _wrong_reason(operation, request):
                finding.broke("request {!r} ended by its token {}, and its caller was told of {!r}", operation.request,
                              tokens[-1], operation.ends[0].data.get("stop_reason"), at=operation.ended_at,
                              node=operation.node)
            elif len(tokens) > 1:
                finding.witness("request {!r}: {} tokens as transformers generates them", operation.request,
                                len(tokens), at=operation.ended_at, node=operation.node)
        elif operation.outcome == Outcome.ENGINE_DEAD:
            _judge_cut_short(finding, operation)
    _judge_draws(finding)
    return finding


def _judge_draws(finding: Finding) -> None:
    """Who asks again with the same seed is answered the same: what is drawn depends on that, and on the place."""
    drawn = {index: request for index, request in _requests(finding.history).items()
             if not _is_certain(request) and "seed" in (request.get("sampling_params") or {})}
    first: dict[Any, Operation] = {}
    for operation in finding.history.operations if drawn else ():
        if operation.index in drawn:
            before = first.setdefault(operation.index, operation)
            common = min(len(before.tokens), len(operation.tokens))
            if before.tokens[:common] != operation.tokens[:common]:
                finding.broke("requests {!r} and {!r} ask the same, by the same seed, and are answered {} and {}",
                              before.request, operation.request, before.tokens[:common], operation.tokens[:common],
                              at=operation.ended_at, node=operation.node)


def _judge_cut_short(finding: Finding, operation: Operation) -> None:
    """A stream that ended by the engine's death is a clean prefix only where something had befallen the engine."""
    history = finding.history
    end = history.unprovoked_end(history.asked_of(operation))
    if end is not None:
        tell = finding.unclear if history.starved(history.bounds.step_s) else finding.broke
        tell("request {!r} was cut short, and no fault explains the engine's death: {}", operation.request, end[1],
             at=operation.ended_at, node=operation.node)


def _is_certain(request: dict[str, Any]) -> bool:
    """Whether it is greedy, or may be drawn from the most probable token alone: of two that has half and more."""
    params = request.get("sampling_params") or {}
    top_k, top_p = params.get("top_k"), params.get("top_p", 1.0)
    one_choice = top_k == 1 or top_p <= _NOTHING_BESIDE or (top_k == 2 and top_p <= 0.5)
    return request.get("reference_token_ids") is not None and (not params.get("temperature") or one_choice)


def _stopped_by_text(operation: Operation, request: dict[str, Any]) -> bool:
    """Whether a stop string that was asked for ended it. Where that is, `text-is-of-tokens` knows."""
    return operation.ends[0].data.get("stop_reason") in (request["sampling_params"].get("stop") or ())


def _finish_of(history: History, request: dict[str, Any]) -> str | None:
    """By what it was asked for: a token that ends it, or a length; None where nobody knows of its last one whether it
    ends it.
    """
    params, tokens = request.get("sampling_params") or {}, request["reference_token_ids"]
    if params.get("stop"):
        return None  # by its text
    ends = {*params.get("stop_token_ids", ()), *(() if params.get("ignore_eos") else request.get("end_token_ids", ()))}
    if tokens and tokens[-1] in ends and len(tokens) > params.get("min_tokens", 0):
        return "stop"
    longest = history.play.config.scheduler.max_model_len
    if len(tokens) != params.get("max_tokens") and len(request["prompt_token_ids"]) + len(tokens) != longest:
        return "stop"
    return "length" if params.get("ignore_eos") else None


def _wrong_finish(history: History, operation: Operation, request: dict[str, Any]) -> bool:
    wanted, got = _finish_of(history, request), operation.ends[0].data.get("finish_reason")
    return wanted is not None and got is not None and str(wanted) != str(got)


def _wrong_reason(operation: Operation, request: dict[str, Any]) -> bool:
    """A token that was asked for as an end is told, and no other: not the end of sequence, and nothing of a length."""
    params, told = request.get("sampling_params") or {}, operation.ends[0].data.get("stop_reason")
    is_stop = operation.ends[0].data.get("finish_reason") == str(FinishReason.STOP)
    if isinstance(told, str) or not operation.tokens:
        return False  # its text says more: see text-is-of-tokens
    last = operation.tokens[-1]
    if is_stop and last in (params.get("stop_token_ids") or ()):
        return told != last if params.get("ignore_eos") else told not in (last, None)
    return told is not None
