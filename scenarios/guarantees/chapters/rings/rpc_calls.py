"""What a core tells of the calls that it makes of its workers: their numbers, steps, waits and failures."""

from __future__ import annotations

from bisect import bisect_left

from engine.config import Bounds
from engine.messages import ReplyStatus
from engine.topology import Mark
from scenarios.guarantees.base import ROUNDING_S, Finding
from scenarios.history.history import FOREVER, History, Record

#: What a step calls.
PHASES = ("execute_model", "sample_tokens")


def answers_by_call(replies: list[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for reply in replies:
        found.setdefault(reply.data["call"], []).append(reply)
    return found


def is_answered(tp: int, call: Record, answers: dict[int, list[Record]], before: int | None = None) -> bool:
    """Whether all replies that a call to `tp` ranks waits for were taken (before the core's record of that number)."""
    data = call.data
    rank, replies = data.get("output_rank"), answers.get(data["call"], ())
    wanted = range(tp) if rank is None else (rank,)
    answered = [r.data["rank"] for r in replies if before is None or r.number < before]
    return all(rank in answered for rank in wanted)


def allowed_s(bounds: Bounds, call: Record) -> float:
    """How long a core that serves may wait for this call."""
    return bounds.step_s if call.data.get("method") in PHASES else bounds.rpc_s


def judge_calls(finding: Finding, core: str, calls: list[Record], answers: dict[int, list[Record]]) -> None:
    """All of them."""
    history = finding.history
    _judge_ids(finding, core, calls)
    _judge_steps(finding, core, calls, answers)
    _judge_deadlines(finding, core, calls, answers)
    _judge_failures(finding, core, calls, answers)
    stepped = history.crossings.get(f"{core}/mark:executed")
    if stepped and history.simulated and history.ranks_of(core) > 1 and not history.faults.receipts and \
            history.play.config.batch_queue_size == 1:  # else an answer may come while others are waited for
        _judge_untold_waits(finding, core, calls, answers)


def _judge_ids(finding: Finding, core: str, calls: list[Record]) -> None:
    """Each call has a number of its own, from 0 on."""
    ids = [call.data["call"] for call in calls]
    if ids != list(range(len(ids))):
        finding.broke("{} numbered its calls {}", core, ids, node=core)


def _judge_steps(finding: Finding, core: str, calls: list[Record], answers: dict[int, list[Record]]) -> None:
    """Each step that was executed is a call, one that it took an answer to, and one that who answers told of."""
    history = finding.history
    steps = len(history.crossings.get(f"{core}/mark:{Mark.EXECUTED.value}", ()))
    asked = {call.data["call"] for call in calls if call.data["method"] == "execute_model"}
    called = sum(call in answers for call in asked)
    if steps > called:
        finding.broke("{} executed {} steps, and made calls of {}", core, steps, called, node=core)
    told = sum(record.data.get("call") in asked for node, records in history.by_node("step").items()
               if history.engine_of(node) == history.engine_of(core) for record in records)
    if not steps <= told <= len(asked) and history.play.says_why:  # older plays did not record what a step asks for
        finding.broke("{} called {} steps, executed {}, and the rank that answers told of {}", core, len(asked), steps,
                      told, node=core)


def _judge_deadlines(finding: Finding, core: str, calls: list[Record], answers: dict[int, list[Record]]) -> None:
    """Who waits for an answer waits until the deadline of some call that it has made, as the call's method has it. A
    wait that was well has found the answer to such a call, and no failure.
    """
    history = finding.history
    bounds, ready = history.bounds, history.by_node("ready").get(core)
    serving = ready[0].number if ready else FOREVER
    slack = ROUNDING_S if history.simulated else bounds.detection_s
    numbers = [call.number for call in calls]
    deadlines = [call.at + (bounds.startup_s if call.number < serving else
                            allowed_s(bounds, call))
                 for call in calls]
    for wait in history.by_node("queue-wait").get(core, ()) if calls else ():
        if wait.data.get("ring") != "response":
            continue
        made, until, well = bisect_left(numbers, wait.number), wait.data["deadline"], wait.data["outcome"] == "ok"
        if made and abs(until - deadlines[made - 1]) <= slack and (not well or calls[made - 1].data["call"] in answers):
            continue  # the last one, as a rule
        awaited = [call for call, deadline in zip(calls[:made], deadlines, strict=False)
                   if abs(until - deadline) <= slack]
        if not awaited:
            finding.broke("{} waited for an answer until {}, which is the deadline of no call", core, until, at=wait.at,
                          node=core)
            return
        if well and not any(call.data["call"] in answers for call in awaited):
            finding.broke("{} waited for an answer, which was well, and had none", core, at=wait.at, node=core)
            return


def _judge_untold_waits(finding: Finding, core: str, calls: list[Record], answers: dict[int, list[Record]]) -> None:
    """In the twin a core's time passes only while it waits: an answer that came later than its call was waited for."""
    waits = [(wait.data["ended"], wait.data["began"]) for wait in finding.history.by_node("queue-wait").get(core, ())]
    for call in calls:
        replies = answers.get(call.data["call"])
        if not replies or replies[-1].at <= call.at + ROUNDING_S:
            continue
        at = replies[-1].at
        place = bisect_left(waits, (at - ROUNDING_S, 0.0))
        if place == len(waits) or waits[place][1] > at:
            finding.broke("{} took an answer to call {} that came later, and told of no wait", core, call.data["call"],
                          at=at, node=core)
            return


def _judge_failures(finding: Finding, core: str, calls: list[Record], answers: dict[int, list[Record]]) -> None:
    """A failure that is the first end of its call is told as one, unless its core was gone with it in its hands."""
    history, well = finding.history, ReplyStatus.SUCCESS
    failures = [reply for replies in answers.values() for reply in replies if reply.data["status"] != well]
    if not failures:
        return
    by_call = {(max(reply.data["call"], -1 - reply.data["call"]), reply.data["rank"]) for reply in failures}
    for record in history.by_node("rpc-failed").get(core, ()):
        if (record.data["call"], record.data["rank"]) not in by_call:
            finding.broke("{} told that rank {} failed in call {}, and that had not said so", core, record.data["rank"],
                          record.data["call"], at=record.at, node=core)
            return
    told = {record.data["call"] for record in history.by_node("rpc-failed").get(core, ())}
    made = {call.data["call"]: call for call in calls}
    for failed in failures:
        number = failed.data["call"]
        if number in made and number not in told and not is_answered(
                history.ranks_of(core), made[number], answers, failed.number) and not _ends_with(history, core, failed):
            finding.broke("call {} of {} failed, and it did not tell so", number, core, at=failed.at, node=core)
            return


def _ends_with(history: History, core: str, last: Record) -> bool:
    """Whether that core was gone before the thread that wrote this record could write another one."""
    return history.ends.at(core) - last.at <= history.bounds.detection_s and not any(
        record.number > last.number and record.thread == last.thread for record in history.records(core))
