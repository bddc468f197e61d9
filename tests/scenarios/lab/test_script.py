"""What the lab does in a play, stepped by hand: the script of every world, with actors of the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.config import Bounds
from engine.topology import (
    Client,
    Deployment,
    Engine,
    Launcher,
    Node,
    Topology,
    core,
    data_parallel,
    external,
    headless,
    hybrid,
    side_by_side,
    tensor_parallel,
)
from scenarios.history.play import Beside, Holdings, Moment, Options
from scenarios.lab.script import CLOSE, DONE, FAILED, GO, GUARD_FACTOR, STOP, UP, Rehearsed, Seen
from scenarios.lab.settings import config_for, lab_config, listeners_s

BOUNDS = Bounds(startup_s=20.0, heartbeat_s=1.0, detection_s=0.5, request_s=3.0, stall_s=2.0, drain_s=1.0,
                cleanup_s=5.0, replay_s=0.5)
GUARD_S = GUARD_FACTOR * (3.0 + 2.0 + 1.0) + 20.0
START_S = GUARD_FACTOR * (20.0 + 1.0 + 0.5) + 1.0


class Actor:
    """Obeys at once, unless the test has it do something else with a word."""

    def __init__(self, bench: Bench, name: str, born: Callable[[Actor], None]) -> None:
        self.name = name
        self.said: list[bytes] = []
        self.heard: list[bytes] = []
        self.gone = False
        self.bench = bench
        self.files: set[str] = set()
        self.deaf: set[bytes] = set()
        born(self)

    def tell(self, word: bytes) -> None:
        self.heard.append(word)
        self.bench.told.append((self.name, word))
        if word in self.deaf:
            return
        if word in (GO, STOP):
            self.said.append(DONE)
        if word in (CLOSE, STOP):
            self.gone = True
            self.files = set()


class Bench:
    """The lab's hands. `births` says what becomes of a client or subscriber, by its name."""

    def __init__(self, topology: Topology, **options: Any) -> None:
        self.topology = topology
        self.script = Rehearsed(self, topology, BOUNDS, Options(**options))
        self.actors: dict[str, Actor] = {}
        self.births: dict[str, Callable[[Actor], None]] = {}
        self.told: list[tuple[str, bytes]] = []
        self.killed: list[int] = []
        self.ended: set[Node] = set()
        self.stray: set[str] = set()  # files of engines that nobody closed
        self.waited: list[tuple[float, bool]] = []  # waits that ran out, and whether the play is ended then
        self.events: list[tuple[float, Callable[[], None]]] = []
        self.attached: list[bytes] = []  # what clients were given
        self.somebody_is_there = True  # who may still remove what is left
        self.time = 0.0
        self.dies_s = self.dying_until = 0.0  # what the last process of a killed engine takes to be gone

    def play(self) -> Seen:
        """Each wait passes at once if it holds, else time moves to what happens next, or to its end."""
        script = self.script.run()
        try:
            wait = next(script)
            while True:
                wait = script.send(self._waited_for(wait))
        except StopIteration as stop:
            return stop.value

    def _waited_for(self, wait: Any) -> bool:
        until = self.time + wait.at_most_s
        while not wait.until():
            due = [event for event in self.events if event[0] <= until]
            if not due:
                self.time = until
                self.waited.append((wait.at_most_s, wait.guards))
                return False
            event = min(due, key=lambda event: event[0])
            self.events.remove(event)
            self.time = max(self.time, event[0])
            event[1]()
        return True

    def order(self) -> list[str]:
        return [f"{name} {word.decode()}" for name, word in self.told]

    # -- as the script asks for it

    def start_launcher(self, launcher: Launcher, clients: tuple[Client, ...], life: int) -> Actor:
        self.attached = []
        return self._start(str(launcher.node), lambda actor: actor.said.append(UP + b"where it is"))

    def start_client(self, client: Client, life: int, attachment: bytes) -> Actor:
        self.attached.append(attachment)
        name = f"frontend.{client.index}" + (f"@{life}" if life else "")
        return self._start(name, lambda actor: self._up(actor, client.engines[0], life))

    def _up(self, actor: Actor, engine: int, life: int) -> None:
        actor.said.append(UP)
        actor.files = {f"e{engine}-{life}"}
        if life:
            self.stray.discard(f"e{engine}-0")

    def start_subscriber(self, node: Node, engine: Engine) -> Actor:
        return self._start(str(node), lambda actor: actor.said.append(UP))

    def _start(self, name: str, usual: Callable[[Actor], None]) -> Actor:
        self.told.append((name, b"born"))
        actor = self.actors[name] = Actor(self, name, self.births.get(name, usual))
        return actor

    def has_ended(self, node: Node) -> bool:
        return node in self.ended

    def kill(self, deployment: Deployment) -> None:
        self.killed.append(deployment.index)
        actor = self.actors[f"frontend.{deployment.index}"]
        actor.gone, actor.files, self.stray = True, set(), self.stray | actor.files
        self.dying_until = self.time + self.dies_s
        self.events.append((self.dying_until, lambda: None))

    def living(self, deployment: Deployment) -> list[str]:
        dying = ["process worker.0"] if self.time < self.dying_until else []
        return dying + [f"process {name}" for name in self._clients(deployment) if not self.actors[name].gone]

    def files(self, deployment: Deployment) -> set[str]:
        return {file for name in self._clients(deployment) for file in self.actors[name].files} | {
            file for file in self.stray if file.startswith(f"e{deployment.index}-")}

    def may_remove(self, deployment: Deployment) -> bool:
        return self.somebody_is_there

    def _clients(self, deployment: Deployment) -> list[str]:
        return [name for name in self.actors if name.partition("@")[0] == f"frontend.{deployment.index}"]

    def measure(self) -> list[tuple[Node, Holdings]]:
        return [(core(0), Holdings(threads=len(self.told), descriptors=0))]

    def now(self) -> float:
        return self.time


def _looks(seen: Seen) -> list[tuple[Moment, float, int]]:
    """At which moments the lab looked at what processes hold, when, and how much had been said by then."""
    return [(one.moment, one.at, one.holds.threads) for one in seen.measured]


def test_a_calm_play_starts_serves_lets_subscribers_catch_up_and_closes() -> None:
    bench = Bench(tensor_parallel(2, subscribers=2))
    seen = bench.play()
    assert bench.order() == [
        "frontend.0 born", "subscriber.0 born", "subscriber.1 born", "frontend.0 go", "subscriber.0 stop",
        "subscriber.1 stop", "frontend.0 close"]
    assert seen == Seen(measured=seen.measured) and bench.time == 0.0 and not bench.waited
    assert _looks(seen) == [(Moment.READY, 0.0, 3), (Moment.DONE, 0.0, 4), (Moment.QUIET, 0.0, 6)]


def test_the_lab_looks_again_when_nobody_has_asked_for_anything_for_a_while() -> None:
    seen = Bench(tensor_parallel(2), rest_s=1.5).play()
    assert [look[:2] for look in _looks(seen)] == [
        (Moment.READY, 0.0), (Moment.DONE, 0.0), (Moment.RESTED, 1.5), (Moment.QUIET, 1.5)]


def test_late_subscribers_are_brought_in_when_the_workload_is_done() -> None:
    bench = Bench(tensor_parallel(2, subscribers=1), late_subscriber=True)
    bench.play()
    assert bench.order() == ["frontend.0 born", "frontend.0 go", "subscriber.0 born", "subscriber.0 stop",
                             "frontend.0 close"]


def test_a_start_that_fails_is_closed_without_a_workload() -> None:
    bench = Bench(tensor_parallel(2, subscribers=1))
    bench.births["frontend.0"] = lambda actor: actor.said.append(FAILED + b" no such model")
    bench.play()
    assert bench.order() == ["frontend.0 born", "frontend.0 close"]


def test_a_start_that_hangs_runs_into_the_guard() -> None:
    bench = Bench(tensor_parallel(2))
    bench.births["frontend.0"] = lambda actor: None
    bench.play()
    assert bench.waited == [(START_S, True)] and bench.order() == ["frontend.0 born", "frontend.0 close"]


def test_a_workload_that_is_never_done_runs_into_the_guard_and_so_does_a_client_that_stays() -> None:
    bench = Bench(tensor_parallel(2))

    def born(actor: Actor) -> None:
        actor.said.append(UP)
        actor.deaf = {GO, CLOSE}

    bench.births["frontend.0"] = born
    seen = bench.play()
    assert bench.waited[:2] == [(GUARD_S, True), (GUARD_S, True)]
    assert bench.waited[2:] == [(BOUNDS.cleanup_s, False)] and seen.leftovers == ["process frontend.0"]


def test_a_client_that_dies_ends_the_wait_for_its_workload() -> None:
    bench = Bench(tensor_parallel(2))

    def born(actor: Actor) -> None:
        actor.said.append(UP)
        actor.deaf = {GO}
        bench.events.append((2.0, lambda: setattr(actor, "gone", True)))

    bench.births["frontend.0"] = born
    bench.play()
    assert bench.time == 2.0 and not bench.waited


# -- several clients


def test_clients_of_a_launcher_come_behind_it_are_given_what_it_says_and_go_before_it() -> None:
    bench = Bench(data_parallel(1, clients=2))
    bench.play()
    assert list(bench.actors) == ["launcher.0", "frontend.0", "frontend.1"] and bench.attached == [b"where it is"] * 2
    assert [said for said in bench.order() if not said.endswith("born")] == [
        "frontend.0 go", "frontend.1 go", "frontend.0 close", "frontend.1 close", "launcher.0 close"]
    assert not bench.waited


def test_who_is_left_of_several_clients_is_waited_for() -> None:
    bench = Bench(data_parallel(1, clients=2))

    def born(actor: Actor) -> None:
        actor.said.append(UP)
        actor.deaf = {GO}
        bench.events.append((2.0, lambda: setattr(actor, "gone", True)))

    bench.births["frontend.1"] = born
    bench.play()
    assert bench.time == 2.0 and not bench.waited and "frontend.0 close" in bench.order()


def test_engines_that_their_launcher_cannot_start_have_no_clients() -> None:
    bench = Bench(data_parallel(1, clients=2))

    def born(actor: Actor) -> None:
        actor.said.append(FAILED + b" no room")
        actor.gone = True

    bench.births["launcher.0"] = born
    bench.play()
    assert list(bench.actors) == ["launcher.0"] and not bench.waited


def test_a_headless_launcher_is_started_beside_the_client_and_goes_behind_it() -> None:
    bench = Bench(headless(3, 1))
    bench.play()
    assert list(bench.actors) == ["frontend.0", "launcher.1", "launcher.2"] and bench.attached in ([], [b""])
    assert [said for said in bench.order() if not said.endswith("born")] == [
        "frontend.0 go", "frontend.0 close", "launcher.1 close", "launcher.2 close"]


def test_a_headless_launcher_that_never_says_a_word_keeps_nobody_waiting() -> None:
    bench = Bench(headless(2, 1))
    bench.births["launcher.1"] = lambda actor: None
    bench.play()
    assert "frontend.0 go" in bench.order() and "launcher.1 close" in bench.order() and not bench.waited


def test_clients_with_cores_of_their_own_are_started_and_closed_together() -> None:
    bench = Bench(external(2))
    bench.play()
    assert [said for said in bench.order() if not said.endswith("born")] == [
        "frontend.0 go", "frontend.1 go", "frontend.0 close", "frontend.1 close"]


# -- how each of several is configured


def test_each_of_several_that_start_cores_is_told_which_are_its_own() -> None:
    topology = hybrid(2, 2)
    parts = [config_for(lab_config(), client, topology) for client in topology.clients]
    assert [list(part.local_ranks) for part in parts] == [[0, 1], [2, 3]] and [part.is_head for part in parts] == [
        True, False]
    assert {part.data_parallel.load_balancing for part in parts} == {"hybrid"} and all(part.is_spread for part in parts)
    assert [part.data_parallel.rank_local for part in parts] == [0, 2]
    assert config_for(lab_config(), external(2).clients[1], external(2)).data_parallel.load_balancing == "external"
    alone = headless(2, 1)
    part = config_for(lab_config(), alone.launchers[0], alone)
    assert part.data_parallel.load_balancing == "internal" and list(part.local_ranks) == [1]
    assert list(config_for(lab_config(), alone.clients[0], alone).client_ranks) == [0, 1]


def test_only_the_last_of_several_is_configured_otherwise() -> None:
    topology, differs = external(2), {"sync_interval": 9, "data_parallel_size": 3}
    first, last = (config_for(lab_config(), client, topology, differs) for client in topology.clients)
    assert first == config_for(lab_config(), topology.clients[0], topology)
    assert last.data_parallel.sync_interval == 9 and last.data_parallel_size == 3


# -- subscribers


def test_a_subscriber_that_hears_nothing_is_waited_for_no_longer_than_its_bound_and_ends_no_play() -> None:
    bench = Bench(tensor_parallel(2, subscribers=1))
    bench.births["subscriber.0"] = lambda actor: None
    bench.play()
    assert bench.waited == [(listeners_s(BOUNDS), False)] and "frontend.0 go" in bench.order()


def test_a_publisher_that_is_dead_by_then_is_not_waited_for() -> None:
    bench = Bench(tensor_parallel(2, subscribers=1), late_subscriber=True)
    bench.births["subscriber.0"] = lambda actor: None
    bench.ended.add(core())
    bench.play()
    assert not bench.waited


def test_a_subscriber_that_does_not_catch_up_ends_no_play() -> None:
    bench = Bench(tensor_parallel(2, subscribers=1))

    def born(actor: Actor) -> None:
        actor.said.append(UP)
        actor.deaf = {STOP}

    bench.births["subscriber.0"] = born
    bench.play()
    assert bench.waited == [(listeners_s(BOUNDS), False)] and bench.order()[-1] == "frontend.0 close"


# -- what is left


def test_what_goes_within_the_bound_is_no_leftover_and_what_stays_is_written_down() -> None:
    bench = Bench(tensor_parallel(2))
    bench.stray = {"e0-goes", "e0-stays"}
    bench.events.append((1.0, lambda: bench.stray.discard("e0-goes")))
    seen = bench.play()
    assert seen.leftovers == ["e0-stays"] and seen.leftovers_checked_at == BOUNDS.cleanup_s
    bench = Bench(tensor_parallel(2))
    bench.stray = {"e0-goes"}
    bench.events.append((1.0, lambda: bench.stray.discard("e0-goes")))
    seen = bench.play()
    assert seen.leftovers == [] and seen.leftovers_checked_at == 1.0


# -- killed and started again


def test_an_engine_that_was_killed_comes_up_again_removes_what_lay_about_and_its_subscribers_meet_it() -> None:
    bench = Bench(tensor_parallel(2, subscribers=1), kill_all_then_restart=True)
    seen = bench.play()
    assert bench.killed == [0]
    assert bench.order() == [
        "frontend.0 born", "subscriber.0 born", "frontend.0 go", "frontend.0@1 born", "frontend.0@1 go",
        "subscriber.0 stop", "frontend.0@1 close"]
    assert seen.restarts == [{"life": 1, "ready": True, "served": True, "removed": ["e0-0"], "error": ""}]
    assert seen.leftovers == [] and not bench.waited


def test_an_engine_is_not_started_again_before_the_last_of_its_killed_processes_is_gone() -> None:
    """Whoever still lives holds the engine's files, and the next life would let them lie."""
    bench = Bench(tensor_parallel(2), kill_all_then_restart=True)
    bench.dies_s = 0.5
    born: list[float] = []
    bench.births["frontend.0@1"] = lambda actor: (born.append(bench.time), actor.said.append(UP))
    bench.play()
    assert born and born[0] >= bench.dying_until > 0


def test_an_engine_that_does_not_come_up_again_says_why() -> None:
    bench = Bench(tensor_parallel(2), kill_all_then_restart=True)
    bench.births["frontend.0@1"] = lambda actor: actor.said.append(FAILED + b" the name is taken")
    (restart,) = bench.play().restarts
    assert restart == {"life": 1, "ready": False, "served": False, "removed": [], "error": "the name is taken"}
    assert "frontend.0@1 go" not in bench.order() and bench.order()[-1] == "frontend.0@1 close"


# -- two engines


TWO = side_by_side(Engine(tp=2, subscribers=(0,)), Engine(tp=2, data_parallel_rank=1, subscribers=(1,)))


def test_an_engine_beside_the_first_is_there_before_and_serves_once_more_afterwards() -> None:
    bench = Bench(TWO)
    seen = bench.play()
    assert bench.order() == [
        "frontend.1 born", "frontend.0 born", "subscriber.0 born", "subscriber.1 born", "frontend.1 go",
        "frontend.0 go", "subscriber.0 stop", "frontend.0 close", "frontend.1 go", "subscriber.1 stop",
        "frontend.1 close"]
    assert seen.beside == [Beside(engine=1, served=True, touched=[])] and seen.leftovers == []


def test_an_engine_beside_that_serves_no_more_or_lost_what_was_its_own_is_told() -> None:
    bench = Bench(TWO)

    def born(actor: Actor) -> None:
        actor.said.append(UP)
        actor.files = {"e1-ring", "e1-lock"}
        actor.deaf = {GO}
        bench.events.append((1.0, lambda: actor.said.append(DONE)))
        bench.events.append((2.0, lambda: actor.files.discard("e1-ring")))

    bench.births["frontend.1"] = born
    bench.births["frontend.0"] = lambda actor: (actor.said.append(UP), actor.deaf.add(GO), bench.events.append(
        (3.0, lambda: actor.said.append(DONE))))
    seen = bench.play()
    assert seen.beside == [Beside(engine=1, served=False, touched=["e1-ring"])]
    assert bench.waited == [(GUARD_S, True)]


def test_the_one_beside_serves_also_where_the_first_did_not_start() -> None:
    bench = Bench(TWO)
    bench.births["frontend.0"] = lambda actor: actor.said.append(FAILED + b" no memory")
    seen = bench.play()
    assert bench.order() == ["frontend.1 born", "frontend.0 born", "frontend.0 close", "frontend.1 go",
                             "frontend.1 close"]
    assert seen.beside == [Beside(engine=1, served=True, touched=[])]


def test_only_the_first_is_killed_and_started_again() -> None:
    bench = Bench(TWO, kill_all_then_restart=True)
    seen = bench.play()
    assert bench.killed == [0] and [restart["ready"] for restart in seen.restarts] == [True]
    assert seen.beside == [Beside(engine=1, served=True, touched=[])]
    assert bench.order().index("frontend.0@1 born") < bench.order().index("frontend.1 close")


def test_nothing_is_waited_for_where_nobody_is_left_to_remove_it():
    bench = Bench(tensor_parallel(2))
    bench.stray, bench.somebody_is_there = {"e0-stays"}, False
    seen = bench.play()
    assert seen.leftovers == ["e0-stays"] and not bench.waited
