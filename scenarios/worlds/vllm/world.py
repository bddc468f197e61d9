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

from engine.config import EngineConfig
from engine.process.identity import start_time
from engine.topology import Channel, Client, Deployment, Launcher, Node, NodeKind
from faults.plan import Plan, PlanError
from scenarios.history.play import Holdings, Options, Play
from scenarios.lab import home
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import Workload, workload_for
from scenarios.worlds.base import NotHereError, PlayedRun, World
from scenarios.worlds.engine import RealActor, RealBench
from scenarios.worlds.vllm.arguments import arguments_of, environment_of, longest, with_bounds
from scenarios.worlds.vllm.edits.copy import make_copy
from scenarios.worlds.vllm.edits.registry import edits_of
from scenarios.worlds.vllm.environment import installed, interpreter, make_path, versions_of
from scenarios.worlds.vllm.family import Family, name_of
from scenarios.worlds.vllm.host.recipe import Recipe, Wish, granted
from scenarios.worlds.vllm.link import Caller, Host, VllmError
from scenarios.worlds.vllm.references import with_references
from scenarios.worlds.vllm.relay import process as relay_process
from scenarios.worlds.vllm.relay.process import RelayRecipe, fresh_name
from scenarios.worlds.vllm.rings import watch
from scenarios.worlds.vllm.rings.tripwire import obstacle
from scenarios.worlds.vllm.rings.watch import WatchRecipe
from scenarios.worlds.vllm.selection import DIFFERENT
from scenarios.worlds.vllm.sites import check, check_config, check_topology, needs_relay, needs_tripwire, needs_watch

#: By such names scenarios are known that are made for vLLM's processes.
OF_ITS_OWN = "test_vllm_"
#: Of the lab's model.
VOCABULARY = 561
#: A relay, or a watch, has started within this.
BESIDE_S = 20.0


class VllmWorld(World):
    name = "vllm"

    def __init__(self, out: Path, **rest: Any) -> None:
        super().__init__(out, **rest)
        self._hosts: dict[tuple[str, ...], Host] = {}  # by the names of the edits that it has
        self._versions: dict[str, str] = {}  # of what plays: the lab's own are another interpreter's
        self.edits: tuple[str, ...] = ()  # of each play, beside those that it asks for

    def play(self, *, topology: Any, workload: Workload, plan: Plan = Plan(),  # noqa: B008
             config: Any = None, options: Options | None = None) -> PlayedRun:
        if self.scenario in DIFFERENT:
            raise NotHereError(DIFFERENT[self.scenario])
        options = options or Options()
        options = msgspec.structs.replace(options, edits=(*options.edits, *self.edits))
        check(plan, options)
        check_topology(topology, plan)
        if (needs_relay(plan, options) or needs_watch(plan)) and not self.scenario.startswith(OF_ITS_OWN):
            raise NotHereError("messages of vLLM's, and its rings, are hit in scenarios of its own: crossings there "
                               "count otherwise")
        check_config(config or lab_config(), workload)
        if needs_tripwire(plan) and (why := obstacle()) is not None:
            raise NotHereError(why)
        config = with_bounds(config or lab_config(), topology)
        if topology.subscribers:  # its publisher is the one that they are told to hear
            options = msgspec.structs.replace(options, without_epochs=True)
        return super().play(topology=topology, plan=plan, config=config, options=options,
                            workload=with_references(workload.played(), VOCABULARY, longest(config)))

    def _play(self, play: Play) -> list[Path]:
        host = self._brought_up(play.options.edits)
        play = msgspec.structs.replace(play, versions={**self._versions, "ringtwin": play.versions.get("ringtwin", "")})
        return [VllmBench(play, self.folder(play), host).play_out()]

    def _brought_up(self, edits: tuple[str, ...]) -> Host:
        """One that is not edited stays; of the others, which take as much memory, the last one that was asked for."""
        if edits not in self._hosts:
            python = interpreter()
            if python is None:
                raise PlanError("no interpreter with vLLM is named")
            self._versions = self._versions or versions_of(python)
            changes = edits_of(edits)
            for old in [name for name in self._hosts if name]:
                self._hosts.pop(old).close()
            place = home.scratch()
            self.out.mkdir(parents=True, exist_ok=True)
            path = [make_path(place)]
            if changes:
                path.insert(0, make_copy(installed(python), place / "edited", changes))
            self._hosts[edits] = Host(python, path, self.out / "vllm-host.log")
        return self._hosts[edits]

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()
        self._hosts = {}


class VllmBench(RealBench):
    def __init__(self, play: Play, folder: Path, host: Host) -> None:
        super().__init__(play, folder, "cpu")
        self._host = host
        self._family = Family()
        #: As it was played, and where its events go.
        self._told = msgspec.structs.replace(play.config, kv_events=self._config.kv_events)
        self._sockets = self._scratch / "s"
        self._sockets.mkdir()

        self._relay = ""  # what it is asked by, where there is one
        self._beside: list[RealActor] = []  # the lab's own, which stand beside vLLM's processes
        self._unarmed: RealActor | None = None  # of them the watch of rings, until all is up
        if needs_relay(play.plan, play.options):
            recipe = RelayRecipe(str(self._folder.absolute()), fresh_name())
            self._start_beside(relay_process, recipe, "relay")
            self._relay = recipe.name
        if needs_watch(play.plan):
            self._unarmed = self._start_beside(watch, WatchRecipe(str(self._folder.absolute())), "watch")

    def measure(self) -> list[tuple[Node, Holdings]]:
        """It begins when all is up and nothing is asked yet: then the watch of rings is armed."""
        actor, self._unarmed = self._unarmed, None
        if actor is not None:
            actor.connection.send_bytes(watch.ARM)
            self._wait_for(actor, watch.UP, "watch")
        return super().measure()

    def _start_beside(self, room: Any, recipe: Any, name: str) -> RealActor:
        """`room`: has its `main`, and the word by which that says that it is `UP`."""
        actor = RealActor(room.main, msgspec.msgpack.encode(recipe), name, "fork")
        self._beside.append(actor)
        self._wait_for(actor, room.UP, name)
        return actor

    def _wait_for(self, actor: RealActor, word: bytes, name: str) -> None:
        if not actor.connection.poll(BESIDE_S) or actor.connection.recv_bytes() != word:
            raise VllmError(f"the {name} of a play did not start")

    def start_client(self, client: Client, life: int, attachment: bytes) -> Caller:
        caller = self._host.start(Recipe(
            index=client.index, life=life, workload=self._asked_by(client),
            folder=str(self._folder.absolute()), arguments=arguments_of(self._told, self._play.topology),
            environment=environment_of(self._play.config, str(self._sockets)),
            await_death_s=self._options.await_death_s, request_s=self._play.config.bounds.request_s, log=self._log,
            synchronous=self._options.synchronous, over_http=self._options.over_http,
            startup_s=self._play.config.bounds.startup_s, relay=self._relay))
        self._family.adopt(caller.pid)
        self._actors.append(caller)
        return caller

    def _asked_by(self, client: Client) -> Workload:
        """A program that generates and waits has nobody count its engine's steps, nor has a client of a server."""
        workload = workload_for(msgspec.convert(self._play.workload, Workload), client, self._play.topology)
        return msgspec.structs.replace(workload, free=workload.free or self._options.synchronous
                                       or self._options.over_http)

    def _followed_by(self, subscriber: Node) -> EngineConfig:
        """Through the relay, where there is one."""
        if not self._relay:
            return self._config
        events, asked = self._config.kv_events, {"endpoint": Channel.KV, "replay_endpoint": Channel.REPLAY}
        told = {name: granted(self._relay, Wish(getattr(events, name), subscriber.index, channel))
                for name, channel in asked.items()}
        return msgspec.structs.replace(self._config, kv_events=msgspec.structs.replace(events, **told))

    def start_launcher(self, launcher: Launcher, clients: tuple[Client, ...], life: int) -> Any:
        raise PlanError("several frontends are not played with vLLM yet")

    def living(self, deployment: Deployment) -> list[str]:
        return [f"process {name_of(pid)} (pid {pid})" for pid in self._family.living()]

    def files(self, deployment: Deployment) -> set[str]:
        found = {f"{self._sockets}/{path.name}" for path in self._sockets.iterdir()}
        return found.union(*(actor.files() for actor in self._actors if isinstance(actor, Caller)))

    def may_remove(self, deployment: Deployment) -> bool:
        return bool(self._family.living())

    def _exitcode(self, node: Node) -> int | None:
        if node.kind is NodeKind.SUBSCRIBER:  # the lab's own
            return super()._exitcode(node)
        return self._host.exit_of(self._watched[node].pid)

    def _look(self) -> None:
        for node, pid in self._family.look().items():
            if node in self._play.topology.nodes and self._board.process(str(node), 0) is None:
                self._board.seat(str(node)).enter(pid, start_time(pid) or 0)
        super()._look()

    def close(self) -> None:
        self._family.end()
        for actor in self._beside:
            actor.close()
        super().close()
