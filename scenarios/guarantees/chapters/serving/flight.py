"""Promises about steps in flight: their order, their two phases, and whose error is told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile, pairwise
from typing import NamedTuple

from engine.messages import Outcome, ReplyStatus
from engine.topology import Channel, Mark, NodeKind, mark_site
from scenarios.guarantees.base import DAMAGE, DEATHS, MEMORY, STALLS, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.rings.rpc_calls import PHASES
from scenarios.history.history import EngineLife, Fate, History, Kind, Record
from scenarios.history.names import base, kind_of
from scenarios.history.play import Play
from scenarios.history.steps import steps_of

CHAPTER = "Steps in flight"
SOURCE = "vLLM V1 engine core"
#: How a core says that a step was executed and nobody had kept it.
NOTHING_TO_SAMPLE = "nothing to sample"
#: How it calls a call that it had the answer to when a rank failed in it.
OVER = "a call that was over"
#: What holds a message or a process up, and loses nothing.
_HOLDS = (Fate.HANG, Fate.STALL)
_EXECUTE, _SAMPLE = PHASES
_DUMMY = "execute_dummy_batch"
#: What the thread that answers fails in, when the rank has gone on.
_FETCH = "get_output"
_UNREADABLE = Where(DAMAGE, sites="*/overflow:*", why="what a rank cannot read it does not execute")


#: Whoever is to tell of a worker, or to be told, is what the fault hits.
WHO_TELLS_IS_HIT = (
    Where((DEATHS | STALLS) - {Fate.RAISE}, nodes="core.*", why="who should tell is hit itself"),
    Where(DEATHS | STALLS, nodes="frontend.*", why="who should be told is hit itself"))


def passed(history: History, node: str, mark: Mark) -> list[Record]:
    """Each time that it came to that mark."""
    return list(history.crossings.get(mark_site(node, mark), ()))


def _calls_by_rank(history: History, engine: EngineLife) -> Iterator[tuple[str, list[Record]]]:
    """(node, each call that it came to) of every rank; of a core that is its own only rank the core's."""
    workers = [engine.worker(rank) for rank in range(history.ranks_of(engine.core))]
    for node in workers if history.ranks_of(engine.core) > 1 else [*workers, engine.core]:
        calls = passed(history, node, Mark.EXECUTING)
        if calls:
            yield node, calls


# -- the order of steps


def check_steps_in_order(history: History) -> Finding:
    finding = Finding(history)
    depth = history.play.config.batch_queue_size
    for engine in history.engines:
        scheduled, used = passed(history, engine.core, Mark.SCHEDULED), passed(history, engine.core, Mark.EXECUTED)
        steps = [record.data["step"] for record in scheduled]
        for place, record in enumerate(used):
            if place >= len(steps) or record.data["step"] != steps[place]:
                finding.broke("{} used step {} where it was the turn of step {}", engine.core, record.data["step"],
                              steps[place] if place < len(steps) else "none", at=record.at, node=engine.core)
                return finding
        _judge_depth(finding, engine, scheduled, used, depth)
        _look_for_overlap(finding, engine, used)
        if history.simulated:  # where it takes no time to hear somebody
            _judge_aborted(finding, engine, used)
            _judge_heard(finding, engine)
    return finding


def _judge_heard(finding: Finding, engine: EngineLife) -> None:
    """Each abort that has come is heard once, in whichever step it came."""
    history, core = finding.history, engine.core
    asked = [one for one in history.operations if one.outcome == Outcome.ABORTED and one.internal is not None
             and history.is_asked_of(one, engine)
             and any(record.data["request"] == one.request for record in history.by_node("abort").get(one.node, ()))]
    books, came = history.by_node("blocks").get(core), _arrivals(history, engine)
    if not asked or not books or not came or books[-1].at <= max(came) or any(
            receipt.fate not in _HOLDS for receipt in history.faults.receipts):
        return
    heard = [record.data["request"] for record in history.by_node("request").get(core, ())
             if record.data["action"] in ("abort", "unknown-abort")]
    for one in asked:
        if heard.count(one.internal) != 1:
            finding.broke("{} heard {} times that {!r} was aborted", core, heard.count(one.internal), one.request,
                          node=core)
            return


def _judge_aborted(finding: Finding, engine: EngineLife, used: list[Record]) -> None:
    """Whose abort has come is heard before the results of a step that it is in are used."""
    history = finding.history
    aborted = [record for record in history.by_node("request").get(engine.core, ())
               if record.data["action"] == "abort" and not record.data["reason"]]
    if not aborted:
        return
    came = _arrivals(history, engine)
    inside = {step.record.data.get("step"): step.scheduled for step in steps_of(history, engine)}
    for record in aborted:
        at = max((at for at in came if at <= record.at), default=record.at)
        for step in used:
            if at < step.at and step.number < record.number and record.data["request"] in inside.get(
                    step.data["step"], ()):
                finding.broke("{} used step {} with {!r} in it, whose abort had come {:.4f} s before", engine.core,
                              step.data["step"], record.data["request"], step.at - at, at=step.at, node=engine.core)
                return


def _arrivals(history: History, engine: EngineLife) -> list[float]:
    """When its messages came, each as soon as it was let go."""
    late = {(record.data.get("site"), record.data.get("nth")): record.at for record in history.records(engine.core)
            if record.kind == Kind.RELEASE}
    return [late.get((record.site, record.nth), record.at) for client in history.nodes
            if kind_of(client) == NodeKind.FRONTEND and history.is_of(client, engine)
            for record in history.receives(f"{client}->{engine.core}/{Channel.REQUESTS.value}")]


def _judge_depth(finding: Finding, engine: EngineLife, scheduled: list[Record], used: list[Record], depth: int) -> None:
    for place, record in enumerate(scheduled):
        if place >= depth and (place - depth >= len(used) or used[place - depth].number > record.number):
            finding.broke("{} scheduled step {} before it had used step {}: {} may be in flight", engine.core, place,
                          place - depth, depth, at=record.at, node=engine.core)
            return


def _look_for_overlap(finding: Finding, engine: EngineLife, used: list[Record]) -> None:
    for node, calls in _calls_by_rank(finding.history, engine):
        taken = [call for call in calls if call.data["method"] == _EXECUTE]
        early = sum(after.at < before.at for before, after in zip(used, taken[1:], strict=False))
        if early:
            finding.witness("{} began {} steps before the core had used the ones before them", node, early, times=early)


# -- two phases


def check_two_phase_paired(history: History) -> Finding:
    finding = Finding(history)
    for engine in history.engines:
        tokens = [record.data.get("tokens", 0) for record in passed(history, engine.core, Mark.SCHEDULED)]
        for node, calls in _calls_by_rank(history, engine):
            _judge_pairs(finding, node, calls, tokens)
            told = history.by_node("rpc-failed" if kind_of(node) == NodeKind.CORE else "rpc-raised").get(node, ())
            failed = {record.data["call"] for record in told if record.data.get("method") != _FETCH}
            _judge_behind(finding, node, calls, failed)
    return finding


def _judge_behind(finding: Finding, node: str, calls: list[Record], failed: set[int]) -> None:
    """`failed`: the calls that did. One has come to its end where another one has come behind it."""
    behind = dropwhile(lambda call: call.data["call"] not in failed or call.data["method"] not in (*PHASES, _DUMMY),
                       calls)
    for call, _ in pairwise(behind):
        if call.data["method"] in (_EXECUTE, _DUMMY) and call.data["call"] not in failed:
            finding.broke("{} executed call {} behind a step that it had failed in", node, call.data["call"],
                          at=call.at, node=node)
            return


def _judge_pairs(finding: Finding, node: str, calls: list[Record], tokens: list[int]) -> None:
    """`tokens`: how many each step has."""
    step, pairs, unsampled = -1, 0, False
    for call in calls:
        method = call.data["method"]
        if method == _EXECUTE:
            step += 1
            if unsampled:
                finding.broke("{} came to step {}, and was not asked to sample the one before it", node, step,
                              at=call.at, node=node)
                return
            unsampled = step < len(tokens) and tokens[step] > 0
        elif method == _SAMPLE:
            if not unsampled:
                why = "it had executed nothing" if step < 0 else f"step {step} had no tokens" if step < len(
                    tokens) and not tokens[step] else f"step {step} had been sampled"
                finding.broke("{} was asked to sample, and {}", node, why, at=call.at, node=node)
                return
            unsampled = False
            pairs += 1
    if pairs > 1:
        finding.witness("{} was asked to sample each of {} steps behind its execute", node, pairs, times=pairs)


# -- whose error is told


class _Failure(NamedTuple):
    node: str
    call: int
    at: float
    error: str

    @property
    def rank(self) -> str:
        return base(self.node)

    def is_told_by(self, reason: str) -> bool:
        return f"{self.rank} failed in" in reason and self.error in reason


def check_first_error_told(history: History) -> Finding:
    finding = Finding(history)
    for engine in history.engines:
        failures = _failures(history, engine)
        told = next((record for _, record in history.heard_of("engine-dead", engine)), None)
        if failures and told is not None and not _is_bereft(history, engine, failures[0]):
            _judge_told(finding, engine, failures, str(told.data["reason"]), told.at)
    return finding


def _failures(history: History, engine: EngineLife) -> list[_Failure]:
    """What ranks raised in calls, the first call's first."""
    found = [_Failure(node, record.data["call"], record.at, record.data["error"])
             for node, records in history.by_node("rpc-raised").items() if history.is_of(node, engine)
             for record in records]
    if history.ranks_of(engine.core) == 1:
        found += [_Failure("worker.0", record.data["call"], record.at, record.data["error"])
                  for record in history.by_node("rpc-failed").get(engine.core, ())]
    return sorted(found, key=lambda failure: (failure.call, failure.at))


def _is_bereft(history: History, engine: EngineLife, first: _Failure) -> bool:
    """Whether a rank's death came before, which may be why others failed."""
    return any(death.onset <= first.at and base(death.node) != first.rank and death.node != engine.core
               for death in history.ends.deaths if history.is_of(death.node, engine))


def _judge_told(finding: Finding, engine: EngineLife, failures: list[_Failure], reason: str, at: float) -> None:
    first, *later = failures
    faults, bound = finding.history.faults, finding.history.bounds.detection_s
    alike = [other for other in later if other.call == first.call and other.at - first.at <= bound +
             faults.frozen_s(first.node, first.at, other.at)]  # who stands still with its answer is one that hangs
    if OVER in reason and not _was_answered(finding.history, engine.core, first.call):
        finding.broke("the callers of {} were told {!r}, and nobody had answered call {}", engine.core, reason,
                      first.call, at=at, node=engine.core)
    elif not any(failure.is_told_by(reason) for failure in (first, *alike)):
        if NOTHING_TO_SAMPLE in reason or any(failure.is_told_by(reason) for failure in later):
            finding.broke("the callers of {} were told {!r}, and the first to fail was {}, in call {}: {}", engine.core,
                          reason, first.rank, first.call, first.error, at=at, node=engine.core)
        return
    calls = finding.history.by_node("rpc-call").get(engine.core, ())
    behind = sum(call.data["call"] > first.call for call in calls)
    if behind:
        finding.witness("{} failed in call {}, {} more had been made, and its error was told", first.rank, first.call,
                        behind, at=at, node=engine.core)


def _was_answered(history: History, core: str, call: int) -> bool:
    return any(reply.data["call"] == call and reply.data["status"] == ReplyStatus.SUCCESS
               for reply in history.by_node("rpc-reply").get(core, ()))


def has_depth(play: Play) -> bool:
    return play.config.batch_queue_size > 1


GUARANTEES = (
    Guarantee(
        id="steps-in-order", chapter=CHAPTER, source=SOURCE, check=check_steps_in_order, applies=has_depth,
        sentence="With several steps in flight their results are used in the order in which the steps were scheduled, "
                 "there are never more than configured, and an abort that has come is heard before.",
        wrong={"order": "uses the results of the newest step first",
               "depth": "schedules more steps than may be in flight",
               "abort": "uses a step before it has heard who was aborted meanwhile"},
        blind_in={"abort in engine": "whether an abort had come before a step was used is a matter of microseconds"},
        witness="a rank began a step before the core had used the one before it",
        envelope=Envelope(),
    ),
    Guarantee(
        id="two-phase-paired", chapter=CHAPTER, source=SOURCE, check=check_two_phase_paired,
        sentence="On each rank every execute with tokens is followed by one sample before the next execute, also "
                 "behind one that failed; a step without tokens has none, and behind a step that it failed in a rank "
                 "executes no other one.",
        wrong={"missing": "spares a step its sample, and takes it for one that brought nothing",
               "alone": "asks for a sample of a step without tokens",
               "behind": "executes what it was asked for behind a sample that failed"},
        witness="a rank was asked to sample several steps",
        envelope=Envelope(outside=(MEMORY, _UNREADABLE)),
    ),
    Guarantee(
        id="first-error-told", chapter=CHAPTER, source=SOURCE, check=check_first_error_told,
        sentence="Where a rank fails in a call with others behind it, callers are told that error, and not what came "
                 "of it in a later step or in a sample of nothing.",
        wrong="waits for the sample, and tells that there was nothing to sample",
        witness="a rank failed with more calls behind the one it failed in, and its error is what callers were told",
        envelope=Envelope(outside=(
            MEMORY, _UNREADABLE, *WHO_TELLS_IS_HIT)),
    ),
)
