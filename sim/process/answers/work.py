"""Answers to effects of a process at work: marks, signs of life, calls of the model and what they take."""

from __future__ import annotations

from typing import Any

from engine.effects import Beat, Call, Describe, MarkPoint, Observe
from engine.topology import Mark
from sim.process.effects import Enter, Hand, RunLoop, Sleep, TakeOver
from sim.process.process import SimProcess
from sim.process.thread import NEVER, Answers, SimThread
from sim.transport.collectives import Part
from sim.transport.pipes import Handed


def _mark(process: SimProcess, thread: SimThread, effect: MarkPoint) -> Any:
    site = process.mark_sites[effect.mark]
    fault = process.note(site, thread.name, "", effect.data)
    if fault is not None and thread.befall(fault, site, process.counts[site]):
        return thread.go_on_with()
    if effect.mark is Mark.SCHEDULED and process.kernel.costs.core_step_s:
        return thread.ask_again(_slept, effect, process.kernel.time._now + process.kernel.costs.core_step_s)
    return None


def _observe(process: SimProcess, thread: SimThread, effect: Observe) -> None:
    process.observe(effect.name, effect.data, thread.name)


def _describe(process: SimProcess, thread: SimThread, effect: Describe) -> None:
    if process.recording:
        process.observe(effect.name, effect.describe() or {}, thread.name)


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
    return thread.ask_again(_slept, effect, process.kernel.time._now + effect.seconds)


def _slept(process: SimProcess, thread: SimThread, effect: MarkPoint | Sleep) -> Any:
    """Whatever woke the thread, it sleeps on until it is time."""
    if process.kernel.time._now < thread.until:
        return thread.ask_again(_slept, effect, thread.until)
    return None


def _enter(process: SimProcess, thread: SimThread, effect: Enter) -> Any:
    data: dict[str, Any] = {"operation": effect.operation}
    if effect.at is not None:
        data["wave"], data["step"] = effect.at
    return _enter_next(process, thread, Part(thread, effect.group, effect.count, data, effect.at))


def _enter_next(process: SimProcess, thread: SimThread, part: Part) -> Any:
    """Come out of one collective and take part in the next, while any are left."""
    if part.entered:  # somebody else woke the thread
        return thread.ask_again(_enter_next, part, NEVER)
    if part.error is not None:
        raise part.error
    if not part.left:
        return None
    site = process.collective_site
    fault = process.note(site, thread.name, "", part.data)
    if fault is not None and thread.befall(fault, site, process.counts[site]):
        return thread.ask_again(_enter_now, part, NEVER)
    part.left -= 1  # as `_enter_now` does it
    part.group.enter(process.name, part)
    return thread.ask_again(_enter_next, part, NEVER)


def _enter_now(process: SimProcess, thread: SimThread, part: Part) -> Any:
    part.left -= 1
    part.group.enter(process.name, part)
    return thread.ask_again(_enter_next, part, NEVER)


def _hand(process: SimProcess, thread: SimThread, effect: Hand) -> Any:
    return _cross_pipe(process, thread, effect, f"{process.name}/pipe:send", _hand_now)


def _take_over(process: SimProcess, thread: SimThread, effect: TakeOver) -> Any:
    return _cross_pipe(process, thread, effect, f"{process.name}/pipe:receive", _take_over_now)


def _cross_pipe(process: SimProcess, thread: SimThread, effect: Hand | TakeOver, site: str, go_on: Any) -> Any:
    def began() -> Any:
        return go_on(process, thread, (effect, process.kernel.now + effect.pipe.timeout_s))

    fault = process.note(site, thread.name, "", {"what": effect.what, "step": effect.step})
    if fault is not None and thread.befall(fault, site, process.counts[site]):
        return thread.go_on_with(began)
    return began()


def _hand_now(process: SimProcess, thread: SimThread, about: tuple[Hand, float]) -> Any:
    effect, deadline = about
    pipe, rank = effect.pipe, process.name
    if pipe.has_room(rank):
        pipe.send(rank, Handed(effect.step, effect.content))
        return None
    other = pipe.next_to(rank)
    until = pipe.await_until(rank, other, thread, deadline,
                             f"step {effect.step} cannot be sent: {other} did not take what came before")
    return thread.ask_again(_hand_now, about, until)


def _take_over_now(process: SimProcess, thread: SimThread, about: tuple[TakeOver, float]) -> Any:
    effect, deadline = about
    pipe, rank = effect.pipe, process.name
    content = pipe.receive(rank, effect.step, effect.count)
    if content is not None:
        return content
    other = pipe.before(rank)
    until = pipe.await_until(rank, other, thread, deadline, f"{other} did not send step {effect.step}")
    return thread.ask_again(_take_over_now, about, until)


ANSWERS: Answers = {
    MarkPoint: _mark,
    Observe: _observe,
    Describe: _describe,
    Beat: _beat,
    Call: _call,
    Sleep: _sleep,
    Enter: _enter,
    Hand: _hand,
    TakeOver: _take_over,
    RunLoop: _run_loop,
}
