"""Promises about what processes hold: threads, descriptors, memory, and processor time when nobody asks for anything.

The lab looks from outside, before the first request and when all that was asked has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from engine.topology import MESSAGE_CHANNELS, Mark, Node, NodeKind
from scenarios.guarantees.base import STALLS, Envelope, Finding, Guarantee, Where
from scenarios.history.history import FOREVER, Fate, History, kind_of
from scenarios.history.names import base, of_life
from scenarios.history.play import Measured, Moment

CHAPTER = "Death and cleanliness"
#: Resident memory that a process on a CPU may gain by a workload of the lab.
MOST_GAINED_BYTES = 64 << 20
#: Of one core, at rest: waiting with a bound costs a few percent, looking without a pause all of it.
MOST_AT_REST = 0.1
#: The same in the twin, where only a thread's turns can be counted: a second.
MOST_TURNS = 2000.0
#: Processor time is told in hundredths of a second, the program's own and the kernel's for it: each may seem one more.
_ROUNDED_S = 0.02
#: A connection of a subscriber may come about after the first look: two sockets, a descriptor each.
_SOCKETS_OF_A_FOLLOWER = 2
#: Of a connection that the lab can cut, in the process that makes it: its own socket, and two of the lab's between.
_DESCRIPTORS_OF_A_WIRE = 3
#: Of pyzmq's collector of what was sent without a copy, which a process has from its first such send on, once: its
#: thread, and the two and the descriptors of the context of its own by which libzmq tells it.
_THREADS_OF_A_COLLECTOR, _DESCRIPTORS_OF_A_COLLECTOR = 3, 7


def check_nothing_grows(history: History) -> Finding:
    finding = Finding(history)
    served = {history.asked_of(o).engine for o in history.operations if o.ends}
    for before, after in _twice(history, Moment.READY, Moment.DONE, Moment.QUIET):
        node, held, holds = of_life(after.node, after.life), before.holds, after.holds
        if not _was_ready(history, node, before.at) or _leaves(history, node, after.at):
            continue
        late = _may_connect_late(history, after.node) + _of_wires(history, after.node)
        grown = []
        began = before.at if before.since is None else before.since
        threads = _threads_to_come(history, node, began)
        if (holds.threads > held.threads + threads or holds.descriptors > held.descriptors + late) and \
                _sends_without_copy(history, node):
            threads, late = threads + _THREADS_OF_A_COLLECTOR, late + _DESCRIPTORS_OF_A_COLLECTOR
        if holds.threads > held.threads + threads:
            grown.append(f"{held.threads} threads before and {holds.threads} after")
        if holds.descriptors > held.descriptors + late:
            grown.append(f"{held.descriptors} descriptors before and {holds.descriptors} after")
        gained = holds.memory_bytes - held.memory_bytes if holds.memory_bytes and held.memory_bytes else 0
        if gained > MOST_GAINED_BYTES:
            grown.append(f"{gained >> 20} MiB more than before")
        if grown:
            finding.broke("{} holds more than before its work: {}", node, "; ".join(grown), at=after.at, node=node)
        elif history.engine_of(node).engine in served:
            finding.witness("{} holds what it held before its work: {} threads, {} descriptors", node, holds.threads,
                            holds.descriptors, at=after.at, node=node)
    return finding


def check_rests_when_idle(history: History) -> Finding:
    finding = Finding(history)
    for before, after in _twice(history, Moment.DONE, Moment.RESTED):
        node, lasted_s = of_life(after.node, after.life), after.at - before.at
        if after.holds.processor_s is not None and before.holds.processor_s is not None:
            share = max(0.0, after.holds.processor_s - before.holds.processor_s - _ROUNDED_S) / lasted_s
            restless, what = share > MOST_AT_REST, f"{share:.0%} of a core"
        elif after.holds.turns is not None and before.holds.turns is not None:
            turns = (after.holds.turns - before.holds.turns) / lasted_s
            restless, what = turns > MOST_TURNS, f"{turns:.0f} turns a second"
        else:
            continue
        tell = finding.broke if restless else finding.witness
        tell("{} took {} while nobody asked for anything", node, what, at=after.at, node=node)
    return finding


def _twice(history: History, first: Moment, *later: Moment) -> Iterator[tuple[Measured, Measured]]:
    """(then, at the last of the later moments) of each process that was there at both."""
    found: dict[tuple[str, int], dict[Moment, Measured]] = defaultdict(dict)
    for one in history.lab.measured:
        found[one.node, one.life][one.moment] = one
    for mine in found.values():
        last = next((mine[moment] for moment in reversed(later) if moment in mine), None)
        if first in mine and last is not None:
            yield mine[first], last


def _was_ready(history: History, node: str, at: float) -> bool:
    """A process that is held up may not have come so far; for a subscriber of an engine that is not up nobody waits."""
    held = any(r.node == node and r.holds and r.at <= at < r.over_at for r in history.faults.receipts)
    if kind_of(node) != NodeKind.SUBSCRIBER or held:
        return not held
    core = history.engine_of(node).core
    return history.ends.at(core) > at and any(record.at <= at for record in history.by_node("ready").get(core, ()))


def _leaves(history: History, node: str, at: float) -> bool:
    """Whether its engine has lost somebody by then, or is breaking up: who leaves opens what it needs for that."""
    mine = history.engine_of(node)
    lost = [(death.node, death.at) for death in history.ends.deaths]
    said = [(name, record.at) for what in ("dying", "parent-gone") for name, record in history.observed(what)]
    return any(when <= at and history.is_of(name, mine) for name, when in lost + said)


def _threads_to_come(history: History, node: str, at: float) -> int:
    """A core says that it is ready, and then starts the thread that reads requests; its first idle look comes later."""
    if kind_of(node) != NodeKind.CORE:
        return 0
    idle = (record.at for name, record in history.marks(Mark.IDLE.value) if name == node)
    return int(next(idle, FOREVER) > at)


def _sends_without_copy(history: History, node: str) -> bool:
    return any("bytes" in send.data for flow in history.flows(*MESSAGE_CHANNELS) if flow.source == node
               for send in flow.sends)


def _may_connect_late(history: History, node: str) -> int:
    topology = history.play.topology
    if kind_of(node) == NodeKind.SUBSCRIBER:
        return _SOCKETS_OF_A_FOLLOWER
    heard = 0 if history.simulated else _of_outputs(history, node)
    if kind_of(node) == NodeKind.FRONTEND and history.is_apart(history.engine_of(node)):
        # Of the coordinator its core has told it.
        return heard + len(topology.peers(Node.parse(base(node)), NodeKind.COORDINATOR))
    if kind_of(node) == NodeKind.COORDINATOR and history.is_apart(history.engine_of(node)):
        return heard + len(topology.peers(Node.parse(base(node)), NodeKind.FRONTEND))
    followers = _SOCKETS_OF_A_FOLLOWER * len(topology.subscribers) if kind_of(node) == NodeKind.CORE else 0
    intruders = sum(history.meets(node, one) or (  # whoever takes a core's name cuts it off: it connects again
        one.identity is not None and kind_of(node) == NodeKind.CORE) for one in history.play.options.intruders)
    if not topology.launchers:
        return followers + intruders + heard
    others = NodeKind.CORE if history.is_attached(node) else NodeKind.FRONTEND  # a client and who serves it
    return followers + intruders + heard + len(topology.peers(Node.parse(node), others))


def _of_outputs(history: History, node: str) -> int:
    """Where a core tells its outputs, or its counts: its I/O thread connects, at whatever moment."""
    if kind_of(node) in (NodeKind.FRONTEND, NodeKind.COORDINATOR):
        return len(history.engines_of(node))
    if kind_of(node) != NodeKind.CORE:
        return 0
    mine, peers = Node.parse(base(node)), history.play.topology.peers
    return len(peers(mine, NodeKind.FRONTEND)) + len(peers(mine, NodeKind.COORDINATOR))


def _of_wires(history: History, node: str) -> int:
    """What a plan cuts goes through a wire of the lab's, and may be down at the first look."""
    cuts = [fault.site for fault in history.play.plan.faults if fault.fate is Fate.CUT]
    ends = [bare for site in cuts for bare in site.rpartition("/")[0].split("->")]
    return _DESCRIPTORS_OF_A_WIRE * ends.count(node)


GUARANTEES = (
    Guarantee(
        id="nothing-grows", chapter=CHAPTER, source="this project", check=check_nothing_grows,
        sentence="When all that was asked has ended, no process holds more threads or descriptors than before the "
                 "first request, nor on a CPU 64 MiB of memory more.",
        wrong="starts a thread, or opens a connection, for a request, and keeps it",
        witness="the lab looked at a process before the first request and when all had ended, and found no more",
        envelope=Envelope(),
    ),
    Guarantee(
        id="rests-when-idle", chapter=CHAPTER, source="vLLM V1 single-host communication",
        check=check_rests_when_idle,
        sentence="While nobody asks for anything, a process takes less than a tenth of a processor core.",
        wrong="looks at its ring and its queues again and again without a pause",
        witness="the lab looked at a process twice while nothing was asked of it",
        envelope=Envelope(outside=(Where(STALLS, why="what is stopped takes no time at all"),)),
    ),
)
