"""Answers to effects on rings and their doorbells."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from engine.effects import Attempt, RingBell, RingCrossing, WaitBell
from faults.journal import digest_of
from faults.plan import Fate
from sim.process.process import SimProcess
from sim.process.thread import Answers, SimThread, ThreadEndedError
from sim.transport.ring_memory import SteppedMemory, StoppedInOperation


def _attempt(process: SimProcess, thread: SimThread, effect: Attempt) -> Any:
    ports = process.ports
    thread.looked = ports.doorbells.rings
    if ports.stepped:
        memory = ports.stepped_memory(effect.ring)
        if memory is not None:
            memory.begin()
            return _operate(process, thread, effect, memory)
    return effect.operation()


def _operate(process: SimProcess, thread: SimThread, effect: Attempt, memory: SteppedMemory) -> Any:
    ports = process.ports
    ports.current_thread = thread
    try:
        return effect.operation()
    except StoppedInOperation as stopped:
        if not stopped.resumes:
            raise ThreadEndedError from None
        return thread.go_on_with(_operate_again, process, thread, effect, memory)
    finally:
        ports.current_thread = None


def _operate_again(process: SimProcess, thread: SimThread, effect: Attempt, memory: SteppedMemory) -> Any:
    memory.repeat()
    return _operate(process, thread, effect, memory)


def _ring_crossing(process: SimProcess, thread: SimThread, effect: RingCrossing) -> Any:
    parts, digest, met = effect.parts, "", None
    channel, sites = process.ports.ring_sites[effect.ring, effect.operation]
    alone = len(parts) == 1
    data = {"position": effect.position, "bytes": len(parts[0]) if alone else sum(map(len, parts)),
            "overflow": effect.overflow}
    if process.recording:
        digest = _known_digest(parts[0]) if alone and type(parts[0]) is bytes else digest_of(parts)
    for site in sites:
        fault = process.note(site, thread.name, digest, data, channel, parts)
        if fault is not None:
            met = [*(met or ()), (fault, site, process.counts[site])]
    return thread.befall_all(met) if met else None


@lru_cache(maxsize=1024)
def _known_digest(message: bytes) -> str:
    """Every reader of a ring asks for the digest of what its writer has asked for a moment ago, and plays of one
    workload, as in a sweep, say mostly the same.
    """
    return digest_of((message,))


def _ring_bell(process: SimProcess, thread: SimThread, effect: RingBell) -> Any:
    end = process.ports.bells[effect.bell]
    if end.site is not None:
        fault = process.note(end.site, thread.name)
        if fault is not None:
            if fault.fate is Fate.DROP:
                return None
            if thread.befall(fault, end.site, process.counts[end.site]):
                return thread.go_on_with(end.bell.ring)
    end.bell.ring()
    return None


def _wait_bell(process: SimProcess, thread: SimThread, effect: WaitBell) -> Any:
    """Rings since the thread last looked at a ring count, so none is lost in between."""
    if process.cancelled is not None:
        raise process.cancellation()
    bell = process.ports.bells[effect.bell].bell
    if bell.rung_at > thread.looked:
        thread.looked = bell.rung_at  # who looks at no ring, but at a socket, is not told of the same ring again
        return True
    now = process.kernel.time._now
    if thread.first:
        until = now + process.recheck_s
        if effect.deadline is not None and effect.deadline < until:
            until = effect.deadline if effect.deadline > now else now + process.kernel.costs.look_s
    else:
        until = thread.until
        if until <= now:
            if thread in bell.sleepers:
                bell.sleepers.remove(thread)
            return False
    if thread not in bell.sleepers:
        bell.sleepers.append(thread)
    return thread.ask_again(_wait_bell, effect, until)


ANSWERS: Answers = {
    Attempt: _attempt,
    RingCrossing: _ring_crossing,
    RingBell: _ring_bell,
    WaitBell: _wait_bell,
}
