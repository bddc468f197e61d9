"""Promises about collective RPC: who executes what, and which reply answers which call."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter

from engine.messages import ReplyStatus
from engine.topology import Channel, Mark, NodeKind, mark_site
from scenarios.guarantees.base import (
    DAMAGE,
    DEATHS,
    MEMORY,
    STALLS,
    Envelope,
    Finding,
    Guarantee,
    Where,
    has_workers,
)
from scenarios.guarantees.chapters.rings.rpc_calls import answers_by_call, is_answered, judge_calls
from scenarios.history.history import FOREVER, EngineLife, History, Record
from scenarios.history.names import kind_of, rank_of

CHAPTER = "Ring and collective RPC"
_NUMBER = attrgetter("number")
_EXECUTING = mark_site("", Mark.EXECUTING)
SOURCE = "vLLM V1 executor"


def check_rpc_matched(history: History) -> Finding:
    finding = Finding(history)
    for core in [node for node in history.nodes if kind_of(node) == NodeKind.CORE]:
        calls = history.by_node("rpc-call").get(core, [])
        order = {record.data["call"]: position for position, record in enumerate(calls)}
        by_rank: dict[int, list[Record]] = defaultdict(list)
        for reply in history.by_node("rpc-reply").get(core, ()):
            by_rank[reply.data["rank"]].append(reply)
        for rank, replies in by_rank.items():
            if not 0 <= rank < history.ranks_of(core):
                finding.broke("{} took an answer of rank {}, which it does not have", core, rank, at=replies[0].at,
                              node=core)
                continue
            _judge_replies(finding, core, rank, replies, calls, order)
            _judge_positions(finding, core, rank, replies)
        answers = answers_by_call([reply for replies in by_rank.values() for reply in replies])
        _judge_vain_waits(finding, core, calls, answers)
        judge_calls(finding, core, calls, answers)
        _judge_statuses(finding, core, by_rank)
        for rank in range(history.ranks_of(core)):
            _judge_answering(finding, core, rank, calls)
    return finding


def _judge_statuses(finding: Finding, core: str, by_rank: dict[int, list[Record]]) -> None:
    """What a rank answers is a failure where its method raised, and only there."""
    history = finding.history
    for rank, replies in by_rank.items():
        worker = history.engine_of(core).worker(rank)
        if not history.records(worker):
            continue  # it is the core itself
        raised = {record.data["call"] for record in history.by_node("rpc-raised").get(worker, ())}
        for reply in replies:
            call, failed = reply.data["call"], reply.data["status"] != ReplyStatus.SUCCESS
            if call >= 0 and failed != (call in raised):
                finding.broke("{} took {} of rank {} to call {}, which {}", core, "a failure" if failed else "a result",
                              rank, call, "raised" if call in raised else "did not raise", at=reply.at, node=core)
                return


def _judge_answering(finding: Finding, core: str, rank: int, calls: list[Record]) -> None:
    """A rank answers each call once that it was asked to answer, or that it failed, before the next; no other one."""
    history = finding.history
    worker = history.engine_of(core).worker(rank)
    if history.faults.at(f"/{Channel.OVERFLOW.value}:"):
        return  # a call that it could not read is answered, too
    asked = {call.data["call"]: call.data.get("output_rank") in (None, rank) for call in calls}
    if history.play.config.scheduler.async_scheduling:
        _judge_late_answering(finding, worker, asked, history.sends(f"{worker}->{core}/{Channel.RESPONSE.value}"))
        return
    current: Record | None = None
    sent = due = 0
    told = [*history.executed.get(worker, ()), *history.by_node("rpc-raised").get(worker, ()),
            *history.sends(f"{worker}->{core}/{Channel.RESPONSE.value}")]
    for record in sorted(told, key=_NUMBER):
        if record.site.endswith(_EXECUTING):
            if current is not None and sent != due:
                break
            current, sent, due = record, 0, int(asked.get(record.data["call"], False))
        elif record.site == "rpc-raised":
            due = 1
        else:
            sent += 1
            if sent > due:
                break
    else:
        return
    finding.broke("{} answered call {} {} times instead of {}", worker, current.data["call"] if current else "-", sent,
                  due, at=current.at if current else None, node=worker)


def _judge_late_answering(finding: Finding, worker: str, asked: dict[int, bool], sends: Sequence[Record]) -> None:
    """The copy thread answers the same calls in the same order, each once, when the next one may be under way."""
    history = finding.history
    raised = {record.data["call"] for record in history.by_node("rpc-raised").get(worker, ())}
    owed = [call for record in history.executed.get(worker, ())
            if asked.get(call := record.data["call"]) or call in raised]
    given = history.crossings.get(mark_site(worker, Mark.COPIED), ())
    numbers = [send.number for send in sends]
    for place, record in enumerate(given):
        until = bisect(numbers, given[place + 1].number) if place + 1 < len(given) else len(numbers)
        call, sent = record.data["call"], until - bisect(numbers, record.number)
        if place >= len(owed) or call != owed[place]:
            finding.broke("{} answered call {} where {} was next", worker, call,
                          f"call {owed[place]}" if place < len(owed) else "none", at=record.at, node=worker)
            return
        if sent > 1 or (not sent and place + 1 < len(given)):
            finding.broke("{} answered call {} {} times instead of 1", worker, call, sent, at=record.at, node=worker)
            return


def _judge_vain_waits(finding: Finding, core: str, calls: list[Record], answers: dict[int, list[Record]]) -> None:
    """Who waits in vain for an answer has given it to another call."""
    tp = finding.history.ranks_of(core)
    for wait in finding.history.by_node("queue-wait").get(core, ()):
        if wait.data.get("ring") == "response" and wait.data.get("outcome") == "timeout" and all(
                is_answered(tp, call, answers, wait.number) for call in calls
                if call.number < wait.number):
            finding.broke("{} waited in vain for an answer, although it had taken one to every call it had made", core,
                          at=wait.at, node=core)


def _judge_replies(finding: Finding, core: str, rank: int, replies: list[Record], calls: list[Record],
                   order: dict[int, int]) -> None:
    """Each reply answers a call that was made before it, once per rank, in the order of the calls."""
    last = -1
    for reply in replies:
        call = reply.data["call"]
        if call < 0:  # an RPC that the worker could not read: it cannot name it
            continue
        place = order.get(call)
        if place is None or calls[place].number > reply.number:
            finding.broke("{} took a reply of rank {} for call {}, which it had not made", core, rank, call,
                          at=reply.at, node=core)
            return
        if place <= last:
            finding.broke("{} took a reply of rank {} for call {} after one for a later call or twice", core, rank,
                          call, at=reply.at, node=core)
            return
        skipped = [c for c in calls[last + 1:place] if c.data.get("output_rank") != rank]
        outstanding = place + 1 < len(calls) and calls[place + 1].number < reply.number
        asked = calls[place].data.get("output_rank")
        if outstanding:
            finding.witness("rank {} answered call {} when a later one was open already", rank, call, at=reply.at,
                            node=core)
        elif skipped and asked is None:
            finding.witness("rank {} answered call {} after {} calls that it had to leave unanswered", rank, call,
                            len(skipped), at=reply.at, node=core)
        last = place


def _judge_positions(finding: Finding, core: str, rank: int, replies: list[Record]) -> None:
    """What the core calls the reply to a call must be what the worker wrote for that call, by place in the ring."""
    history = finding.history
    worker = history.engine_of(core).worker(rank)
    edge = f"{worker}->{core}/{Channel.RESPONSE.value}"
    late = history.play.config.scheduler.async_scheduling  # by the copy thread, while the next call is executed
    executed = history.crossings.get(mark_site(worker, Mark.COPIED), []) if late else history.executed.get(
        worker, [])
    written: dict[int, int] = {}
    at = 0
    for send in history.sends(edge):
        while at < len(executed) and executed[at].number < send.number:
            at += 1
        if at:
            written[send.data["position"]] = executed[at - 1].data["call"]
    receives = history.receives(edge)
    taken = 0
    for reply in replies:
        arrived = taken
        while arrived < len(receives) and receives[arrived].number < reply.number:
            arrived += 1
        if arrived == taken:
            continue
        position = receives[arrived - 1].data["position"]
        taken = arrived
        wrote = written.get(position)
        if wrote is not None and reply.data["call"] >= 0 and wrote != reply.data["call"]:
            finding.broke("{} took what rank {} had answered to call {} for the answer to call {}", core, rank, wrote,
                          reply.data["call"], at=reply.at, node=core)
            return


def check_rpc_any_rank_fails_fast(history: History) -> Finding:
    finding = Finding(history)
    bound = history.bounds.detection_s
    for node, records in history.by_node("rpc-raised").items():
        for raised in records:
            engine = history.engine_of(node)
            core = engine.core
            if history.ends.at(core) <= raised.at or history.closing_at(engine) <= raised.at:
                continue
            call = next((r for r in history.by_node("rpc-call").get(core, ()) if r.data["call"] == raised.data["call"]),
                        None)
            failed = next((r for r in history.by_node("rpc-failed").get(core, ())
                           if r.data["call"] == raised.data["call"] and r.at >= raised.at), None)
            if failed is None:
                _judge_unreported(finding, core, node, raised, bound)
                continue
            if not finding.took("ending the call in which {} raised", node, bound=bound, at=failed.at, node=core,
                                measured=failed.at - raised.at - _held_up_s(history, raised.at, failed.at)):
                continue
            step = _next_step(history, core, failed)
            if step is not None:
                finding.broke("{} raised, and {} went on with call {}", node, core, step.data["call"], at=step.at,
                              node=core)
            elif not _fails_closed(history, engine, raised.at):
                _judge_open(finding, node, raised, engine)
            elif call is not None and call.data.get("output_rank") != rank_of(node):
                finding.witness("{}, whose answer nobody waited for, raised, and the call ended after {:.4f} s", node,
                                failed.at - raised.at, at=failed.at, node=node)
    return finding


def _judge_unreported(finding: Finding, core: str, node: str, raised: Record, bound: float) -> None:
    """The core never spoke of this failure: then the call must have been over for another reason."""
    history = finding.history
    if any(r.data["call"] == raised.data["call"] for r in history.by_node("rpc-failed").get(core, ())):
        return  # another rank failed first
    read = next((r for r in history.by_node("rpc-reply").get(core, ()) if r.data["call"] == raised.data["call"]
                 and r.data["rank"] == rank_of(node) and r.data["status"] != ReplyStatus.SUCCESS), None)
    if read is not None and any(wait.data["ring"] == "response" and wait.data["ended"] > read.at
                                for wait in history.by_node("queue-wait").get(core, ())):
        finding.broke("{} read that {} had raised, and slept on for other answers", core, node, at=read.at, node=core)
    dying = next(iter(history.by_node("dying").get(core, ())), None)
    if dying is None:
        finding.hangs("the call in which {} raised", node, bound=bound, since=raised.at, node=core)
    else:
        finding.took("ending the call in which {} raised, by leaving,", node, bound=bound, at=dying.at, node=core,
                     measured=dying.at - raised.at - _held_up_s(history, raised.at, dying.at))


def _held_up_s(history: History, since: float, until: float) -> float:
    """How long a stalled rank kept the ring full, so that the core sat in its write and read no answer."""
    return max((history.faults.frozen_s(stall.node, since, until) for stall in history.faults.stalls), default=0.0)


def _fails_closed(history: History, engine: EngineLife, since: float) -> bool:
    return history.told_at(engine, since) is not None


def _next_step(history: History, core: str, failed: Record) -> Record | None:
    return next((call for call in history.by_node("rpc-call").get(core, ())
                 if call.number > failed.number and call.data.get("method") == "execute_model"), None)


def _judge_open(finding: Finding, node: str, raised: Record, engine: EngineLife) -> None:
    history = finding.history
    bound = history.bounds.linger_s + history.bounds.detection_s
    closing_at = history.closing_at(engine)
    if min(history.ended_at, closing_at) - raised.at > bound or (history.simulated and closing_at == FOREVER):
        finding.broke("{} raised and the engine went on as if nothing had happened", node, at=raised.at, node=node)


def check_workers_in_step(history: History) -> Finding:
    finding = Finding(history)
    executed: dict[EngineLife, dict[str, list[int]]] = defaultdict(dict)
    for node, records in history.executed.items():
        executed[history.engine_of(node)][node] = [record.data["call"] for record in records]
    for engine, workers in executed.items():
        core = engine.core
        calls = history.by_node("rpc-call").get(core, [])
        called = [record.data["call"] for record in calls]
        longest = max(workers.values(), key=len)
        for node, mine in workers.items():
            for other, what in ((called, "the core called"), (longest, "another worker executed")):
                if mine != other[:len(mine)] and (calls or what != "the core called"):
                    place = next((n for n, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]),
                                 len(other))
                    finding.broke("{} executed call {} where {} {}", node, mine[place], what,
                                  other[place] if place < len(other) else "nothing", node=node,
                                  at=history.executed[node][place].at)
                    break
        for node in workers:
            _judge_spared(finding, node, core)
            _judge_numbers(finding, node)
        answers = {record.data["call"]: record.data.get("output_rank") for record in calls}
        silent = sum(answers.get(call) is not None and answers[call] != rank_of(node)
                     for node, mine in workers.items() for call in mine)
        if silent and len(workers) > 1:
            finding.witness("{} calls were executed in the same order by workers that had not to answer", silent,
                            times=silent)
    return finding


def _judge_numbers(finding: Finding, node: str) -> None:
    """A worker executes each step of its core, from the first one on."""
    steps = [record.data.get("step") for record in finding.history.executed[node]
             if record.data["method"] == "execute_model"]
    if steps != list(range(len(steps))):
        finding.broke("{} executed the steps {}", node, steps, node=node)


def _judge_spared(finding: Finding, node: str, core: str) -> None:
    """A worker executes each call that it takes out of the ring before it takes the next one, or waits for it."""
    history = finding.history
    if history.faults.hit(*DAMAGE):
        return  # what cannot be read cannot be executed
    waits = [wait for wait in history.by_node("queue-wait").get(node, ()) if "rpc" in (wait.data.get("ring") or "")]
    taken = history.receives(f"{core}->{node}/{Channel.RPC.value}")
    open_one: Record | None = None
    for record in sorted([*taken, *history.executed[node], *waits], key=_NUMBER):
        if record.site.endswith(_EXECUTING):
            open_one = None
        elif record.site == "queue-wait" and (open_one is None or record.data["began"] <= open_one.at):
            continue  # the wait that found it is over when it is taken
        elif open_one is not None:
            finding.broke("{} took message {} of the ring and did not execute it", node, open_one.data["position"],
                          at=open_one.at, node=node)
            return
        else:
            open_one = record


GUARANTEES = (
    Guarantee(
        id="rpc-matched", chapter=CHAPTER, source=SOURCE, check=check_rpc_matched,
        sentence="Reply i of rank r answers call i, also after errors, time-outs and pending futures.",
        wrong="takes whatever stands next in the answer ring for the answer to the call it waits for",
        witness="a rank answered while a later call was open already, or after calls that it had to leave unanswered",
        envelope=Envelope(outside=(MEMORY,)),
    ),
    Guarantee(
        id="rpc-any-rank-fails-fast", chapter=CHAPTER, source=SOURCE, check=check_rpc_any_rank_fails_fast,
        applies=has_workers,
        sentence="An exception on any rank, not only the output rank, ends the call with that error at once, and the "
                 "engine fails closed.",
        wrong={
            "at-once": "lets only the output rank report a failure, so the others' is noticed by the step deadline",
            "closed": "goes on with the next step",
        },
        witness="a rank that had not to answer raised, the call ended at once and the engine told its callers",
        envelope=Envelope(outside=(
            MEMORY,
            Where(DEATHS | STALLS, nodes="core.*", why="who should take the error is hit itself"),
            Where(DEATHS | STALLS, nodes="frontend.*", why="who should be told is hit itself"),
        )),
    ),
    Guarantee(
        id="workers-in-step", chapter=CHAPTER, source=SOURCE, check=check_workers_in_step, applies=has_workers,
        sentence="All workers of a core execute the same RPCs in the same order.",
        wrong="spares a rank the calls that it has not to answer",
        witness="a worker executed, in its place, a call that another one had to answer",
        envelope=Envelope(outside=(MEMORY,)),
    ),
)
