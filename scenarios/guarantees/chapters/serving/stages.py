"""Promises about layers in stages: what one hands to the next, whose end is told, and that no past comes back."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.messages import Outcome
from engine.topology import Mark
from scenarios.guarantees.base import DAMAGE, MEMORY, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.closing import word_is_lost
from scenarios.guarantees.chapters.death import stall_bound, stall_with_work
from scenarios.guarantees.chapters.serving.flight import WHO_TELLS_IS_HIT, passed
from scenarios.guarantees.tokens import check_tokens_match_reference, references_of
from scenarios.history.history import EngineLife, Fate, History, Operation, Record
from scenarios.history.names import base, kind_of, rank_of
from scenarios.history.play import Play
from scenarios.history.receipts import Receipt
from scenarios.history.steps import Step, steps_of

CHAPTER = "Pipeline stages"
SOURCE = "vLLM V1 pipeline parallel"
_SEND, _RECEIVE = "/pipe:send", "/pipe:receive"
_OTHERS = (Where(DAMAGE, sites="*/requests:receive", why="changed bytes may be another request"),
           Where(frozenset({Fate.CORRUPT}), sites="*/outputs:receive", why="changed bytes may be other tokens"))


def _ranks(history: History, engine: EngineLife) -> list[str]:
    return [engine.worker(rank) for rank in range(history.ranks_of(engine.core))]


def _before(history: History, engine: EngineLife, node: str) -> str:
    """Who sends to this rank."""
    group = history.grid_of(node).pp_group(rank_of(node))
    return engine.worker(group[group.index(rank_of(node)) - 1])


def _crossed(history: History, node: str, site: str) -> list[Record]:
    return list(history.crossings.get(node + site, ()))


# -- what one hands to the next


def check_pp_tokens_match(history: History) -> Finding:
    finding = Finding(history)
    found = check_tokens_match_reference(history)
    finding.breaks, finding.broken, finding.unknowns = found.breaks, found.broken, found.unknowns
    for engine in history.engines:
        for node in _ranks(history, engine):
            _judge_pairs(finding, node, _before(history, engine, node))
        for request, step in _left_in_flight(history, engine):
            finding.witness("{!r} was aborted or gave way with step {} in flight", request, step)
    return finding


def _judge_pairs(finding: Finding, node: str, before: str) -> None:
    """The k-th receive takes what the k-th send brought."""
    history = finding.history
    sent = [send.data["step"] for send in _crossed(history, before, _SEND)]
    for place, receive in enumerate(_crossed(history, node, _RECEIVE)):
        step = receive.data["step"]
        if place < len(sent) and sent[place] != step:
            finding.broke("{} took step {} from {}, which had sent step {} in its place", node, step, before,
                          sent[place], at=receive.at, node=node)
            return


def _left_in_flight(history: History, engine: EngineLife) -> Iterator[tuple[str, int]]:
    """(request, step) of those that were aborted, or gave way, before that step was used."""
    used = [record.number for record in passed(history, engine.core, Mark.EXECUTED)]
    aborts = [record for record in history.by_node("request").get(engine.core, ()) if record.data["action"] == "abort"]
    last: dict[str, int] = {}
    for place, step in enumerate(steps_of(history, engine)):
        for request in step.preempted:
            if request in last and _in_flight(last[request], step.number, used):
                yield request, last[request]
        last.update(dict.fromkeys(step.scheduled, place))
        for abort in aborts:
            if abort.data["request"] in step.scheduled and step.number < abort.number and _in_flight(
                    place, abort.number, used):
                yield abort.data["request"], place


def _in_flight(place: int, number: int, used: list[int]) -> bool:
    """Whether the core used that step behind its record of that number, or never."""
    return place >= len(used) or used[place] > number


# -- whose end is told


def check_pp_stage_death_told(history: History) -> Finding:
    finding = Finding(history)
    struck = [receipt for receipt in history.faults.receipts if receipt.may_end_the_engine(history.bounds.step_s)]
    if len(struck) == 1 and kind_of(struck[0].node) == "worker":
        _judge_end(finding, history.engine_of(struck[0].node), struck[0])
    return finding


def _judge_end(finding: Finding, engine: EngineLife, struck: Receipt) -> None:
    history, node = finding.history, struck.node
    since, bound = to_be_told(history, struck)
    if since is None or not any(startup.ready_at <= struck.at for startup in history.startups
                                if history.is_of(startup.node, engine)):
        return
    told = told_of(history, struck)
    waits = [other for other in _ranks(history, engine) if _waits_in_vain(history, engine, other)]
    if told is None:
        if history.closing_at(engine) > since + bound:
            finding.hangs("the {} of {}", struck.fate, node, bound=bound, since=since, node=node)
        return
    finding.took("telling of the {} of {}", struck.fate, node, bound=bound, measured=told.at - since, at=told.at,
                 node=node)
    if _can_be_named(history, struck) and not word_is_lost(history) and not is_named(node, str(told.data["reason"])):
        finding.broke("callers were told {!r}, and {} is who met {}", told.data["reason"], node, struck.fate,
                      at=told.at, node=node)
    for other in waits:
        finding.witness("{} waited for what {} never sent, and {} was told of", other, _before(history, engine, other),
                        node, at=told.at, node=other)


def told_of(history: History, struck: Receipt) -> Record | None:
    """What the first caller of its engine was told from then on."""
    engine = history.engine_of(struck.node)
    return next((record for _, record in history.heard_of("engine-dead", engine) if record.at >= struck.at), None)


def to_be_told(history: History, struck: Receipt) -> tuple[float | None, float]:
    """-> (since when it has to be told, within what time)"""
    stall = next((stall for stall in history.faults.stalls if stall.node == struck.node), None)
    if struck.fate not in (Fate.STALL, Fate.HANG) or stall is None:
        return struck.at, history.bounds.detection_s
    return stall_with_work(history, stall), stall_bound(history, stall)


def _can_be_named(history: History, struck: Receipt) -> bool:
    """Who stands still is known to those that wait for it; not over gloo, nor where the core's own bound is shorter."""
    if struck.fate not in (Fate.STALL, Fate.HANG):
        return True
    return history.play.config.device_communicator != "gloo" and history.bounds.collective_s < history.bounds.step_s


def is_named(node: str, reason: str) -> bool:
    """Whether a reason says that it died, failed, or did not do its part."""
    name, rank = re.escape(base(node)), rank_of(node)
    return re.search(rf"\b({name}|rank {rank})( \(pid \d+\))? (has died|died|did not|failed in)\b"
                     rf"|\bfrom {name} by its deadline", reason) is not None


def _waits_in_vain(history: History, engine: EngineLife, node: str) -> bool:
    """Whether its last receive is of a step that the rank before it never sent."""
    receives = _crossed(history, node, _RECEIVE)
    sent = [send for send in _crossed(history, _before(history, engine, node), _SEND) if "fate" not in send.data]
    return len(receives) > len(sent)


# -- that no past reaches a present


def check_pp_no_stale_slot(history: History) -> Finding:
    finding = Finding(history)
    wrong = {one.internal for one in history.operations if _has_other_tokens(history, one)}
    served = {one.internal for one in history.operations if one.outcome == Outcome.FINISHED}
    for engine in history.engines:
        for request, block, owner in _used_again(history, engine):
            if request in wrong:
                finding.broke("{!r} was given block {} while a step of {!r} was in flight that wrote to it, and its "
                              "tokens are not those of the reference", request, block, owner, node=engine.core)
            elif request in served:
                finding.witness("{!r} was given block {} while a step of {!r} was in flight that wrote to it", request,
                                block, owner)
    return finding


def _has_other_tokens(history: History, operation: Operation) -> bool:
    reference = references_of(history).get(operation.index)
    return reference is not None and operation.tokens != reference[:len(operation.tokens)]


def _used_again(history: History, engine: EngineLife) -> Iterator[tuple[str, int, str]]:
    """(request, block, who had it before) of blocks that changed hands with a step of the former owner in flight."""
    used = [record.number for record in passed(history, engine.core, Mark.EXECUTED)]
    owner: dict[int, str] = {}
    last: dict[str, int] = {}
    for place, step in enumerate(steps_of(history, engine)):
        for request, blocks in _given(step):
            for block in blocks:
                before = owner.get(block)
                if before not in (None, request) and before in last and _in_flight(last[before], step.number, used):
                    yield request, block, before
                owner[block] = request
        last.update(dict.fromkeys(step.scheduled, place))


def _given(step: Step) -> Iterator[tuple[str, list[int]]]:
    for came in step.came:
        yield came.request, came.blocks
    for request, _, blocks, _ in step.known:
        yield request, blocks


def _has_stages(play: Play) -> bool:
    return play.config.pipeline_parallel_size > 1


GUARANTEES = (
    Guarantee(
        id="pp-tokens-match", chapter=CHAPTER, source=SOURCE, check=check_pp_tokens_match, applies=_has_stages,
        sentence="Layers in stages give the tokens that they give in one; what a stage takes for a step is what the "
                 "stage before it sent for that step.",
        wrong={"tokens": "goes on with a token that was told for somebody else",
               "order": "takes what another step left"},
        witness="a request was aborted, or gave way, with a step of its own in flight",
        envelope=Envelope(outside=(MEMORY, *_OTHERS)),
    ),
    Guarantee(
        id="pp-stage-death-told", chapter=CHAPTER, source=SOURCE, check=check_pp_stage_death_told, applies=_has_stages,
        sentence="The death, standstill or exception of any stage ends the engine within its bound, and callers are "
                 "told that stage's name, not that of one that waited for it.",
        wrong={"told": "lets the other stages wait for one that has failed",
               "named": "tells the name of who waited"},
        witness="a rank of another stage waited in a receive for what was never sent",
        envelope=Envelope(outside=(MEMORY, *WHO_TELLS_IS_HIT)),
    ),
    Guarantee(
        id="pp-no-stale-slot", chapter=CHAPTER, source=SOURCE, check=check_pp_no_stale_slot, applies=_has_stages,
        sentence="Nothing that is computed for a request that has ended or given way reaches a later one that was "
                 "given its blocks.",
        wrong="keeps the blocks of a request that gave way, and goes on in them",
        witness="a block changed hands while a step that wrote to it was in flight, and its new owner was served",
        envelope=Envelope(outside=(MEMORY, *_OTHERS)),
    ),
)
