"""Answers the effects of pure loops on virtual time: what `engine.process.shell` does with a real process's ports.

Promises
- The loops are the engine's own; each effect is answered as the shell answers it, a wait by a wait that costs no
  real time. A loop that does not wait runs on in one instant; a look that finds nothing takes `Costs.look_s`.
- At every crossing the plan may end or stop the thread or its process exactly between two effects, or between two
  stores of a ring operation.
- One thread never runs inside of another: whoever wakes it is done first.

    thread      loop stack | retry: the question it waits with | alarm: when its deadline passes
    waking      every wake-up asks the question again, so one that was not needed changes nothing

Besides the engine's effects it answers those of `sim.process.effects`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any

from engine.effects import (
    Attempt,
    AwaitParent,
    Beat,
    Call,
    Cancel,
    Close,
    Identity,
    JoinThread,
    Loop,
    MarkPoint,
    Now,
    Observe,
    OnTerminate,
    OpenSocket,
    Put,
    Receive,
    RingBell,
    RingCrossing,
    Send,
    StartThread,
    Take,
    ThreadFailed,
    WaitBell,
    WallTime,
    Warn,
    WasCut,
    WhoAmI,
)
from engine.errors import QueueCancelledError
from faults.journal import Kind, Record, digest_of
from faults.plan import Fate, Fault
from sim.process.effects import Enter, Leave, Sleep
from sim.process.sockets import WAIT, SocketPort, edge_site, first_life
from sim.transport.collectives import Part
from sim.transport.ring_memory import SteppedMemory, StoppedInOperation, store_place

if TYPE_CHECKING:
    from sim.process.process import SimProcess

_NEVER = float("inf")
_OBSERVATION = Kind.OBSERVATION
#: Effects in one instant after which a loop is called endless.
_LIVELOCK_EFFECTS = 1_000_000


class LivelockError(Exception):
    """A loop went round and round without waiting."""


class ThreadEndedError(BaseException):
    """The thread's process is gone: nothing of the loop runs any more, not even what it does on its way out."""



def _nothing() -> None:
    """What a thread is sent that has not begun, or was stopped in an effect without a result."""


class SimThread:
    """One thread of one process: runs one loop."""

    __slots__ = ("_alarm_at", "_env", "_first", "_looked", "_question", "_question_with", "_stack", "_until", "error",
                 "finished", "hung", "is_main", "name", "on_finish", "process", "result", "sim", "waking")

    def __init__(self, process: SimProcess, name: str, loop: Loop[Any], is_main: bool) -> None:
        self.process = process
        self.sim = process.sim
        self._env = process.env
        self.name = name
        self.is_main = is_main
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.hung = 0  # faults that hold this thread
        self.waking = False  # a happening that wakes it is on its way
        self.on_finish: Callable[[SimThread], Any] | None = None
        self._stack: list[Loop[Any]] = [loop]
        self._question: Callable[..., Any] | None = _nothing  # asked at each wake-up; None while it runs or is done
        self._question_with: tuple = ()
        self._first = True  # the question is asked for the first time
        self._until = _NEVER  # when the question is answered without an event
        self._alarm_at = _NEVER  # the earliest alarm that is on its way
        self._looked = 0  # rings of all bells when it last looked at a ring

    # -- being woken

    def wake(self) -> None:
        """Ask again, now."""
        question = self._question
        if question is None or self.hung or not self.process.running:
            return
        arguments = self._question_with
        self._question = None
        self._first = False
        try:
            value = question(*arguments)
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
            self.sim.after(delay_s, self._wake)

    def _wake(self) -> None:
        self.waking = False
        self.wake()

    def _ask_again(self, question: Callable[..., Any], arguments: tuple, until: float) -> Any:
        """Wait with this question, at most until then."""
        self._question = question
        self._question_with = arguments
        self._until = until
        if until < self._alarm_at:
            self._alarm_at = until
            self.sim.call_at(until, self._alarm, until)
        return WAIT

    def _alarm(self, at_s: float) -> None:
        if at_s == self._alarm_at:
            self._alarm_at = _NEVER
        if self._question is None:
            return
        if self._until <= self._env._now:
            self.wake()
        elif self._until < self._alarm_at:
            self._alarm_at = self._until
            self.sim.call_at(self._until, self._alarm, self._until)

    def go_on_with(self, answer: Callable[..., Any], *arguments: Any) -> None:
        """The thread was stopped in an effect; when it may go on, this finishes it."""
        self._question = answer
        self._question_with = arguments
        self._until = _NEVER

    @property
    def running(self) -> bool:
        return self._question is None and not self.finished

    def throw(self, error: BaseException) -> None:
        """End what it waits for with an error."""
        def answer() -> None:
            raise error

        self.go_on_with(answer)
        self.wake()

    # -- running

    def _advance(self, value: Any, error: BaseException | None) -> None:
        """Run the loop until it waits or ends."""
        stack, answers, env, process, name = self._stack, _ANSWERS, self._env, self.process, self.name
        loop = stack[-1]
        send = loop.send
        resume = send if error is None else loop.throw
        if error is not None:
            value = error
        self._first = True
        for _ in repeat(None, _LIVELOCK_EFFECTS):
            try:
                effect = resume(value)
            except StopIteration as stop:
                stack.pop()
                if not stack:
                    self._finish(stop.value, None)
                    return
                loop, value = stack[-1], stop.value
                resume = send = loop.send
                continue
            except BaseException as raised:
                stack.pop()
                if not stack:
                    self._finish(None, raised)
                    return
                loop, value = stack[-1], raised
                send, resume = loop.send, loop.throw
                continue
            resume = send
            kind = type(effect)
            if kind is Now:  # the two that are asked for most, and never wait
                value = env._now
                continue
            if kind is Observe:
                value = None
                if process.recording:
                    records = process.records
                    records.append(Record(len(records), env._now, name, _OBSERVATION, effect.name, 0, "", 0,
                                          effect.data))
                continue
            try:
                value = answers[kind](self, effect)
            except ThreadEndedError:
                return
            except BaseException as raised:
                resume, value = loop.throw, raised
                continue
            if value is WAIT:
                if stack[-1] is loop:
                    return
                loop, value = stack[-1], None  # a `Call` whose handler is a loop of its own goes on in there
                resume = send = loop.send
        raise LivelockError(f"{process.label}/{name} runs without waiting at {env._now} s")

    def _finish(self, value: Any, error: BaseException | None) -> None:
        self.finished = True
        self.result, self.error = value, error
        process = self.process
        if error is not None:
            process.thread_errors.append((self.name, error))
        if self.on_finish is not None:
            self.on_finish(self)
        if self.is_main:
            process.error = error
            code = 0 if error is None else error.code if isinstance(error, SystemExit) else 1
            process.leave(code if isinstance(code, int) else 0 if code is None else 1)

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
        self._question_with = ()
        self.on_finish = None

    # -- fates of a process

    def befall(self, fault: Fault, site: str, nth: int) -> bool:
        """Meet a process fate at a crossing. -> True if the thread stops here, to `go_on_with` the rest later

        Raises RuntimeError for `raise`, SystemExit for `exit`, and what ends a thread that is dead.
        """
        fate = fault.fate
        process = self.process
        if fate is Fate.RAISE:
            raise RuntimeError(fault.text)
        if fate is Fate.EXIT:
            raise SystemExit(fault.code)
        if fate is Fate.HANG:
            self.hung += 1
            self.sim.holds.when_over(fault, lambda: self._let_go(fault, site, nth))
            return True
        victim = process
        if fault.victim is not None:
            victim = self.sim.process(fault.victim)
        if fate is Fate.KILL:
            victim.kill()
            if victim is process:
                raise ThreadEndedError
        elif fate is Fate.STALL:
            victim.freeze(fault, self.name, site if victim is process else "", nth)
            return victim is process
        elif fate is Fate.TERMINATE:
            if victim is not process:
                victim.terminate()
            else:
                process.terminate_now()
                if not process.alive:
                    raise ThreadEndedError
        return False

    def _let_go(self, fault: Fault, site: str, nth: int) -> None:
        self.hung -= 1
        self.process.released(fault, self.name, site, nth)
        self.wake_after(0.0)

    # -- answers

    def _mark(self, effect: MarkPoint) -> Any:
        process = self.process
        site = process.mark_sites[effect.mark]
        fault, nth = process.note(site, self.name, "", effect.data)
        if fault is not None and self.befall(fault, site, nth):
            self.go_on_with(_nothing)
            return WAIT
        return None

    def _beat(self, effect: Beat) -> None:
        if self.process.heartbeat is not None:
            self.process.heartbeat(effect.count)

    def _send(self, effect: Send) -> Any:
        return self.process.sockets[effect.outbox].send(self, effect.frames, effect.peer)

    def _receive(self, effect: Receive) -> Any:
        process = self.process
        for name in effect.inboxes:
            found = process.sockets[name].take(self)
            if found is not None:
                return WAIT if found is WAIT else (name, *found)
        if process.cancelled is not None:
            raise process.cancelled
        deadline = effect.deadline
        if deadline is None:
            deadline = _NEVER
        if deadline <= self._env._now:
            if self._first:
                return self._ask_again(self._receive, (effect,), self._env._now + self.sim.costs.look_s)
            return None
        if process.death_errors:
            raise process.death_errors[0]()
        for name in effect.inboxes:
            process.sockets[name].socket.waiter = self.wake
        return self._ask_again(self._receive, (effect,), deadline)

    def _was_cut(self, effect: WasCut) -> bool:
        return self.process.sockets[effect.inbox].was_cut()

    def take_from(self, port: SocketPort) -> Any:
        """Go on with a Receive that was stopped at a message of this socket."""
        found = port.take(self)
        return WAIT if found is WAIT else (port.name, *found)

    def _put(self, effect: Put) -> None:
        self.process.queues[effect.queue].put(effect.item)

    def _take(self, effect: Take) -> Any:
        queue = self.process.queues[effect.queue]
        if queue.items:
            items = list(queue.items)
            queue.items.clear()
            return items
        deadline = effect.deadline
        if deadline is None:
            deadline = _NEVER
        if deadline <= self._env._now:
            if self._first:
                return self._ask_again(self._take, (effect,), self._env._now + self.sim.costs.look_s)
            return []
        queue.waiter = self
        return self._ask_again(self._take, (effect,), deadline)

    def _attempt(self, effect: Attempt) -> Any:
        self._looked = self._env.rings
        process = self.process
        if not process.stepped:
            return effect.operation()
        spec = process.rings.get(effect.ring)
        memory = process.stepped.get(store_place(spec, process.name)) if spec is not None else None
        if memory is None:
            return effect.operation()
        memory.begin()
        return self._operate(effect, memory)

    def _operate(self, effect: Attempt, memory: SteppedMemory) -> Any:
        process = self.process
        process.current_thread = self
        try:
            return effect.operation()
        except StoppedInOperation as stopped:
            if not stopped.resumes:
                raise ThreadEndedError from None
            self.go_on_with(self._operate_again, effect, memory)
            return WAIT
        finally:
            process.current_thread = None

    def _operate_again(self, effect: Attempt, memory: SteppedMemory) -> Any:
        memory.repeat()
        return self._operate(effect, memory)

    def _ring_crossing(self, effect: RingCrossing) -> Any:
        process = self.process
        spec = process.rings[effect.ring]
        data = {"position": effect.position, "bytes": sum(map(len, effect.parts)), "overflow": effect.overflow}
        digest = _digest_of(effect.parts) if process.recording else ""
        met = None
        sites = process.ring_sites.get((effect.ring, effect.operation))
        for site in sites or ring_sites(process, effect.ring, effect.operation):
            fault, nth = process.note(site, self.name, digest, data, spec.channel, effect.parts)
            if fault is not None:
                met = [*(met or ()), (fault, site, nth)]
        return self.befall_all(met) if met else None

    def befall_all(self, met: list[tuple[Fault, str, int]]) -> Any:
        """Meet several process fates in turn. -> None, or WAIT"""
        while met:
            fault, site, nth = met.pop(0)
            if self.befall(fault, site, nth):
                self.go_on_with(self.befall_all, met)
                return WAIT
        return None

    def _ring_bell(self, effect: RingBell) -> Any:
        end = self.process.bells[effect.bell]
        if end.site is not None:
            fault, nth = self.process.note(end.site, self.name)
            if fault is not None:
                if fault.fate is Fate.DROP:
                    return None
                if self.befall(fault, end.site, nth):
                    self.go_on_with(end.bell.ring)
                    return WAIT
        end.bell.ring()
        return None

    def _wait_bell(self, effect: WaitBell) -> Any:
        """Rings since the thread last looked at a ring count, so none is lost in between."""
        process = self.process
        if process.cancelled is not None:
            raise process.cancellation()
        bell = process.bells[effect.bell].bell
        if bell.rung_at > self._looked:
            return True
        now = self._env._now
        if self._first:
            until = now + process.recheck_s
            if effect.deadline is not None and effect.deadline < until:
                until = effect.deadline if effect.deadline > now else now + self.sim.costs.look_s
        else:
            until = self._until
            if until <= now:
                if self in bell.sleepers:
                    bell.sleepers.remove(self)
                return False
        if self not in bell.sleepers:
            bell.sleepers.append(self)
        return self._ask_again(self._wait_bell, (effect,), until)

    def _call(self, effect: Call) -> Any:
        handler = self.process.call_handler
        assert handler is not None, f"{self.process.label} has no call_handler"
        result = handler(self, effect.method, effect.args, effect.kwargs)
        if hasattr(result, "send"):
            self._stack.append(result)
            return WAIT
        return result

    # -- the life of its process

    def _who_am_i(self, effect: WhoAmI) -> Identity:
        process = self.process
        return Identity(process.pid, process.pid, process.parent.pid if process.parent else 1)

    def _wall_time(self, effect: WallTime) -> float:
        return self._env._now

    def _warn(self, effect: Warn) -> None:
        """No operator looks on."""

    def _open_socket(self, effect: OpenSocket) -> str:
        return self.process.open_socket(effect.spec).address

    def _start_thread(self, effect: StartThread) -> None:
        process = self.process
        thread = process.start(effect.name, effect.loop)
        if effect.told is not None:
            def told(ended: SimThread) -> None:
                if ended.error is not None and not isinstance(ended.error, QueueCancelledError):
                    process.put(effect.told, ThreadFailed(effect.name, ended.error))

            thread.on_finish = told

    def _join_thread(self, effect: JoinThread) -> Any:
        thread = next(thread for thread in self.process.threads if thread.name == effect.name)
        if thread.finished:
            return True
        if effect.deadline <= self._env._now:
            return False
        told = thread.on_finish

        def finished(ended: SimThread) -> None:
            if told is not None:
                told(ended)
            self.wake_after(self.sim.costs.thread_wake_s)

        if self._first:
            thread.on_finish = finished
        return self._ask_again(self._join_thread, (effect,), effect.deadline)

    def _on_terminate(self, effect: OnTerminate) -> None:
        process = self.process
        if effect.queue is None:
            process.on_terminate = lambda: process.interrupt(SystemExit(effect.item))
        else:
            process.on_terminate = lambda: process.put(effect.queue, effect.item)

    def _await_parent(self, effect: AwaitParent) -> Any:
        """Who has no parent waits for ever."""
        parent = self.process.parent
        if parent is not None:
            if not parent.alive:
                return None
            if self._first:
                self.process.watch(parent, self.wake)
        return self._ask_again(self._await_parent, (effect,), _NEVER)

    def _cancel(self, effect: Cancel) -> None:
        self.process.cancel(effect.error)

    def _close(self, effect: Close) -> None:
        for port in self.process.sockets.values():
            if not port.socket.closed:
                port.close(effect.linger_s)

    def _sleep(self, effect: Sleep) -> Any:
        return self._ask_again(self._slept, (), self._env._now + effect.seconds)

    def _slept(self) -> Any:
        if self._env._now < self._until:
            return self._ask_again(self._slept, (), self._until)
        return None

    def _enter(self, effect: Enter) -> Any:
        return self._enter_next(Part(self, effect.group, effect.count, effect.operation))

    def _enter_next(self, part: Part) -> Any:
        """Come out of one collective and take part in the next, while any are left."""
        if part.entered:  # somebody else woke the thread
            self.go_on_with(self._enter_next, part)
            return WAIT
        if part.error is not None:
            raise part.error
        if not part.left:
            return None
        process = self.process
        site = process.collective_site
        fault, nth = process.note(site, self.name, "", part.data)
        if fault is not None and self.befall(fault, site, nth):
            self.go_on_with(self._enter_now, part)
            return WAIT
        return self._enter_now(part)

    def _enter_now(self, part: Part) -> Any:
        part.left -= 1
        part.group.enter(self.process.name, part)
        self.go_on_with(self._enter_next, part)
        return WAIT

    def _leave(self, effect: Leave) -> Any:
        self.process.leave(effect.code)
        raise ThreadEndedError


def _digest_of(parts: list[Any]) -> str:
    return _known_digest(parts[0]) if len(parts) == 1 and type(parts[0]) is bytes else digest_of(parts)


@lru_cache(maxsize=64)
def _known_digest(message: bytes) -> str:
    """Every reader of a ring asks for the digest of what its writer has asked for a moment ago."""
    return digest_of((message,))


def ring_sites(process: SimProcess, ring: str, operation: str) -> tuple[str, ...]:
    """The sites that one message of this ring crosses in this process: an edge per reader when it is sent."""
    spec = process.rings[ring]
    readers = spec.readers if operation == "send" else [
        reader for reader in spec.readers if f"{reader.kind.value}.{reader.index}" == process.name]
    sites = process.ring_sites[ring, operation] = tuple(
        edge_site(first_life(spec.writer), first_life(reader), spec.channel, operation) for reader in readers)
    return sites


def run_loop(process: SimProcess, loop: Loop[Any], name: str = "main") -> SimThread:
    """Run a loop as a thread of a process. `thread.finished`, `thread.result` and `thread.error` say how it ended."""
    return process.start(name, loop)


_ANSWERS: dict[type, Callable[[SimThread, Any], Any]] = {
    MarkPoint: SimThread._mark,
    Beat: SimThread._beat,
    Send: SimThread._send,
    Receive: SimThread._receive,
    WasCut: SimThread._was_cut,
    Put: SimThread._put,
    Take: SimThread._take,
    Attempt: SimThread._attempt,
    RingCrossing: SimThread._ring_crossing,
    RingBell: SimThread._ring_bell,
    WaitBell: SimThread._wait_bell,
    Call: SimThread._call,
    WhoAmI: SimThread._who_am_i,
    WallTime: SimThread._wall_time,
    Warn: SimThread._warn,
    OnTerminate: SimThread._on_terminate,
    AwaitParent: SimThread._await_parent,
    Cancel: SimThread._cancel,
    StartThread: SimThread._start_thread,
    JoinThread: SimThread._join_thread,
    OpenSocket: SimThread._open_socket,
    Close: SimThread._close,
    Sleep: SimThread._sleep,
    Enter: SimThread._enter,
    Leave: SimThread._leave,
}
