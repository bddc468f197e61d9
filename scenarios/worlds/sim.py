"""The twin's world: the same play on SimPy, in virtual time, without torch or ZMQ.

Where libzmq or gloo allow several outcomes, each is played, up to `CHOICES` of them; each is a run of its own.
The lab's part (bringing in subscribers, letting them catch up, killing everything, looking for leftovers) is
what `scenarios.worlds.engine` does outside of real processes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from engine.model_config import ModelConfig, max_model_len, read_model_config
from engine.topology import NodeKind, core, frontend
from engine.wire.wiring import KV, REPLAY
from scenarios.history.run import Lab, Play, ProcessEnd, save
from scenarios.lab.settings import listeners_s
from scenarios.workloads.workload import Driver, Workload
from scenarios.worlds.addresses import address_of_rank
from scenarios.worlds.base import World
from scenarios.worlds.sim_neighbour import SimNeighbour
from sim.nodes.frontend import CLOSE, DONE, FAILED, GO, ORDERS, READY, frontend_main
from sim.nodes.subscriber import subscriber_main
from sim.process.process import SimProcess
from sim.simulation import Choices, Simulation, enumerate_choices
from sim.stage import Stage

#: Allowed outcomes that are played at most.
CHOICES = 6
#: Who else must be ready before a workload begins: the subscriber of a neighbour.
BESIDE = "beside"
#: A play that lasts longer in virtual time makes no sense any more.
GUARD_S = 600.0


class RecordedModel:
    """Answers from the workload's reference tokens. A token that was not recorded is the end of sequence, or 0."""

    def __init__(self, workload: Workload, layers: int, eos_token_id: int | None) -> None:
        self._references = {tuple(r.prompt_token_ids): r.reference_token_ids for r in workload.requests}
        self.collectives = 2 * layers
        self.eos_token_id = eos_token_id
        self.last_token = eos_token_id or 0

    def continuation(self, prompt: tuple[int, ...]) -> list[int]:
        return self._references.get(prompt, [])


class SimWorld(World):
    name = "sim"
    virtual_time = True

    def _play(self, play: Play) -> list[Path]:
        folders = []
        for number, (_, (simulation, lab)) in enumerate(
                enumerate_choices(lambda choices: play_once(play, choices), CHOICES)):
            folder = self.folder(play, number)
            simulation.write_journals(folder / "journals")
            save(folder / "lab.json", lab)
            folders.append(folder)
        return folders


def play_once(play: Play, choices: Choices, *, record: bool = True) -> tuple[Simulation, Lab]:
    """One play with these outcomes."""
    simulation = Simulation(play.topology, play.plan, play.seed, choices, record=record)
    with _no_collector():
        lab = _Lab(play, simulation).run()
    return simulation, lab


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """A play makes thousands of records that stay until it is judged: the collector would look at them in vain."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@lru_cache(maxsize=16)
def _model_config(path: str) -> ModelConfig:
    """Read once per process: a schedule takes milliseconds, and the model of a lab does not change."""
    return read_model_config(path)


class _Lab:
    """The lab's part of a play in the twin: callbacks instead of a watching loop."""

    def __init__(self, play: Play, simulation: Simulation) -> None:
        self.play, self.sim = play, simulation
        self.options = play.options
        workload = msgspec.convert(play.workload, Workload)
        model = _model_config(play.config.model)
        eos = model.eos_token_ids[0] if model.eos_token_ids else None
        self.stage = Stage(
            sim=simulation, topology=play.topology, config=play.config,
            model=RecordedModel(workload, model.num_hidden_layers, eos), vocab_size=model.vocab_size,
            max_model_len=max_model_len(play.config, model), make_driver=lambda: Driver(workload), said=self.heard,
            await_death_s=self.options.get("await_death_s", 0.0))
        self.waiting_for: set[str] = set()
        self.listeners: list[Any] = []
        self.caller: Any = None
        self.restarts: list[dict[str, Any]] = []
        self.again: Stage | None = None
        self.neighbour: SimNeighbour | None = None

    def run(self) -> Lab:
        if self.options.get("neighbour"):
            self.neighbour = SimNeighbour(self.sim, self.stage, self.play)
        self.caller = self.sim.start_process(frontend(), lambda p: frontend_main(p, self.stage))
        self.caller.context["engine"] = self.stage.engine_id
        self.watch_caller(self.options.get("kill_all_then_restart", False))
        ended = self.sim.run(GUARD_S)
        leftovers = self.leftovers()
        self.sim.close()
        for stage in filter(None, (self.stage, self.again)):
            stage.said = None  # the stage and the lab would keep each other, and the whole play
        players = [process for process in self.sim.processes.values() if not process.bystander]
        return Lab(
            began_at=0.0, ended_at=max(p.ended_at or self.sim.now for p in players),
            leftovers=leftovers, leftovers_checked_at=self.sim.now,
            guard_expired=ended.value == "guard", restarts=self.restarts,
            neighbour=self.neighbour.seen() if self.neighbour is not None else {},
            other_rank=self.neighbour.stream() if self.neighbour is not None else None,
            processes=[ProcessEnd(node=p.name, life=p.life, pid=p.pid, started_at=p.started_at, ended_at=p.ended_at,
                                  exitcode=p.exitcode)
                       for p in players])

    # -- what the caller says

    def heard(self, word: str) -> None:
        if word == READY:
            self.on_ready()
        elif word == DONE:
            self.on_done()
        elif word == FAILED and self.again is not None:
            self.restarts.append({"life": 1, "ready": False, "served": False, "removed": [], "error": "start failed"})

    def on_ready(self) -> None:
        if self.again is not None or self.options.get("late_subscriber") or not self.play.topology.subscribers:
            self.go()
        else:
            self.start_listeners(self.go)

    def go(self) -> None:
        if self.again is None and self.neighbour is not None and self.neighbour.rank is not None:
            self.neighbour.serve()
        self.caller.put(ORDERS, GO)

    def on_done(self) -> None:
        if self.again is not None:
            self.restarts.append({"life": 1, "ready": True, "served": True, "removed": self.removed, "error": ""})
            self.stop_listeners()
        elif self.options.get("kill_all_then_restart"):  # subscribers outlive the engine, and meet its next life
            self.kill_all_then_restart()
        elif self.options.get("late_subscriber"):
            self.start_listeners(self.stop_listeners)
        else:
            self.stop_listeners()

    def on_quiet(self) -> None:
        """Subscribers have caught up, or had their time."""
        if self.waiting_for == {"close"}:
            return
        self.waiting_for = {"close"}
        self.caller.put(ORDERS, CLOSE)

    def watch_caller(self, follows_another: bool) -> None:
        SimProcess(self.sim, frontend(), None, 0).watch(self.caller, lambda: self.caller_gone(follows_another))

    def caller_gone(self, follows_another: bool) -> None:
        """Nobody will say any more that the workload is done."""
        if self.neighbour is not None and not follows_another:
            self.sim.after(self.play.config.bounds.cleanup_s, self.neighbour.finish)
        if not self.options.get("kill_all_then_restart") and self.waiting_for != {"close"}:
            self.stop_listeners()

    # -- subscribers

    def start_listeners(self, then: Any) -> None:
        nodes = [node for node in self.play.topology.nodes if node.kind is NodeKind.SUBSCRIBER]
        names = {str(node) for node in nodes}
        if self.neighbour is not None and self.neighbour.rank is not None:
            names.add(BESIDE)
            self.neighbour.follow(lambda: is_ready(BESIDE))
        self.waiting_for = set(names)

        def is_ready(name: str) -> None:
            if name in self.waiting_for:
                self.waiting_for.discard(name)
                if not self.waiting_for:
                    self.sim.after(0.0, then)

        def go_on_without() -> None:
            if self.waiting_for <= names:
                for name in list(self.waiting_for):
                    is_ready(name)

        self.sim.after(listeners_s(self.play.config.bounds), go_on_without)
        publisher = self.sim.process(str(core()))
        if publisher is not None:
            SimProcess(self.sim, frontend(), None, 0).watch(publisher, go_on_without)

        self.listeners = [
            self.sim.start_process(node, lambda p, name=str(node): subscriber_main(
                p, self.stage, self.where, lambda: is_ready(name), self.on_listener_done,
                rude=self.options.get("rude_subscriber", False) and p.node.index == 0)) for node in nodes]

    def where(self, name: str) -> str:
        """The addresses that subscribers are told."""
        return address_of_rank(self.stage.address(name), self.play.config.data_parallel_rank)

    def stop_listeners(self) -> None:
        for listener in self.listeners:
            listener.context["stop"] = True
            listener.wake(listener.threads)
        if not any(listener.alive for listener in self.listeners):
            self.on_quiet()
            return
        self.sim.after(listeners_s(self.play.config.bounds), self.give_up_listeners)

    def on_listener_done(self) -> None:
        self.sim.after(0.0, self.look_at_listeners)

    def look_at_listeners(self) -> None:
        if not any(listener.alive for listener in self.listeners):
            self.on_quiet()

    def give_up_listeners(self) -> None:
        self.on_quiet()
        for listener in self.listeners:
            if listener.alive:
                listener.kill()

    # -- death of everything, and a second life

    def kill_all_then_restart(self) -> None:
        for process in self.stage.members:
            if process.alive:
                process.kill()
        self.sim.after(self.sim.costs.sentinel_s, self.restart)

    def restart(self) -> None:
        before = self.files()
        self.again = msgspec.structs.replace(self.stage, engine_id="e1", life=1)
        self.caller = self.sim.start_process(frontend(0, 1), lambda p: self._first_look(p, before))
        self.caller.context["engine"] = "e1"
        self.watch_caller(follows_another=False)

    def _first_look(self, process: Any, before: set[str]) -> Any:
        main = frontend_main(process, self.again)

        def watching() -> Any:
            result = None
            while True:
                try:
                    effect = main.send(result)
                except StopIteration:
                    return
                self.removed = sorted(before - self.files())
                try:
                    result = yield effect
                except Exception as error:
                    result = None
                    effect = main.throw(error)
                    result = yield effect

        return watching()

    # -- what is left

    def files(self) -> set[str]:
        return set(self.sim.paths) | set(self.sim.segments)

    def leftovers(self) -> list[str]:
        """What is still there when nothing more happens, less what is the lab's: a neighbour, and the socket files of
        events, whose addresses a lab chooses and not the engine."""
        mine = (f"file {KV}.ipc", f"file {REPLAY}.ipc")
        others = self.neighbour.leftovers() if self.neighbour is not None else set()
        return [entry for entry in self.sim.leftovers() if not entry.startswith(mine) and entry not in others]


