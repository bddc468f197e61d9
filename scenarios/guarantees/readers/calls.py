"""What callers must hear of what they asked several cores; and of what they may ask the core and the workers of an
engine that is not ours (pure).

Of the latter nothing but what the caller saw is looked at: a call has its own answer, its own error, or the news that
its engine is dead; and it has one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from engine.messages import Outcome
from scenarios.guarantees.base import Finding
from scenarios.history.history import FOREVER, Record

#: By these the lab itself has an engine make steps.
OF_THE_LAB = frozenset({"pause_scheduler", "resume_scheduler", "run_steps"})
#: Calls of the workers: what each of them says, given the word of the caller; and those that cannot be answered.
_SAID: dict[str, Callable[[Any], Any]] = {"told": lambda word: word, "check_health": lambda word: None}
_CANNOT = frozenset({"fails", "odd"})
#: What a worker's own failure begins with (`scenarios.worlds.vllm.stand_in.calls`).
AS_ASKED = "as asked: "
_LATE = "timed out"


def judge_calls_of_several(finding: Finding, client: str) -> None:
    """Where nothing befell anybody, a caller hears the first failure of its cores, else what the first one answered."""
    history = finding.history
    if history.faults.receipts:
        return
    heard: dict[str, dict[int, deque[tuple[Any, Any]]]] = {}  # by question, then by core
    for record in history.records(client):
        data = record.data
        if record.site == "answer":
            heard.setdefault(_name(record), {}).setdefault(data["core"], deque()).append(
                (data["failure"] or "", data["result"]))
        elif record.site == "utility" and _name(record) in heard:
            answers = [waiting.popleft() for _, waiting in sorted(heard[_name(record)].items()) if waiting]
            first = next((answer for answer in answers if answer[0]), answers[0] if answers else None)
            if first is not None and (data["failure"], data["result"]) != first:  # else none has answered in time
                finding.broke("{} was told {} of {}, its cores said {}", client, _short(data["failure"] or
                              data["result"]), _name(record), _short(answers), at=record.at, node=client)


def judge_calls_of_others(finding: Finding) -> None:
    history = finding.history
    for node, asks in history.by_node("ask").items():
        answers = {record.data.get("ticket"): record for record in history.by_node("utility").get(node, ())}
        for ask in asks:
            if ask.data["method"] in OF_THE_LAB:
                continue
            answer = answers.get(ask.data.get("ticket"))
            if answer is not None:
                _judge_answer(finding, node, answer)
            elif history.ends.at(node) == FOREVER or node in history.by_node("bye"):
                finding.hangs("the call {}", _name(ask), bound=history.bounds.request_s, since=ask.at, node=node)


def _judge_answer(finding: Finding, node: str, answer: Record) -> None:
    if answer.data["failure"]:
        _judge_failure(finding, node, answer)
        return
    called, word = _called(answer)
    if called in _CANNOT:
        finding.broke("{} was answered by {}", _name(answer), _short(answer.data["result"]), at=answer.at, node=node)
    elif called in _SAID:
        wanted = [_SAID[called](word)] * finding.history.ranks_of(node)
        if answer.data["result"] != wanted:
            finding.broke("{} was answered by {}, not {}", _name(answer), _short(answer.data["result"]), wanted,
                          at=answer.at, node=node)
        elif _failed_before(finding, node, answer):
            finding.witness("{} was answered behind a call that had failed", _name(answer), at=answer.at, node=node)


def _judge_failure(finding: Finding, node: str, answer: Record) -> None:
    """Of what fails by itself, by its time-out, or with its engine its caller is told; nothing else fails."""
    history, failure = finding.history, answer.data["failure"]
    called, word = _called(answer)
    dead = any(receipt.at <= answer.at for receipt in history.faults.receipts) or history.observed("engine-dead")
    if AS_ASKED in failure and not (called == "fails" and f"{AS_ASKED}{word}" in failure):
        finding.broke("{} was told of the failure of another call: {}", _name(answer), _short(failure), at=answer.at,
                      node=node)
    elif called in _CANNOT:
        finding.witness("{} was told why it failed: {}", _name(answer), _short(failure), at=answer.at, node=node)
        _judge_aftermath(finding, node, answer)
    elif _LATE in failure and len(answer.data["args"]) > 1 and answer.data["args"][1] is not None:
        finding.witness("{} was told of its time-out", _name(answer), at=answer.at, node=node)
    elif dead:
        finding.witness("{}, open at a death, was told: {}", _name(answer), _short(failure), at=answer.at, node=node)
    else:
        finding.broke("{} failed, though nothing befell it: {}", _name(answer), _short(failure), at=answer.at,
                      node=node)


def _judge_aftermath(finding: Finding, node: str, answer: Record) -> None:
    """What one call fails by is told to no request, and ends no engine."""
    for operation in finding.history.operations:
        if operation.ends and operation.over_at > answer.at and AS_ASKED in operation.ends[0].data.get("reason", ""):
            finding.broke("request {!r} was told of the failure of {}", operation.request, _name(answer),
                          at=operation.over_at, node=node)
    over = [operation for operation in finding.history.operations
            if operation.outcome == Outcome.ENGINE_DEAD and operation.over_at > answer.at]
    if over and not finding.history.faults.receipts:
        finding.broke("{} failed, and the engine ended: request {!r} was told so", _name(answer), over[0].request,
                      at=over[0].over_at, node=node)


def _failed_before(finding: Finding, node: str, answer: Record) -> bool:
    return any(record.data["failure"] and record.number < answer.number
               for record in finding.history.by_node("utility").get(node, ()))


def _called(record: Record) -> tuple[str, Any]:
    """-> what the workers were asked for, and the word that they were given"""
    args = record.data["args"]
    if record.data["method"] != "collective_rpc" or not args:
        return "", None
    return args[0], args[2] if len(args) > 2 else None


def _name(record: Record) -> str:
    return f"{record.data['method']}{tuple(record.data['args'])}"


def _short(value: Any) -> str:
    return str(value)[:160]
