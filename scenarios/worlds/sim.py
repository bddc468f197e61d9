"""The twin's world: the same play on SimPy, in virtual time, without torch or ZMQ.

Where libzmq or gloo allow several outcomes, each is played, up to `CHOICES` of them; each is a run of its own.
The lab's part is `scenarios.lab.script`, run by a process that is no node of the play.

A hang is a verdict here, too. A thread that asks for effects for ever in one instant is counted out
(`sim.process.thread`). What neither waits nor asks, and what waits again and again for next to nothing, only processor
time can tell: whoever runs when a play has taken far too much of it is put on record as endless, and its process ends.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from types import FrameType

import msgspec

from engine.config import EngineConfig
from engine.effects import Loop
from engine.frontend.text.input_processor import InputProcessor
from engine.model_config import ModelConfig, read_model_config
from engine.ports import SocketSpec
from engine.topology import Client, Deployment, Engine, Launcher, Node, NodeKind, frontend
from faults.plan import PlanError
from scenarios.history.play import Holdings, Intruder
from scenarios.history.run import Lab, Play, ProcessEnd, save
from scenarios.lab.follower import follow, following
from scenarios.lab.script import DONE, STOP, UP, Rehearsed, Seen
from scenarios.lab.settings import config_for, config_of
from scenarios.workloads.workload import Workload, workload_for
from scenarios.worlds.addresses import with_events_at
from scenarios.worlds.base import World, without_collector
from scenarios.worlds.twin.alone import PURE, play_program
from scenarios.worlds.twin.caller import ORDERS, client_main, launcher_main
from scenarios.worlds.twin.queue import play_queue
from scenarios.worlds.twin.text import RecordedTokenizer
from sim.kernel.choices import Choices, enumerate_choices
from sim.kernel.costs import COSTS, Costs
from sim.kernel.kernel import Scheduler
from sim.nodes.model import Given
from sim.process.answers.belongings import files_of
from sim.process.effects import AwaitCondition
from sim.process.process import SIGKILL, SimProcess
from sim.process.thread import EndlessError, SimThread
from sim.simulation import Simulation

#: Allowed outcomes that are played at most.
CHOICES = 6
#: A play that lasts longer in virtual time makes no sense any more.
GUARD_S = 600.0
#: Processor time of one play, of which the longest takes two seconds; and when to look again, where others go on.
PLAY_S, AGAIN_S = 20.0, 0.1
_RUNS, _IS_DONE = SimThread._advance.__code__, SimThread._finish.__code__
#: Where events are published: far enough apart for some ranks.
EVENT_PORTS = (5557, 5657)


class RecordedModel:
    """Answers from the workload's reference tokens, the longest of a prompt. A token that was not recorded is the end
    of sequence, or 0.
    """

    def __init__(self, workload: Workload, eos_token_id: int | None) -> None:
        shortest_first = sorted(workload.requests, key=lambda request: len(request.reference_token_ids))
        self._references = {tuple(r.prompt_token_ids): r.reference_token_ids for r in shortest_first}
        self.eos_token_id = eos_token_id
        self.last_token = eos_token_id or 0

    def continuation(self, prompt: tuple[int, ...]) -> list[int]:
        return self._references.get(prompt, [])


class SimWorld(World):
    name = "sim"
    virtual_time = True

    def _play(self, play: Play) -> list[Path]:
        if play.options.program and play.options.program not in PURE:
            raise PlanError(f"{play.scenario}: a program is played by real processes only")
        folders, began = [], time.perf_counter()
        for number, (_, (simulation, lab)) in enumerate(
                enumerate_choices(lambda choices: play_once(play, choices), CHOICES)):
            folder = self.folder(play, number)
            simulation.write_journals(folder / "journals")
            now = time.perf_counter()
            save(folder / "lab.json", msgspec.structs.replace(lab, took_s=now - began))
            began = now
            folders.append(folder)
        return folders


def play_once(play: Play, choices: Choices | None = None, *, record: bool = True, costs: Costs = COSTS,
              scheduler: Scheduler | None = None) -> tuple[Simulation, Lab]:
    """One play with these outcomes, or with the first of those that are allowed. `scheduler`: takes the processor from
    threads (`sim.process.preemption`).
    """
    workload, model = msgspec.convert(play.workload, Workload), _model_config(play.config.model)
    eos = model.eos_token_ids[0] if model.eos_token_ids else None
    recorded = RecordedModel(workload, eos)
    simulation = Simulation(play.topology, play.plan, play.seed, choices or Choices(), costs=costs, record=record,
                            given=Given(model, recorded), scheduler=scheduler)
    with without_collector(), _no_endless_loop():
        if play.options.program:
            lab = play_program(play, simulation)
        elif play.options.queue:
            lab = play_queue(play, simulation)
        else:
            lab = SimBench(play, workload, simulation).run()
    return simulation, lab


@contextlib.contextmanager
def _no_endless_loop() -> Iterator[None]:
    """Signals reach the main thread alone: plays beside it are not watched."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _end_who_runs)
    signal.setitimer(signal.ITIMER_VIRTUAL, PLAY_S, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _end_who_runs(number: int, frame: FrameType | None) -> None:
    """Inside of what a thread does just now. Between two threads nobody is to blame: it is asked again soon."""
    while frame is not None and frame.f_back is not None:
        if frame.f_back.f_code is _RUNS and frame.f_code is not _IS_DONE:
            raise EndlessError
        frame = frame.f_back


@lru_cache(maxsize=16)
def _model_config(path: str) -> ModelConfig:
    """Read once per process: a schedule takes milliseconds, and the model of a lab does not change."""
    return read_model_config(path)


class SimActor:
    """A client of the play, as the lab speaks with it."""

    def __init__(self, process: SimProcess, heard: Callable[[], None]) -> None:
        self.process = process
        self.said: list[bytes] = []
        self._heard = heard

    @property
    def gone(self) -> bool:
        return not self.process.alive

    def say(self, word: bytes) -> None:
        """What the process says to the lab."""
        self.said.append(word)
        self._heard()

    def tell(self, word: bytes) -> None:
        self.process.deliver(partial(self.process.put, ORDERS, word))


class SimSubscriber(SimActor):
    """A subscriber, and what keeps it: one that is killed is started again, once, under its old name."""

    def __init__(self, process: SimProcess, heard: Callable[[], None], start: Callable[[], SimProcess]) -> None:
        super().__init__(process, heard)
        self._start = start
        self.told_to_stop = False
        process.when_gone(self._ended)

    @property
    def gone(self) -> bool:
        return not self.process.alive and not self._starts_again()

    def _starts_again(self) -> bool:
        return self.process.exitcode == SIGKILL and not self.process.life and not self.told_to_stop

    def _ended(self) -> None:
        if self._starts_again():
            self.process = self._start()
        elif self.process.exitcode == 0:
            self.said.append(DONE)

    def tell(self, word: bytes) -> None:
        assert word == STOP
        self.told_to_stop = True
        self.process.look_again()


class SimBench:
    """The lab's hands in the twin. See `scenarios.lab.script.Bench`."""

    def __init__(self, play: Play, workload: Workload, simulation: Simulation) -> None:
        self._play, self._workload, self._sim = play, workload, simulation
        self._options = play.options
        self._config = with_events_at(play.config, "", lambda: EVENT_PORTS)
        self._lab = SimProcess(simulation, frontend(), None, 0)  # whose time the script takes
        self._owners: list[SimProcess] = []  # clients and launchers, in all their lives
        self._guard_expired = False
        self._ended_by_lab: set[str] = set()
        simulation.when_any_ends = self._wake

    def run(self) -> Lab:
        found: list[Lab] = []
        self._lab.start("lab", self._perform(found))
        self._sim.run(GUARD_S)
        lab = found[0]
        self._sim.close()
        self._lab.untie()
        return lab

    def _perform(self, found: list[Lab]) -> Loop[None]:
        script = Rehearsed(self, self._play.topology, self._config.bounds, self._options).run()
        try:
            wait = next(script)
            while True:
                held = yield AwaitCondition(wait.until, self.now() + wait.at_most_s)
                if not held and wait.guards:
                    self._expire()
                wait = script.send(held)
        except StopIteration as stop:
            found.append(self._brought_home(stop.value))
        for process in list(self._sim.living()):
            process.kill()

    def _brought_home(self, seen: Seen) -> Lab:
        processes = self._sim.processes.values()
        return Lab(
            began_at=0.0, ended_at=self.now(), leftovers=seen.leftovers,
            leftovers_checked_at=seen.leftovers_checked_at, guard_expired=self._guard_expired,
            restarts=seen.restarts, beside=seen.beside, measured=seen.measured,
            printed=[error for process in processes for error in process.printed],
            processes=[ProcessEnd(node=p.name, life=p.life, pid=p.pid, started_at=p.started_at, ended_at=p.ended_at,
                                  exitcode=p.exitcode, killed_by_lab=p.label in self._ended_by_lab)
                       for p in processes])

    def _expire(self) -> None:
        """The guard: whatever is still there hangs."""
        self._guard_expired = True
        self._sim.holds.heal()
        for process in list(self._sim.living()):
            self._end(process)

    def _end(self, process: SimProcess) -> None:
        self._ended_by_lab.add(process.label)
        process.kill()

    def _wake(self) -> None:
        self._lab.look_again()

    # -- what the script asks for

    def start_launcher(self, launcher: Launcher, clients: tuple[Client, ...], life: int) -> SimActor:
        config = config_for(self._config, launcher, self._play.topology, self._options.differs)
        process = self._sim.start_process(
            msgspec.structs.replace(launcher.node, life=life),
            lambda p: launcher_main(p, config, tuple(client.index for client in clients), actor.say))
        actor = SimActor(process, self._wake)
        self._owners.append(process)
        return actor

    def start_client(self, client: Client, life: int, attachment: bytes) -> SimActor:
        config = config_for(self._config, client, self._play.topology, self._options.differs)
        workload = workload_for(self._workload, client, self._play.topology)
        process = self._sim.start_process(
            frontend(client.index, life), lambda p: client_main(
                p, config, workload, actor.say, self._options.await_death_s, partial(self._inputs, config), attachment))
        actor = SimActor(process, self._wake)
        self._owners.append(process)
        return actor

    def _inputs(self, config: EngineConfig, model: ModelConfig) -> InputProcessor:
        tokenizer = None if config.skip_tokenizer_init else RecordedTokenizer(config.model, self._workload)
        return InputProcessor(config, model, tokenizer)

    def start_subscriber(self, node: Node, engine: Engine) -> SimSubscriber:
        what = following(config_of(self._config, engine), engine.index, node.index, self._options)

        def start(life: int) -> SimProcess:
            return self._sim.start_process(msgspec.structs.replace(node, life=life), lambda p: follow(
                what, life, lambda: actor.told_to_stop, lambda: actor.say(UP)))

        actor = SimSubscriber(start(0), self._wake, lambda: start(1))
        return actor

    def has_ended(self, node: Node) -> bool:
        process = self._sim.processes.get(str(node))
        return process is not None and not process.alive

    def finds(self, intruder: Intruder) -> bool:
        return self._address_of(intruder) is not None

    def let_in(self, intruder: Intruder) -> None:
        address = self._address_of(intruder)
        if address is not None:
            socket = self._sim.host.network.open(self._lab, SocketSpec(
                name="intruder", kind=intruder.kind, peer_kind=NodeKind.FRONTEND, bind=False, address=address,
                identity=intruder.identity))
            for frames in intruder.messages:
                socket.send(frames)

    def _address_of(self, intruder: Intruder) -> str | None:
        return next((f"ipc://{path}" for path in self._sim.host.paths if path.endswith(f"/{intruder.at}.ipc")), None)

    def kill(self, deployment: Deployment) -> None:
        for process in self._of(deployment):
            if process.alive:
                self._end(process)

    def living(self, deployment: Deployment) -> list[str]:
        return [f"process {process.label} (pid {process.pid})" for process in self._of(deployment) if process.alive]

    def measure(self) -> list[tuple[Node, Holdings]]:
        return [(process.node, Holdings(
            threads=sum(not thread.finished for thread in process.threads),
            descriptors=self._sim.host.network.held_by(process) + len(process.ports.rings), turns=process.turns))
            for process in self._sim.living() if not process.bystander]

    def files(self, deployment: Deployment) -> set[str]:
        """Also those of its earlier lives, and not the socket files of events, whose addresses the lab chose."""
        nodes = deployment.nodes
        ids = {process.context.get("engine") for process in self._owners if process.node.first_life in nodes} - {None}
        return {name for engine_id in ids for name in files_of(self._sim.host, engine_id)}

    def may_remove(self, deployment: Deployment) -> bool:
        return True

    def now(self) -> float:
        return self._sim.now

    def _of(self, deployment: Deployment) -> list[SimProcess]:
        nodes = deployment.nodes
        return [process for process in self._sim.processes.values() if process.node.first_life in nodes]
