"""Promises about starting and ending: bounds, leftovers, neighbours."""

from __future__ import annotations

import builtins
import re
from typing import Any

from scenarios.guarantees.base import (
    DEATHS,
    LOSSES,
    MESSAGE,
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
    blames,
    core_was_missed,
    has_a_client,
    has_reason_not_to_start,
    judge_closed,
    judge_failed_at_once,
    judge_hearsay,
    judge_lone_cores,
    judge_words,
    nobody_was_left,
    struck_by,
)
from scenarios.guarantees.chapters.death import CHAPTER
from scenarios.guarantees.readers.draining import check_drain
from scenarios.history.history import FOREVER, EngineLife, Fate, History, Record, kind_of, owner_of
from scenarios.history.names import base, of_life, rank_of
from scenarios.history.play import Play
from scenarios.history.receipts import Receipt

#: Who is said to have died.
_DIED = re.compile(r"\b((?:core|coordinator|worker)\.\d+(?:\.\d+)?) died")
_CALLERS = (Where(PROCESS, nodes="frontend.*", why="the caller itself is hit"),
            Where(PROCESS, nodes="launcher.*", why="who launched the engine is hit"))
_CALLER_STOPS = Where(STALLS, nodes="frontend.*", why="a stopped caller ends nothing", passing=False)
_PARENTS = {"core": ("frontend", "launcher"), "worker": ("core",)}


def check_no_orphans(history: History) -> Finding:
    finding, bound = Finding(history), history.bounds.orphan_s
    processes = {of_life(p.node, p.life): p for p in history.lab.processes}
    for parent, death in history.ends.items():
        if kind_of(parent) not in ("frontend", "core", "launcher") or history.is_attached(parent):
            continue
        for node, process in processes.items():
            if history.engine_of(node) != history.engine_of(parent) or not _descends(kind_of(node), kind_of(parent)):
                continue
            if process.ended_at is None or history.overstayed(process):
                if history.nobody_ends(process):
                    continue
                finding.broke("{} outlived {} ({}){}", node, parent, death.how,
                              " until the lab killed it" if process.killed_by_lab else "", at=death.at, node=node)
                continue
            hears_by = {node, history.engine_of(node).core} - {parent}
            frozen = history.faults.frozen_s(node, death.at, process.ended_at, *hears_by)
            if kind_of(parent) == "core" and frozen > bound and has_a_client(history, node, process.ended_at):
                frozen = bound  # who does not go by itself is ended
            outlived = process.ended_at - death.at - frozen
            if outlived <= 0:
                continue
            in_time = finding.took("the end of {} after its parent {}", node, parent, bound=bound, measured=outlived,
                                   at=process.ended_at, node=node)
            struck = any(r.node == parent and r.fate in PROCESS for r in history.faults.receipts)
            if in_time and (death.planned or struck):
                finding.witness("{} died ({}) and {} followed after {:.4f} s", parent, death.how, node, outlived,
                                at=process.ended_at, node=node)
    judge_lone_cores(finding)
    return finding


def _descends(kind: str, ancestor: str) -> bool:
    parents = _PARENTS.get(kind, ())
    return ancestor in parents or any(_descends(parent, ancestor) for parent in parents)


def check_nothing_left_behind(history: History) -> Finding:
    finding = Finding(history)
    lab = history.lab
    named = {thing for records in history.by_node("born").values() for r in records
             for thing in (*r.data.get("segments", ()), *r.data.get("paths", ()))}
    engine = [p for p in lab.processes if kind_of(p.node) != "subscriber"]
    held = {f"process {p.node} (pid {p.pid})" for p in engine if history.nobody_ends(p)}
    for process in engine:
        if history.overstayed(process) and not history.nobody_ends(process):
            finding.broke("process {} ({}) was still there after the bound", process.node, process.pid,
                          at=lab.leftovers_checked_at, node=process.node)
    judge_closed(finding)
    unattended = any(nobody_was_left(history, [p for p in engine if history.engine_of(p.node).engine in some])
                     for some in (history.main, history.struck - history.main))
    for left in lab.leftovers:
        if left in held:
            continue
        if unattended and not lab.restarts and any(name and name in left for name in named):
            continue  # nobody was left to clean up, and start-up names it: the next start removes it
        finding.broke("{} remained", left, at=lab.leftovers_checked_at)
    for restart in lab.restarts:
        if not restart.get("ready") or restart.get("served") is False:
            finding.broke("the next start failed: {}", restart.get("error") or "it served nothing")
        elif restart.get("removed"):
            finding.witness("the next start removed what the dead had left: {}", ", ".join(restart["removed"][:3]))
        elif named and not lab.leftovers:  # a start of anybody's removes what is left of any dead engine on its host
            finding.witness("the next start served, and somebody else's had removed what the dead had left")
    for alive in lab.beside:
        for touched in alive.touched if alive.engine not in history.struck else ():
            finding.broke("{} of engine {}, which was alive, was touched", touched, alive.engine)
    if lab.leftovers_checked_at is None:
        finding.witnesses = 0
        return finding
    deaths = [death for death in history.ends.values() if death.planned and not unattended]
    for death in deaths:
        finding.witness("{} died ({}) and nothing remained", death.node, death.how, at=death.at, node=death.node)
    if named and not unattended:
        finding.witness("{} segments and paths were made and are gone", len(named), at=lab.leftovers_checked_at)
    return finding


def _said_to_have_died(history: History, failed: Record) -> str:
    """Whom it names as dead that is not; "": nobody. Of who has never said that it was born nobody else knows."""
    ended: dict[str, float] = {}
    for death in history.ends.values():
        ended[base(death.node)] = min(death.at, ended.get(base(death.node), FOREVER))
    late_s = ROUNDING_S if history.simulated else history.bounds.detection_s
    return next((name for name in _DIED.findall(str(failed.data["reason"]))
                 if name in history.nodes and ended.get(name, FOREVER) > failed.at + late_s), "")


def check_start_ends(history: History) -> Finding:
    finding, bound = Finding(history), timer_s(history.bounds, history.bounds.startup_s)
    for startup in history.startups:
        node, end, began = startup.node, startup.end, startup.began.at
        hits, engine = struck_by(history, startup)
        if end is None:
            if history.ends.at(node) == FOREVER or node in history.by_node("bye"):
                finding.hangs("the start of {}", node, bound=bound, since=began, node=node)
            continue
        if not finding.took("the start of {}", node, bound=bound, measured=end.at - began, at=end.at, node=node):
            continue
        if startup.ready:
            dead = [name for one in history.engines_of(node) if (name := _dead_when_ready(history, one, end.at))]
            if dead:
                finding.broke("the engine reported ready although {} had died", dead[0], at=end.at, node=node)
                continue
        elif history.play.is_ours and not _is_named(end.data):
            finding.broke("the start failed with {!r} ({!r}), which names nothing", end.data.get("error"),
                          end.data.get("reason"), at=end.at, node=node)
            continue
        elif history.play.is_ours and (alive := _said_to_have_died(history, end)):
            finding.broke("the start failed with {!r}, and {} lived", end.data["reason"], alive, at=end.at, node=node)
            continue
        elif not hits and end.data["error"] != "ConfigError" and not has_reason_not_to_start(history, engine, end.at):
            tell = finding.unclear if history.starved(history.bounds.handshake_s) else finding.broke
            tell("the start failed although nothing had befallen it: {}", end.data["reason"], at=end.at, node=node)
            continue
        elif hits and not any(history.is_of(hit.node, engine) for hit in hits):
            judge_hearsay(finding, end, hits, node, engine)
        else:
            judge_failed_at_once(finding, startup, end, engine)
            if history.has_begun(node, engine):
                _judge_all_failed(finding, end, engine)
                _judge_blame(finding, end, engine)
                _judge_unheard(finding, end, hits, node)
                judge_words(finding, end, engine, node)
        if not startup.ready and not hits:
            finding.witness("{} was refused what it asked for: {}", node, end.data["reason"], at=end.at, node=node)
        if startup.ready and history.play.options.long_runtime_dir:
            finding.witness("{} was ready though its directory has too long a name", node, at=end.at, node=node)
        if hits:
            finding.witness("{} met {} while starting, and the start ended after {:.3f} s: {}", hits[0].node,
                            hits[0].fate, end.at - began, "ready" if startup.ready else end.data["error"], at=end.at,
                            node=node)
    return finding


def _dead_when_ready(history: History, engine: EngineLife, at: float) -> str | None:
    """Who was not there when the core said that it is ready, with a part in the start that it had not done."""
    said, core = next(((r.at, node) for node, r in history.observed("ready")
                       if kind_of(node) == "core" and history.is_of(node, engine)), (at, engine.core))
    calls = [call.data["call"] for call in history.by_node("rpc-call").get(core, ()) if call.at < said]
    answered = {(r.data["rank"], r.data["call"]) for r in history.by_node("rpc-reply").get(core, ())}
    for death in history.ends.values():
        if death.at >= said or not history.is_of(death.node, engine) or (
                kind := kind_of(death.node)) not in ("core", "worker"):
            continue
        if kind == "core" or not calls or any((rank_of(death.node), call) not in answered for call in calls):
            return death.node
    return None


def _is_named(data: dict[str, Any]) -> bool:
    """A named error is one of ours: it says what happened, an escaped KeyError does not."""
    return bool(data.get("error")) and bool(data.get("reason")) and not hasattr(builtins, data["error"])


def _judge_blame(finding: Finding, end: Record, engine: EngineLife) -> None:
    """What befell a start is no fault of its configuration, and its error says who died."""
    history = finding.history
    death, met = history.first_death(engine), any(history.is_of(r.node, engine) for r in history.faults.receipts)
    if history.faults.receipts and end.data["error"] == "ConfigError":
        finding.broke("the start failed with ConfigError ({}), and its configuration is in order", end.data["reason"],
                      at=end.at, node=engine.core)
    elif death is None or (met and not history.is_of(death.node, engine)):  # it met something itself
        return
    elif death.onset <= end.at and not _was_leaving(history, engine, death.onset) and not blames(
            history, death, end.data["reason"]) and not core_was_missed(history, engine, end.data["reason"]):
        finding.broke("the start failed with {!r}, but {} died ({})", end.data["reason"], death.node, death.how,
                      at=end.at, node=engine.core)


def _was_leaving(history: History, engine: EngineLife, at: float) -> bool:
    """Whether the core had said why the start fails by then: who goes behind that goes because of it."""
    return any(record.at <= at for record in history.by_node("dying").get(engine.core, ()))


def _judge_unheard(finding: Finding, end: Record, hits: list[Receipt], node: str) -> None:
    """Where a message of the core alone was lost or late, the reason says who was not heard, and by its own client that
    the head did not answer it.
    """
    if len(hits) != 1 or hits[0].fate not in LOSSES | {Fate.DELAY} or "/handshake:" not in hits[0].site:
        return
    reason, sender = str(end.data["reason"]), hits[0].site.partition("->")[0]
    if "core" not in reason or (kind_of(sender) == "frontend" and sender != base(node) and sender not in reason):
        finding.broke("a message of {} at the start was lost, and it failed because of {!r}", sender, reason, at=end.at,
                      node=hits[0].node)


def _judge_all_failed(finding: Finding, end: Record, engine: EngineLife) -> None:
    history = finding.history
    for process in history.lab.processes:
        mine = history.is_of(of_life(process.node, process.life), engine)
        if not mine or kind_of(process.node) not in ("core", "worker"):
            continue
        if process.ended_at is None or history.overstayed(process):
            finding.broke("the start failed and {} went on", process.node, at=end.at, node=process.node)
        else:
            finding.took("ending {} after the start failed", process.node, bound=history.bounds.cleanup_s,
                         measured=process.ended_at - end.at, at=process.ended_at, node=process.node)


def check_two_on_one_host(history: History) -> Finding:
    """What befalls one engine is none of the others': those that nothing befell live and serve to the end."""
    finding = Finding(history)
    beside = [one for one in history.lab.beside if one.engine not in history.struck]
    for one in beside:
        if not one.served:
            finding.broke("engine {} could not serve beside the first one", one.engine)
        for touched in one.touched:
            finding.broke("{} of engine {} was touched", touched, one.engine)
    spared = {engine.index for engine in history.play.topology.engines} - history.struck
    for death in history.ends.deaths if history.lab.beside else ():
        if history.engine_of(death.node).engine in spared:
            finding.broke("{} did not survive beside the other engine: {}", death.node, death.how, at=death.at,
                          node=death.node)
    for startup in history.startups if history.lab.beside else ():
        others = spared - {engine.engine for engine in history.engines_of(startup.node)}
        if startup.ready and others:
            finding.witness("{} was ready beside engine {}, which lived and served", startup.node, min(others),
                            at=startup.ready_at, node=startup.node)
    return finding


def has_descendants(play: Play) -> bool:
    """Whether a process that may die here is a parent: a core without workers is none."""
    return bool(play.topology.workers) or any(
        kind_of(fault.victim or owner_of(fault.site)) == "frontend" for fault in play.plan.faults)


GUARANTEES = (
    Guarantee(
        id="no-orphans", chapter=CHAPTER, source="vLLM V1 executor", check=check_no_orphans,
        sentence="When a parent dies in any way, all its descendants exit within the bound, and a core begins at once; "
                 "one that stands still is ended by its client.",
        wrong={
            "unwatched": "does not look after the process that has started it",
            "inherited": "lets children inherit each other's ends of the death pipe, which then never closes",
        },
        blind_in={
            "inherited in sim": "who inherits which descriptor is a fact of fork; the twin's processes share nothing",
        },
        witness="a parent died by a fault and a descendant that outlived it left within the bound",
        envelope=Envelope(), applies=has_descendants,
    ),
    Guarantee(
        id="nothing-left-behind", chapter=CHAPTER, source="vLLM V1 single-host communication",
        check=check_nothing_left_behind,
        sentence="While any process of the engine or its parent survives, nothing (process, segment, socket file, "
                 "port, temporary file) remains after the bound. After SIGKILL of all, only what start-up names "
                 "remains; the next start succeeds and removes what belongs to no living owner, never a live "
                 "neighbour's. A client that has closed, or tells of its core's death, has no core any "
                 "more, but one that said it was leaving.",
        wrong={
            "survivor": "removes its segments and socket files only on a clean exit",
            "restart": "does not look at its start for what the dead have left",
            "neighbour": "sweeps up what belongs to a living neighbour",
        },
        witness="segments or paths were made, or a process died by a fault, and a search found nothing; or the next "
                "start removed what the dead had left",
        envelope=Envelope(outside=(_CALLER_STOPS,)),
    ),
    Guarantee(
        id="start-ends", chapter=CHAPTER, source="vLLM V1 engine core", check=check_start_ends,
        sentence="Start-up ends in ready or in a named error within the bound; one failed child fails all.",
        wrong={
            "bound": "waits for READY without a deadline",
            "named": "fails with whatever it stumbled over",
            "all": "does not look whether the child is still there",
        },
        witness="a process died, or a handshake message or a word at birth was lost or late during start-up, or what "
                "was configured cannot be had, and it ended",
        envelope=Envelope(outside=_CALLERS),
    ),
    Guarantee(
        id="drain", chapter=CHAPTER, source="vLLM", check=check_drain,
        sentence="On SIGTERM new requests are refused; running ones finish or are aborted by the deadline, "
                 "those too that step together with it.",
        wrong={
            "running": "leaves at SIGTERM with the work in its hands",
            "together": "leaves its wave at SIGTERM, having nothing to do itself",
            "refuse": "takes in new work when it was told to leave",
            "anew": "gives itself all the time anew when it is told to leave once more",
        },
        blind_in={"anew in engine": "how far a real core has come when it is told so again is chance"},
        witness="a request was running when the core got SIGTERM and finished or was aborted by the deadline, or a "
                "new one was refused",
        envelope=Envelope(outside=(
            *_CALLERS,
            Where(PROCESS - {Fate.TERMINATE}, why="the engine goes down for another reason"),
            Where(DEATHS, nodes="worker.*", why="the engine goes down for another reason"),
            Where(MESSAGE | LOSSES, sites="*/outputs:*", why="what a request gets is lost on its way"),
        )),
    ),
    Guarantee(
        id="two-on-one-host", chapter=CHAPTER, source="vLLM", check=check_two_on_one_host,
        sentence="Two engines on a host never collide in ports, paths or segment names.",
        wrong="uses a fixed port, path or segment name",
        witness="an engine became ready beside a living neighbour that served",
        envelope=Envelope(),
    ),
)
