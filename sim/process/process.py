"""A process of the twin: its threads, what they share, how it stops, dies and leaves.

Promises
- Killed: all threads end in that instant, and what libzmq held is one of several allowed outcomes. Stopped: no thread
  and no I/O thread moves, deadlines pass meanwhile, signals and sentinels wait. Leaving on its own feet: threads end,
  sockets linger, then the process is gone.
- Whoever watches a process is told of its end once, after the time a sentinel takes.

    Surroundings          all processes by name, and what they share     (sim.simulation)
    SimProcess    crossings | threads | ports: sockets, rings, bells, queues by the names that effects use
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, Protocol

from engine.errors import ConfigError, QueueCancelledError, StartupError
from engine.topology import Channel, Mark, Node, Topology, at, mark_site
from faults.fates import Hold, Release, Step, Strike, steps
from faults.plan import Fate, Fault
from sim.kernel.kernel import Kernel
from sim.process.crossings import Crossings
from sim.process.holds import Holds
from sim.process.kin import Kin
from sim.process.ports import SimPorts
from sim.process.thread import Answers, SimThread, ThreadEndedError
from sim.transport.host import Host

SIGKILL, SIGTERM = -9, -15


@lru_cache(maxsize=64)
def mark_sites(name: str) -> dict[Mark, str]:
    """The site of each mark in the process of this name."""
    return {mark: mark_site(name, mark) for mark in Mark}


class Surroundings(Protocol):
    """What a process knows of the play that it belongs to."""

    topology: Topology
    kernel: Kernel
    host: Host
    holds: Holds
    answers: Answers
    given: Any  # what the engines of the play run: see `sim.nodes.model.Given`

    def struck_by(self, fault: Fault) -> SimProcess | None: ...
    def process_of(self, pid: int) -> SimProcess | None: ...
    def living(self) -> Iterable[SimProcess]: ...

    def start_process(self, node: Node | str, main: Callable[[SimProcess], Any] | None = None, *,
                      parent: SimProcess | None = None, delay_s: float | None = None) -> SimProcess:
        """A new process. Its main thread runs the loop that `main(process)` returns, after the time a start takes."""


class SimProcess:
    """What the threads of one process share."""

    def __init__(self, sim: Surroundings, node: Node, parent: SimProcess | None, pid: int) -> None:
        self.sim = sim
        self.kernel = sim.kernel
        self.host = sim.host
        self.answers = sim.answers
        self.bystander = False  # no node of the play: what it records is no journal of it
        self.crossings = Crossings(
            sim.kernel, sim.holds, node, lambda fault: sim.struck_by(fault) is not None)
        self.note = self.crossings.note
        self.counts = self.crossings.counts
        self.observe = self.crossings.observe
        self.recording, self.records = self.crossings.recording, self.crossings.records
        self.node = node
        self.name = self.crossings.name  # without life, as sites are named
        self.life = node.life
        self.label = str(node)
        self.pid = pid
        self.parent = parent
        self.children: list[SimProcess] = []
        if parent is not None:
            parent.children.append(self)

        self.ports = SimPorts(self, sim.host, sim.topology, self.crossings)
        self.mark_sites = mark_sites(self.name)
        self.collective_site = at(f"{self.name}/collective", "enter")
        self.consensus_site = at(f"{self.name}/{Channel.CONSENSUS.value}", "enter")
        self.recheck_s = 1.0
        self.heartbeat: Callable[[int], None] | None = None
        #: (thread, method, args, kwargs) -> result, or a loop of effects that returns it: answers `Call`
        self.call_handler: Callable[[SimThread, str, tuple[Any, ...], dict[str, Any]], Any] | None = None
        self.on_terminate: Callable[[], None] | None = None
        self.context: dict[str, Any] = {}  # whatever the node's own code wants to keep

        self.threads: list[SimThread] = []
        self.alive = True
        self.running = True  # alive and not stopped
        self.turns = 0  # how often its threads went on
        self.leaving = False
        self.cancelled: Exception | None = None
        self.kin = Kin()
        self.named: dict[str, SimThread] = {}  # threads that a loop has started
        self._attentive: dict[SimThread, None] = {}  # which wait for what no socket, queue or bell tells
        self.started_at = sim.kernel.now
        self.ended_at: float | None = None
        self.exitcode: int | None = None
        self.error: BaseException | None = None  # what its main thread ended with
        self.thread_errors: list[tuple[str, BaseException]] = []
        self._stops = 0
        self._postponed: list[Callable[[], Any]] = []  # what reaches a stopped process when it goes on
        self._watchers: list[Callable[[], Any]] = []
        self._exit_with = 0

    # -- its beginning

    def start(self, name: str, loop: Any, *, main: bool = False) -> SimThread:
        """A thread that runs `loop` from now on. When the main thread's loop is over, the process leaves."""
        thread = SimThread(self, name, loop, main)
        self.threads.append(thread)
        thread.wake_after(0.0)
        return thread

    def begin(self, main: Callable[[SimProcess], Any]) -> None:
        """The process's first instruction."""
        self.deliver(lambda: self.start("main", main(self), main=True))

    def put(self, queue: str, item: Any) -> None:
        """From a signal handler, a sentinel or a pipe."""
        self.ports.queues[queue].put(item)

    # -- what befalls it

    def befall(self, thread: SimThread, fault: Fault, site: str, nth: int) -> bool:
        """Meet a process fate at a crossing. -> True if the thread stops here, to `go_on_with` the rest later

        Raises RuntimeError for `raise`, SystemExit for `exit`, and what ends a thread that is dead.
        """
        return self._take_steps(thread, steps(fault, site, nth), nth)

    def _take_steps(self, thread: SimThread, left: Iterator[Step], nth: int) -> bool:
        """-> True if the thread stops here; what is left is done when it is let go"""
        for step in left:
            if isinstance(step, Hold):
                thread.hung += 1
                self.sim.holds.when_over(step.fault, partial(self._let_go, thread, left, nth))
                return True
            if isinstance(step, Release):
                self.crossings.released(step.fault, thread.name, step.site, step.nth)
            elif self._strike(thread, step, left, nth):
                return True
        return False

    def _let_go(self, thread: SimThread, left: Iterator[Step], nth: int) -> None:
        thread.hung -= 1
        self._take_steps(thread, left, nth)
        thread.wake_after(0.0)

    def _strike(self, thread: SimThread, strike: Strike, left: Iterator[Step], nth: int) -> bool:
        fault, victim = strike.fault, self if strike.victim is None else self.sim.struck_by(strike.fault)
        assert victim is not None, "nothing befalls anybody whose victim is not there"
        if fault.fate is Fate.KILL:
            victim.kill()
            if victim is self:
                raise ThreadEndedError
        elif fault.fate is Fate.STALL:
            victim.freeze(fault, partial(self._take_steps, thread, left, nth) if strike.victim is None else
                          partial(victim.crossings.released, fault, thread.name, "", nth))
            return victim is self
        elif victim is not self:
            victim.terminate()
        else:
            self.terminate_now()
            if not self.alive:
                raise ThreadEndedError
        return False

    def may_cut(self, site: str) -> bool:
        """Whether the plan cuts the wire at this site."""
        return self.crossings.may_fire_at(site)

    def cut(self, site: str, mended: Callable[[], Any]) -> Fault | None:
        """Count a message on the wire. -> the fault that cuts it here; `mended()` once that lets go"""
        fault, nth = self.note(site, "wire"), self.counts[site]
        if fault is not None and fault.until is None and not fault.silent:
            self.crossings.released(fault, "wire", site, nth)
        elif fault is not None and fault.until is not None:
            def let_go() -> None:
                self.crossings.released(fault, "wire", site, nth)
                mended()

            self.sim.holds.when_over(fault, let_go)
        return fault

    # -- stops, deaths, exits

    def deliver(self, what: Callable[[], Any]) -> None:
        """Do something to this process: now, when it goes on, or never if it is gone."""
        if self.running:
            what()
        elif self.alive:
            self._postponed.append(what)

    def freeze(self, fault: Fault, released: Callable[[], Any]) -> None:
        """SIGSTOP, until the fault's `until`; `released` puts on record that it goes on."""
        if not self.alive:
            return
        self._stops += 1
        self.running = False
        self.sim.holds.when_over(fault, lambda: self._thaw(released))

    def _thaw(self, released: Callable[[], Any]) -> None:
        if not self.alive:
            return
        released()
        self._stops -= 1
        if self._stops:
            return
        self.running = True
        self.host.network.thawed(self)
        postponed, self._postponed = self._postponed, []
        for what in postponed:  # before any thread goes on: signals, and the end of a child, which is there to be seen
            self.kernel.after(0.0, self.deliver, what)
        for stopped in list(self.threads):
            stopped.wake_after(0.0)

    def kill(self) -> None:
        """SIGKILL, here and now."""
        self._gone(SIGKILL)

    def exit_now(self, code: int = 0) -> None:
        """os._exit: nothing lingers, nothing is said."""
        self._gone(code)

    def terminate(self) -> None:
        """SIGTERM of another process: it arrives a little later."""
        self.kernel.after(self.kernel.costs.signal_s, self.deliver, self.terminate_now)

    def terminate_now(self) -> None:
        """SIGTERM: the handler runs, or without one the process dies. Raises what a handler raises in its thread."""
        if self.on_terminate is not None:
            self.on_terminate()
        else:
            self._gone(SIGTERM)

    def interrupt(self, error: BaseException) -> None:
        """Raise in the main thread, as a signal handler does: here and now if it runs, else out of its wait."""
        main = next(thread for thread in self.threads if thread.is_main)
        if main.running:
            raise error
        main.throw(error)

    def thread_ended(self, thread: SimThread) -> None:
        """Its loop is over; with the main thread's, the process leaves."""
        error = thread.error
        if error is not None:
            self.thread_errors.append((thread.name, error))
        if thread.on_finish is not None:
            thread.on_finish(thread)
        if thread.is_main:
            self.error = error
            code = 0 if error is None else error.code if isinstance(error, SystemExit) else 1
            self.leave(code if isinstance(code, int) else 0 if code is None else 1)

    @property
    def printed(self) -> list[str]:
        """What a real one would print: exceptions that came out of its threads, but for the one that cancels them, and
        those by which a program is told that it cannot start.
        """
        return [f"{type(error).__name__}: {error}" for _, error in self.thread_errors
                if not isinstance(error, QueueCancelledError | ConfigError | StartupError)]

    def livelocked(self, thread: str) -> None:
        """It would run for ever: that is put on record, and it is ended, as by somebody who has had enough of it."""
        self.observe("thread-ended", {"thread": thread, "why": "endless"}, thread)
        self.exit_now(1)

    def leave(self, code: int = 0) -> None:
        """End on its own feet: no thread goes on, sockets keep what is unsent for their linger, then it is gone."""
        if not self.alive or self.leaving:
            return
        self.leaving = True
        self._exit_with = code
        self.forget_threads()
        self.ports.close()
        self._end_if_sent()

    def socket_is_done(self) -> None:
        """A closed socket holds nothing any more."""
        if self.leaving:
            self.kernel.after(0.0, self._end_if_sent)
        else:
            self.look_again()

    def _end_if_sent(self) -> None:
        if self.alive and not self.ports.lingering:
            self._gone(self._exit_with)

    def _gone(self, code: int) -> None:
        if not self.alive:
            return
        self.alive = self.running = False
        self.crossings.gone = True
        self.exitcode = code
        self.ended_at = self.kernel.now
        self.host.network.owner_died(self)
        self.host.rank_died(self.name)
        for told in self._watchers:
            self.kernel.after(self.kernel.costs.sentinel_s, told)
        self._watchers.clear()

    def forget_threads(self) -> None:
        for thread in self.threads:
            thread.forget()

    def untie(self) -> None:
        """The play is over: keep what it left, and nothing that leads to other processes."""
        for thread in self.threads:
            thread.untie()
        self.ports.untie()
        self.crossings.untie()
        for ties in (self.threads, self.context, self.children, self._watchers, self._postponed, self.named,
                     self._attentive):
            ties.clear()
        self.parent = self.heartbeat = self.call_handler = self.on_terminate = None
        for error in (self.cancelled, *(error for _, error in self.thread_errors)):
            if error is not None:
                error.__traceback__ = None  # its frames hold everything
        self.kin.untie()
        del self.sim, self.host

    # -- what it learns of others

    def watch(self, other: SimProcess, told: Callable[[], Any]) -> None:
        """A sentinel or a death pipe: `told()` runs in this process once the other is gone, however it went."""
        other.when_gone(partial(self.deliver, told))

    def when_gone(self, told: Callable[[], Any]) -> None:
        """`told()` once this process is gone: for a watcher that is no process of the play, as the lab."""
        if self.alive:
            self._watchers.append(told)
        else:
            self.kernel.after(self.kernel.costs.sentinel_s, told)

    def cancel(self, error: Exception) -> None:
        """End every wait for a message or a bell with `error`, now and later; the first reason stays."""
        if self.cancelled is None:
            self.cancelled = error
        self.wake(self.threads)

    def cancellation(self) -> QueueCancelledError:
        """What a wait on a bell raises once the process is cancelled."""
        error = self.cancelled
        return error if isinstance(error, QueueCancelledError) else QueueCancelledError(str(error))

    def attend(self, thread: SimThread) -> None:
        """The thread waits for what threads, children, the parent, closed sockets or the lab do: see `look_again`."""
        self._attentive[thread] = None

    def look_again(self) -> None:
        """Something of this kind has happened: whoever waits for one asks again."""
        attentive, self._attentive = self._attentive, {}
        self.wake(attentive)

    def wake(self, threads: Iterable[SimThread]) -> None:
        for thread in threads:
            thread.wake_after(self.kernel.costs.thread_wake_s)

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped" if self.alive else f"gone ({self.exitcode})"
        return f"<{self.label} {state}>"
