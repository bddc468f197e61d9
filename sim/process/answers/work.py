"""Answers to effects of a process at work: marks, signs of life, calls of the model and what they take."""

from __future__ import annotations

from typing import Any

from engine.effects import Beat, Call, Describe, MarkPoint
from sim.process.effects import Enter, RunLoop, Sleep
from sim.process.process import SimProcess
from sim.process.thread import Answers, SimThread
from sim.transport.collectives import Part


def _mark(process: SimProcess, thread: SimThread, effect: MarkPoint) -> Any:
    site = process.mark_sites[effect.mark]
    fault, nth = process.note(site, thread.name, "", effect.data)
    if fault is not None and thread.befall(fault, site, nth):
        return thread.go_on_with()
    return None


def _describe(process: SimProcess, thread: SimThread, effect: Describe) -> None:
    if process.recording:
        process.crossings.observe(effect.name, effect.describe() or {}, thread.name)


def _beat(process: SimProcess, thread: SimThread, effect: Beat) -> None:
    if process.heartbeat is not None:
        process.heartbeat(effect.count)


def _call(process: SimProcess, thread: SimThread, effect: Call) -> Any:
    handler = process.call_handler
    assert handler is not None, f"{process.label} has no call_handler"
    result = handler(thread, effect.method, effect.args, effect.kwargs)
    return thread.enter(result) if hasattr(result, "send") else result


def _run_loop(process: SimProcess, thread: SimThread, effect: RunLoop) -> Any:
    if not hasattr(effect.loop, "send"):
        raise TypeError(f"{effect.loop!r} is no loop")  # an error of the process, not of the twin
    return thread.enter(effect.loop)


def _sleep(process: SimProcess, thread: SimThread, effect: Sleep) -> Any:
    return thread.ask_again(_slept, (process, thread), process.kernel.time._now + effect.seconds)


def _slept(process: SimProcess, thread: SimThread) -> Any:
    """Whatever woke the thread, it sleeps on until it is time."""
    if process.kernel.time._now < thread.until:
        return thread.ask_again(_slept, (process, thread), thread.until)
    return None


def _enter(process: SimProcess, thread: SimThread, effect: Enter) -> Any:
    return _enter_next(process, thread, Part(thread, effect.group, effect.count, effect.operation))


def _enter_next(process: SimProcess, thread: SimThread, part: Part) -> Any:
    """Come out of one collective and take part in the next, while any are left."""
    if part.entered:  # somebody else woke the thread
        return thread.go_on_with(_enter_next, process, thread, part)
    if part.error is not None:
        raise part.error
    if not part.left:
        return None
    site = process.collective_site
    fault, nth = process.note(site, thread.name, "", part.data)
    if fault is not None and thread.befall(fault, site, nth):
        return thread.go_on_with(_enter_now, process, thread, part)
    return _enter_now(process, thread, part)


def _enter_now(process: SimProcess, thread: SimThread, part: Part) -> Any:
    part.left -= 1
    part.group.enter(process.name, part)
    return thread.go_on_with(_enter_next, process, thread, part)


ANSWERS: Answers = {
    MarkPoint: _mark,
    Describe: _describe,
    Beat: _beat,
    Call: _call,
    Sleep: _sleep,
    Enter: _enter,
    RunLoop: _run_loop,
}
