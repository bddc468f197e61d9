"""The promise about what a process and whoever started it tell each other by the pipe that it was born with."""

from __future__ import annotations

import re

from engine.topology import Channel, Edge, Node, NodeKind
from scenarios.guarantees.base import DAMAGE, LOSSES, MESSAGE, PROCESS, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.death import CHAPTER
from scenarios.history.history import Fate, History, Receipt
from scenarios.history.names import base
from scenarios.history.operations import Startup

#: A start serves without it: it is for the day on which a core cannot end its workers itself.
_SPARE = "workers"
#: Words by which a process says why it goes.
_REASONS = ("failed", "leaving")
_GONE = LOSSES | DAMAGE | {Fate.REORDER}  # the next word comes when all is over, if any does
_NAMES = re.compile(r"(?:core|worker|coordinator)\.[0-9.]*[0-9]")
#: What another core says that waits for all: it is told by their coordinator only that some are missing.
_NOT_ALL = "not all cores have subscribed"
#: A word that is held up for less of the time in which it is waited for is in time.
_MOST = 0.5


def check_birth_told(history: History) -> Finding:
    finding = Finding(history)
    if not history.faults.receipts:
        return finding
    hits = history.faults.hit(*(MESSAGE | LOSSES), channel=Channel.BIRTH.value)
    for hit in hits:
        if hit.fate in DAMAGE:
            _judge_unread(finding, hit)
        if hit.fate in _GONE and _word(history, hit) in _REASONS:
            _judge_reason(finding, hit)
    for startup in history.startups:
        mine = [hit for hit in hits if startup.end is not None and startup.began.at <= hit.at <= startup.end.at
                and not set(history.engines_of(hit.node)).isdisjoint(history.engines_of(startup.node))]
        if startup.ready:
            _judge_spared(finding, startup, [hit for hit in hits if hit.at > startup.ready_at])
        if len(history.faults.receipts) == 1 and mine and _has_started(history, startup.node, mine[0]):
            _judge_start(finding, startup, mine[0])
    return finding


def child_of(site: str) -> Node:
    """Whose pipe it is."""
    edge = Edge.parse(site.rpartition(":")[0])
    ends = (edge.source, edge.target)
    return next((end for end in ends if end.kind is NodeKind.WORKER), None) or next(
        end for end in ends if end.kind not in (NodeKind.FRONTEND, NodeKind.LAUNCHER))


def _has_started(history: History, node: str, hit: Receipt) -> bool:
    """Whether it is who has to say whose word it was: of several that start engines of one group one."""
    child = str(child_of(hit.site))
    return not history.is_apart(history.engine_of(child)) or history.owner_of(child) == node


def _word(history: History, hit: Receipt) -> str | None:
    """Which word was hit; of a pipe that was cut the one that was not written."""
    site = base(hit.site).replace(":wire", ":send")
    return next((record.data.get("word") for record in history.records(hit.told_by)
                 if record.site == site and record.nth == hit.nth), None)


def _judge_start(finding: Finding, startup: Startup, hit: Receipt) -> None:
    history, child, end = finding.history, str(child_of(hit.site)), startup.end
    assert end is not None
    patience_s = history.bounds.handshake_s * _MOST
    late = hit.fate == Fate.DELAY and hit.over_at > end.at and end.at - startup.began.at >= patience_s
    needed = hit.fate == Fate.CUT or _word(history, hit) != _SPARE
    if startup.ready:
        if needed and (late or hit.fate in _GONE):
            finding.broke("{} met {} at birth, and the start went on without it", child, hit.fate, at=end.at,
                          node=startup.node)
        else:
            finding.witness("a word at the birth of {} met {}, and the start served", child, hit.fate, at=end.at,
                            node=startup.node)
    elif needed and (late or hit.fate in _GONE):
        by_hub = history.is_apart(history.engine_of(child)) and _NOT_ALL in end.data["reason"]
        if child not in end.data["reason"] and not by_hub:
            finding.broke("a word at the birth of {} met {}, and {} told {!r}, which does not say whose it is", child,
                          hit.fate, startup.node, end.data["reason"], at=end.at, node=startup.node)
        else:
            finding.witness("a word at the birth of {} met {}, and the start ended by {!r}", child, hit.fate,
                            end.data["reason"], at=end.at, node=startup.node)
    elif hit.fate != Fate.DELAY or min(hit.over_at, end.at) - hit.at < patience_s:
        finding.broke("a word at the birth of {} met {}, nothing is missing, and the start failed: {}", child, hit.fate,
                      end.data["reason"], at=end.at, node=startup.node)


def _judge_spared(finding: Finding, startup: Startup, hits: list[Receipt]) -> None:
    """Who the workers of a core are is read when it is gone, or about to be."""
    history = finding.history
    for hit in hits:
        if hit.node == startup.node and _word(history, hit) == _SPARE:
            finding.witness("{} did not learn in order who the workers of {} are ({}), and had no need to",
                            hit.node, child_of(hit.site), hit.fate, at=hit.at, node=hit.node)


def _judge_unread(finding: Finding, hit: Receipt) -> None:
    """Whoever should have read it says that it cannot."""
    told = [record for record in finding.history.by_node("bad-frame").get(hit.node, ())
            if record.at >= hit.at and record.data["edge"] == Channel.BIRTH.value]
    if not told:
        finding.broke("{} was told something damaged at {}, and did not say so", hit.node, hit.site, at=hit.at,
                      node=hit.node)
    else:
        finding.witness("{} said that what came at {} cannot be read", hit.node, hit.site, at=told[0].at, node=hit.node)


def _judge_reason(finding: Finding, hit: Receipt) -> None:
    """Its parent cannot say why it goes, and says who does, or who else was heard, or hit by a fault."""
    history, child = finding.history, str(child_of(hit.site))
    others = {base(name) for other in history.faults.receipts if other.id != hit.id
              for name in (other.node, *_NAMES.findall(other.site))}
    told = [(node, record) for name in ("start-failed", "engine-dead") for node, record in history.observed(name)
            if record.at >= hit.at and record.data["reason"] and _has_started(history, node, hit)]
    for node, record in told[:1]:
        # A client that attaches to engines hears no word of theirs: it says whom of them it found gone.
        theirs = {base(engine.core) for engine in history.engines_of(node)} if history.is_attached(node) else set()
        known = {child, *others, *_heard(history, hit, record.at)}
        if not any(name in record.data["reason"] for name in known | theirs):
            finding.broke("{} went without a reason that was heard, and what was told is {!r}", child,
                          record.data["reason"], at=record.at, node=hit.node)
        else:
            finding.witness("{} went without a reason that was heard, and what was told is {!r}", child,
                            record.data["reason"], at=record.at, node=hit.node)


def _heard(history: History, hit: Receipt, until: float) -> set[str]:
    """-> whose reasons its parent had read by then."""
    return {str(child_of(record.site)) for record in history.records(hit.node)
            if record.at <= until and record.site and Channel.BIRTH.value in record.site and record.site != hit.site
            and record.site.endswith(":receive") and record.data.get("word") in _REASONS}


GUARANTEES = (
    Guarantee(
        id="birth-told", chapter=CHAPTER, source="vLLM V1 executor", check=check_birth_told,
        sentence="What a process and whoever started it tell each other by the pipe that it was born with counts once: "
                 "late within the bound or doubled it does no harm; lost, cut off or too late it ends the start in an "
                 "error that says whose it is; damaged it is known to be, whatever byte was hit. Where a last word is "
                 "lost, its parent says who is gone.",
        wrong={
            "whose": "gives up a start without a word of who has not reported",
            "damaged": "passes over a word that it cannot read",
            "late": "does not wait for a word until its bound",
        },
        witness="a word at birth met its fate, and a start went on in spite of it, or ended and named whose word it is",
        envelope=Envelope(outside=(
            Where(PROCESS, nodes="frontend.*", why="the caller itself is hit"),
            Where(PROCESS, nodes="launcher.*", why="who launched the engine is hit"),
        )),
    ),
)
