"""Answers to effects on threads, signals, and what is said to whoever runs the engine."""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.effects import Cancel, JoinThread, LogLine, OnTerminate, StartThread, ThreadFailed, WallTime, Warn
from engine.errors import QueueCancelledError
from engine.process.operator_log import OperatorLog
from sim.process.effects import AwaitCondition
from sim.process.process import SimProcess
from sim.process.thread import Answers, SimThread

#: What the wall clock says when virtual time begins: a date, for no number of a batch comes near to one.
BEGAN_S = 1_700_000_000.0


def _start_thread(process: SimProcess, thread: SimThread, effect: StartThread) -> None:
    started = process.named[effect.name] = process.start(effect.name, effect.loop)
    started.on_finish = partial(_thread_ended, process, effect.told)


def _thread_ended(process: SimProcess, told: str | None, thread: SimThread) -> None:
    error = thread.error
    if error is not None and told is not None and not isinstance(error, QueueCancelledError):
        process.put(told, ThreadFailed(thread.name, error))
    process.look_again()


def _join_thread(process: SimProcess, thread: SimThread, effect: JoinThread) -> Any:
    if effect.name not in process.named or process.named[effect.name].finished:
        return True
    if effect.deadline <= process.kernel.now:
        return False
    process.attend(thread)
    return thread.ask_again(_join_thread, effect, effect.deadline)


def _on_terminate(process: SimProcess, thread: SimThread, effect: OnTerminate) -> None:
    def handle() -> None:
        if effect.queue is None:
            process.interrupt(SystemExit(effect.item))
        else:
            process.put(effect.queue, effect.item)

    process.on_terminate = handle


def _cancel(process: SimProcess, thread: SimThread, effect: Cancel) -> None:
    process.cancel(effect.error)


def _wall_time(process: SimProcess, thread: SimThread, effect: WallTime) -> float:
    return BEGAN_S + process.kernel.now


def _log_line(process: SimProcess, thread: SimThread, effect: LogLine) -> None:
    """Nobody reads it."""


def _warn(process: SimProcess, thread: SimThread, effect: Warn) -> None:
    log = process.context.setdefault("operator log", OperatorLog(lambda: process.kernel.now))
    line = log.line(effect.name, effect.data)
    process.observe("warned", {"kind": effect.name, "data": effect.data, "line": line}, thread.name)


def _until(process: SimProcess, thread: SimThread, effect: AwaitCondition) -> Any:
    if effect.condition():
        return True
    if effect.deadline <= process.kernel.now:
        return False
    process.attend(thread)
    return thread.ask_again(_until, effect, effect.deadline)


ANSWERS: Answers = {
    StartThread: _start_thread,
    JoinThread: _join_thread,
    OnTerminate: _on_terminate,
    Cancel: _cancel,
    WallTime: _wall_time,
    LogLine: _log_line,
    Warn: _warn,
    AwaitCondition: _until,
}
