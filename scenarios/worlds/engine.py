"""The world of real processes: starts them, watches from outside, and looks at what they leave.

The lab is never a node of a play. It gives each process a recipe, lets stopped ones go on when their fault is
over, keeps time of its own starvation, and when the play is over it looks for processes, segments and files
that should not be there. What it does when is `scenarios.lab.script`.

    lab --fork server--> caller (frontend.k) --fork--> core.k --fork--> its workers
        --fork server--> listener (subscriber.k)
"""

from __future__ import annotations

import contextlib
import select
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.process.children import process_name
from engine.process.runtime_dir import sweep
from engine.topology import Client, Deployment, Engine, Launcher, Node
from faults.plan import PlanError
from faults.real.board import create_board
from faults.real.ports import FACTORY, argument_for
from faults.real.processes import Supervisor, stop_all
from scenarios.history.play import Holdings, Intruder
from scenarios.history.run import Lab, Play, save
from scenarios.lab import home
from scenarios.lab.follower import following
from scenarios.lab.queue_play import PLAYS
from scenarios.lab.script import Rehearsed, Seen
from scenarios.lab.settings import config_for, config_of
from scenarios.programs import program, queue_user, sync_caller
from scenarios.programs.queue_script import program_script, queue_script
from scenarios.workloads.workload import Workload, workload_for
from scenarios.worlds import caller, launching, listener
from scenarios.worlds.addresses import reserved_ports, with_events_at
from scenarios.worlds.base import World
from scenarios.worlds.forking import fork_server
from scenarios.worlds.launching import Intruders, address_of
from scenarios.worlds.measure import Watched, crashed_in, engine_files, errors_in, holdings_of, log_of

#: How often the lab looks: at what somebody tells of, at once; at the rest the more seldom once all were born, where
#: nobody is to be let go on at a moment. Its own lateness beyond this, and as much as the first, is starvation.
LOOK_S, PACE_S = 0.005, 0.02


class EngineWorld(World):
    name = "engine"

    def _play(self, play: Play) -> list[Path]:
        if play.options.queue and not PLAYS[play.options.queue].is_for_programs:
            raise PlanError(f"{play.scenario}: the queue by itself is played so in the twin only, by no process")
        return [RealBench(play, self.folder(play), self.device).play_out()]

    def close(self) -> None:
        fork_server.stop()


class Connected:
    """The lab's end of a process that it has speak with it."""

    _end = -1  # a descriptor that is readable once it is gone

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.said: list[bytes] = []
        self.is_silent = False  # its end is closed: it says no more, some ms before it is gone
        self._words = select.poll()  # `connection.poll` would make one each time, hundreds of times a second
        self._words.register(connection.fileno(), select.POLLIN)

    def look(self) -> None:
        try:
            while not self.is_silent and self._words.poll(0):
                self.said.append(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.is_silent = True

    @property
    def gone(self) -> bool:
        return self._end < 0 or bool(select.select([self._end], [], [], 0)[0])

    @property
    def descriptors(self) -> list[Any]:
        """Readable when it says something, or is gone."""
        return [self._end] if self.is_silent else [self.connection, self._end]

    def tell(self, word: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, OSError):
            self.connection.send_bytes(word)


class RealActor(Connected):
    """A process the lab started itself: the caller or a listener, with the pipe between them."""

    def __init__(self, target: Any, recipe: bytes, name: str, start_method: str) -> None:
        context = fork_server.context() if start_method == "fork" else fork_server.spawn_context()
        ours, theirs = context.Pipe()
        super().__init__(ours)
        self.process = context.Process(target=target, args=(recipe, theirs), name=name)
        with home.starting(), fork_server.without_main(), fork_server.in_turn():
            self.process.start()
        self._end = self.process.sentinel
        theirs.close()

    @property
    def pid(self) -> int | None:
        return self.process.pid

    @property
    def exitcode(self) -> int | None:
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        self.connection.close()
        if not self.gone:
            self.process.kill()
        self.process.join()
        self.process.close()
        self._end = -1


class RealBench:
    """One play: its processes, its files, its clock. See `scenarios.lab.script.Bench`."""

    def __init__(self, play: Play, folder: Path, device: str) -> None:
        self._play = play
        self._folder = folder
        self._options = play.options
        self._workload = msgspec.convert(play.workload, Workload)
        # Short: socket paths have 107 bytes, and a run directory may lie anywhere.
        self._scratch = home.scratch()
        self._held = ExitStack()  # ports
        self._log = str((folder / "engine.log").absolute())
        self._config = self._configured(play.config, device)
        self._argument = argument_for(folder, play.plan, play.unsteady, play.seed)
        self._board = create_board(folder, play.plan, play.topology)
        self._supervisor = Supervisor(self._board, play.plan)
        self._watched: dict[Node, Watched] = {}
        self._unborn = [(str(node), life, msgspec.structs.replace(node, life=life))
                        for node in play.topology.nodes for life in (0, 1)]
        self._actors: list[Any] = []  # as `RealActor`
        self._intruders = Intruders()
        self._starvation_s = 0.0
        self._last_look: float | None = None
        self._pace_s = LOOK_S
        self._guard_expired = False

    def _configured(self, config: EngineConfig, device: str) -> EngineConfig:
        def ports() -> list[int]:
            ranks = 1 + max(config_of(config, engine).data_parallel_rank for engine in self._play.topology.engines)
            return reserved_ports(self._held, 2, ranks=ranks)

        if config.is_offline:
            config = msgspec.structs.replace(config, data_parallel=msgspec.structs.replace(
                config.data_parallel, master_address=f"ipc://{self._scratch}/ranks.ipc"))
        if config.is_spread:
            where = f"tcp://127.0.0.1:{reserved_ports(self._held, 1)[0]}" if config.sockets.transport == "tcp" else (
                f"ipc://{self._scratch}/head.ipc")
            config = msgspec.structs.replace(config, data_parallel=msgspec.structs.replace(
                config.data_parallel, head_address=where))
        return msgspec.structs.replace(
            with_events_at(config, f"{self._scratch}/", ports), device=config.device if device == "auto" else device)

    def play_out(self) -> Path:
        """Once, with what the lab has seen on record. -> its folder"""
        try:
            seen = self.run()
        finally:
            self.close()
        save(self._folder / "lab.json", seen)
        return self._folder

    def run(self) -> Lab:
        began, seen = self.now(), self._perform()
        return Lab(
            began_at=began, ended_at=self.now(), processes=[
                watched.end(self._exitcode(node)) for node, watched in self._watched.items()],
            leftovers=seen.leftovers, leftovers_checked_at=seen.leftovers_checked_at,
            longest_starvation_s=self._starvation_s, guard_expired=self._guard_expired, beside=seen.beside,
            restarts=seen.restarts, measured=seen.measured, printed=errors_in(log_of(self._log)))

    def _exitcode(self, node: Node) -> int | None:
        """Of a process that the lab started, or 1 where its log tells of an exception out of it; None: not known."""
        for actor in self._actors:
            if actor.pid == self._watched[node].pid:
                return actor.exitcode if actor.gone else None
        names = [process_name(other) for other in self._watched]
        told = crashed_in(log_of(self._log))
        return 1 if process_name(node) in told and names.count(process_name(node)) == 1 else None

    def _perform(self) -> Seen:
        topology, bounds, queue = self._play.topology, self._config.bounds, self._options.queue
        if self._options.program:
            script = program_script(self, topology, bounds)
        else:
            script = queue_script(self, queue, topology, bounds) if queue else Rehearsed(
                self, topology, bounds, self._options).run()
        try:
            wait = next(script)
            while True:
                wait = script.send(self._wait(wait.until, wait.at_most_s, wait.guards))
        except StopIteration as stop:
            return stop.value

    # -- what the script asks for

    def start_launcher(self, launcher: Launcher, clients: tuple[Client, ...], life: int) -> RealActor:
        return self._act(launching.main, launching.LauncherRecipe(
            index=launcher.index, config=self._config_of(launcher), clients=len(clients), ports_factory=FACTORY,
            ports_argument=self._argument, life=life, log=self._log), f"{launcher.node}@{life}")

    def _config_of(self, client: Client | Launcher) -> EngineConfig:
        together = next(one for one in self._play.topology.deployments if client.node in one.nodes)
        folder = self._folder_of(together.index)
        folder.mkdir(exist_ok=True)
        if self._options.long_runtime_dir:
            folder = folder / ("a-long-directory-name" * 6)
        return msgspec.structs.replace(config_for(self._config, client, self._play.topology, self._options.differs),
                                       runtime_dir=str(folder))

    def start_client(self, client: Client, life: int, attachment: bytes) -> RealActor:
        recipe = caller.CallerRecipe(
            index=client.index, config=self._config_of(client), attachment=attachment,
            workload=workload_for(self._workload, client, self._play.topology), ports_factory=FACTORY,
            ports_argument=self._argument, life=life, await_death_s=self._options.await_death_s, log=self._log)
        if self._options.plain:
            recipe = msgspec.structs.replace(recipe, ports_factory="", ports_argument=b"")
        main = sync_caller.main if self._options.synchronous else caller.main
        return self._act(main, recipe, f"{client.node}@{life}")

    def start_subscriber(self, node: Node, engine: Engine) -> RealActor:
        what = following(config_of(self._followed_by(node), engine), engine.index, node.index, self._options)
        return self._act(listener.main, listener.ListenerRecipe(
            index=node.index, what=what, ports_factory=FACTORY, ports_argument=self._argument), str(node))

    def _followed_by(self, subscriber: Node) -> EngineConfig:
        """With the addresses that it is told."""
        return self._config

    def start_part(self, node: Node) -> RealActor:
        return self._act(queue_user.main, queue_user.QueueRecipe(
            node=str(node), queue=self._options.queue, ring=self._config.ring, bounds=self._config.bounds,
            ports_factory=FACTORY, ports_argument=self._argument, folder=str(self._scratch), log=self._log), str(node))

    def start_program(self, node: Node) -> RealActor:
        """Its own engines run on a CPU, and are forked: it asks for what no device changes."""
        return self._act(program.main, program.ProgramRecipe(
            program=self._options.program, config=msgspec.structs.replace(
                self._config, runtime_dir=str(self._scratch), device="cpu",
                start_method=self._play.config.start_method), workload=self._workload, ports_factory=FACTORY,
            ports_argument=self._argument, folder=str(self._scratch), log=self._log), str(node))

    def has_ended(self, node: Node) -> bool:
        watched = self._watched.get(node)
        return watched is not None and watched.ended_at is not None

    def finds(self, intruder: Intruder) -> bool:
        return address_of(intruder, self._scratch) is not None

    def let_in(self, intruder: Intruder) -> None:
        self._intruders.let_in(intruder, self._scratch)

    def kill(self, deployment: Deployment) -> None:
        """All are stopped first, or the last of them would have the time to clean up after the others."""
        victims = [w for w in self._of(deployment) if w.ended_at is None]
        stop_all((watched.pid, watched.ticks or 0) for watched in victims)
        for watched in victims:
            watched.kill()

    def living(self, deployment: Deployment) -> list[str]:
        return [f"process {w.node} (pid {w.pid})" for w in self._of(deployment) if not w.is_gone()]

    def measure(self) -> list[tuple[Node, Holdings]]:
        on_cpu = not fork_server.has_gpu(self._config.device)
        found = ((node, holdings_of(watched.pid, with_memory=on_cpu)) for node, watched in self._watched.items()
                 if watched.ended_at is None)
        return [(node, holds) for node, holds in found if holds is not None]

    def files(self, deployment: Deployment) -> set[str]:
        return set(engine_files(self._folder_of(deployment.index)))

    def may_remove(self, deployment: Deployment) -> bool:
        return True  # helpers of Python's, which nobody names

    def now(self) -> float:
        return time.monotonic()

    def _of(self, deployment: Deployment) -> list[Watched]:
        nodes = deployment.nodes
        return [watched for node, watched in self._watched.items() if node.first_life in nodes]

    def _folder_of(self, first: int) -> Path:
        """What is deployed beside the first has a directory of its own, so that what each has can be told apart."""
        return self._scratch / f"e{first}" if first else self._scratch

    def _act(self, target: Any, recipe: msgspec.Struct, name: str) -> RealActor:
        actor = RealActor(target, msgspec.msgpack.encode(recipe), name, self._config.start_method)
        self._actors.append(actor)
        return actor

    # -- watching

    def _wait(self, condition: Callable[[], bool], at_most_s: float, guards: bool) -> bool:
        """Look after the play until `condition()` holds. -> whether it does"""
        deadline = self.now() + at_most_s
        while True:
            self._look()
            if condition():
                return True
            if self.now() > deadline:
                if guards:
                    self._expire()
                return False
            self._rest(deadline - self.now())

    def _rest(self, at_most_s: float) -> None:
        """Until one of them speaks or ends, or it is time to look."""
        quick = self._supervisor.may_be_due or any(not life for _, life, _ in self._unborn)
        self._pace_s = LOOK_S if quick else PACE_S
        ends = [d for actor in self._actors if not actor.gone for d in actor.descriptors]
        ends += [watched.fd for watched in self._watched.values() if watched.ended_at is None]
        select.select(ends, [], [], min(self._pace_s, max(0.0, at_most_s)))

    def _look(self) -> None:
        now = self.now()
        if self._last_look is not None:
            self._starvation_s = max(self._starvation_s, now - self._last_look - self._pace_s - LOOK_S)
        self._supervisor.tick()
        for actor in self._actors:
            actor.look()
        for name, life, lived in self._unborn:
            born = self._board.process(name, life)
            if born is not None:
                self._watched[lived] = Watched(name, life, born[0], self.now)
        self._unborn = [one for one in self._unborn if one[2] not in self._watched]
        for watched in self._watched.values():
            watched.look(self.now)
        self._last_look = self.now()

    def _expire(self) -> None:
        """The guard: whatever is still there hangs. End it, so that the next play has a clean machine."""
        self._guard_expired = True
        self._supervisor.release_all()
        for actor in self._actors:
            if not actor.gone:
                actor.kill()
        for watched in self._watched.values():
            if watched.ended_at is None:
                watched.kill()

    def close(self) -> None:
        self._intruders.close()
        for actor in self._actors:
            actor.close()
        for watched in self._watched.values():
            watched.look(self.now)
            if watched.ended_at is None:
                watched.kill()
            watched.close(self._config.bounds.cleanup_s)
        sweep()
        self._held.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
