"""Promises about deaths and stalls: who is told, when, and what is still delivered."""

from __future__ import annotations

from engine.messages import ENGINE_CORE_DEAD, Outcome
from faults.journal import digest_of
from scenarios.guarantees.base import (
    DAMAGE,
    DEATHS,
    MEMORY,
    ORDERINGS,
    PROCESS,
    ROUNDING_S,
    STALLS,
    Envelope,
    Finding,
    Guarantee,
    Where,
    timer_s,
)
from scenarios.guarantees.chapters.closing import (
    SENTINEL_S,
    blames,
    judge_last_wait,
    judge_last_words,
    noticed_s,
    reading_s,
    word_is_lost,
)
from scenarios.history.flows import Flow
from scenarios.history.history import FOREVER, Death, EngineLife, Fate, History, Operation, Record, Stall, kind_of
from scenarios.history.names import base

CHAPTER = "Death and cleanliness"
#: What a caller may hear of a call that begins after the engine is known to be dead.
_OF_ITS_OWN = ("BadRequestError", "RefusedError")

_NOTICE = digest_of([ENGINE_CORE_DEAD])
_CALLER_FOR_GOOD = Where(PROCESS, nodes="frontend.*", why="the caller itself is hit", passing=False)


def _callers(history: History, engine: EngineLife) -> list[str]:
    """Frontends of that engine that could be told."""
    return [node for node in history.of_kind("frontend") if history.is_of(node, engine)]


def check_death_is_told(history: History) -> Finding:
    finding = Finding(history)
    for engine in history.engines:
        death = history.first_death(engine)
        if death is not None and _was_ready(history, engine, death.at):
            for operation in history.operations:
                if history.is_asked_of(operation, engine):
                    _judge_told(finding, operation, death)
                    _judge_reason(finding, operation, death)
            for node in _callers(history, engine):
                for late in history.by_node("late-call").get(node, ()):
                    _judge_late_call(finding, node, late, death)
    return finding


def _judge_reason(finding: Finding, operation: Operation, death: Death) -> None:
    """Who is told reads who died, and how; who calls a core that is gone is not let in."""
    history, node = finding.history, operation.node
    if operation.accepted and kind_of(death.node) == "core" and \
            operation.began_at > death.at + noticed_s(history, death, node):
        finding.broke("request {!r} was accepted although {} was gone", operation.request, death.node,
                      at=operation.accepted.at, node=node)
    if operation.outcome == Outcome.ENGINE_DEAD and not blames(
            history, death, operation.ends[0].data["reason"], node, operation.over_at):
        finding.broke("request {!r} was told {!r}, but {} died ({})", operation.request,
                      operation.ends[0].data["reason"], death.node, death.how, at=operation.ended_at, node=node)


def _was_ready(history: History, engine: EngineLife, moment: float) -> bool:
    """Whether start-up was over by then; what dies before that is told by start-up itself."""
    return any(s.ready_at <= moment for s in history.startups if history.is_of(s.node, engine))


def _ears(history: History, client: str) -> list[str]:
    """By whom a client hears of cores that others have started: its own."""
    return [engine.core for engine in history.engines_of(client) if history.is_apart(engine)]


def _judge_told(finding: Finding, operation: Operation, death: Death) -> None:
    history, node = finding.history, operation.node
    bound, ended = history.bounds.detection_s, operation.ended_at
    if ended is not None and ended <= death.at:
        if operation.outcome == Outcome.ENGINE_DEAD and ended >= death.onset:
            finding.witness("{!r} was told before {} ({}) was gone", operation.request, death.node, death.how,
                            at=ended, node=node)
        return
    since = max(_can_be_told(history, death), operation.began_at)
    if since >= min(history.ends.at(node), history.closes_at(node)):
        return
    if ended is None:
        if history.ends.at(node) == FOREVER or node in history.by_node("bye"):
            finding.hangs("request {!r}, pending when {} died,", operation.request, death.node, bound=bound,
                          since=since, node=node)
        return
    if not finding.took("telling {!r} of the death of {} ({})", operation.request, death.node, death.how, bound=bound,
                        measured=ended - since - history.faults.frozen_s(node, since, ended, *_ears(history, node))
                        - reading_s(history, node, death, since), at=ended, node=node):
        return
    if noticed_s(history, death, node) == SENTINEL_S and operation.outcome == Outcome.ENGINE_DEAD and not (
            history.in_step(history.engine_of(death.node)) and word_is_lost(history)):  # it looks for another's end
        judge_last_wait(finding, operation, death, ended)
    if operation.outcome == Outcome.FAILED and operation.error not in _OF_ITS_OWN and \
            operation.began_at > death.at + bound:
        finding.broke("request {!r}, called after {} was known to be dead, ended with {} instead of EngineDeadError",
                      operation.request, death.node, operation.error, at=ended, node=node)
    elif operation.outcome == Outcome.ENGINE_DEAD:
        finding.witness("{!r} was {} when {} died ({}) and was told after {:.4f} s", operation.request,
                        "pending" if operation.began_at <= death.at else "called", death.node, death.how, ended - since,
                        at=ended, node=node)


def _can_be_told(history: History, death: Death) -> float:
    """From when on: a core that stands still tells nobody, and is given up itself at its bound; it may stop while it
    has the time to tell. A core of vLLM's tells of a worker when the others have left, which it gives some time to do
    so.
    """
    engine, bounds = history.engine_of(death.node), history.bounds
    core, seen_at = engine.core, death.at + bounds.detection_s
    others = range(history.ranks_of(core)) if kind_of(death.node) == "worker" and not history.play.is_ours else ()
    left = [at for rank in others if (at := history.ends.at(engine.worker(rank))) <= death.at + bounds.terminate_s]
    return max(death.at, *left, *(min(stall.until, stall.at + bounds.stall_s + bounds.heartbeat_s)
                           for stall in history.faults.stalls
                           if stall.node == core != death.node and stall.at <= seen_at and death.at < stall.until), 0.0)


def _judge_late_call(finding: Finding, node: str, late: Record, death: Death) -> None:
    began, error = late.data.get("began", late.at), late.data.get("error")
    if began < death.onset:
        return
    if error != "EngineDeadError":
        finding.broke("a call after the death of {} ended with {} instead of EngineDeadError", death.node, error,
                      at=late.at, node=node)
    elif finding.took("answering a call after the death of {}", death.node, bound=finding.history.bounds.detection_s,
                      measured=late.at - began, at=late.at, node=node):
        finding.witness("a call after the death of {} ended with {} at once", death.node, error, at=late.at, node=node)


# -- a process that stands still -----------------------------------------------------------------------------


def stall_bound(history: History, stall: Stall) -> float:
    """How long a stall with work pending may last before callers are told."""
    bounds = history.bounds
    return timer_s(bounds, bounds.stall_s if kind_of(stall.node) == "core" else bounds.step_s)


def stall_with_work(history: History, stall: Stall) -> float | None:
    """From when on the stall keeps somebody waiting; None if it never does, or is over before it must be noticed."""
    if kind_of(stall.node) not in ("core", "worker"):
        return None
    engine = history.engine_of(stall.node)
    if not _was_ready(history, engine, stall.at):
        return None
    began = [max(stall.at, o.began_at) for o in history.operations if history.is_asked_of(o, engine)
             and (o.ended_at is None or o.ended_at > stall.at) and o.began_at < stall.until
             and o.outcome not in (Outcome.FINISHED, Outcome.ABORTED)]  # nobody was kept waiting by those that ended
    since = min(began, default=None)
    if since is None:
        return None
    over = min(stall.until, history.closing_at(engine), *(history.ends.at(node) for node in _callers(history, engine)),
               *(r.at for r in history.faults.receipts if r.fate in DEATHS and history.is_of(r.node, engine)))
    told = history.told_at(engine, stall.at)
    if over - since <= stall_bound(history, stall) and (told is None or told[0] > over):
        return None
    return since


def check_stall_is_told(history: History) -> Finding:
    finding = Finding(history)
    for stall in history.faults.stalls:
        since = stall_with_work(history, stall)
        if since is None:
            continue
        engine, bound = history.engine_of(stall.node), stall_bound(history, stall)
        caller = next(iter(_callers(history, engine)), stall.node)
        told = history.told_at(engine, stall.at)
        if told is None:
            finding.hangs("the {} of {}, with work pending,", stall.fate, stall.node, bound=bound, since=since,
                          node=caller)
            continue
        at, node = told
        ears = () if stall.node == engine.core else (engine.core,)  # which may stand still behind its worker
        frozen_s = history.faults.frozen_s(node, since, at, *ears)
        if not finding.took("noticing the {} of {}", stall.fate, stall.node, bound=bound,
                            measured=at - since - frozen_s, at=at, node=node):
            continue
        finding.witness("{} stood still with work pending and its callers were told after {:.4f} s", stall.node,
                        at - stall.at, at=at, node=node)
        for operation in history.operations:
            if history.is_asked_of(operation, engine) and operation.pending_at(at) and operation.ended_at is None:
                finding.hangs("request {!r}, pending when the stall of {} was told,", operation.request, stall.node,
                              bound=history.bounds.detection_s, since=at, node=operation.node)
    return finding


def check_health_is_true(history: History) -> Finding:
    finding = Finding(history)
    # whose, its death or none, who, from, known from, until, why
    ills: list[tuple[EngineLife, Death | None, str, float, float, float, str]] = []
    for engine in history.engines:
        death = history.first_death(engine)
        if death is not None:
            ills.append((engine, death, death.node, death.onset, _can_be_told(history, death), FOREVER,
                         f"{death.node} died ({death.how})"))
    for stall in history.faults.stalls:
        since = stall_with_work(history, stall)
        if since is not None:
            ills.append((history.engine_of(stall.node), None, stall.node, stall.at, since + stall_bound(history, stall),
                         stall.until, f"{stall.node} stood still ({stall.fate})"))
    for node, record in history.observed("health"):
        for engine, death, ill, onset, known, until, why in ills:
            since = known if death is None else known + noticed_s(history, death, node)
            if not history.is_of(node, engine) or not onset < record.at < until:
                continue
            if record.data.get("healthy") and base(engine.core) not in record.data.get("dead", ()):
                # At its core it looks itself, when it is asked; of a worker, or another one's core, it has to be told.
                theirs = history.is_apart(engine) and history.engine_of(ill) != engine
                looks = history.simulated and kind_of(ill) == "core" and not theirs
                late = record.at - since - (0.0 if looks else history.faults.frozen_s(
                    node, onset, record.at, *_ears(history, node)))
                if late <= 0.0:
                    continue
                tell = finding.unclear if not history.simulated and late <= history.lab.longest_starvation_s \
                    else finding.broke
                tell("reported healthy {:.3f} s after it had to be known that {}", late, why, at=record.at, node=node)
            else:
                says = record.data.get("reason") or record.data.get("dead")
                finding.witness("asked after {}, and reported unhealthy: {}", why, says, at=record.at, node=node)
    _judge_told_and_healthy(finding)
    for node, record in history.observed("asked-when-closed"):
        reason, error = record.data["reason"], record.data["error"]
        if not reason or error != "EngineDeadError":
            finding.broke("{} was closed and asked for its health and an answer, and said {!r} and {!r}", node, reason,
                          error, at=record.at, node=node)
    return finding


def _judge_told_and_healthy(finding: Finding) -> None:
    """Whose callers were told that their engine is dead: by program order, however short the time."""
    history, told = finding.history, dict[tuple[str, str], int]()
    for operation in history.operations:
        if operation.outcome == Outcome.ENGINE_DEAD:
            whose = operation.node, base(history.asked_of(operation).core)
            told[whose] = min(told.get(whose, operation.ends[0].number), operation.ends[0].number)
    for (node, core), number in told.items():
        for record in history.by_node("health").get(node, ()):
            if record.number > number and record.data.get("healthy") and core not in record.data.get("dead", ()):
                finding.broke("reported healthy when a caller had been told that its engine is dead", at=record.at,
                              node=node)


# -- last words ------------------------------------------------------------------------------------------------


def check_dead_notice(history: History) -> Finding:
    finding = Finding(history)
    for node, leaves_at, bound, queued in _leaving_cores(history):
        engine = history.engine_of(node)
        for caller in _callers(history, engine):
            if not _was_ready(history, engine, leaves_at) or history.closing_at(engine) <= leaves_at or \
                    history.ends.at(caller) <= leaves_at:
                continue
            _judge_notice(finding, node, caller, leaves_at, bound, queued)
    return finding


def _leaving_cores(history: History) -> list[tuple[str, float, float, int]]:
    """(core, since when it leaves, how long the notice may take, outputs queued then)."""
    bounds, found = history.bounds, []
    for node in history.of_kind("core"):
        dying = history.by_node("dying").get(node)
        hit = next((r for r in history.faults.receipts if r.node == node and r.fate in DEATHS - {Fate.KILL}), None)
        killed = any(r.node == node and r.fate == Fate.KILL for r in history.faults.receipts)
        if killed:
            continue
        if dying:
            found.append((node, dying[0].at, bounds.linger_s, dying[0].data.get("queued", 0)))
        elif hit is not None:
            drain = bounds.drain_s if hit.fate == Fate.TERMINATE else 0.0
            found.append((node, hit.at, drain + bounds.linger_s, 0))
    return found


def _judge_notice(finding: Finding, node: str, caller: str, since: float, bound: float, queued: int) -> None:
    history, engine = finding.history, finding.history.engine_of(node)
    notice = next((record for _, record in history.heard_of("dead-notice", engine, caller)), None)
    flow = history.outputs(node, caller)
    if notice is None:
        told = history.heard_of("engine-dead", engine, caller)
        if history.ends_with_another(engine, told[0][1].at) if told else history.closes_at(caller) < FOREVER:
            return  # its client ended it with the others, or was leaving and read nothing any more
        if flow is not None and any(kept.digest == _NOTICE and "fault" in kept.data for kept in flow.kept):
            return  # a fault befell it, too
        if history.faults.frozen_s(caller, since, since + bound) + ROUNDING_S < min(bound, history.ended_at - since):
            finding.broke("{} left and its notice never reached {}", node, caller, at=since, node=node)
        return
    frozen = history.faults.frozen_s(caller, since, notice.at)
    if not finding.took("the notice of {} to {}", node, caller, bound=bound, measured=notice.at - since - frozen,
                        at=notice.at, node=caller):
        return
    judge_last_words(finding, node, caller)
    received = 0
    if flow is not None:
        late = [receive for _, receive in flow.pairs if receive.number > notice.number]
        for send in flow.unreceived:
            finding.broke("an output {} sent before its notice never reached {}", node, caller, at=send.at, node=node)
        if late:
            finding.broke("{} outputs of {} were read after its notice", len(late), node, at=late[0].at, node=caller)
        _judge_in_hand(finding, flow)
        received = sum(receive.at >= since for receive in flow.receives)
        _judge_streams(finding, engine, caller, flow.receives)
    finding.witness("{} left with {} outputs queued; {} frames and then its notice reached {}", node, queued, received,
                    caller, at=notice.at, node=caller)


def _judge_in_hand(finding: Finding, flow: Flow) -> None:
    """What a fault kept with the core is put once more, by whoever says the last words."""
    put = [crossing.digest for crossing in (*flow.sends, *flow.kept)]
    for crossing in flow.kept:
        if "fault" in crossing.data and put.count(crossing.digest) < 2:
            finding.broke("an output that {} had in hand as it failed was never sent to {}", flow.source, flow.target,
                          at=crossing.at, node=flow.source)


def _judge_streams(finding: Finding, engine: EngineLife, caller: str, receives: list[Record]) -> None:
    """No stream is told of the death while outputs for it are still to be read."""
    last = receives[-1].number if receives else -1
    for operation in finding.history.operations:
        accepted = operation.internal  # one that was refused because the core is gone has no outputs to read
        if operation.node == caller and accepted and operation.outcome == Outcome.ENGINE_DEAD and \
                finding.history.is_asked_of(operation, engine) and operation.ends[0].number < last:
            finding.broke("request {!r} was told of the death before the outputs queued ahead of it were read",
                          operation.request, at=operation.ended_at, node=caller)
            return


GUARANTEES = (
    Guarantee(
        id="dead-notice", chapter=CHAPTER, source="vLLM V1 engine core", check=check_dead_notice,
        sentence="A core that leaves through an exception, SIGTERM or sys.exit delivers ENGINE_CORE_DEAD within its "
                 "linger to a frontend that reads, after every output already queued or in hand, and outputs received "
                 "before the death reach their streams first.",
        wrong={
            "linger": "leaves without closing its sockets, so what is queued dies with it",
            "notice": "does not speak at all",
            "behind": "lets the notice overtake outputs",
            "streams": "ends the streams before it has read their outputs",
            "hand": "forgets the output that it could not send",
        },
        witness="a core left on its own feet and its notice arrived behind everything it had queued",
        envelope=Envelope(outside=(
            _CALLER_FOR_GOOD, MEMORY,
            Where(frozenset({Fate.KILL}) | STALLS, nodes="core.*", why="a killed or stopped core cannot speak"),
            Where(frozenset({Fate.DROP, Fate.CUT, Fate.DUPLICATE}) | DAMAGE | ORDERINGS, sites="*/outputs:*",
                  why="the plan itself loses, changes or holds back outputs"),
        )),
    ),
    Guarantee(
        id="death-is-told", chapter=CHAPTER, source="vLLM V1 engine core", check=check_death_is_told,
        sentence="The death of any process of the engine but the caller's own, however it dies, ends every pending "
                 "and every later call with an EngineDeadError that says who died, within the detection bound, and "
                 "when what a dead core had said was read: what is held back of it is waited for, for 30 ms at most.",
        wrong={
            "pending": "learns of deaths only from the notice that a dying process sends",
            "later": "takes in what is asked of it when the engine is dead",
        },
        witness="a process died while a request was pending, or a call came after it",
        envelope=Envelope(outside=(_CALLER_FOR_GOOD,)),
    ),
    Guarantee(
        id="stall-is-told", chapter=CHAPTER, source="vLLM", check=check_stall_is_told,
        sentence="A process with work that stops making progress (stopped, hanging, in a stuck collective), the core "
                 "included, is noticed within its deadline and treated as dead.",
        wrong={
            "core": "believes in every process whose id is alive",
            "worker": "waits for a step without a deadline",
        },
        witness="a process with work pending stood still for longer than its bound and its callers were told",
        envelope=Envelope(outside=(_CALLER_FOR_GOOD,)),
    ),
    Guarantee(
        id="health-is-true", chapter=CHAPTER, source="vLLM", check=check_health_is_true,
        sentence="Dead or hung for longer than the detection bound is never reported healthy, nor is an engine of "
                 "whose end a caller has been told or that was shut down, which says so to every later call.",
        wrong={
            "dead": "answers from what it last heard, not from whether the process is there",
            "hung": "takes a process that stands still for a healthy one",
        },
        witness="health was asked after a death or a stall began, and was bad",
        envelope=Envelope(outside=(_CALLER_FOR_GOOD,)),
    ),
)
