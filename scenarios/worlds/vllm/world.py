"""The world of vLLM: its own control plane in its own processes, with workers that compute nothing.

    lab --> host (vLLM's interpreter, imported once) --fork--> caller (frontend.k) --> core.k --> its workers

All that stands in `scenarios.lab.script` happens as in our engine's world. Each play has a /dev/shm, where that is
permitted, and a folder for sockets of its own. Processes are known by what they call themselves, or say in their
journals; what is still there of them when a play is over is on record, and then ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.process.identity import start_time
from engine.topology import Client, Deployment, Engine, Launcher, Node
from faults.plan import Plan, PlanError
from scenarios.history.play import Options, Play
from scenarios.history.run import save
from scenarios.lab import home
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import Workload, workload_for
from scenarios.worlds.base import NotHereError, PlayedRun, World
from scenarios.worlds.engine import RealActor, RealBench
from scenarios.worlds.vllm.arguments import arguments_of, environment_of, longest, with_bounds
from scenarios.worlds.vllm.environment import interpreter, make_path
from scenarios.worlds.vllm.family import Family, name_of
from scenarios.worlds.vllm.link import Caller, Host, VllmError
from scenarios.worlds.vllm.recipe import Recipe
from scenarios.worlds.vllm.references import with_references
from scenarios.worlds.vllm.relay import process as relay_process
from scenarios.worlds.vllm.relay.process import RelayRecipe, fresh_name
from scenarios.worlds.vllm.selection import DIFFERENT
from scenarios.worlds.vllm.sites import check, check_config, check_topology, needs_relay

#: Of the lab's model.
VOCABULARY = 561
#: A relay has started within this.
RELAY_S = 20.0


class VllmWorld(World):
    name = "vllm"

    def __init__(self, out: Path, **rest: Any) -> None:
        super().__init__(out, **rest)
        self._host: Host | None = None

    def play(self, *, topology: Any, workload: Workload, plan: Plan = Plan(),  # noqa: B008
             config: Any = None, options: Options | None = None) -> PlayedRun:
        if self.scenario in DIFFERENT:
            raise NotHereError(DIFFERENT[self.scenario])
        check(plan, options or Options())
        check_topology(topology)
        check_config(config or lab_config(), workload)
        config = with_bounds(config or lab_config())
        return super().play(topology=topology, plan=plan, config=config, options=options,
                            workload=with_references(workload.played(), VOCABULARY, longest(config)))

    def _play(self, play: Play) -> list[Path]:
        folder = self.folder(play)
        bench = VllmBench(play, folder, self._brought_up())
        try:
            seen = bench.run()
        finally:
            bench.close()
        save(folder / "lab.json", seen)
        return [folder]

    def _brought_up(self) -> Host:
        if self._host is None:
            python = interpreter()
            if python is None:
                raise PlanError("no interpreter with vLLM is named")
            place = home.scratch()
            self.out.mkdir(parents=True, exist_ok=True)
            self._host = Host(python, make_path(place), self.out / "vllm-host.log")
        return self._host

    def close(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None


class VllmBench(RealBench):
    def __init__(self, play: Play, folder: Path, host: Host) -> None:
        super().__init__(play, folder, "cpu")
        self._host = host
        self._family = Family()
        self._sockets = self._scratch / "s"
        self._sockets.mkdir()

        self._relay: tuple[str, RealActor] | None = None
        if needs_relay(play.plan, play.options):
            self._relay = self._start_relay()

    def _start_relay(self) -> tuple[str, RealActor]:
        name = fresh_name()
        actor = RealActor(relay_process.main, msgspec.msgpack.encode(RelayRecipe(
            str(self._folder.absolute()), name)), "relay", "fork")
        if not actor.connection.poll(RELAY_S) or actor.connection.recv_bytes() != relay_process.UP:
            actor.close()
            raise VllmError("the relay of a play did not start")
        return name, actor

    def start_client(self, client: Client, life: int, attachment: bytes) -> Caller:
        workload = msgspec.convert(self._play.workload, Workload)
        caller = self._host.start(Recipe(
            index=client.index, life=life, workload=workload_for(workload, client, self._play.topology),
            folder=str(self._folder.absolute()), arguments=arguments_of(self._play.config, self._play.topology),
            environment=environment_of(self._play.config, str(self._sockets)),
            await_death_s=self._options.await_death_s, request_s=self._play.config.bounds.request_s, log=self._log,
            relay=self._relay[0] if self._relay is not None else ""))
        self._family.adopt(caller.pid)
        self._actors.append(caller)
        return caller

    def start_launcher(self, launcher: Launcher, clients: tuple[Client, ...], life: int) -> Any:
        raise PlanError("several frontends are not played with vLLM yet")

    def start_subscriber(self, node: Node, engine: Engine) -> Any:
        raise PlanError("subscribers are not played with vLLM yet")

    def living(self, deployment: Deployment) -> list[str]:
        return [f"process {name_of(pid)} (pid {pid})" for pid in self._family.living()]

    def files(self, deployment: Deployment) -> set[str]:
        found = {f"{self._sockets}/{path.name}" for path in self._sockets.iterdir()}
        return found.union(*(actor.files() for actor in self._actors if isinstance(actor, Caller)))

    def may_remove(self, deployment: Deployment) -> bool:
        return bool(self._family.living())

    def _exitcode(self, node: Node) -> int | None:
        return self._host.exit_of(self._watched[node].pid)

    def _look(self) -> None:
        for node, pid in self._family.look().items():
            if node in self._play.topology.nodes and self._board.process(str(node), 0) is None:
                self._board.seat(str(node)).enter(pid, start_time(pid) or 0)
        super()._look()

    def close(self) -> None:
        self._family.end()
        if self._relay is not None:
            self._relay[1].close()
        super().close()
