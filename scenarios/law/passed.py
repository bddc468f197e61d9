"""What a process that left on its own feet has passed on its way: each mark, and what it says there.

A mark that nobody passes is a place where no fault ever strikes, however often a plan names it. A fault at a mark may
keep its process from what comes behind it, so of two in turn the second one may be missing once.

    core     born | ready | (step, scheduled, its call, executed, published)* | (submitted, the sample)* |
             (idle, books)* | draining | dying
    worker   born | loading, ready, calls | (call, executing)* | (copying, copied)*
    subscriber   born
    coordinator  born | dying
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from signal import SIGKILL
from typing import NamedTuple

from engine.topology import Channel, Mark, NodeKind, mark_site
from scenarios.history.history import Fate, History, Kind, Receipt, Record
from scenarios.history.names import base, kind_of, of_life
from scenarios.history.receipts import DEATH_FATES, STALL_FATES
from scenarios.law.failed_step import misdescribed
from scenarios.law.unread import unread

_STEP, _SAMPLE = "its call", "the sample"
#: A step is a call of each.
_METHODS = {_STEP: "execute_model", _SAMPLE: "sample_tokens"}
#: What a process does itself; the other records are the plan's.
_DONE = (Kind.CROSSING, Kind.OBSERVATION)
#: How the sites of marks end. What begins otherwise is told.
_BORN, _LOADING, _READY, _IDLE, _DYING, _DRAINING, _EXECUTING, _FULL, _COPYING, _COPIED = (
    mark_site("", mark) for mark in (Mark.BORN, Mark.LOADING, Mark.READY, Mark.IDLE, Mark.DYING, Mark.DRAINING,
                                     Mark.EXECUTING, Mark.RING_FULL, Mark.COPYING, Mark.COPIED))
_STEPS = (mark_site("", Mark.STEP), mark_site("", Mark.SCHEDULED), _STEP, mark_site("", Mark.EXECUTED),
          mark_site("", Mark.PUBLISHED))
#: Where several are in flight: there may be nothing to schedule, and the last ones may never be used.
_SEVERAL_STEPS = _STEPS[1:3], _STEPS[3:]
_SAMPLES = (mark_site("", Mark.SUBMITTED), _SAMPLE)


class _Way(NamedTuple):
    """Of one kind of process. `alike`: equally often; `in_turn`: each as often as the one before it, or once less;
    `at_once`: what is said at a mark, unless a fault strikes there; `behind`: whoever has come to the first has come
    to the second."""

    alike: tuple[tuple[str, str], ...]
    in_turn: tuple[tuple[str, ...], ...] = ()
    at_once: tuple[tuple[str, str], ...] = ()
    behind: tuple[tuple[str, str], ...] = ()


_WAYS: dict[str, _Way] = {
    NodeKind.CORE: _Way((("born", _BORN), ("ready", _READY), ("dying", _DYING)),
                        (_STEPS, _SAMPLES), ((_IDLE, "blocks"), (_DRAINING, "draining"))),
    NodeKind.WORKER: _Way((("born", _BORN),), ((_COPYING, _COPIED),),
                          behind=((_EXECUTING, _READY), (_READY, _LOADING))),
    NodeKind.SUBSCRIBER: _Way((("born", _BORN),)),
    NodeKind.COORDINATOR: _Way((("born", _BORN), ("dying", _DYING)))}
#: Threads of a core that has served: it does not close their sockets before they have ended.
_THREADS = ("input", "output")
#: Where a process is told what it is.
_TOLD = f"/{Channel.BIRTH.value}:receive"
#: Who is held up for so much of the time in which it is waited for may be late.
_MOST = 0.5
_ORPHANED = ("the frontend is gone", "the launcher is gone")
#: How a core says that it leaves for a step.
_STEP_FAILED = re.compile(r"^(worker\.[\d.]+ failed in|RpcTimeoutError: no answer to) (execute_model|sample_tokens)")
#: What the thread says that watches over workers.
_WORKER_DIED = re.compile(r"(?:WorkerDead|PeerDead)Error: worker\.\S+ \(pid \d+\)(?:, worker\S+ \(pid \d+\))* died$")
#: Into which ring a process writes.
_WRITES: dict[str, str] = {NodeKind.CORE: "rpc", NodeKind.WORKER: "response"}


def passed_by(history: History) -> Iterator[tuple[str, str]]:
    """(node, what it has passed by in silence) of each process that left on its own feet."""
    if history.simulated:
        yield from _unmarked(history)
    if history.play.options.without_engine:
        return  # there are other programs at work
    for node in history.by_node("bye"):
        kind = kind_of(node)
        way = _WAYS.get(kind)
        if way is not None and (_first(history, node) == "born" or _count(history, node, _BORN)):
            for text in _missed(history, node, way):
                yield node, text
            if kind == NodeKind.CORE:
                for thread in _still_running(history, node):
                    yield node, f"its thread {thread!r} went on"
                for worker in _left_behind(history, node):
                    yield node, f"{worker} left after it"
    yield from _never_out(history)
    yield from _driven_out(history)
    yield from _deaf(history)
    yield from _orphaned(history)
    yield from _undumped(history)
    yield from misdescribed(history)
    yield from _bereft(history)
    yield from _cut_off(history)
    yield from unread(history)
    if history.simulated:
        yield from _lingering(history)
        yield from _doubled(history)
    yield from _gone_without_a_word(history)


def _first(history: History, node: str) -> str | None:
    """What it did first, once it knew what it is, and whatever befell it before that."""
    return next((record.site for record in history.records(node)
                 if record.kind in _DONE and not record.site.endswith(_TOLD)), None)


def _missed(history: History, node: str, way: _Way) -> Iterator[str]:
    if _first(history, node) != "born":
        yield "it was not born before all else"
    for one, other in way.alike:
        told, passed = _count(history, node, one), _count(history, node, other)
        if told != passed and not (told == passed + 1 and _was_told_to_go(history, node)):
            yield f"it came {told} times to {one!r} and {passed} times to {other!r}"
    turns = way.in_turn
    if _STEPS in turns and history.play.config.batch_queue_size > 1:
        turns = *_SEVERAL_STEPS, *turns[1:]
    for turn in turns:
        before = _count(history, node, turn[0])
        for place in turn[1:]:
            count = _count(history, node, place)
            if count != before and count != before - 1:
                yield f"it came {count} times to {place!r}, and {before} times to what stands before it"
            before = count
    for mark, said in way.at_once:
        count, times = _count(history, node, said), _count(history, node, mark)
        if not times - _struck(history, node, mark) <= count <= times:
            yield f"it came {count} times to {said!r}, and {times} times to the mark before it"
    for one, other in way.behind:
        if _count(history, node, one) and not _count(history, node, other):
            yield f"it came to {one!r}, and not to {other!r} before it"


def _was_told_to_go(history: History, node: str) -> bool:
    """Whether it left its start by a signal, which may come between any two of its steps."""
    return any("SIGTERM while starting" in record.data["reason"] for record in history.by_node("bye").get(node, ()))


def _count(history: History, node: str, what: str) -> int:
    if what[0] == "/":  # a mark's site
        return len(history.crossings.get(node + what, ()))
    if what in _METHODS:
        return sum(call.data["method"] == _METHODS[what] for call in history.by_node("rpc-call").get(node, ()))
    return len(history.by_node(what).get(node, ()))


def _struck(history: History, node: str, mark: str) -> int:
    return sum("fault" in crossing.data for crossing in history.crossings.get(node + mark, ()))


def _still_running(history: History, core: str) -> list[str]:
    served = history.by_node("blocks").get(core) and history.by_node("dying").get(core)
    if not served or any(r.node == core and r.fate in STALL_FATES and r.lasted_s >= history.bounds.linger_s * _MOST
                         for r in history.faults.receipts):
        return []
    ended = {record.data["thread"] for record in history.by_node("thread-ended").get(core, ())}
    return [name for name in _THREADS if name not in ended]


def _orphaned(history: History) -> Iterator[tuple[str, str]]:
    for core, records in history.by_node("dying").items():
        if str(records[0].data["reason"]).endswith(_ORPHANED) and core not in history.by_node("parent-gone"):
            yield core, "it did not say that its client was gone"


def _undumped(history: History) -> Iterator[tuple[str, str]]:
    """A core that leaves for a step that failed puts on record which: one that it has scheduled, and not used."""
    for core, records in history.by_node("dying").items():
        if not _STEP_FAILED.search(str(records[0].data["reason"])):
            continue
        told = history.by_node("step-failed").get(core, ())
        scheduled, used = (_count(history, core, mark_site("", mark)) for mark in (Mark.SCHEDULED, Mark.EXECUTED))
        if scheduled > used and not any(
                record.data and record.data["step"] in range(used, scheduled) for record in told):
            yield core, "it did not say which step had failed"


def _bereft(history: History) -> Iterator[tuple[str, str]]:
    for core, records in history.by_node("dying").items():
        if _WORKER_DIED.match(str(records[0].data["reason"])) and core not in history.by_node("worker-gone"):
            yield core, "it did not say that its worker was gone"


def _cut_off(history: History) -> Iterator[tuple[str, str]]:
    """A core that has said that it leaves is not ended by the client that has read that, unless that is closed."""
    read = {engine: heard for engine in history.engines if (heard := history.heard_of("dead-notice", engine))}
    for process in history.lab.processes if read else ():
        core = of_life(process.node, process.life)
        engine = history.engine_of(core)
        if process.exitcode == -SIGKILL and engine in read and core == engine.core and core not in history.by_node(
                "bye") and process.ended_at is not None and process.ended_at < history.closing_at(engine) and not any(
                r.fate == Fate.KILL or r.fate in STALL_FATES for r in history.faults.receipts):
            yield core, "it was ended although it had said that it leaves"


def _unmarked(history: History) -> Iterator[tuple[str, str]]:
    """A writer that waits for room has passed the mark of that. One of vLLM's has none."""
    if history.play.options.queue == "strangers":
        return
    for node, waits in history.by_node("queue-wait").items():
        ring = _WRITES.get(kind_of(node), "")
        slept = sum(wait.data["ring"].startswith(ring) for wait in waits) if ring else 0
        if slept > _count(history, node, _FULL):
            yield node, f"it waited {slept} times for room, and came {_count(history, node, _FULL)} times to its mark"


def _lingering(history: History) -> Iterator[tuple[str, str]]:
    """A core without anything to run leaves when it is asked to. On a real machine it takes its turn."""
    for core, records in history.by_node("draining").items():
        dying, said = history.by_node("dying").get(core), records[0].data
        if history.in_step(history.engine_of(core)) and history.faults.receipts:
            continue  # the others may need it
        if dying and not (said.get("running", 1) or said.get("waiting", 1)) and not history.faults.stalls and \
                dying[0].at - records[0].at > history.bounds.detection_s:
            yield core, "it had nothing to run and did not leave when it was asked to"


def _doubled(history: History) -> Iterator[tuple[str, str]]:
    """A core that gets a request twice says of the second one that its id is in use, if it lives to be idle again.

    In the twin a client sends a request right behind its word that it is accepted.
    """
    if {receipt.fate for receipt in history.faults.receipts} != {Fate.DUPLICATE}:
        return
    for flow in history.flows(Channel.REQUESTS):
        twice = [send for send, receive in flow.pairs if "fault" in receive.data]
        accepted = [request for send in twice if (request := _sent_by(history, flow.source, send)) is not None]
        books = history.by_node("blocks").get(flow.target)
        for request in accepted if books else ():
            said = [record for record in history.by_node("request").get(flow.target, ())
                    if record.data["request"] == request]
            actions = [record.data["action"] for record in said]
            if actions.count("add") == 1 and "duplicate" not in actions and books[-1].number > said[0].number:
                yield flow.target, f"it got {request!r} twice, and did not say so"


def _sent_by(history: History, client: str, send: Record) -> str | None:
    """Which request a client sent so, in whichever of its lives; None where it was none."""
    found = [(o.accepted.at, o.internal) for o in history.operations if base(o.node) == client and
             o.accepted is not None and o.accepted.number + 1 == send.number and o.accepted.at <= send.at]
    return max(found)[1] if found else None


def _left_behind(history: History, core: str) -> list[str]:
    """Workers that were there when their core said that it is out."""
    out, byes, engine = history.by_node("bye")[core][0], history.by_node("bye"), history.engine_of(core)
    workers = {engine.worker(rank) for rank in range(history.ranks_of(core))}
    late = {worker for worker in workers if worker in byes and byes[worker][0].at > out.at}
    until = out.at + history.slack_s  # a lab takes its time to look
    return sorted(late | {name for one in history.lab.processes if (name := of_life(one.node, one.life)) in workers
                          and (one.ended_at is None or one.ended_at > until)})


def _deaf(history: History) -> Iterator[tuple[str, str]]:
    """A core that has begun leaves in order when it is asked to, as early as that may be."""
    for receipt in history.faults.receipts if len(history.faults.receipts) == 1 else ():
        core = receipt.node
        asks = receipt.fate == Fate.TERMINATE and kind_of(core) == NodeKind.CORE and not receipt.site.endswith(_BORN)
        if asks and receipt.site.startswith(base(core)) and core in history.ends and \
                core not in history.by_node("dying"):
            yield core, "it was asked to and did not hear"


def _never_out(history: History) -> Iterator[tuple[str, str]]:
    """A core that leaves because its client is gone, of whose engine nothing else was struck, says when it is out."""
    for node, gone in history.by_node("parent-gone").items():
        dying, served = history.by_node("dying").get(node), history.by_node("blocks").get(node)
        before = dying is not None and dying[0].number < gone[0].number
        if served and not before and node in history.ends and node not in history.by_node("bye") and all(
                r.node == history.owner(history.engine_of(node)) and r.fate not in STALL_FATES
                for r in history.faults.receipts):
            yield node, "it never said that it was out"


def _driven_out(history: History) -> Iterator[tuple[str, str]]:
    """A core that leaves when only workers were struck comes to its end by itself, however they stand: it gives them
    half of the time that it is given.
    """
    if any(kind_of(r.node) != NodeKind.WORKER for r in history.faults.receipts) or history.starved(
            history.bounds.detection_s):
        return
    bounds = history.bounds
    by_lab = {of_life(one.node, one.life) for one in history.lab.processes if one.killed_by_lab}
    for core, records in history.by_node("dying").items():
        if core not in history.by_node("bye") and core in history.ends and core not in by_lab and \
                history.ends.at(core) - records[0].at > bounds.terminate_s / 2 + bounds.detection_s:
            yield core, "it was not out before it was ended"


def _gone_without_a_word(history: History) -> Iterator[tuple[str, str]]:
    """Exit codes are known of the twin's processes."""
    for process in history.lab.processes:
        kind, node = kind_of(process.node), of_life(process.node, process.life)
        if process.ended_at is None or process.exitcode not in (0, 1) or kind not in _WAYS or \
                not _count(history, node, "born"):
            continue
        struck = next((one for one in reversed(history.faults.receipts)  # it may have got over another one before
                       if one.node == node and one.fate in DEATH_FATES), None)
        if node not in history.by_node("bye") and (struck is None and process.exitcode == 0 or (
                kind == NodeKind.WORKER and (struck is None or _can_speak(history, node, struck)))):
            yield node, f"it left with {process.exitcode}, and without a word"
        if kind == NodeKind.WORKER and process.exitcode == 0 and node not in history.by_node("parent-gone") and (
                struck is None or _can_speak(history, node, struck)):
            yield node, "it left with 0, and its core was there"


def _can_speak(history: History, worker: str, struck: Receipt) -> bool:
    """An exception that a worker meets when it is more than born."""
    return struck.fate == Fate.RAISE and _count(history, worker, _LOADING) > 0
