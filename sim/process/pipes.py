"""The pipe between a process of the twin and whoever started it: crossings at both ends, and what faults do to words.

What a word is stands in `engine.process.recipes`; the decisions are `faults.judge`'s and `faults.arrivals`'s, as in a
real process.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.topology import Channel, Edge, at
from faults.arrivals import Held, Inbox
from faults.journal import digest_of
from faults.plan import PROCESS_FATES, Fate
from faults.sites import birth_edge, edge_site
from faults.told import said_of
from sim.process.process import SimProcess
from sim.process.thread import WAIT, SimThread

_BIRTH = Channel.BIRTH
_said = said_of(_BIRTH)


def say(process: SimProcess, thread: SimThread, other: SimProcess, message: bytes) -> Any:
    """To a child, or to whoever started this one. -> None, or WAIT"""
    edge = birth_edge(process.sim.topology, process.node, other.node)
    if edge is not None:
        site = at(edge, "send")
        fault = process.note(site, thread.name, *_told(process, message), _BIRTH, [message])
        if fault is not None and thread.befall(fault, site, process.counts[site]):
            return thread.go_on_with(_say_on, process, other, message, edge)
    _say_on(process, other, message, edge)
    return None


def _say_on(process: SimProcess, other: SimProcess, message: bytes, edge: Edge | None) -> None:
    child = process if process.parent is other else other
    if child.kin.cut:
        return
    hop_s, wire = process.kernel.costs.hop_s, None if edge is None else at(edge, "wire")
    if wire is not None and process.may_cut(wire) and process.cut(wire, lambda: None) is not None:
        child.kin.cut = True
        process.kernel.after(0.0 if child is process else hop_s, child.deliver, partial(lose_parent, child))
        return
    process.kernel.after(hop_s, other.deliver, partial(_arrive, other, process, message))


def _arrive(process: SimProcess, sender: SimProcess, message: bytes) -> None:
    process.kin.heard[sender.node].append(message)
    process.look_again()


def lose_parent(process: SimProcess) -> None:
    """It reads that nobody is at the other end."""
    process.kin.parent_lost = True
    if process.kin.sleeps:
        process.exit_now()
    else:
        process.look_again()


def take(process: SimProcess, thread: SimThread, sender: SimProcess) -> Any:
    """-> what came of it next, None where nothing did, or WAIT: then the thread is stopped, and is to ask again"""
    kin, crossings, now = process.kin, process.crossings, process.kernel.now
    site = edge_site(sender.node.first_life, process.node.first_life, _BIRTH, "receive")
    inbox = kin.inboxes.get(sender.node)
    if inbox is None:
        inbox = kin.inboxes[sender.node] = Inbox(crossings.holds.is_over, partial(_let_go, process))
    while True:
        if inbox.holding:
            inbox.release(now)
        found = inbox.take()
        if found is not None:
            return found[1][0]
        if not kin.heard[sender.node]:
            return None
        message = kin.heard[sender.node].popleft()
        if birth_edge(process.sim.topology, sender.node, process.node) is None:
            return message
        fault, nth = process.note(site, thread.name, *_told(process, message), _BIRTH, [message]), process.counts[site]
        hits_process = fault is not None and fault.fate in PROCESS_FATES
        inbox.arrive(site, (None, [message]), None if hits_process else fault, nth, now)
        if fault is None:
            continue
        if hits_process:
            kin.sleeps = False  # it is at work, and looks for its parent no more
            if thread.befall(fault, site, nth):
                return WAIT  # the word is still there
        elif fault.fate is Fate.DELAY:
            crossings.holds.when_over(fault, partial(process.deliver, process.look_again))


def _told(process: SimProcess, message: bytes) -> tuple[str, dict[str, Any] | None]:
    """What a crossing has on record."""
    if not process.recording:
        return "", None
    return digest_of([message]), _said([message]) if _said is not None else None


def _let_go(process: SimProcess, held: Held) -> None:
    process.crossings.released(held.fault, "main", held.edge, held.nth)
