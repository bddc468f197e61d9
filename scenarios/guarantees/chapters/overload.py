"""Promises about overload and about bytes that nobody vouches for."""

from __future__ import annotations

from operator import itemgetter

from engine.messages import Outcome
from scenarios.guarantees.base import DAMAGED_ELSEWHERE, PROCESS, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.bad_frames import is_of_a_group_that_was_called, unreadable
from scenarios.guarantees.fitting import may_not_fit
from scenarios.history.history import FOREVER, History, Operation, Record, kind_of

CHAPTER = "Overload and trust"
#: From this share of a limit on, an engine without limits would have gone on.
NEAR = 0.9
#: A token id takes no more in this model's vocabulary, as msgpack writes it.
_MOST_BYTES = 3


def check_memory_bounded(history: History) -> Finding:
    finding = Finding(history)
    limits = history.play.config.limits
    for node in history.of_kind("frontend"):
        most, most_bytes = _most_open(history, node)
        if most > limits.max_requests:
            finding.broke("{} had {} requests in flight at once, the limit is {}", node, most, limits.max_requests,
                          node=node)
        if most_bytes > limits.max_request_bytes:
            finding.broke("{} had {} bytes of prompts in flight at once, the limit is {}", node, most_bytes,
                          limits.max_request_bytes, node=node)
    for node, records in history.by_node("request").items():
        held = _most_held(records, history.by_node("freed").get(node, []))
        most = limits.max_requests * len(history.play.topology.clients_of(history.engine_of(node).engine))
        if held > most:
            finding.broke("{} held {} requests at once, the limit is {}", node, held, most, node=node)
    for node, record in history.observed("load"):
        data = record.data
        for what, limit in (("requests", limits.max_requests), ("bytes", limits.max_request_bytes)):
            told, used = data.get(f"max_{what}", limit), data.get(what, 0)
            if told > limit:
                finding.broke("{} allows {} {}, configured are {}", node, told, what, limit, at=record.at, node=node)
            if used > limit:
                finding.broke("{} held {} {}, the limit is {}", node, used, what, limit, at=record.at, node=node)
            elif used >= NEAR * limit:
                finding.witness("{} held {} {} of at most {}", node, used, what, limit, at=record.at, node=node)
    for operation in history.operations:
        if operation.outcome == Outcome.FAILED and operation.accepted is None and not _is_wrong(history, operation) \
                and _open_at(history, operation) >= limits.max_requests:
            finding.broke("request {!r} was one too many and failed by {}, instead of being refused",
                          operation.request, operation.error, at=operation.ended_at, node=operation.node)
        if operation.outcome != Outcome.REFUSED:
            continue
        if not operation.error or not operation.ends[0].data.get("reason"):
            finding.broke("request {!r} was refused without saying why", operation.request, at=operation.ended_at,
                          node=operation.node)
        else:
            finding.witness("request {!r} was refused: {}", operation.request, operation.ends[0].data["reason"],
                            at=operation.ended_at, node=operation.node)
    return finding


def _most_held(requests: list[Record], freed: list[Record]) -> int:
    """The largest number of requests that a core had taken and not freed."""
    steps = sorted([(r.number, 1) for r in requests if r.data["action"] == "add"] + [(r.number, -1) for r in freed])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def _most_open(history: History, node: str) -> tuple[int, int]:
    """How many accepted requests, and at least how many bytes, one caller had open at once, by its own records."""
    mine = [(o, o.accepted.number, o.ends[0].number if o.ends else None) for o in history.operations
            if o.node == node and o.accepted]
    steps = [(began, 1, o) for o, began, _ in mine] + [(over, -1, o) for o, _, over in mine if over is not None]
    prompts = {request.get("index", place): request["prompt_token_ids"]
               for place, request in enumerate(history.play.workload.get("requests", ()))}
    enough = _MOST_BYTES * sum(map(len, prompts.values())) > history.play.config.limits.max_request_bytes
    sizes = {index: _least_bytes(prompt) for index, prompt in prompts.items()} if enough else {}
    most = most_bytes = now = now_bytes = 0
    for _, step, operation in sorted(steps, key=itemgetter(0)):
        now += step
        now_bytes += step * sizes.get(operation.index, 0)
        most, most_bytes = max(most, now), max(most_bytes, now_bytes)
    return most, most_bytes


def _least_bytes(token_ids: list[int]) -> int:
    """What they take in msgpack, whatever travels with them."""
    return sum(1 if token < 1 << 7 else 2 if token < 1 << 8 else _MOST_BYTES for token in token_ids)


def _open_at(history: History, late: Operation) -> int:
    """How many requests its caller had open when it asked for this one."""
    assert late.call is not None
    called = late.call.number
    return sum(o.node == late.node and o.accepted is not None and o.accepted.number < called
               and not (o.ends and o.ends[0].number < called) for o in history.operations)


def _is_wrong(history: History, operation: Operation) -> bool:
    """Whether it fails for a reason of its own: nobody called it, its id is in use, or it does not fit."""
    call = operation.call
    return call is None or may_not_fit(history, operation) or any(
        o is not operation and (o.node, o.request) == (operation.node, operation.request) and o.call is not None
        and o.call.number < call.number and not (o.ends and o.ends[0].number < call.number)
        for o in history.operations)


def check_no_foreign_code(history: History) -> Finding:
    finding = Finding(history)
    for engine in history.engines if history.play.raw_messages else ():
        end = history.unprovoked_end(engine)
        if end is not None:
            finding.broke("{} ended ({}): a pickle that was sent ends whoever executes it", engine.core, end[1],
                          at=end[0], node=engine.core)
    bad = history.observed("bad-frame")
    for node, record in bad:
        ended = history.ends.at(node)
        if kind_of(node) == "subscriber" and node in history.by_node("bye"):
            ended = FOREVER  # it left when it was told to, before the engine did
        if is_of_a_group_that_was_called(history, node):
            ended = FOREVER  # the others did what it could not read, and missed it
        if record.at <= ended < history.closes_at(node) and not any(
                death.planned for death in history.ends.deaths):
            finding.broke("{} died after a malformed frame from {}", node, record.data.get("edge"), at=ended, node=node)
        else:
            finding.witness("{} dropped a malformed frame from {}: {}", node, record.data.get("edge"),
                            record.data.get("error"), at=record.at, node=node)
    if not bad:
        for hit in unreadable(history):
            finding.broke("{} said nothing of the damaged message from {}", hit.node, hit.site, at=hit.at,
                          node=hit.node)
    return finding


GUARANTEES = (
    Guarantee(
        id="memory-bounded", chapter=CHAPTER, source="vLLM V1 ZMQ reliability analysis", check=check_memory_bounded,
        sentence="No high-water mark moves the bound elsewhere: admission limits keep the memory of frontend and core "
                 "under the configured bound with any consumer, and excess requests are refused by name.",
        wrong={
            "requests": "relies on sockets without a high-water mark and admits whatever comes",
            "bytes": "counts requests, however long they are",
            "named": "fails what is one too many like what is wrong",
        },
        witness="a request was refused by name, or a limit was nearly reached",
        envelope=Envelope(),
    ),
    Guarantee(
        id="no-foreign-code", chapter=CHAPTER, source="vLLM", check=check_no_foreign_code,
        sentence="No byte from a network socket is ever unpickled unless CURVE authenticated the peer; malformed "
                 "input at any socket is an error, not a crash.",
        wrong={
            "unpickled": "falls back to unpickling what it cannot decode",
            "crash": "ends by malformed input",
        },
        witness="a malformed frame arrived at a socket and was dropped",
        envelope=Envelope(outside=(
            Where(PROCESS, why="a process goes down for another reason"),
            *DAMAGED_ELSEWHERE,
        )),
    ),
)
