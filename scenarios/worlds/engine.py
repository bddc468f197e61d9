"""The world of real processes: starts them, watches from outside, and looks at what they leave.

The lab is never a node of a play. It gives each process a recipe, lets stopped ones go on when their fault is
over, keeps time of its own starvation, and when the play is over it looks for processes, segments and files
that should not be there.

    lab --fork server--> caller (frontend.0) --fork--> core.0 --fork--> worker.0, worker.1
        --fork server--> listener (subscriber.k)

`options` of a play: `late_subscriber` (subscribers join when the workload is done), `kill_all_then_restart`
(SIGKILL of the whole engine when the workload is done, then the same engine again; subscribers outlive it),
`neighbour` (a second engine on the host), `neighbour_rank` (it publishes KV events as this data-parallel rank of the
same base endpoints, and has a subscriber of its own), `rude_subscriber` (subscriber.0 goes by an identity that nobody
knows and sends malformed replay requests beside its own), `await_death_s` (the caller stays until it hears of the
engine's death), `long_runtime_dir`, `plain` (no fault layer at all; nothing is recorded).
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.process.children import readable
from engine.process.identity import start_time
from engine.process.runtime_dir import sweep
from engine.topology import Node, NodeKind, core
from faults.real.board import create_board
from faults.real.ports import FACTORY, argument_for
from faults.real.processes import Supervisor
from scenarios.history.run import Lab, Play, ProcessEnd, save
from scenarios.lab import home
from scenarios.lab.settings import listeners_s
from scenarios.workloads.workload import Workload
from scenarios.worlds import caller, fork_server, listener
from scenarios.worlds.addresses import address_of_rank, reserved_ports
from scenarios.worlds.base import World
from scenarios.worlds.leftovers import engine_files
from scenarios.worlds.neighbour import Neighbour

#: How often the lab looks. Its own lateness beyond this is the machine's starvation.
LOOK_S = 0.005
#: A play that makes no sense any more is ended by the lab: an open operation counts as a hang then.
GUARD_FACTOR = 3.0


class EngineWorld(World):
    name = "engine"

    def _play(self, play: Play) -> list[Path]:
        folder = self.folder(play)
        stage = Stage(play, folder, self.device)
        try:
            seen = stage.run()
        finally:
            stage.close()
        save(folder / "lab.json", seen)
        return [folder]

    def close(self) -> None:
        fork_server.stop()


class Watched:
    """One process of the play, seen from outside."""

    def __init__(self, node: str, life: int, pid: int, started_at: float) -> None:
        self.node, self.life, self.pid, self.started_at = node, life, pid, started_at
        self.ended_at: float | None = None
        self.killed_by_lab = False
        self.ticks = start_time(pid)
        try:
            self.fd = os.pidfd_open(pid) if self.ticks is not None else -1
        except ProcessLookupError:
            self.fd = -1
        if self.fd < 0:
            self.ended_at = started_at

    def look(self, now: float) -> None:
        # By pidfd: /proc calls a process dead when its main thread is, while others may still hold its locks.
        if self.ended_at is None and readable([self.fd], 0):
            self.ended_at = now

    def kill(self) -> None:
        self.killed_by_lab = True
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self.fd, number)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def end(self) -> ProcessEnd:
        return ProcessEnd(node=self.node, life=self.life, pid=self.pid, started_at=self.started_at,
                          ended_at=self.ended_at, killed_by_lab=self.killed_by_lab)


class Actor:
    """A process the lab started itself: the caller or a listener, with the pipe between them."""

    def __init__(self, target: Any, recipe: bytes, name: str, start_method: str) -> None:
        context = fork_server.context() if start_method == "fork" else fork_server.spawn_context()
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(recipe, theirs), name=name)
        with home.starting(), fork_server.without_main():
            self.process.start()
        theirs.close()
        self.said: list[bytes] = []

    def look(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while self.connection.poll():
                self.said.append(self.connection.recv_bytes())

    def has_said(self, word: bytes) -> bool:
        return any(message.startswith(word) for message in self.said)

    def tell(self, word: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, OSError):
            self.connection.send_bytes(word)

    @property
    def gone(self) -> bool:
        return bool(select.select([self.process.sentinel], [], [], 0)[0])

    def close(self) -> None:
        self.connection.close()
        if not self.gone:
            self.process.kill()
        self.process.join()
        self.process.close()


class Stage:
    """One play: its processes, its files, its clock."""

    def __init__(self, play: Play, folder: Path, device: str) -> None:
        self._play = play
        self._folder = folder
        # Short: socket paths have 107 bytes, and a run directory may lie anywhere.
        self._scratch = home.scratch()
        self._held = ExitStack()  # ports
        self._log = str((folder / "engine.log").absolute())
        self._config = self._configured(play.config, device)
        self._argument = argument_for(folder, play.plan)
        nodes = tuple(str(node) for node in play.topology.nodes)
        self._board = create_board(folder, play.plan, nodes)
        self._supervisor = Supervisor(self._board, play.plan)
        self._watched: dict[tuple[str, int], Watched] = {}
        self._actors: list[Actor] = []
        self._listeners: list[Actor] = []
        self._neighbour: Neighbour | None = None
        self._starvation_s = 0.0
        self._last_look: float | None = None
        self._guard_expired = False
        bounds = play.config.bounds
        self._guard_s = GUARD_FACTOR * (bounds.request_s + bounds.stall_s + bounds.drain_s) + bounds.startup_s

    def _configured(self, config: EngineConfig, device: str) -> EngineConfig:
        events = config.kv_events
        if events.enable_kv_cache_events and events.endpoint is None:
            # Socket buffers can be made small on tcp only: libzmq leaves those of ipc as they are.
            live, replay = f"ipc://{self._scratch}/kv.ipc", f"ipc://{self._scratch}/replay.ipc"
            if events.socket_buffer_bytes:
                live, replay = (f"tcp://127.0.0.1:{port}" for port in reserved_ports(self._held, 2, ranks=self._ranks))
            events = msgspec.structs.replace(events, endpoint=live, replay_endpoint=replay, bind=True)
        runtime_dir = self._scratch
        if self._play.options.get("long_runtime_dir"):
            runtime_dir = self._scratch / ("a-long-directory-name" * 6)
        return msgspec.structs.replace(
            config, kv_events=events, runtime_dir=str(runtime_dir),
            device=config.device if device == "auto" else device,
            start_method="spawn" if fork_server.has_gpu(device) else config.start_method)

    @property
    def _ranks(self) -> int:
        """So many ranks may use the base endpoints of events."""
        return 1 + max(self._play.config.data_parallel_rank, self._play.options.get("neighbour_rank") or 0)

    # -- the play

    def run(self) -> Lab:
        began, options = time.monotonic(), self._play.options
        if options.get("neighbour"):
            self._start_neighbour()
        restarts: list[dict[str, Any]] = []
        main = self._start_caller(0)
        self._wait_for_start(main)
        if main.has_said(caller.READY):
            self._serve(main)
        if options.get("kill_all_then_restart"):
            self._kill_everything()
        else:
            main.tell(caller.CLOSE)
        self._wait(lambda: main.gone)
        checked_at, leftovers = self._look_for_leftovers(clean_expected=not options.get("kill_all_then_restart"))
        if options.get("kill_all_then_restart"):
            restarts.append(self._restart())
            checked_at, leftovers = self._look_for_leftovers(clean_expected=True)
        seen_neighbour = self._end_neighbour() if self._neighbour is not None else {}
        return Lab(
            began_at=began, ended_at=time.monotonic(), processes=[w.end() for w in self._watched.values()],
            leftovers=leftovers, leftovers_checked_at=checked_at, longest_starvation_s=self._starvation_s,
            guard_expired=self._guard_expired, neighbour=seen_neighbour, restarts=restarts,
            other_rank=self._neighbour.stream() if self._neighbour is not None else None)

    def _serve(self, main: Actor) -> None:
        """The engine is ready: bring in the subscribers, run the workload, let the subscribers catch up."""
        late = self._play.options.get("late_subscriber", False)
        if not late:
            self._listeners = self._start_listeners(main)
        if self._neighbour is not None and self._neighbour.rank is not None:
            self._neighbour.serve()
        main.tell(caller.GO)
        self._wait(lambda: main.has_said(caller.DONE) or main.gone)
        if late:
            self._listeners = self._start_listeners(main)
        if not self._play.options.get("kill_all_then_restart"):  # else they outlive the engine, and meet its next life
            self._stop_listeners()

    def _stop_listeners(self) -> None:
        for one in self._listeners:
            one.tell(listener.STOP)
        self._wait(lambda: all(one.gone or one.has_said(listener.DONE) for one in self._listeners),
                   at_most_s=listeners_s(self._config.bounds))

    def _start_caller(self, life: int, workload: Workload | None = None) -> Actor:
        recipe = caller.CallerRecipe(
            config=self._config, workload=workload or msgspec.convert(self._play.workload, Workload),
            ports_factory=FACTORY, ports_argument=self._argument, life=life,
            await_death_s=self._play.options.get("await_death_s", 0.0), log=self._log)
        if self._play.options.get("plain"):
            recipe = msgspec.structs.replace(recipe, ports_factory="", ports_argument=b"")
        return self._act(caller.main, recipe, f"frontend.0@{life}")

    def _start_listeners(self, main: Actor) -> list[Actor]:
        """Bring them in and let them hear of the publisher, unless it is dead by then."""
        events, bounds, rank = self._config.kv_events, self._config.bounds, self._config.data_parallel_rank
        neighbour, started = self._neighbour, []
        if neighbour is not None:
            neighbour.follow()
        for node in self._play.topology.nodes:
            if node.kind is NodeKind.SUBSCRIBER:
                recipe = listener.ListenerRecipe(
                    index=node.index, endpoint=address_of_rank(events.endpoint, rank),
                    replay_endpoint=address_of_rank(events.replay_endpoint, rank) if events.replay else None,
                    hwm=events.subscriber_hwm, buffer_bytes=events.socket_buffer_bytes,
                    replay_s=bounds.replay_s, ports_factory=FACTORY, ports_argument=self._argument,
                    rude=self._play.options.get("rude_subscriber", False) and node.index == 0)
                started.append(self._act(listener.main, recipe, str(node)))
        self._wait(lambda: (main.gone or self._has_ended(core()) or all(one.said or one.gone for one in started))
                   and (neighbour is None or neighbour.followed),
                   at_most_s=listeners_s(bounds))
        return started

    def _has_ended(self, node: Node) -> bool:
        watched = self._watched.get((str(node), 0))
        return watched is not None and watched.ended_at is not None

    def _act(self, target: Any, recipe: msgspec.Struct, name: str) -> Actor:
        actor = Actor(target, msgspec.msgpack.encode(recipe), name, self._config.start_method)
        self._actors.append(actor)
        return actor

    # -- outside events

    def _start_neighbour(self) -> None:
        self._neighbour = one = Neighbour(
            self._config, msgspec.convert(self._play.workload, Workload), self._scratch / "n", self._log,
            self._play.options.get("neighbour_rank"), tuple(str(node) for node in self._play.topology.nodes), self._act)
        self._wait(lambda: one.caller.said or one.caller.gone)
        one.settle()

    def _end_neighbour(self) -> dict[str, Any]:
        """It must still serve, and nobody may have touched what is its own. Its subscriber catches up."""
        one = self._neighbour
        touched = one.touched()
        self._wait(lambda: one.has_served)
        one.serve()
        self._wait(lambda: one.has_served)
        seen = one.seen(touched)
        if one.listener is not None:
            one.listener.tell(listener.STOP)
        self._wait(lambda: one.left, at_most_s=listeners_s(self._config.bounds))
        one.caller.tell(caller.CLOSE)
        self._wait(lambda: one.caller.gone)
        return seen

    def _kill_everything(self) -> None:
        """SIGKILL of every process of the engine at once: nobody is left to clean up.

        All are stopped first, or the last of them would have the time to clean up after the others.
        """
        engine = [w for w in self._watched.values() if w.ended_at is None and not w.node.startswith("subscriber")]
        for watched in engine:
            watched.signal(signal.SIGSTOP)
        for watched in engine:
            watched.kill()
        self._wait(lambda: all(w.ended_at is not None for w in self._watched.values()
                               if not w.node.startswith("subscriber")))

    def _restart(self) -> dict[str, Any]:
        """Start the engine again where it was killed. It must come up, serve, and remove what lay about."""
        before = engine_files(self._scratch)
        again = self._start_caller(1)
        self._wait_for_start(again)
        ready = again.has_said(caller.READY)
        removed = sorted(set(before) - set(engine_files(self._scratch)))
        if ready:
            again.tell(caller.GO)
            self._wait(lambda: again.has_said(caller.DONE) or again.gone)
        served = again.has_said(caller.DONE)
        self._stop_listeners()
        again.tell(caller.CLOSE)
        self._wait(lambda: again.gone)
        error = next((m.decode()[len(caller.FAILED) + 1:] for m in again.said if m.startswith(caller.FAILED)), "")
        return {"life": 1, "ready": ready, "served": served, "removed": removed, "error": error}

    # -- watching

    def _wait_for_start(self, actor: Actor) -> None:
        """Until it is ready, has failed, or must be called a hang: judges want three times the bound for that."""
        bounds = self._config.bounds
        self._wait(lambda: actor.said or actor.gone,
                   guard_s=GUARD_FACTOR * (bounds.startup_s + bounds.heartbeat_s + bounds.detection_s) + 1.0)

    def _wait(self, condition: Any, at_most_s: float | None = None, guard_s: float | None = None) -> None:
        """Look after the play until `condition()` holds, or the guard's time is over (the play's, if none is given)."""
        deadline = time.monotonic() + (at_most_s if at_most_s is not None else guard_s or self._guard_s)
        while True:
            self._look()
            if condition():
                return
            if time.monotonic() > deadline:
                if at_most_s is None:
                    self._expire()
                return
            descriptors = [d for actor in self._actors for d in (actor.connection, actor.process.sentinel)
                           if not actor.gone]
            select.select(descriptors, [], [], LOOK_S)

    def _look(self) -> None:
        now = time.monotonic()
        if self._last_look is not None:
            self._starvation_s = max(self._starvation_s, now - self._last_look - 2 * LOOK_S)
        self._supervisor.tick()
        for actor in self._actors:
            actor.look()
        for node in self._play.topology.nodes:
            for life in (0, 1):
                born = self._board.process(str(node), life)
                if born is not None and (str(node), life) not in self._watched:
                    self._watched[str(node), life] = Watched(str(node), life, born[0], now)
        for watched in self._watched.values():
            watched.look(now)
        self._last_look = time.monotonic()

    def _expire(self) -> None:
        """The guard: whatever is still there hangs. End it, so that the next play has a clean machine."""
        self._guard_expired = True
        self._supervisor.release_all()
        for actor in self._actors:
            if not actor.gone:
                actor.process.kill()
        for watched in self._watched.values():
            if watched.ended_at is None:
                watched.kill()

    def _look_for_leftovers(self, *, clean_expected: bool) -> tuple[float, list[str]]:
        """Give the engine its bound to disappear, then write down what has not."""
        deadline = time.monotonic() + self._config.bounds.cleanup_s

        def left() -> list[str]:
            alive = [f"process {w.node}@{w.life} (pid {w.pid})" for w in self._watched.values()
                     if w.ended_at is None and not w.node.startswith("subscriber")]
            return alive + [path for path in engine_files(self._scratch)
                            if self._neighbour is None or path not in self._neighbour.files]

        self._look()
        while clean_expected and left() and time.monotonic() < deadline:
            select.select([], [], [], LOOK_S)
            self._look()
        return time.monotonic(), left()

    def close(self) -> None:
        for actor in self._actors:
            actor.close()
        if self._neighbour is not None:
            self._neighbour.close()
        for watched in self._watched.values():
            watched.look(time.monotonic())
            if watched.ended_at is None:
                watched.kill()
                select.select([watched.fd], [], [], self._config.bounds.cleanup_s)  # or the broom finds it alive
            watched.close()
        sweep()
        self._held.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
