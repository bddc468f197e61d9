"""What a client does about processes that do not go by themselves, tells of those that could not begin, and leaves."""

from __future__ import annotations

from operator import itemgetter

from engine.topology import Channel
from scenarios.guarantees.base import ROUNDING_S, Finding
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
from scenarios.history.names import of_life
from scenarios.history.play import ProcessEnd

#: In the twin a process that is gone is seen to be gone so much later at most. A real one takes its time to go.
SENTINEL_S = 0.002
#: There, what a dead core has said and is held back is waited for so long, and it is looked for so often.
LAST_WORDS_S, LOOK_S = 0.03, 0.002


def has_a_client(history: History, node: str, until: float) -> bool:
    """Whether one is there all the time, who ends what stands still."""
    engine = history.engine_of(node)
    return any(history.ends.at(client) >= until and not history.faults.frozen_s(client, 0.0, until)
               for client in history.of_kind("frontend")
               if history.is_of(client, engine) and not history.is_attached(client)) or (
                   history.ends.at(history.owner(engine)) >= until)


def judge_closed(finding: Finding) -> None:
    """A client that says that it has closed has no core any more; nor has one that says that its core is dead, unless
    that is leaving by itself. A queue that is played alone has no client.
    """
    history = finding.history
    if history.play.options.queue:
        return
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
            if history.is_attached(node):
                continue
            if ended.get(core, 0.0) > record.at + late_s and not history.heard_of("dead-notice", engine, node):
                finding.broke("{} said that {} was dead, and let it be", node, core, at=record.at, node=node)


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


def whose_end(history: History, startup: Startup, hits: list[Receipt]) -> EngineLife:
    """The engine by which a start failed: of several that were struck the one that is named."""
    reason = startup.end.data.get("reason", "") if startup.end else ""
    struck = [one for one in history.engines_of(startup.node) if any(history.is_of(hit.node, one) for hit in hits)]
    return next((one for one in struck if base(one.core) in reason), (*struck, history.engine_of(startup.node))[0])


def judge_words(finding: Finding, failed: Record, engine: EngineLife, node: str) -> None:
    """A core that gives up says why before it leaves, and that is what its frontend tells. So does a worker."""
    history = finding.history
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


def last_one_was_struck_down(history: History, engine: list[ProcessEnd]) -> bool:
    """Whether nobody outlived a process that had no chance to clean up: a killed one, or a caller's by SIGTERM.

    The lab may see several ends at once; who still said something outlived it.
    """
    gone = [(p.ended_at, p.node) for p in engine if p.ended_at is not None]
    death = history.ends.get(max(gone, key=itemgetter(0))[1]) if gone else None
    if death is None or not death.planned or any(
            node != death.node and node in history.last and history.last[node].at > death.at for _, node in gone):
        return False
    return has_no_chance(death)


def has_no_chance(death: Death) -> bool:
    """Whether it cannot clean up: one that was killed, or a caller's by SIGTERM."""
    return death.how == str(Fate.KILL) or (death.how == str(Fate.TERMINATE) and kind_of(death.node) == "frontend")
