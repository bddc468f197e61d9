"""What a process that left on its own feet has passed on its way: each mark, and what it says there.

A mark that nobody passes is a place where no fault ever strikes, however often a plan names it. A fault at a mark may
keep its process from what comes behind it, so of two in turn the second one may be missing once.

    core     born | ready | (step, scheduled, its call, executed, published)* | (idle, books)* | draining | dying
    worker   born | loading, ready, calls | (call, executing)*
    subscriber   born
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from engine.topology import Mark, NodeKind, mark_site
from scenarios.history.history import History
from scenarios.history.names import kind_of, of_life
from scenarios.history.receipts import STALL_FATES

_STEP = "its call"
#: How the site of a mark ends. What begins otherwise is told.
_MARK = "/mark:"
_BORN, _LOADING, _READY, _IDLE, _DYING, _DRAINING, _EXECUTING = (
    mark_site("", mark) for mark in (Mark.BORN, Mark.LOADING, Mark.READY, Mark.IDLE, Mark.DYING, Mark.DRAINING,
                                     Mark.EXECUTING))
_STEPS = (mark_site("", Mark.STEP), mark_site("", Mark.SCHEDULED), _STEP, mark_site("", Mark.EXECUTED),
          mark_site("", Mark.PUBLISHED))


class _Way(NamedTuple):
    """Of one kind of process. `alike`: equally often; `in_turn`: each as often as the one before it, or once less;
    `behind`: whoever has come to the first has come to the second."""

    alike: tuple[tuple[str, str], ...]
    in_turn: tuple[tuple[str, str], ...] = ()
    behind: tuple[tuple[str, str], ...] = ()


_WAYS: dict[str, _Way] = {
    NodeKind.CORE: _Way((("born", _BORN), ("ready", _READY), ("dying", _DYING)),
                        (*pairwise(_STEPS), (_IDLE, "blocks"), (_DRAINING, "draining"))),
    NodeKind.WORKER: _Way((("born", _BORN),), (("rpc", _EXECUTING),), (("rpc", _READY), (_READY, _LOADING))),
    NodeKind.SUBSCRIBER: _Way((("born", _BORN),))}
#: Threads of a core that has served: it does not close their sockets before they have ended.
_THREADS = ("input", "output")


def passed_by(history: History) -> Iterator[tuple[str, str]]:
    """(node, what it has passed by in silence) of each process that left on its own feet."""
    if history.play.options.queue:
        return  # there are other programs at work
    for node in history.by_node("bye"):
        kind = kind_of(node)
        way = _WAYS.get(kind)
        if way is not None and (_count(history, node, "born") or _count(history, node, _BORN)):
            for text in _missed(history, node, way):
                yield node, text
            for thread in _still_running(history, node) if kind == NodeKind.CORE else ():
                yield node, f"its thread {thread!r} went on"
    yield from _gone_without_a_word(history)


def _missed(history: History, node: str, way: _Way) -> Iterator[str]:
    if history.records(node)[0].site != "born":
        yield "it was not born before all else"
    for one, other in way.alike:
        told, passed = _count(history, node, one), _count(history, node, other)
        if told != passed:
            yield f"it came {told} times to {one!r} and {passed} times to {other!r}"
    for one, other in way.in_turn:
        first, second = _count(history, node, one), _count(history, node, other)
        if second != first and second != first - 1:
            yield f"it came {first} times to {one!r} and {second} times to {other!r}, which is next"
    for one, other in way.behind:
        if _count(history, node, one) and not _count(history, node, other):
            yield f"it came to {one!r}, and not to {other!r} before it"


def _count(history: History, node: str, what: str) -> int:
    if what.startswith(_MARK):
        return len(history.crossings.get(node + what, ()))
    if what == _STEP:
        return sum(call.data["method"] == "execute_model" for call in history.by_node("rpc-call").get(node, ()))
    return len(history.by_node(what).get(node, ()))


def _still_running(history: History, core: str) -> list[str]:
    served = history.by_node("blocks").get(core) and history.by_node("dying").get(core)
    if not served or any(r.node == core and r.fate in STALL_FATES for r in history.faults.receipts):
        return []
    ended = {record.data["thread"] for record in history.by_node("thread-ended").get(core, ())}
    return [name for name in _THREADS if name not in ended]


def _gone_without_a_word(history: History) -> Iterator[tuple[str, str]]:
    for process in history.lab.processes:
        node = of_life(process.node, process.life)
        left = process.ended_at is not None and process.exitcode == 0
        if left and kind_of(node) in _WAYS and history.records(node) and \
                node not in history.by_node("bye") and node not in history.faults.ending:
            yield node, "it left with 0, and without a word"
