"""The promise about text: what a caller reads is what its tokens say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.messages import FinishReason, Outcome
from scenarios.guarantees.base import Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.requests import CHAPTER
from scenarios.history.history import Fate, History, Operation

#: What decoders put for bytes that are no character, or not yet one.
BROKEN = "\ufffd"


class _Asked:
    """What one request asks of its text. `decoded[n]`: what its first n tokens decode to, at once."""

    def __init__(self, request: dict[str, Any]) -> None:
        params = request.get("sampling_params") or {}
        self.max_tokens: int | None = params.get("max_tokens")
        self.ends = {*request.get("end_token_ids", ()), *(params.get("stop_token_ids") or ())}
        self.stop: Sequence[str] = params.get("stop") or ()
        self.min_tokens: int = params.get("min_tokens", 0)
        self.decoded = [""]

    def searched(self, text: str, count: int) -> str | None:
        """The part of a text in which stop strings count, None if there is none. `count`: of its tokens."""
        if not self.stop or count <= self.min_tokens:
            return None
        return text[len(_whole(self.decoded[self.min_tokens])):]

    def first_stop(self, text: str, count: int) -> tuple[int, str] | None:
        """Where the text ends by a stop string, and by which: the one that is complete first, then the longest."""
        searched = self.searched(text, count) or ""
        for end in range(1, len(searched) + 1):
            complete = [word for word in self.stop if searched[:end].endswith(word)]
            if complete:
                word = max(complete, key=len)
                return len(text) - len(searched) + end - len(word), word
        return None

    def shown(self, count: int) -> str:
        """What may be read after so many tokens, others being still to come."""
        text = _whole(self.decoded[count])
        searched = self.searched(text, count) or ""
        held = max((length for word in self.stop for length in range(1, len(word))
                    if searched.endswith(word[:length])), default=0)
        return text[:len(text) - held]


def _whole(text: str) -> str:
    return text.rstrip(BROKEN)


def check_text_is_of_tokens(history: History) -> Finding:
    finding = Finding(history)
    if history.play.config.skip_tokenizer_init:
        return finding
    requests = {request.get("index", place): request
                for place, request in enumerate(history.play.workload.get("requests", ()))}
    for operation in history.operations:
        asked = _Asked(requests.get(operation.index, {}))
        if _judge_stream(finding, operation, asked) and operation.outcome in (Outcome.FINISHED, Outcome.ABORTED):
            _judge_last_words(finding, operation, asked)
    return finding


def _judge_stream(finding: Finding, operation: Operation, asked: _Asked) -> bool:
    """What was shown while tokens were still to come. -> whether it was right"""
    for delivery in operation.deliveries:
        asked.decoded[delivery.data["offset"] + 1:] = delivery.data["decoded"]
        text, count = delivery.data.get("text"), len(asked.decoded) - 1
        if text is not None and text != asked.shown(count):
            finding.broke("request {!r} showed {!r} after {} tokens, which say {!r}", operation.request, text, count,
                          asked.shown(count), at=delivery.at, node=operation.node)
            return False
    return True


def _judge_last_words(finding: Finding, operation: Operation, asked: _Asked) -> None:
    end, count = operation.ends[0], len(asked.decoded) - 1
    finish, why, text = end.data["finish_reason"], end.data.get("stop_reason"), end.data.get("text", "")
    if finish == str(FinishReason.STOP) and not isinstance(why, str):
        count -= 1  # the token that ends a request is no text
    ending = [n for n, token in enumerate(operation.tokens) if token in asked.ends and n >= asked.min_tokens]
    if ending != ([count] if count < len(operation.tokens) else []):
        finding.broke("request {!r} ended by {!r} after {} tokens, of which those at {} end it", operation.request,
                      finish, len(operation.tokens), ending, at=end.at, node=operation.node)
        return
    whole = asked.decoded[count]
    hit = asked.first_stop(whole, count)
    expected = whole if hit is None else whole[:hit[0]]
    if text != expected:
        finding.broke("request {!r} ended with {!r}, its tokens say {!r}", operation.request, text, expected,
                      at=end.at, node=operation.node)
    elif operation.outcome == Outcome.ABORTED:
        return
    elif isinstance(why, str) != (hit is not None) or (hit is not None and hit[1] != why):
        finding.broke("request {!r} ended by {!r}, its text by {!r}", operation.request, why, hit and hit[1],
                      at=end.at, node=operation.node)
    elif hit is None:
        if len(whole) < len(asked.decoded[-1]) or any(BROKEN in text for text in asked.decoded):
            finding.witness("request {!r} ended as its tokens say, of which not each is a text", operation.request,
                            at=end.at, node=operation.node)
    elif count > 1 and asked.first_stop(_whole(asked.decoded[count - 1]), count - 1) is not None:
        finding.broke("request {!r} went on after {!r}", operation.request, why, at=end.at, node=operation.node)
    else:
        _judge_stopped(finding, operation, asked)


def _judge_stopped(finding: Finding, operation: Operation, asked: _Asked) -> None:
    """Its client found a stop string: the core hears of it, unless it was at its end."""
    history, word = finding.history, operation.ends[0].data["stop_reason"]
    told = any(record.data["request"] == operation.internal and "abort" in record.data["action"]
               for _, record in history.observed("request"))
    if not told and len(operation.tokens) != asked.max_tokens and not history.faults.receipts:
        finding.broke("request {!r} ended by {!r}, and its core was not told", operation.request, word,
                      at=operation.ended_at, node=operation.node)
    else:
        finding.witness("request {!r} ended before {!r}", operation.request, word, at=operation.ended_at,
                        node=operation.node)


GUARANTEES = (
    Guarantee(
        id="text-is-of-tokens", chapter=CHAPTER, source="vLLM", check=check_text_is_of_tokens,
        sentence="The text of a request is what its tokens decode to, and only grows: a character appears once it is "
                 "whole, the token that ends a request is no text, and what may become a stop string is held back. "
                 "It ends before the stop string that is complete first, and then the core is told to stop.",
        wrong={
            "whole": "decodes each token by itself",
            "stop": "looks for stop strings in what each token adds",
            "told": "lets the core go on when a stop string was found",
        },
        witness="a text ended before a stop string, or held a character of several tokens, or left an end out",
        envelope=Envelope(outside=(
            Where(frozenset({Fate.CORRUPT}), why="the wire has no checksum: changed bytes may be other tokens"),
        )),
        applies=lambda play: not play.config.skip_tokenizer_init,
    ),
)
