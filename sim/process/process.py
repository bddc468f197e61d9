"""A process of the twin: its threads, what they share, how it stops, dies and leaves.

Promises
- A crossing is in the journal before anything follows from it, in the records that a real process writes.
- Killed: all threads end in that instant, and what libzmq held is one of several allowed outcomes. Stopped: no thread
  and no I/O thread moves, deadlines pass meanwhile, signals and sentinels wait. Leaving on its own feet: threads end,
  sockets linger, then the process is gone.
- Whoever watches a process is told of its end once, after the time a sentinel takes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from engine.errors import QueueCancelledError
from engine.ports import RingMemory, RingSpec, SocketSpec
from engine.topology import Channel, Mark, Node, at, mark_site
from faults.journal import Kind, Record
from faults.judge import Judge
from faults.match import decoded_of
from faults.plan import Fate, Fault
from faults.sites import bare
from sim.process.sockets import SocketPort
from sim.process.thread import SimThread
from sim.transport.ring_memory import Bell, SteppedMemory, StoppedInOperation, fence, store_place

if TYPE_CHECKING:
    from sim.simulation import Simulation

SIGKILL, SIGTERM = -9, -15
_CROSSING = Kind.CROSSING


class SimQueue:
    """A queue between the threads of one process."""

    __slots__ = ("_delay_s", "items", "waiter")

    def __init__(self, delay_s: float) -> None:
        self.items: deque[Any] = deque()
        self.waiter: SimThread | None = None
        self._delay_s = delay_s

    def put(self, item: Any) -> None:
        self.items.append(item)
        if self.waiter is not None:
            self.waiter.wake_after(self._delay_s)

    def __len__(self) -> int:
        return len(self.items)


class BellEnd:
    """One process's end of a doorbell; `site` where ringing it is counted."""

    __slots__ = ("bell", "site")

    def __init__(self, bell: Bell, site: str | None) -> None:
        self.bell = bell
        self.site = site


class _Queues(dict):
    """Queues by name, made when they are first used."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self._delay_s = delay_s

    def __missing__(self, name: str) -> SimQueue:
        queue = self[name] = SimQueue(self._delay_s)
        return queue


@lru_cache(maxsize=64)
def mark_sites(name: str) -> dict[Mark, str]:
    """The site of each mark in the process of this name."""
    return {mark: mark_site(name, mark) for mark in Mark}


class SimProcess:
    """What the threads of one process share. Registries carry the names that effects use."""

    def __init__(self, sim: Simulation, node: Node, parent: SimProcess | None, pid: int) -> None:
        self.sim = sim
        self.env = sim.env
        self.recording = sim.record
        self.bystander = False  # no node of the play: what it records is no journal of it
        self.node = node
        self.name = bare(str(node))  # without life, as sites are named
        self.life = node.life
        self.label = str(node)
        self.pid = pid
        self.parent = parent
        self.children: list[SimProcess] = []
        if parent is not None:
            parent.children.append(self)

        self.sockets: dict[str, SocketPort] = {}
        self.queues: dict[str, SimQueue] = _Queues(sim.costs.thread_wake_s)
        self.bells: dict[str, BellEnd] = {}
        self.rings: dict[str, RingSpec] = {}
        self.recheck_s = 1.0
        self.heartbeat: Callable[[int], None] | None = None
        #: (thread, method, args, kwargs) -> result, or a loop of effects that returns it: answers `Call`
        self.call_handler: Callable[[SimThread, str, tuple, dict], Any] | None = None
        self.on_terminate: Callable[[], None] | None = None
        self.context: dict[str, Any] = {}  # whatever the node's own code wants to keep

        self.threads: list[SimThread] = []
        self.alive = True
        self.running = True  # alive and not stopped
        self.leaving = False
        self.cancelled: Exception | None = None
        self.death_errors: list[Callable[[], Exception]] = []
        self.started_at = sim.now
        self.ended_at: float | None = None
        self.exitcode: int | None = None
        self.error: BaseException | None = None  # what its main thread ended with
        self.thread_errors: list[tuple[str, BaseException]] = []
        self._stops = 0
        self._postponed: list[Callable[[], Any]] = []  # what reaches a stopped process when it goes on
        self._watchers: list[tuple[SimProcess, Callable[[], Any]]] = []
        self._exit_with = 0

        self.records: list[Record] = []  # its journal; becomes bytes when somebody writes it to disk
        self.counts: defaultdict[str, int] = defaultdict(int)
        self._occurrences: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.judge = Judge(sim.plan, self.name, self.life)
        for fault_id in sim.fired:
            self.judge.notice(fault_id)
        self._judged = frozenset(self.judge.sites())
        self._watched = frozenset(site for node, life, site in sim.holds.watched
                                  if (node, life) == (self.name, self.life))
        self._special = self._judged | self._watched  # nearly every crossing is at another site
        self.mark_sites = mark_sites(self.name)
        self.collective_site = at(f"{self.name}/collective", "enter")
        self.stepped: dict[str, SteppedMemory] = {}  # by `store_place`
        self.current_thread: SimThread | None = None
        self.ring_sites: dict[tuple[str, str], tuple[str, ...]] = {}

    # -- building it

    def open_socket(self, spec: SocketSpec) -> SocketPort:
        """Known to the loops by `spec.name`. Raises OSError where the address is taken."""
        port = self.sockets[spec.name] = SocketPort(self, self.sim.network.open(self, spec), spec)
        return port

    def create_ring(self, spec: RingSpec, name: str, size: int) -> RingMemory:
        """A segment of this name, zeroed. Raises FileExistsError."""
        self.sim.create_segment(name, size, self)
        return self.attach_ring(spec, name)

    def attach_ring(self, spec: RingSpec, name: str) -> RingMemory:
        """Raises FileNotFoundError. The memory is bare unless the plan names a store of this process into the ring."""
        segment = self.sim.segments.get(name)
        if segment is None:
            raise FileNotFoundError(f"no segment {name}")
        place = store_place(spec, self.name)
        names = [at(place, f"store.{store}") for store in ("reset", "data", "readers", "written", "read")]
        if not any(site in self._judged or site in self._watched for site in names):
            return RingMemory(segment.memory, fence)
        from engine.ipc.ring import RingLayout

        layout = RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)
        stepped = SteppedMemory(segment.memory, layout, lambda store: self._store(at(place, f"store.{store}")))
        self.stepped[place] = stepped
        return RingMemory(stepped, fence)

    def add_ring(self, name: str, spec: RingSpec) -> None:
        """Under which name the effects speak of this ring."""
        self.rings[name] = spec

    def add_bell(self, name: str, key: str, site: str | None = None) -> None:
        """`key` names the bell for all processes; `site` is where this process's ringing is counted."""
        self.bells[name] = BellEnd(self.sim.bell(key), site)

    def start(self, name: str, loop: Any, *, main: bool = False) -> SimThread:
        """A thread that runs `loop` from now on. When the main thread's loop is over, the process leaves."""
        thread = SimThread(self, name, loop, main)
        self.threads.append(thread)
        thread.wake_after(0.0)
        return thread

    def begin(self, main: Callable[[SimProcess], Any]) -> None:
        """The process's first instruction."""
        self.deliver(lambda: self.start("main", main(self), main=True))

    def start_child(self, node: Node | str, main: Callable[[SimProcess], Any] | None = None,
                    delay_s: float | None = None) -> SimProcess:
        return self.sim.start_process(node, main, parent=self, delay_s=delay_s)

    def put(self, queue: str, item: Any) -> None:
        """From a signal handler, a sentinel or a pipe."""
        self.queues[queue].put(item)

    def send_to(self, other: SimProcess, queue: str, item: Any) -> None:
        """Through a pipe between parent and child: lost if the other dies, kept if this one does."""
        self.sim.after(self.sim.costs.hop_s, other.deliver, lambda: other.put(queue, item))

    # -- crossings

    def note(self, site: str, thread: str, digest: str = "", data: dict[str, Any] | None = None,
             channel: Channel | None = None, frames: Any = None) -> tuple[Fault | None, int]:
        """Count, judge and record one crossing. -> (the fault that fires here, nth)

        `channel` and `frames`: the message, for faults that match on what it says.
        """
        counts = self.counts
        nth = counts[site] = counts[site] + 1
        if site in self._special:
            return self._note_special(site, nth, thread, digest, data, channel, frames)
        if self.recording:
            occurrence = 0
            if digest:
                key = site, digest
                occurrence = self._occurrences[key]
                self._occurrences[key] = occurrence + 1
            records = self.records
            records.append(Record(len(records), self.env._now, thread, _CROSSING, site, nth, digest, occurrence,
                                  data or {}))
        return None, nth

    def _note_special(self, site: str, nth: int, thread: str, digest: str, data: dict[str, Any] | None,
                      channel: Channel | None, frames: Any) -> tuple[Fault | None, int]:
        """As `note`, at a site that the plan names."""
        fault = None
        if site in self._judged:
            fault = self._befalling(
                self.judge.crossing(site, None if channel is None else lambda: decoded_of(channel, frames)))
        if self.recording:
            occurrence = self._occurrences[site, digest]
            self._occurrences[site, digest] += bool(digest)
            if fault is not None:
                data = {**(data or {}), "fate": fault.fate.value, "fault": fault.id}
            self.records.append(Record(len(self.records), self.env._now, thread, _CROSSING, site, nth, digest,
                                       occurrence, data or {}))
        if fault is not None:
            self.receipt(fault, site, nth, thread)
        if site in self._watched:
            self.sim.holds.crossed(self.name, self.life, site, nth)
        return fault, nth

    def _befalling(self, fault: Fault | None) -> Fault | None:
        """The fault, if its victim is there: else nothing befalls anybody."""
        if fault is not None and fault.victim is not None:
            victim = self.sim.process(fault.victim)
            if victim is None or not victim.alive:
                return None
        return fault

    def count_crossing(self, site: str) -> int:
        """Count without judging."""
        nth = self.counts[site] = self.counts[site] + 1
        if site in self._watched:
            self.sim.holds.crossed(self.name, self.life, site, nth)
        return nth

    def receipt(self, fault: Fault, site: str, nth: int, thread: str) -> None:
        if self.recording:
            self.record(Kind.RECEIPT, fault.id, thread, nth, {
                "site": site, "nth": nth, "fate": fault.fate.value, "victim": fault.victim or self.name})
        self.sim.notice_fault(fault)

    def released(self, fault: Fault, thread: str, site: str = "", nth: int = 0) -> None:
        """On record: what the fault held was let go."""
        if self.recording and self.alive:
            data = {"site": site, "nth": nth} if site else {"at": self.sim.now}
            self.record(Kind.RELEASE, fault.id, thread, nth, data)

    def observe(self, name: str, data: dict[str, Any], thread: str = "main") -> None:
        if self.recording:
            self.record(Kind.OBSERVATION, name, thread, 0, data)

    def record(self, kind: Kind, site: str, thread: str, nth: int, data: dict[str, Any]) -> None:
        records = self.records
        records.append(Record(len(records), self.env._now, thread, kind, site, nth, "", 0, data))

    def _store(self, site: str) -> Fault | None:
        """A store of a ring operation is about to be done: counted and judged, recorded only if a fault befalls it."""
        thread = self.current_thread
        assert thread is not None, "a ring operation runs inside of an Attempt"
        nth = self.count_crossing(site)
        fault = self._befalling(self.judge.crossing(site)) if site in self._judged else None
        if fault is None:
            return None
        if self.recording:
            self.record(_CROSSING, site, thread.name, nth, {"fate": fault.fate.value, "fault": fault.id})
        self.receipt(fault, site, nth, thread.name)
        if fault.fate is Fate.CORRUPT:
            return fault
        if thread.befall(fault, site, nth):
            raise StoppedInOperation(resumes=self.alive)
        return None

    # -- stops, deaths, exits

    def deliver(self, what: Callable[[], Any]) -> None:
        """Do something to this process: now, when it goes on, or never if it is gone."""
        if self.running:
            what()
        elif self.alive:
            self._postponed.append(what)

    def freeze(self, fault: Fault, thread: str = "main", site: str = "", nth: int = 0) -> None:
        """SIGSTOP, until the fault's `until`."""
        if not self.alive:
            return
        self._stops += 1
        self.running = False
        self.sim.holds.when_over(fault, lambda: self._thaw(fault, thread, site, nth))

    def _thaw(self, fault: Fault, thread: str, site: str, nth: int) -> None:
        if not self.alive:
            return
        self.released(fault, thread, site, nth)
        self._stops -= 1
        if self._stops:
            return
        self.running = True
        self.sim.network.thawed(self)
        for stopped in list(self.threads):
            stopped.wake_after(0.0)
        postponed, self._postponed = self._postponed, []
        for what in postponed:
            self.sim.after(0.0, self.deliver, what)

    def kill(self) -> None:
        """SIGKILL, here and now."""
        self._gone(SIGKILL)

    def exit_now(self, code: int = 0) -> None:
        """os._exit: nothing lingers, nothing is said."""
        self._gone(code)

    def terminate(self) -> None:
        """SIGTERM of another process: it arrives a little later."""
        self.sim.after(self.sim.costs.signal_s, self.deliver, self.terminate_now)

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

    def leave(self, code: int = 0) -> None:
        """End on its own feet: no thread goes on, sockets keep what is unsent for their linger, then it is gone."""
        if not self.alive or self.leaving:
            return
        self.leaving = True
        self._exit_with = code
        self.forget_threads()
        for port in self.sockets.values():
            if not port.socket.closed:
                port.socket.close()
        self._end_if_sent()

    def socket_is_done(self) -> None:
        """A closed socket holds nothing any more."""
        if self.leaving:
            self.sim.after(0.0, self._end_if_sent)

    def _end_if_sent(self) -> None:
        if self.alive and not any(port.socket.lingering is not None for port in self.sockets.values()):
            self._gone(self._exit_with)

    def _gone(self, code: int) -> None:
        if not self.alive:
            return
        self.alive = self.running = False
        self.exitcode = code
        self.ended_at = self.sim.now
        self.sim.network.owner_died(self)
        for group in self.sim.groups():
            group.died(self.name)
        for watcher, told in self._watchers:
            self.sim.after(self.sim.costs.sentinel_s, watcher.deliver, told)
        self._watchers.clear()

    def forget_threads(self) -> None:
        for thread in self.threads:
            thread.forget()

    def untie(self) -> None:
        """The play is over: keep what it left, and nothing that leads to other processes."""
        for thread in self.threads:
            thread.untie()
        for port in self.sockets.values():
            port.socket.untie()
        for ties in (self.threads, self.sockets, self.queues, self.bells, self.rings, self.context, self.children,
                     self._watchers, self._postponed, self._occurrences, self.death_errors, self.stepped):
            ties.clear()
        self.parent = self.heartbeat = self.call_handler = self.on_terminate = self.current_thread = None
        for error in (self.cancelled, *(error for _, error in self.thread_errors)):
            if error is not None:
                error.__traceback__ = None  # its frames hold everything
        del self.sim

    # -- what it learns of others

    def watch(self, other: SimProcess, told: Callable[[], Any]) -> None:
        """A sentinel or a death pipe: `told()` runs in this process once the other is gone, however it went."""
        if other.alive:
            other._watchers.append((self, told))
        else:
            self.sim.after(self.sim.costs.sentinel_s, self.deliver, told)

    def sentinel(self, other: SimProcess, error: Callable[[], Exception]) -> None:
        """From the other's death on every `Receive` that finds no message raises `error()`."""
        def told() -> None:
            self.death_errors.append(error)
            self.wake(self.threads)

        self.watch(other, told)

    def cancel(self, error: Exception) -> None:
        """End every wait for a message or a bell with `error`, now and later; the first reason stays."""
        if self.cancelled is None:
            self.cancelled = error
        self.wake(self.threads)

    def cancellation(self) -> QueueCancelledError:
        """What a wait on a bell raises once the process is cancelled."""
        error = self.cancelled
        return error if isinstance(error, QueueCancelledError) else QueueCancelledError(str(error))

    def wake(self, threads: Iterable[SimThread]) -> None:
        for thread in threads:
            thread.wake_after(self.sim.costs.thread_wake_s)

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped" if self.alive else f"gone ({self.exitcode})"
        return f"<{self.label} {state}>"
