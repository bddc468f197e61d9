"""The promise about what travels beside a request's body, and what in it."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from engine.topology import Channel, NodeKind
from scenarios.guarantees.base import DEATHS, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.delivery import CHAPTER
from scenarios.history.history import FOREVER, Fate, History, Record

SOURCE = "vLLM V1 msgpack encoder"
#: A number of a buffer has 32 bits.
_NUMBER_BYTES, _LEAST, _MOST = 4, -(1 << 31), (1 << 31) - 1
#: So many frames a message has at most beside its body, and so deep it is looked for what they hold.
_FRAMES, _DEPTH = 64, 8


def check_large_apart(history: History) -> Finding:
    finding = Finding(history)
    threshold = history.play.config.sockets.own_frame_bytes
    prompts = {o.accepted.number: o.call.data["prompt"] for o in history.operations
               if o.accepted is not None and o.call is not None and "prompt" in o.call.data}
    for client in history.of_kind(NodeKind.FRONTEND):
        said = sorted((record for name in ("accepted", "ask", "abort") for record in
                       history.by_node(name).get(client, ())), key=lambda record: record.number)
        edges = [history.sends(f"{client}->{engine.core}/{Channel.REQUESTS.value}")
                 for engine in history.engines_of(client)]
        for place, record in enumerate(said):
            until = said[place + 1].number if place + 1 < len(said) else FOREVER
            if record.site == "ask":
                due = min(_FRAMES, sum(_large(value, threshold, 0) for value in record.data["args"]))
                what = record.data["method"]
            elif record.site == "accepted" and record.number in prompts:
                due = int(0 < threshold <= prompts[record.number] * _NUMBER_BYTES)
                what = record.data["request"]
            else:
                continue
            for sends in edges:
                behind = bisect_right(sends, record.number, key=lambda send: send.number)
                if behind < len(sends) and sends[behind].number < until:
                    _judge(finding, client, what, sends[behind], due)
    return finding


def _judge(finding: Finding, client: str, what: str, sent: Record, due: int) -> None:
    has = sent.data.get("buffers", 0)
    if has != due:
        finding.broke("{} sent {!r} with {} frames beside its body, and {} of what it holds are large", client, what,
                      has, due, at=sent.at, node=client)
    elif due:
        finding.witness("{} of {!r} travelled beside its body", due, what, at=sent.at, node=client)


def _large(value: Any, threshold: int, depth: int) -> int:
    """How much of it has a frame of its own."""
    if not threshold or depth >= _DEPTH:
        return 0
    if isinstance(value, dict):
        return sum(_large(entry, threshold, depth + 1) for entry in value.values())
    if not isinstance(value, list):
        return 0
    if len(value) * _NUMBER_BYTES >= threshold and all(type(entry) is int for entry in value):
        return int(all(_LEAST <= entry <= _MOST for entry in value))
    return sum(_large(entry, threshold, depth + 1) for entry in value)


GUARANTEES = (
    Guarantee(
        id="large-apart", chapter=CHAPTER, source=SOURCE, check=check_large_apart,
        sentence="A prompt, and a list of numbers that a call is given, is a frame of its own from the configured size "
                 "on, as many as a message may have; all that is smaller stays in the body.",
        wrong={"small": "makes a frame of its own of whatever numbers there are",
               "large": "looks for large values in the first place, and not in what is within"},
        witness="something large travelled beside its body",
        envelope=Envelope(outside=(
            Where(DEATHS, nodes="frontend.*", why="the sender is dead"),
            Where(frozenset({Fate.CUT}), sites="*/requests:wire", why="what cannot be sent has no frames"),
        )),
    ),
)
