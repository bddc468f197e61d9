"""Runs pure loops on virtual time: a thread waits, is woken, and goes on where it stopped.

Promises
- The loops are the engine's own. A loop that does not wait runs on in one instant, and a wait costs no real time.
- The plan may stop a thread in any effect; whoever answers the effect says how it goes on (`go_on_with`).
- One thread never runs inside of another: whoever wakes it is done first.

    thread      loop stack | question: what it waits with | alarm: when its deadline passes
    waking      every wake-up asks the question again, so one that was not needed changes nothing

What each effect is answered with stands in `sim.process.answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import repeat
from typing import Any, Protocol

from engine.effects import Effect, Loop, Now
from faults.plan import Fault
from sim.kernel.kernel import Kernel

#: What a thread waits with: (process, thread, what it is about) -> what the loop is sent, or WAIT.
Question = Callable[[Any, Any, Any], Any]
#: By kind of effect: its first question, which is about the effect.
Answers = Mapping[type[Effect], Question]

#: The thread that asked must stop here; what it asked for comes when it goes on.
WAIT: Any = object()
NEVER = float("inf")
#: Effects in one instant after which a loop is called endless.
_LIVELOCK_EFFECTS = 1_000_000


class ThreadEndedError(BaseException):
    """The thread's process is gone: nothing of the loop runs any more, not even what it does on its way out."""


class EndlessError(BaseException):
    """Raised inside of a loop by whoever watches the play from outside and has had enough of it."""


class Home(Protocol):
    """What a thread knows of the process that it belongs to."""

    kernel: Kernel
    answers: Answers
    label: str
    running: bool  # alive and not stopped
    turns: int  # how often its threads went on

    def befall(self, thread: SimThread, fault: Fault, site: str, nth: int) -> bool:
        """Meet a process fate at a crossing. -> True if the thread stops here, to `go_on_with` the rest later"""

    def thread_ended(self, thread: SimThread) -> None:
        """Its loop is over."""

    def livelocked(self, thread: str) -> None:
        """A loop of this thread does not end."""


def _nothing(process: Any, thread: Any, about: Any) -> None:
    """What a thread is sent that has not begun, or was stopped in an effect without a result."""


def _given(process: Any, thread: Any, about: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    answer, arguments = about
    return answer(*arguments)


class SimThread:
    """One thread of one process: runs one loop."""

    __slots__ = ("_about", "_alarms", "_kernel", "_question", "_stack", "_time", "error", "finished", "first",
                 "hung", "is_main", "looked", "name", "on_finish", "process", "result", "until", "waking")

    def __init__(self, process: Home, name: str, loop: Loop[Any], is_main: bool) -> None:
        self.process = process
        self.name = name
        self.is_main = is_main
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.hung = 0  # faults that hold this thread
        self.waking = False  # a happening that wakes it is on its way
        self.on_finish: Callable[[SimThread], Any] | None = None
        self.first = True  # the question is asked for the first time
        self.until = NEVER  # when the question is answered without an event
        self.looked = 0  # rings of all bells when it last looked at a ring
        self._kernel = process.kernel
        self._time = process.kernel.time
        self._stack: list[Loop[Any]] = []
        self._question: Question | None = _nothing  # asked at each wake-up; None while it runs or is done
        self._about: Any = None
        self._alarms = [NEVER]  # that are on their way, the earliest last
        self.enter(loop)

    # -- being woken

    def wake(self) -> None:
        """Ask again, now."""
        question, process = self._question, self.process
        if question is None or self.hung or not process.running:
            return
        self._question = None
        self.first = False
        try:
            value = question(process, self, self._about)
        except ThreadEndedError:
            return
        except BaseException as error:
            self._advance(None, error)
            return
        if value is not WAIT:
            self._advance(value, None)

    def wake_after(self, delay_s: float) -> None:
        if not self.waking:
            self.waking = True
            self._kernel.after(delay_s, self._wake)

    def _wake(self) -> None:
        self.waking = False
        self.wake()

    def _alarm(self) -> None:
        alarms, now = self._alarms, self._time._now
        if alarms[-1] <= now:
            alarms.pop()
        if self._question is None:
            return
        if self.until <= now:
            self.wake()
        elif self.until < alarms[-1]:
            alarms.append(self.until)
            self._kernel.call_at(self.until, self._alarm)

    @property
    def stands_still(self) -> bool:
        return self.hung > 0 or not self.process.running

    @property
    def running(self) -> bool:
        return self._question is None and not self.finished

    def throw(self, error: BaseException) -> None:
        """End what it waits for with an error."""
        def answer() -> None:
            raise error

        self.go_on_with(answer)
        self.wake()

    # -- waiting, as an answer has it

    def ask_again(self, question: Question, about: Any, until: float) -> Any:
        """Wait with this question, at most until then. -> WAIT"""
        self._question = question
        self._about = about
        self.until = until
        if until < self._alarms[-1]:
            self._alarms.append(until)
            self._kernel.call_at(until, self._alarm)
        return WAIT

    def go_on_with(self, answer: Callable[..., Any] | None = None, *arguments: Any) -> Any:
        """The thread was stopped in an effect; when it may go on, this finishes it. -> WAIT"""
        return self.ask_again(_nothing, None, NEVER) if answer is None else \
            self.ask_again(_given, (answer, arguments), NEVER)

    def enter(self, loop: Loop[Any]) -> Any:
        """An effect is answered by a loop of its own, which goes on in the effect's place. -> WAIT"""
        scheduler = self._kernel.scheduler
        self._stack.append(loop if scheduler is None else scheduler.amid(loop))
        return WAIT

    def befall(self, fault: Fault, site: str, nth: int) -> bool:
        """Meet a process fate at a crossing: as `Home.befall`."""
        return self.process.befall(self, fault, site, nth)

    def befall_all(self, met: list[tuple[Fault, str, int]]) -> Any:
        """Meet several process fates in turn. -> None, or WAIT"""
        while met:
            fault, site, nth = met.pop(0)
            if self.befall(fault, site, nth):
                return self.go_on_with(self.befall_all, met)
        return None

    # -- running

    def _advance(self, value: Any, error: BaseException | None) -> None:
        """Run the loop until it waits or ends."""
        stack, time, process = self._stack, self._time, self.process
        process.turns += 1
        answers = process.answers
        turns = repeat(None, _LIVELOCK_EFFECTS)
        self.first = True
        while stack:
            loop = stack[-1]
            send = loop.send
            try:
                effect: Any = send(value) if error is None else loop.throw(error)
                error = None
                for _ in turns:
                    kind = type(effect)
                    if kind is Now:  # never waits
                        effect = send(time._now)
                    else:
                        value = answers[kind](process, self, effect)
                        if value is WAIT:
                            break
                        effect = send(value)
                else:
                    break  # out of turns
                if stack[-1] is loop:
                    return
                value = None  # entered
            except StopIteration as stop:
                stack.pop()
                value, error = stop.value, None
            except EndlessError:
                break
            except BaseException as raised:
                if getgeneratorstate(loop) == GEN_CLOSED:
                    stack.pop()
                elif isinstance(raised, ThreadEndedError):
                    return
                value, error = None, raised
        if stack:
            process.livelocked(self.name)
            return
        self._finish(value, error)

    def _finish(self, value: Any, error: BaseException | None) -> None:
        self.finished = True
        self.result, self.error = value, error
        self.process.thread_ended(self)

    # -- its end

    def forget(self) -> None:
        """Its process is on its way out, or the play is over."""
        self._question = None
        self.hung += 1
        stack, self._stack = self._stack, []
        for loop in reversed(stack):
            try:
                loop.close()
            except (RuntimeError, ValueError):  # it wanted to yield on its way out, or is running just now
                pass

    def untie(self) -> None:
        self._about = None
        self.on_finish = None
