"""Answers to effects of processes that decide together."""

from __future__ import annotations

from typing import Any

from engine.errors import CollectiveError
from engine.process.consensus.agreement import LOOK_S, Seat, agreed, frame
from engine.process.consensus.effects import Card, Introduce, JoinGroup, LeaveGroup, Reduce
from engine.process.consensus.register import Register
from sim.process.process import SimProcess
from sim.process.thread import Answers, SimThread
from sim.transport.consensus import Gathering

_MEETING = "meeting"


class Place:
    """Of a process in one group."""

    def __init__(self, process: SimProcess, effect: JoinGroup) -> None:
        segments = process.host.segments
        self.seat = Seat(effect.group, effect.where, effect.rank, [member.name for member in effect.members],
                         [segments[member.word].memory if member.word in segments else None
                          for member in effect.members])
        self.gathering: Gathering = process.host.gathering(effect.where, len(effect.members))
        self.dead: dict[int, float] = {}
        for rank, member in enumerate(effect.members):
            if member.process is not None and rank != effect.rank:
                self._watch(process, rank, process.sim.process_of(member.process.pid))

    def _watch(self, process: SimProcess, rank: int, other: SimProcess | None) -> None:
        def ended() -> None:
            self.dead[rank] = process.kernel.now
            process.look_again()

        if other is None:
            ended()
        else:
            process.watch(other, ended)


def places_of(process: SimProcess) -> dict[str, Place]:
    places: dict[str, Place] = process.context.setdefault("groups", {})
    return places


def _introduce(process: SimProcess, thread: SimThread, effect: Introduce) -> Any:
    register = process.host.register(effect.where, effect.size)
    register.come(effect.card)
    process.when_gone(lambda: register.leave(effect.card))
    return _await_all(process, thread, (effect, register, process.kernel.now))


def _await_all(process: SimProcess, thread: SimThread, about: tuple[Introduce, Register, float],
               ) -> tuple[Card, ...] | Any:
    """Looked at every `LOOK_S`."""
    effect, register, since = about
    now = process.kernel.now
    if process.cancelled is not None:
        raise process.cancellation()
    if register.cards is not None:
        return register.cards
    if now >= effect.deadline:
        register.give_up(now - since)
    if register.refusal:
        raise CollectiveError(register.refusal)
    process.attend(thread)
    return thread.ask_again(_await_all, about, _next_look(now, effect.deadline))


def _join(process: SimProcess, thread: SimThread, effect: JoinGroup) -> Any:
    place = places_of(process)[effect.group] = Place(process, effect)
    return _enter(process, thread, place, _MEETING, [], effect.deadline)


def _reduce(process: SimProcess, thread: SimThread, effect: Reduce) -> Any:
    arguments = process, thread, places_of(process)[effect.group], effect.op, effect.values, effect.deadline
    site = process.consensus_site
    fault = process.note(site, thread.name, "", {"group": effect.group, "operation": effect.op})
    if fault is not None and thread.befall(fault, site, process.counts[site]):
        return thread.go_on_with(_enter, *arguments)
    return _enter(*arguments)


def _enter(process: SimProcess, thread: SimThread, place: Place, op: str, values: list[int], deadline: float) -> Any:
    seat = place.seat
    seat.enter(op, process.kernel.now)
    place.gathering.bring(process.name, seat.rank, seat.turn, frame(seat.turn, op, values, seat.size), thread)
    return _look(process, thread, (place, op, deadline))


def _look(process: SimProcess, thread: SimThread, about: tuple[Place, str, float]) -> Any:
    """Each time that the thread is woken, and every `LOOK_S`."""
    place, op, deadline = about
    seat, now = place.seat, process.kernel.now
    if process.cancelled is not None:
        seat.give_up(process.cancelled)
        raise process.cancellation()
    frames = place.gathering.answer(seat.turn)
    if frames is not None:
        seat.come_out()
        answer = agreed(seat.title, seat.names, frames)
        return None if op == _MEETING else answer
    trouble = seat.trouble(now, deadline, place.dead)
    if trouble is not None:
        seat.give_up(trouble)
        raise trouble
    seat.waits(now)
    process.attend(thread)
    return thread.ask_again(_look, about, _next_look(now, deadline))


def _next_look(now: float, deadline: float) -> float:
    """Whoever still waits behind its deadline looks again all the same, for ever."""
    return min(deadline, now + LOOK_S) if now < deadline else now + LOOK_S


def _leave(process: SimProcess, thread: SimThread, effect: LeaveGroup) -> None:
    places_of(process).pop(effect.group).seat.close()


ANSWERS: Answers = {
    Introduce: _introduce,
    JoinGroup: _join,
    Reduce: _reduce,
    LeaveGroup: _leave,
}
