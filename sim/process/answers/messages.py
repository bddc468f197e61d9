"""Answers to effects that pass messages: between processes by socket, between threads of one by queue."""

from __future__ import annotations

from typing import Any

from engine.effects import IsOver, Put, Receive, Send, Take, Waiting, WasCut
from sim.process.process import SimProcess
from sim.process.thread import NEVER, WAIT, Answers, SimThread


def _send(process: SimProcess, thread: SimThread, effect: Send) -> Any:
    return process.ports.sockets[effect.outbox].send(thread, effect.frames, effect.peer)


def _receive(process: SimProcess, thread: SimThread, effect: Receive) -> Any:
    sockets = process.ports.sockets
    for name in effect.inboxes:
        found = sockets[name].take(thread)
        if found is not None:
            return WAIT if found is WAIT else (name, *found)
    if process.cancelled is not None:
        raise process.cancelled
    deadline = effect.deadline
    if deadline is None:
        deadline = NEVER
    now = process.kernel.time._now
    if deadline <= now:
        if thread.first:
            return thread.ask_again(_receive, effect, now + process.kernel.costs.look_s)
        return None
    if effect.ends:
        if not process.kin.ended.keys().isdisjoint(effect.ends):
            return None
        process.attend(thread)
    for name in effect.inboxes:
        sockets[name].socket.waiter = thread.wake
    return thread.ask_again(_receive, effect, deadline)


def _put(process: SimProcess, thread: SimThread, effect: Put) -> None:
    process.ports.queues[effect.queue].put(effect.item)


def _take(process: SimProcess, thread: SimThread, effect: Take) -> Any:
    queue = process.ports.queues[effect.queue]
    if queue.items:
        items = list(queue.items)
        queue.items.clear()
        return items
    deadline = effect.deadline
    if deadline is None:
        deadline = NEVER
    now = process.kernel.time._now
    if deadline <= now:
        if thread.first:
            return thread.ask_again(_take, effect, now + process.kernel.costs.look_s)
        return []
    queue.waiter = thread
    return thread.ask_again(_take, effect, deadline)


def _waiting(process: SimProcess, thread: SimThread, effect: Waiting) -> int:
    return len(process.ports.queues[effect.queue])


def _was_cut(process: SimProcess, thread: SimThread, effect: WasCut) -> bool:
    return process.ports.sockets[effect.inbox].was_cut()


def _is_over(process: SimProcess, thread: SimThread, effect: IsOver) -> bool:
    return process.ports.sockets[effect.inbox].is_over()


ANSWERS: Answers = {
    IsOver: _is_over,
    WasCut: _was_cut,
    Waiting: _waiting,
    Send: _send,
    Receive: _receive,
    Put: _put,
    Take: _take,
}
