"""What a client does about processes that do not go by themselves, tells of those that could not begin, and leaves."""

from __future__ import annotations

from operator import itemgetter

from engine.messages import Outcome
from engine.topology import Channel, Mark, NodeKind, mark_site
from scenarios.guarantees.base import DAMAGE, DEATHS, LOSSES, MESSAGE, ORDERINGS, PROCESS, ROUNDING_S, Finding
from scenarios.history.history import (
    FOREVER,
    Death,
    EngineLife,
    Fate,
    History,
    Operation,
    Receipt,
    Record,
    Startup,
    base,
    kind_of,
)
from scenarios.history.names import of_life, rank_of
from scenarios.history.play import ProcessEnd
from scenarios.history.receipts import DEATH_FATES

#: In the twin a process that is gone is seen to be gone so much later at most. A real one takes its time to go.
SENTINEL_S = 0.002
#: There, what a dead core has said and is held back is waited for so long, and it is looked for so often.
LAST_WORDS_S, LOOK_S = 0.03, 0.002
_SHUT = "the engine was shut down"


def has_a_client(history: History, node: str, until: float) -> bool:
    """Whether one is there all the time, who ends what stands still. A queue that is played alone has none."""
    engine = history.engine_of(node)
    if history.play.options.queue:
        return False
    return any(history.ends.at(client) >= until and not history.faults.frozen_s(client, 0.0, until)
               for client in history.of_kind("frontend")
               if history.has_begun(client, engine)) or (
                   history.ends.at(history.owner(engine)) >= until)


def is_ended_with_another(history: History, operation: Operation, core: str) -> bool:
    """Whether it ended with its core, and somebody else that lives with that was struck dead, or had gone before it,
    for whatever reason, of those that step together: that ends them all.
    """
    engine = history.engine_of(core)
    if operation.outcome != Outcome.ENGINE_DEAD:
        return False
    if any(r.fate in DEATHS and r.node != core and kind_of(r.node) in ("core", "coordinator")
           and r.at <= operation.over_at and history.lives_with(engine, r.node) for r in history.faults.receipts):
        return True
    left_at = next((record.at for record in history.by_node("dying").get(core, ())), history.ends.at(core))
    others = [other.core for other in history.joined(engine) if other != engine]
    alone_at = min(map(history.ends.at, others), default=FOREVER)
    return history.in_step(engine) and alone_at <= min(left_at, operation.over_at)


def judge_closed(finding: Finding) -> None:
    """A client that says that it has closed has no core any more; nor has one that says that its core is dead, unless
    that is leaving by itself. A queue that is played alone has no client.
    """
    history = finding.history
    if history.play.options.queue:
        return
    _judge_course(finding)
    late_s = ROUNDING_S if history.simulated else history.bounds.detection_s
    ended = {of_life(p.node, p.life): FOREVER if p.ended_at is None else p.ended_at for p in history.lab.processes}
    for engine in history.engines:
        core = engine.core
        clients = [client for client in history.of_kind("frontend") if history.is_of(client, engine)]
        for node in {*clients, history.owner(engine)}:
            for record in history.by_node("closed").get(node, ()):
                if node == history.owner(engine) and ended.get(core, 0.0) > record.at + late_s:
                    finding.broke("{} said that it had closed, and {} was there", node, core, at=record.at, node=node)
                if node in clients:
                    _judge_freed(finding, node, engine, record)
        for node, record in history.heard_of("engine-dead", engine):
            if not history.has_begun(node, engine):
                continue
            if ended.get(core, 0.0) > record.at + late_s and not history.heard_of("dead-notice", engine, node):
                finding.broke("{} said that {} was dead, and let it be", node, core, at=record.at, node=node)


def _judge_course(finding: Finding) -> None:
    """Whoever starts engines, or attaches to some, says so, what becomes of it, and that it closes, in this order."""
    history = finding.history
    for node in (*history.of_kind(NodeKind.FRONTEND), *history.of_kind(NodeKind.LAUNCHER)):
        ready, failed = history.by_node("ready").get(node, []), history.by_node("start-failed").get(node, [])
        if not (ready or failed) or node not in history.by_node("bye") or any(
                receipt.node == node and receipt.fate in PROCESS for receipt in history.faults.receipts):
            continue
        course = [("starting", history.by_node("starting").get(node, ())),
                  *([("born", history.by_node("born").get(node, ()))] if ready else []), ("ready", ready or failed),
                  ("closing", history.by_node("closing").get(node, ())),
                  ("dying", history.crossings.get(mark_site(node, Mark.DYING), ())),
                  ("closed", history.by_node("closed").get(node, ())), ("bye", history.by_node("bye")[node])]
        missing = [name for name, records in course if not records]
        numbers = [records[0].number for _, records in course if records]
        if missing or numbers != sorted(numbers):
            finding.broke("{} left, and {}", node, f"said nothing of {' and '.join(missing)}" if missing else
                          "said it in another order than it came about", at=history.last[node].at, node=node)


def _judge_freed(finding: Finding, node: str, engine: EngineLife, closed: Record) -> None:
    """Who closes with requests under way says so to a core that lives, or that would compute them to their end."""
    history, core = finding.history, engine.core
    for closing in history.by_node("closing").get(node, ()):
        open_then = (o for o in history.operations if o.node == node and o.abort is None
                     and not (o.ends and o.ends[0].number < closing.number))
        pending = closing.data.get("kept", {}).get("requests") and (
            len(history.engines_of(node)) == 1 or any(history.is_asked_of(o, engine) for o in open_then))
        interrupted = len(history.engines_of(node)) > 1 and any(
            receipt.node == node and receipt.at >= closing.at for receipt in history.faults.receipts)
        if pending and not interrupted and not history.heard_of("engine-dead", engine, node) and not any(
                send.number > closing.number for send in history.sends(f"{node}->{core}/{Channel.REQUESTS.value}")):
            finding.broke("{} closed with requests under way, and did not tell {}", node, core, at=closed.at, node=node)


def _died_in_silence(history: History, engine: EngineLife, until: float) -> bool:
    """Whether a worker was gone by then that said nothing: that may be what the start fails by."""
    return any(death.onset <= until and kind_of(death.node) == "worker" and death.node not in history.by_node("bye")
               and history.is_of(death.node, engine) for death in history.ends.deaths)


def struck_by(history: History, startup: Startup) -> tuple[list[Receipt], EngineLife]:
    """What befell a start, its own engines and those that step with them, and by which of its own it failed: of several
    that were struck by the one that is named.
    """
    node, end = startup.node, startup.end
    mine = history.engines_of(node)
    group = {other for one in mine for other in history.joined(one)}
    if any(history.is_apart(one) for one in mine):  # those of one coordinator are ready together
        group |= {other for one in mine for other in history.coordinated(one)}
    # What it attaches to, or steps with, may have been hit before.
    since = 0.0 if history.is_attached(node) or not group.issubset(mine) else startup.began.at
    hits = [r for r in history.faults.receipts if since <= r.at <= (end.at if end else FOREVER)
            and not group.isdisjoint(history.engines_of(r.node))]
    reason = end.data.get("reason", "") if end else ""
    struck = [one for one in mine if any(history.is_of(hit.node, one) for hit in hits)]
    return hits, next((one for one in struck or mine if base(one.core) in reason), (*struck, mine[0])[0])


def has_reason_not_to_start(history: History, engine: EngineLife, at: float) -> bool:
    """Besides what befell it: some are configured otherwise than others, or have been shut down by then."""
    return bool(history.play.options.differs) or at >= history.group_closing_at(engine)


def reading_s(history: History, node: str, death: Death, since: float) -> float:
    """How long a real one reads what was sent before that death, and lies before the word of it, without a pause."""
    flow = history.outputs(history.engine_of(death.node).core, node)
    resumed = max((s.until for s in history.faults.stalls if s.node == node and s.at <= since < s.until), default=since)
    return 0.0 if flow is None or history.simulated else \
        flow.read_until(resumed, death.at, history.bounds.heartbeat_s) - resumed


def word_is_lost(history: History) -> bool:
    """Whether what a process said to whoever started it was lost, late or damaged, or who said or heard it was hit."""
    return bool(history.faults.hit(*LOSSES, *ORDERINGS, *DAMAGE, *PROCESS, channel=Channel.BIRTH.value))


def judge_words(finding: Finding, failed: Record, engine: EngineLife, node: str) -> None:
    """A core that gives up says why before it leaves, and that is what its frontend tells. So does a worker."""
    history = finding.history
    if word_is_lost(history):
        return  # it may be what was said: see birth-told
    gave_up = [said for worker, said in history.observed("bye") if kind_of(worker) == "worker" and said.at <= failed.at
               and history.is_of(worker, engine) and worker not in history.by_node("parent-gone")
               and f"{worker}/mark:ready" not in history.crossings]
    told = failed.data["reason"]
    if gave_up and not _died_in_silence(history, engine, gave_up[0].at) and not any(
            said.data["reason"].rpartition("could not start: ")[2] in told for said in gave_up):
        finding.broke("a worker gave up its start ({}), and {} told {!r}", gave_up[0].data["reason"], node, told,
                      at=failed.at, node=node)
    dying = next(iter(finding.history.by_node("dying").get(engine.core, ())), None)
    if dying is None or dying.at > failed.at or any(
            receipt.node == engine.core and receipt.fate == Fate.KILL for receipt in history.faults.receipts):
        return  # a killed one may have had no time to say it
    word = f"{base(engine.core)}->{base(node)}/{Channel.BIRTH.value}:receive"
    heard = any(record.site == word and record.data.get("word") == "failed" and record.number < failed.number
                for record in history.records(node))
    if not heard and failed.at < dying.at + history.slack_s:
        return  # both had waited as long as they may, for the same
    others = [f"{NodeKind.COORDINATOR.value}."] if history.coordinated(engine) else []
    others += [base(one.core) for one in history.engines_of(node) if one != engine] if history.is_apart(engine) else []
    if any(name in told for name in others):
        return  # of two that gave up one is named
    reason = dying.data["reason"]
    kind, _, words = reason.partition(": ")
    said = [words or kind, reason[len("sys.exit("):-1].strip("'")]
    if reason not in told and told not in (*said, *(f"{base(engine.core)}: {one}" for one in said)):
        finding.broke("{} gave up its start by {!r}, and {} told {!r}", engine.core, dying.data["reason"], node,
                      failed.data["reason"], at=failed.at, node=node)


def judge_lone_cores(finding: Finding) -> None:
    """A core that sees that its client is gone waits for nothing more."""
    history = finding.history
    for core, seen in history.by_node("parent-gone").items():
        dying, since = history.by_node("dying").get(core), seen[0].at
        until = min(dying[0].at if dying else FOREVER, history.ends.at(core))
        if kind_of(core) == "core" and since < until < FOREVER:
            finding.took("the time in which {} went on without its client", core, bound=history.bounds.detection_s,
                         measured=until - since - history.faults.frozen_s(core, since, until), at=until, node=core)
    for engine in history.engines:
        head = history.greeted_by(engine)[0]
        if history.play.topology.is_headless(engine.engine) and engine.core in history.by_node("ready") and \
                history.ends.at(head) < min(history.ends.at(engine.core), history.closing_at(engine)):
            since, said = history.ends.at(head), history.by_node("dying").get(engine.core, [])
            until = min([history.ended_at, history.ends.at(engine.core), *(record.at for record in said)])
            # Who is amid a collective when it hears of it comes out of that with the others.
            group = [other.core for other in history.joined(engine)]
            finding.took("the time in which {} went on without its head", engine.core, at=until, node=engine.core,
                         bound=history.bounds.detection_s, measured=until - since - history.faults.frozen_s(
                             engine.core, since, until, *group))


def noticed_s(history: History, death: Death, client: str) -> float:
    """How long a death may be unknown to a client that looks: of its own child it is told by the system."""
    known = history.simulated and kind_of(death.node) == "core" and history.has_started(client, death.node)
    return SENTINEL_S if known else history.bounds.detection_s


def gone_with_the_head(history: History, engine: EngineLife, at: float, *, knows_why: bool) -> frozenset[str]:
    """The coordinator, where who has started it was struck dead by then, or has begun to shut it down.

    Or knew of the end of the group by then, and ended it for that: of that another client says why, if it was its own
    core, which `knows_why`.
    """
    hub = history.hub_of((history.joined(engine) or (engine,))[0])
    if hub is None:
        return frozenset()
    head = history.owner_of(hub)
    told = [*history.by_node("closing").get(head, ()), *(
        () if knows_why else history.by_node("engine-dead").get(head, ()))]
    struck = any(receipt.node == head and receipt.fate in DEATH_FATES and receipt.at <= at
                 for receipt in history.faults.receipts)
    return frozenset({base(hub), base(head)}) if struck or any(record.at <= at for record in told) else frozenset()


def blames(history: History, death: Death, reason: str, client: str = "", at: float = FOREVER) -> bool:
    """Whether a reason says who died, and of what, where one fault alone can have ended it, and its client knows. `at`:
    when that was told. A client that stood still until then finds several gone, and not who was first.
    """
    mine = history.engine_of(death.node)
    if client and history.in_step(mine) and history.faults.frozen_s(client, death.onset, at) and any(
            base(node) in reason for node in history.nodes if history.lives_with(mine, node)
            and history.ends.at(node) <= at):
        return True
    if history.is_apart(history.engine_of(death.node)) and any(
            history.owner_of(node) == history.owner_of(death.node) and base(node) in reason for node in history.nodes):
        return True  # whoever has started them ends all of its own at once
    is_another_s = client and client != history.owner(mine) and client not in history.greeted_by(mine)
    if is_another_s and history.is_apart(mine) and any(
            name in reason for name in gone_with_the_head(history, mine, at, knows_why=False)):
        return True
    receipts = [r for r in history.faults.receipts if r.may_end_the_engine(history.bounds.step_s)]
    if history.play.topology.launchers:
        return reason == _SHUT or "core." in reason or "coordinator." in reason
    if client and not history.is_of(client, history.engine_of(death.node)):  # its own core has told it
        engine = history.engine_of(death.node)
        stood = any(base(stall.node) in reason for stall in history.faults.stalls)
        missed = any(name in reason for name in history.missed(engine, death.at))
        planned = any(base(other.node) in reason for other in history.ends.deaths if other.planned)
        return stood or missed or planned or word_is_lost(history) or reason == _SHUT or any(
            base(node) in reason for node in history.nodes if (
                history.engines_of(node) == (engine,) and kind_of(node) in ("core", "worker")) or (
                history.hub_of(engine) == node and node != death.node) or node == death.node)
    if not history.play.says_why or len(receipts) != 1 or reason == _SHUT or word_is_lost(history):
        return True
    if receipts[0].node == history.engine_of(death.node).core:
        death = history.ends.get(receipts[0].node, death)  # it ends its workers before it leaves
    if receipts[0].node != death.node or not death.planned:
        return True
    name = base(death.node)
    if kind_of(name) == "worker":
        return name in reason or any(f"{what}.{rank_of(name)}" in reason for what in ("worker", "response"))
    others_know = history.in_step(history.engine_of(death.node))  # who waited for it says that it is gone, not how
    if receipts[0].fate == Fate.KILL:
        return f"{name} died" in reason and ("exit code -9" in reason or others_know)
    if others_know and any(f"closed by {base(node)}" in reason for node in history.nodes
                           if history.engine_of(node) == history.engine_of(death.node)):
        return True
    fault = receipts[0].fault
    if receipts[0].fate == Fate.EXIT and fault is not None and kind_of(name) == "core":
        return any(words in reason for words in (f"sys.exit({fault.code})", f"exit code {fault.code}")) or \
            reason == str(fault.code)
    return receipts[0].fate != Fate.RAISE or fault is None or fault.text in reason or "exit code 1" in reason


def core_was_missed(history: History, engine: EngineLife, reason: str) -> bool:
    """Whether it is named, and a message of its own start was struck besides."""
    return engine.core in reason and any(r.node in (engine.core, history.owner(engine)) and r.fate in MESSAGE
                                         and "/handshake:" in r.site for r in history.faults.receipts)


def judge_last_wait(finding: Finding, operation: Operation, death: Death, ended: float) -> None:
    """Of a core that is gone: its last words are waited for while they are held back, and nothing else is."""
    history, node = finding.history, operation.node
    over_at = max((held.at + held.lasted_s for held in history.faults.hit(
        Fate.DELAY, channel=Channel.OUTPUTS.value, operation=":receive") if held.node == node and held.at <= ended),
        default=0.0)
    spoken_at = min(max(over_at, death.at), death.at + LAST_WORDS_S)
    told_at = ended - history.faults.frozen_s(node, death.at, ended)
    if told_at > max(spoken_at, operation.began_at) + SENTINEL_S + LOOK_S:
        finding.broke("request {!r} was told {:.4f} s after {} had died and nothing of it was waited for any more",
                      operation.request, told_at - spoken_at, death.node, at=ended, node=node)
    if ended < over_at <= death.at + LAST_WORDS_S and not history.heard_of(
            "dead-notice", history.asked_of(operation), node):
        finding.broke("request {!r} was told that {} had died, and an output of it was still to be let go",
                      operation.request, death.node, at=ended, node=node)


def nobody_was_left(history: History, engine: list[ProcessEnd]) -> bool:
    """Whether nobody of these could clean up. Of several that have started engines each cleans up for its own.

    Who was not born has not been told of anything that it could remove, and who is told to go as it is born is gone.
    """
    born = history.by_node("born").keys() - {
        hit.node for hit in history.faults.hit(Fate.TERMINATE) if hit.site == mark_site(hit.node, Mark.BORN)}
    owners = {p.node: history.owner_of(p.node) for p in engine if not p.life}
    of_cores = {owner for node, owner in owners.items() if kind_of(node) == "core"}
    together = [[p for p in engine if owners.get(p.node) == owner] for owner in of_cores]
    told = [[p for p in some if p.node in born or kind_of(p.node) in ("frontend", "launcher")]
            for some in together]
    return any(_all_were_killed(history, some) for some in told) or any(
        _last_was_struck_down(history, some) for some in together + told)


def _all_were_killed(history: History, engine: list[ProcessEnd]) -> bool:
    killed = {death.node for death in history.ends.values() if has_no_chance(death)}
    return bool(engine) and killed.issuperset(p.node for p in engine)


def _last_was_struck_down(history: History, engine: list[ProcessEnd]) -> bool:
    """Whether nobody outlived a process that had no chance to clean up: a killed one, or a caller's by SIGTERM. The lab
    may see several ends at once; who still said something outlived it.
    """
    gone = [(p.ended_at, p.node) for p in engine if p.ended_at is not None]
    death = history.ends.get(max(gone, key=itemgetter(0))[1]) if gone else None
    if death is None or not death.planned or any(
            node != death.node and node in history.last and history.last[node].at > death.at for _, node in gone):
        return False
    return has_no_chance(death) or any(  # it may have met more than one
        receipt.node == death.node and (has_no_chance(death._replace(how=str(receipt.fate))) or (
            receipt.fate in DEATHS and kind_of(death.node) == NodeKind.COORDINATOR))  # amid its cleaning up
        for receipt in history.faults.receipts)


def has_no_chance(death: Death) -> bool:
    """Whether it cannot clean up: one that was killed, or a caller's by SIGTERM."""
    return death.how == str(Fate.KILL) or (
        death.how == str(Fate.TERMINATE) and kind_of(death.node) in ("frontend", "launcher"))


def judge_failed_at_once(finding: Finding, startup: Startup, failed: Record, engine: EngineLife) -> None:
    """Who is gone is not waited for: by whoever has started it, has heard it greet, or attaches to it."""
    history, caller = finding.history, startup.node
    if not history.play.is_ours:
        return  # others promise no more than the bound of a start
    greetings = history.receives(f"{engine.core}->{caller}/{Channel.HANDSHAKE.value}")[1:]  # the first one is empty
    if begun := history.has_begun(caller, engine):
        known_at, bound = startup.began.at, history.bounds.cleanup_s  # in which it ends all others
    else:  # it looks at them every now and then
        known_at = max(startup.began.at, greetings[0].at) if greetings else startup.began.at if history.is_attached(
            caller) else FOREVER
        bound = 3 * history.bounds.detection_s
    gone = [death for death in history.ends.values() if death.planned and history.is_of(death.node, engine)
            and kind_of(death.node) in (("core", "worker") if begun else ("core",)) and death.at < failed.at]
    for death in gone[:known_at < failed.at]:
        since = max(death.at, known_at)
        finding.took("failing the start after the death of {}", death.node, at=failed.at, node=death.node, bound=bound,
                     measured=failed.at - since - history.faults.frozen_s(caller, since, failed.at, engine.core))


def judge_hearsay(finding: Finding, failed: Record, hits: list[Receipt], node: str, engine: EngineLife) -> None:
    """A start that failed by what befell another one's rank says whose it was, or that its client is gone."""
    if failed.at >= finding.history.group_closing_at(engine):
        return
    history, told = finding.history, str(failed.data["reason"])
    struck = {base(engine.core) for hit in hits for engine in history.engines_of(hit.node)}
    struck |= {base(node) for node in history.nodes if kind_of(node) in ("frontend", "coordinator")
               and any(history.owner_of(node) == history.owner_of(hit.node) for hit in hits)}  # who goes along
    struck |= {end for hit in hits for end in hit.site.partition("/")[0].split("->") if kind_of(end) == "core"}
    if not any(core in told or core.replace("core", "worker") in told for core in struck):
        finding.broke("the start of {} failed with {!r}, and {} is what was struck", node, told,
                      " or ".join(sorted(struck)), at=failed.at, node=node)


def judge_last_words(finding: Finding, node: str, caller: str) -> None:
    """Who hears of the end by the notice is told why."""
    history = finding.history
    dying = next(iter(history.by_node("dying").get(node, ())), None)
    told = next((record for _, record in history.heard_of("engine-dead", history.engine_of(node), caller)), None)
    known = history.play.says_why and history.has_begun(caller, history.engine_of(node)) and not word_is_lost(history)
    if known and dying and told and "_DEAD" in told.data["reason"] and dying.data["reason"] not in told.data["reason"]:
        finding.broke("{} left by {}, and {} was told {}", node, dying.data["reason"], caller, told.data["reason"],
                      at=told.at, node=caller)
