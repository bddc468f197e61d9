"""Promises about the threads that a process cannot serve without."""

from __future__ import annotations

from engine.topology import NodeKind
from scenarios.guarantees.base import MEMORY, Envelope, Finding, Guarantee
from scenarios.guarantees.chapters.closing import word_is_lost
from scenarios.guarantees.chapters.serving.flight import CHAPTER, WHO_TELLS_IS_HIT
from scenarios.guarantees.chapters.serving.stages import to_be_told, told_of
from scenarios.history.history import Fate, History
from scenarios.history.names import base, kind_of
from scenarios.history.play import Play
from scenarios.history.receipts import Receipt

SOURCE = "vLLM V1 worker"
#: By kind of process.
NEEDED: dict[str, tuple[str, ...]] = {NodeKind.WORKER: ("copy",)}
#: What befalls the thread alone.
_OF_A_THREAD = frozenset({Fate.RAISE, Fate.EXIT, Fate.HANG})


def check_thread_death_told(history: History) -> Finding:
    finding = Finding(history)
    struck = [receipt for receipt in history.faults.receipts if receipt.may_end_the_engine(history.bounds.step_s)]
    if len(struck) == 1 and struck[0].fate in _OF_A_THREAD and _thread_of(history, struck[0]) in NEEDED.get(
            kind_of(struck[0].node), ()):
        _judge_told(finding, struck[0])
    return finding


def _thread_of(history: History, receipt: Receipt) -> str:
    """Which thread of its process crossed that site."""
    crossed = history.crossings.get(receipt.site, ())
    return crossed[receipt.nth - 1].thread if len(crossed) >= receipt.nth else ""


def _judge_told(finding: Finding, struck: Receipt) -> None:
    history, node = finding.history, struck.node
    engine, thread = history.engine_of(node), _thread_of(history, struck)
    since, bound = to_be_told(history, struck)
    if since is None:
        return
    told = told_of(history, struck)
    if told is None:
        if history.closing_at(engine) > since + bound:
            finding.hangs("the {} of the {} thread of {}", struck.fate, thread, node, bound=bound, since=since,
                          node=node)
        return
    if not finding.took("telling of the {} of the {} thread of {}", struck.fate, thread, node, bound=bound,
                        measured=told.at - since, at=told.at, node=node):
        return
    if base(node) not in str(told.data["reason"]) and not word_is_lost(history):
        finding.broke("callers were told {!r}, and the {} thread of {} is what met {}", told.data["reason"], thread,
                      node, struck.fate, at=told.at, node=node)
        return
    finding.witness("the {} thread of {} met {}, and callers were told after {:.4f} s", thread, node, struck.fate,
                    told.at - struck.at, at=told.at, node=node)


def _has_them(play: Play) -> bool:
    return play.config.scheduler.async_scheduling and any(engine.workers for engine in play.topology.engines)


GUARANTEES = (
    Guarantee(
        id="thread-death-told", chapter=CHAPTER, source=SOURCE, check=check_thread_death_told, applies=_has_them,
        sentence="The end or standstill of a thread that gives a worker's answers is told as that of the worker is: "
                 "within the same bound, by its name.",
        wrong={"ends": "lives on when the thread that answers has ended",
               "hangs": "waits for ever for answers of a thread that hangs"},
        witness="a thread that a worker answers by met a fault, and callers were told",
        envelope=Envelope(outside=(MEMORY, *WHO_TELLS_IS_HIT)),
    ),
)
