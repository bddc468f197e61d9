"""Promises about what is computed when: who is next, what a step may hold, and what a client asks of the core."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import takewhile
from typing import Any

from engine.topology import Channel, Mark, mark_site
from scenarios.guarantees.base import (
    DAMAGE,
    DEATHS,
    LOSSES,
    MEMORY,
    MESSAGE,
    ORDERINGS,
    Envelope,
    Finding,
    Guarantee,
    Where,
)
from scenarios.guarantees.readers.calls import judge_calls_of_others, judge_calls_of_several
from scenarios.guarantees.replay import Moment, Served, replayed
from scenarios.history.history import FOREVER, EngineLife, Fate, History, Record
from scenarios.law.causes import cannot_be_done

CHAPTER = "Requests and tokens"
_STEERING = ("pause_scheduler", "resume_scheduler", "run_steps")


def check_served_in_turn(history: History) -> Finding:
    finding = Finding(history)
    for served in replayed(history):
        core = served.engine.core
        _judge_order_of_requests(finding, served.engine)
        if served.wrong is not None:
            record, text = served.wrong
            finding.broke("step {} of {}: {}", record.data["step"], core, text, at=record.at, node=core)
        elif served.whole:
            _judge_cached(finding, served)
        if served.unserved:
            _judge_unserved(finding, served)
        if served.waited:
            finding.witness("{} made {} steps, and somebody waited in {} of them", core, len(served.moments),
                            served.waited, times=served.waited)
        if served.service.found:
            finding.witness("{} requests came to {} behind a beginning that others had left", served.service.found,
                            core, times=served.service.found)
    return finding


def _judge_order_of_requests(finding: Finding, engine: EngineLife) -> None:
    """The core takes requests in the order in which they were sent, unless the plan has changed it."""
    history = finding.history
    taken: set[str] = set()
    for record in history.by_node("request").get(engine.core, ()):
        if record.data["action"] == "add":
            if record.data["request"] in taken:
                finding.broke("{} took {!r} twice", engine.core, record.data["request"], at=record.at, node=engine.core)
                return
            taken.add(record.data["request"])
    if history.faults.hit(*ORDERINGS, Fate.DUPLICATE, channel=Channel.REQUESTS.value):
        return
    sent = [o for o in history.operations if o.internal is not None and history.is_asked_of(o, engine)]
    place = {o.internal: number for number, o in enumerate(sent)}
    client = {o.internal: o.node for o in sent}
    last: dict[str, int] = {}  # of each client
    for record in history.by_node("request").get(engine.core, ()):
        request = record.data["request"]
        if record.data["action"] != "add" or request not in place:
            continue
        if place[request] < last.get(client[request], -1):
            finding.broke("{} took {!r} after a request that was sent later", engine.core, request, at=record.at,
                          node=engine.core)
            return
        last[client[request]] = place[request]


def _judge_unserved(finding: Finding, served: Served) -> None:
    """Who can never be served is told so with the next step that is used, and waits behind nobody."""
    core, steps = served.engine.core, [step.number for step in served.steps]
    over = {record.data["request"]: record.number for record in finding.history.by_node("freed").get(core, ())}
    for request, came in served.unserved:
        waited = bisect_right(steps, over.get(request, came)) - bisect_right(steps, came)
        if waited > finding.history.play.config.batch_queue_size:
            finding.broke("{} can never serve {!r}, and made {} steps before it said so", core, request, waited,
                          node=core)


def _judge_cached(finding: Finding, served: Served) -> None:
    """A caller is told how much of its prompt was found in the cache."""
    for operation in finding.history.operations:
        guest = served.service.guests.get(operation.internal or "")
        if guest is None or guest.cached is None:
            continue
        for record in operation.deliveries:
            told = record.data.get("cached")
            if told is not None and told != guest.cached:
                finding.broke("{!r} was told that {} of its tokens had been cached, {} were", operation.request, told,
                              guest.cached, at=record.at, node=operation.node)
                break


def check_calls_answered(history: History) -> Finding:
    finding = Finding(history)
    if not history.play.is_ours:
        judge_calls_of_others(finding)
        return finding
    engines = {served.engine: served for served in replayed(history)}
    for node, answers in history.by_node("utility").items():
        if any("args" not in record.data for record in answers):
            continue  # of a play that did not record what was asked
        for record in answers:
            _judge_answer(finding, node, record)
        asked = history.engines_of(node)
        if len(asked) > 1:
            judge_calls_of_several(finding, node)
        for engine in asked:
            served = engines.get(engine)
            if served is not None and served.whole and served.wrong is None and not _is_disturbed(history, served):
                _judge_steps(finding, served, node, _of_only_core(history, node, answers) if len(asked) == 1
                             else _answers_of(history, engine, node))
        first = asked[0].core
        told = [record.data["result"] for record in answers if _answered(record, "reset_prefix_cache")]
        did = [record.data["done"] for record in history.by_node("reset").get(first, ())]
        if told != did[:len(told)] and (len(asked) == 1 or history.ends.at(first) == FOREVER):
            finding.broke("{} was told {} of its resets of the cache, {} did {}", node, told, first, did, node=node)
    return finding


def _answered(record: Record, *methods: str) -> bool:
    return record.data["method"] in methods and not record.data["failure"]


def _judge_answer(finding: Finding, node: str, record: Record) -> None:
    """What can be told of one answer by its question alone."""
    history, data = finding.history, record.data
    method, args, result = data["method"], data["args"], data["result"]
    impossible = cannot_be_done(method, args)
    if data["failure"]:
        if impossible:
            finding.witness("{} asked for {}{}, and was told why not: {}", node, method, tuple(args), data["failure"],
                            at=record.at, node=node)
        return
    tp, blocks = history.ranks_of(node), history.play.config.cache.num_gpu_blocks
    wanted: Any = result
    if impossible:
        finding.broke("{} was answered {}{}, which cannot be done", node, method, tuple(args), at=record.at, node=node)
    elif method == "ping":
        wanted = args[0] * args[1] if len(args) > 1 else args[0] if args else None
    elif method == "collective_rpc" and args[0] == "check_health":
        wanted = [None] * tp
    elif method == "collective_rpc" and args[0] == "get_num_blocks" and blocks is not None:
        wanted = [blocks] * tp
    elif method == "get_queue_stats":
        ends = [(entry.get("ring"), entry.get("end")) for entry in result or ()]
        queues = tp + 1 if tp > 1 else 0
        wanted = result if result is not None and len(ends) == len(set(ends)) == queues else f"{queues} queues"
    if result != wanted:
        finding.broke("{} asked for {}{} and got {}, not {}", node, method, _short(args), _short(result),
                      _short(wanted), at=record.at, node=node)


def _short(value: Any) -> str:
    return str(value)[:60]


def _is_disturbed(history: History, served: Served) -> bool:
    """Whether the plan has touched a message to the core, or told it to leave: then nobody knows when it was paused.

    Nor where answers come in another order than that in which they were given.
    """
    hits = [*history.faults.hit(*MESSAGE, *LOSSES, channel=Channel.REQUESTS.value), *history.faults.hit(Fate.TERMINATE),
            *(receipt for receipt in history.faults.hit(*DEATHS) if receipt.node == history.owner(served.engine)),
            *history.faults.hit(*ORDERINGS, channel=Channel.OUTPUTS.value)]
    return any(history.engine_of(receipt.node) == served.engine for receipt in hits)


#: What answered, and whether a call that steers was made before it was heard: then steps of that one may have come
#: before the answer.
_Answer = tuple[Record, bool]
#: What a call for steps fails by while those of another one are run. The law asks whether there is one.
_BUSY = "steps are being run already"


def _of_only_core(history: History, client: str, answers: list[Record]) -> list[_Answer]:
    asked_at = {record.data.get("ticket"): record.number for record in history.by_node("ask").get(client, ())}
    return _with_turns(history, client, [
        (asked_at.get(answer.data.get("ticket"), answer.number), answer) for answer in answers])


def _answers_of(history: History, engine: EngineLife, client: str) -> list[_Answer]:
    """What one of several cores answered to its client's calls, up to the first that it did not answer.

    Nobody hears its answer to a call that could not be sent to another one.
    """
    unsent = min((r.number for r in history.by_node("unroutable").get(client, ()) if r.data["utility"]), default=None)
    asks = [ask for ask in history.by_node("ask").get(client, ()) if unsent is None or ask.number < unsent]
    if unsent is not None:
        asks.pop()
    answers = [record for record in history.by_node("answer").get(client, ()) if record.data["core"] == engine.engine]
    pairs = takewhile(lambda pair: all(pair[0].data[name] == pair[1].data[name] for name in ("method", "args")),
                      zip(asks, answers, strict=False))
    return _with_turns(history, client, [(ask.number, answer) for ask, answer in pairs])


def _with_turns(history: History, client: str, answers: list[tuple[int, Record]]) -> list[_Answer]:
    """Of each, with the number of its call, whether a call that steers was made between that one and the answer."""
    steering = [record.number for record in history.by_node("ask").get(client, ())
                if record.data["method"] in _STEERING]
    return [(answer, bisect_right(steering, asked_at) < bisect_left(steering, answer.number))
            for asked_at, answer in answers]


def _judge_steps(finding: Finding, served: Served, node: str, answers: list[_Answer]) -> None:
    """Paused, nothing runs; `run_steps(k)` runs k steps, or fewer where nothing is left to do."""
    came = [r.at for r in finding.history.by_node("request").get(served.engine.core, ()) if r.data["action"] == "add"]
    times = [step.record.at for step in served.steps]
    dummies = [r.at for r in finding.history.crossings.get(mark_site(served.engine.core, Mark.DUMMY), ())]
    in_step = finding.history.in_step(served.engine)  # then one without tokens is no forward, and only these are asked
    paused_at: int | None = None
    is_busy = False
    known_at = 0.0  # when its client was told so
    for record, is_behind in answers:
        data, made = record.data, bisect_right(times, record.at)
        if str(data["failure"]).endswith(_BUSY):
            is_busy = True  # with those of another call, which is judged when it is answered
            continue
        if in_step and is_behind:  # how many there were when it answered is judged by dp-rank-in-turn
            if data["method"] in _STEERING:
                paused_at = data["result"] if _answered(record, "run_steps", "pause_scheduler") else None
                known_at = record.at
            continue
        if _answered(record, "run_steps") and data["result"] != made or _answered(
                record, "pause_scheduler", "resume_scheduler") and (
                data["result"] not in range(made + 1) or not is_busy and paused_at not in (None, data["result"])):
            finding.broke("{} was told that {} steps were made, {} were", node, data["result"], made, at=record.at,
                          node=node)
            return
        if data["method"] == "run_steps" and paused_at is not None and not cannot_be_done("run_steps", data["args"]):
            beside = bisect_right(dummies, record.at) - bisect_right(dummies, known_at)  # steps of others
            empty = sum(not step.scheduled for step in served.steps[paused_at:made]) if in_step else 0
            asked, ran = data["args"][0], made - paused_at - empty + beside
            idle = not made or (made <= len(served.moments) and not served.moments[made - 1].has_work)
            waits = any(at <= record.at and (not made or at > times[made - 1]) for at in came)
            over = ran == asked or (ran < asked and idle and not waits)
            if ran > asked or not (over or data["failure"]):
                finding.broke("{} asked for {} steps, {} were made", node, asked, ran, at=record.at, node=node)
                return
            if data["failure"]:  # nobody told it how many: they were made all the same, unless some are still to come
                paused_at = made if over else None
            else:
                finding.witness("{} asked for {} steps, {} were made, and no more before the next call", node, asked,
                                ran, at=record.at, node=node)
        if _answered(record, "get_stats") and paused_at:
            _judge_stats(finding, served, paused_at, record, node)
        is_busy = is_busy and not _answered(record, "run_steps")
        if _answered(record, "run_steps", "pause_scheduler"):
            paused_at, known_at = data["result"], record.at
        elif data["method"] == "resume_scheduler":
            paused_at = None


def _judge_stats(finding: Finding, served: Served, paused_at: int, record: Record, node: str) -> None:
    """Where nothing befell its requests since its last step, what it says of itself is what that step has left."""
    first = served.steps[paused_at - 1].number
    last = served.steps[paused_at].number if paused_at < len(served.steps) else FOREVER
    if any(first < number < last for number in served.befell):
        return
    wanted = _stats(served.moments[paused_at - 1], served.service.limits.blocks)
    if list(record.data["result"] or ()) != wanted:
        finding.broke("{} was told {}, its steps have left {}", node, record.data["result"], wanted, at=record.at,
                      node=node)


def _stats(moment: Moment, total: int) -> list[int]:
    return [moment.running, moment.waiting, moment.free, total]


GUARANTEES = (
    Guarantee(
        id="served-in-turn", chapter=CHAPTER, source="vLLM V1 scheduler", check=check_served_in_turn,
        sentence="Requests are served first come, first served: each step computes every token once and in order, "
                 "within its budget, in blocks that nobody else holds or that hold the same beginning; who could run "
                 "is not left waiting, and where blocks run out the youngest gives way.",
        wrong="lets a short request overtake a long one that came before it",
        witness="somebody waited while a step was made, or came in behind a beginning that another one had left",
        envelope=Envelope(outside=(
            MEMORY,
            Where(DAMAGE, sites="*/requests:receive", why="changed bytes may be another request"),
            Where(DAMAGE, sites="*/outputs:receive", why="changed bytes may tell of another cache"),
        )),
    ),
    Guarantee(
        id="calls-answered", chapter=CHAPTER, source="vLLM V1 engine core", check=check_calls_answered,
        sentence="A call of the core is answered with what was asked for, or with why that cannot be done: paused, it "
                 "makes no step, and `run_steps(k)` makes k of them, or as many as there is work for.",
        wrong="runs on after the steps that it was asked for",
        witness="a client asked for an exact number of steps and got it, or for what cannot be done and was told why",
        envelope=Envelope(outside=(
            MEMORY,
            Where(DAMAGE, sites="*/requests:receive", why="changed bytes may be another call"),
            Where(DAMAGE, sites="*/outputs:receive", why="changed bytes may be another answer"),
            Where(frozenset({Fate.DUPLICATE}) | ORDERINGS, sites="*/requests:receive",
                  why="the plan itself changes what is asked, and when"),
        )),
    ),
)
