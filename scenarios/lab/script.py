"""What the lab does in a play, in order (pure): one text for every world.

    start the clients, engines beside the first one before it | bring in the subscribers | GO, until DONE
    | let the subscribers catch up | close, or kill all and start again | look for leftovers | end the others

Promises
- The lab is never a node of a play: it starts processes, speaks with them, kills from outside, and looks at what they
  leave.
- Every wait has a bound; a play that outlives its guard is ended, and what is open then counts as a hang.
- Engines beside the first serve once more when its play is over, before they are closed: they must still be able to.

The script yields `Wait`s; all else it asks of a `Bench`, which each world has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol

import msgspec

from engine.config import Bounds
from engine.topology import Client, Deployment, Engine, Launcher, Node, Topology
from scenarios.history.play import Beside, Holdings, Intruder, Measured, Moment, Options
from scenarios.lab.settings import listeners_s

#: What a client says to the lab, and the lab to a client. The lab's silence (EOF) means: end at once.
UP, FAILED, DONE = b"up", b"failed", b"done"
GO, CLOSE = b"go", b"close"
#: What the lab says to a subscriber: leave when nothing is missing any more. It says UP and DONE.
STOP = b"stop"
#: A play that makes no sense any more is ended by the lab: an open operation counts as a hang then.
GUARD_FACTOR = 3.0
#: How often to look for what nobody tells of.
LOOK_S = 0.002


class Wait(msgspec.Struct, frozen=True):
    """Until the condition holds, or that long: then the script goes on. With `guards` the play is ended instead."""

    until: Callable[[], bool]
    at_most_s: float
    guards: bool = True


class Actor(Protocol):
    """A process that the lab started itself."""

    @property
    def gone(self) -> bool: ...
    @property
    def said(self) -> list[bytes]: ...
    def tell(self, word: bytes) -> None: ...


class Bench(Protocol):
    def start_launcher(self, launcher: Launcher, clients: tuple[Client, ...], life: int) -> Actor: ...
    def start_client(self, client: Client, life: int, attachment: bytes) -> Actor:
        """`attachment`: what its launcher has said; nothing where it starts its engines itself."""

    def start_subscriber(self, node: Node, engine: Engine) -> Actor: ...
    def has_ended(self, node: Node) -> bool:
        """Whether this process of the play was seen to end."""

    def finds(self, intruder: Intruder) -> bool:
        """Whether the socket that it wants to speak with is bound."""

    def let_in(self, intruder: Intruder) -> None:
        """Connect it there, and send all that it has to say. It stays until the play is over."""

    def kill(self, deployment: Deployment) -> None:
        """SIGKILL of every process of its engines, and of its clients, at once: nobody is left to clean up."""

    def living(self, deployment: Deployment) -> list[str]:
        """Processes of its engines, its clients among them, that are there."""

    def measure(self) -> list[tuple[Node, Holdings]]:
        """What each process of the play that is there holds."""

    def files(self, deployment: Deployment) -> set[str]:
        """What its engines have in the file system and in shared memory."""

    def may_remove(self, deployment: Deployment) -> bool:
        """Whether anybody is there who could still remove what is left."""

    def now(self) -> float: ...


class Seen(msgspec.Struct, kw_only=True):
    """What the script brings home."""

    leftovers: list[str] = []
    leftovers_checked_at: float = 0.0
    restarts: list[dict[str, Any]] = []
    beside: list[Beside] = []
    measured: list[Measured] = []


Script = Generator[Wait, bool, Seen]
#: A part of it.
Steps = Generator[Wait, bool, None]


def has_said(actor: Actor, word: bytes) -> bool:
    return any(message.startswith(word) for message in actor.said)


class Company:
    """The clients of engines that belong together, and their launcher, where they have one."""

    def __init__(self, clients: list[Actor], launcher: Actor | None = None) -> None:
        self.clients, self.launcher = clients, launcher
        self.headless: list[Actor] = []  # launchers that have no clients of their own
        self.attachment = b""

    @property
    def actors(self) -> list[Actor]:
        return [*self.clients, *([self.launcher] if self.launcher else []), *self.headless]

    @property
    def gone(self) -> bool:
        return all(actor.gone for actor in self.actors)

    @property
    def up(self) -> bool:
        return any(has_said(client, UP) for client in self.clients)

    @property
    def errors(self) -> list[str]:
        return [word.decode()[len(FAILED) + 1:] for actor in self.actors for word in actor.said
                if word.startswith(FAILED)]

    def have_served(self, times: int) -> bool:
        """Or are gone."""
        return all(client.said.count(DONE) >= times or client.gone for client in self.clients)

    def tell(self, word: bytes) -> None:
        for client in self.clients:
            client.tell(word)


class Rehearsed:
    """The script of one play."""

    def __init__(self, bench: Bench, topology: Topology, bounds: Bounds, options: Options) -> None:
        self._bench = bench
        self._topology = topology
        self._bounds = bounds
        self._options = options
        self._seen = Seen()
        self._first, *self._others = topology.deployments
        self._guard_s = GUARD_FACTOR * (bounds.request_s + bounds.stall_s + bounds.drain_s) + bounds.startup_s
        # Judges want three times the bound before they call a start a hang.
        self._start_s = GUARD_FACTOR * (bounds.startup_s + bounds.heartbeat_s + bounds.detection_s) + 1.0
        self._clients: dict[int, Company] = {}  # by deployment
        self._subscribers: dict[int, list[Actor]] = {}  # by deployment
        self._rounds = 0  # of workloads that clients were told to begin

    def run(self) -> Script:
        files = {}
        for other in self._others:
            yield from self._start(other, 0)
            files[other.index] = self._bench.files(other)
        yield from self._start(self._first, 0)
        main = self._clients[self._first.index]
        if main.up:
            yield from self._serve()
        if self._options.kill_all_then_restart:
            self._bench.kill(self._first)
            yield Wait(lambda: not self._bench.living(self._first), self._guard_s)  # what lives keeps its files
        else:
            yield from self._close(main)
        yield Wait(lambda: main.gone, self._guard_s)
        yield from self._look_for_leftovers(self._first, clean_expected=not self._options.kill_all_then_restart)
        if self._options.kill_all_then_restart:
            self._seen.restarts.append((yield from self._start_again()))
            yield from self._look_for_leftovers(self._first, clean_expected=True)
        for other in self._others:
            yield from self._end(other, files[other.index])
        actors = [actor for some in self._subscribers.values() for actor in some]
        yield Wait(lambda: all(actor.gone for actor in actors if has_said(actor, DONE)), self._bounds.cleanup_s,
                   guards=False)  # who has said its last word still has to end
        return self._seen

    # -- clients

    def _start(self, deployment: Deployment, life: int) -> Steps:
        """Until it is ready, has failed, or must be called a hang."""
        launcher, attachment, clients = None, b"", deployment.clients
        self._clients[deployment.index] = company = Company([])
        if deployment.launcher is not None:
            company.launcher = launcher = self._bench.start_launcher(deployment.launcher, clients, life)
            yield from self._intrude(deployment, lambda: bool(launcher.said) or launcher.gone)
            yield Wait(lambda: bool(launcher.said) or launcher.gone, self._start_s)
            if not has_said(launcher, UP):
                return
            company.attachment = attachment = launcher.said[0].removeprefix(UP)
        company.clients += [self._bench.start_client(client, life, attachment) for client in clients]
        company.headless += [self._bench.start_launcher(one, (), life) for one in deployment.headless]
        if launcher is None:
            yield from self._intrude(deployment, lambda: all(actor.said or actor.gone for actor in company.clients))
        yield Wait(lambda: all(actor.said or actor.gone for actor in company.clients), self._start_s)

    def _intrude(self, deployment: Deployment, is_late: Callable[[], bool] | None = None) -> Steps:
        """Let in those who come early, until it is too late for that, or those who come now."""
        for intruder in self._options.intruders if deployment is self._first else ():
            if intruder.early == (is_late is not None):
                until = self._bench.now() + self._start_s
                while not self._may_go_on(intruder, is_late) and self._bench.now() < until:
                    yield Wait(partial(self._may_go_on, intruder, is_late), LOOK_S, guards=False)  # nobody says so
                if self._bench.finds(intruder):
                    self._bench.let_in(intruder)

    def _may_go_on(self, intruder: Intruder, is_late: Callable[[], bool] | None) -> bool:
        return self._bench.finds(intruder) or (is_late is not None and is_late())

    def _close(self, company: Company) -> Steps:
        """Clients first: who owns what they use goes last."""
        company.tell(CLOSE)
        if company.launcher is not None:
            yield Wait(lambda: all(client.gone for client in company.clients), self._guard_s)
            company.launcher.tell(CLOSE)
        for launcher in company.headless:
            yield Wait(lambda: all(client.gone for client in company.clients), self._guard_s)
            launcher.tell(CLOSE)

    def _serve(self) -> Steps:
        """The engines are ready: bring in the subscribers, run the workload, let the subscribers catch up."""
        if not self._options.late_subscriber:
            yield from self._start_subscribers()
        self._measure(Moment.READY)
        yield from self._intrude(self._first)
        self._rounds = 1
        for deployment in (*self._others, self._first):
            self._clients[deployment.index].tell(GO)
        if self._options.client_returns:
            yield from self._come_back(self._first)
        yield from self._until_done(self._first, 1)
        self._measure(Moment.DONE)
        if self._options.rest_s:
            yield Wait(lambda: False, self._options.rest_s, guards=False)
            self._measure(Moment.RESTED)
        if self._options.late_subscriber:
            yield from self._start_subscribers()
        if not self._options.kill_all_then_restart:  # else they outlive the engine, and meet its next life
            yield from self._stop_subscribers(self._first)
        self._measure(Moment.QUIET)

    def _measure(self, moment: Moment) -> None:
        since = self._bench.now()
        self._seen.measured += [
            Measured(node=str(node.first_life), life=node.life, moment=moment, at=self._bench.now(), holds=holds,
                     since=since)
            for node, holds in self._bench.measure()]

    def _until_done(self, deployment: Deployment, times: int) -> Steps:
        company = self._clients[deployment.index]
        yield Wait(lambda: company.have_served(times), self._guard_s)

    def _come_back(self, deployment: Deployment) -> Steps:
        """The others go on meanwhile."""
        company, client = self._clients[deployment.index], deployment.clients[-1]
        gone = company.clients[-1]
        yield Wait(lambda: gone.gone or has_said(gone, DONE), self._guard_s)
        gone.tell(CLOSE)
        yield Wait(lambda: gone.gone, self._guard_s)
        company.clients[-1] = again = self._bench.start_client(client, 1, company.attachment)
        yield Wait(lambda: bool(again.said) or again.gone, self._start_s)
        again.tell(GO)

    def _start_again(self) -> Generator[Wait, bool, dict[str, Any]]:
        """Start the engine where it was killed. It must come up, serve, and remove what lay about."""
        before = self._bench.files(self._first)
        yield from self._start(self._first, 1)
        again = self._clients[self._first.index]
        removed = sorted(before - self._bench.files(self._first))
        ready = again.up
        if ready:
            again.tell(GO)
            yield from self._until_done(self._first, 1)
        yield from self._stop_subscribers(self._first)
        yield from self._close(again)
        yield Wait(lambda: again.gone, self._guard_s)
        error = next(iter(again.errors), "")
        served = any(has_said(client, DONE) for client in again.clients)
        return {"life": 1, "ready": ready, "served": served, "removed": removed, "error": error}

    def _end(self, deployment: Deployment, files: set[str]) -> Steps:
        """It must still serve, and nobody may have touched what is its own. Its subscribers catch up."""
        company, touched = self._clients[deployment.index], sorted(files - self._bench.files(deployment))
        yield from self._until_done(deployment, self._rounds)
        company.tell(GO)
        yield from self._until_done(deployment, self._rounds + 1)
        served = all(client.said.count(DONE) == self._rounds + 1 for client in company.clients)
        self._seen.beside.append(Beside(engine=deployment.index, served=served, touched=touched))
        yield from self._stop_subscribers(deployment)
        yield from self._close(company)
        yield Wait(lambda: company.gone, self._guard_s)
        of_others = self._seen.leftovers
        yield from self._look_for_leftovers(deployment, clean_expected=True)
        self._seen.leftovers += of_others

    # -- subscribers

    def _start_subscribers(self) -> Steps:
        """Bring them in and let them hear of their publishers, unless those are dead by then."""
        started: list[tuple[Actor, Engine, Company]] = []
        for deployment in self._topology.deployments:
            client, actors = self._clients[deployment.index], []
            for node, engine in deployment.followers:
                actors.append(self._bench.start_subscriber(node, engine))
                started.append((actors[-1], engine, client))
            self._subscribers[deployment.index] = actors

        def none_to_come() -> bool:
            return all(actor.said or actor.gone or client.gone or self._bench.has_ended(engine.core)
                       for actor, engine, client in started)

        yield Wait(none_to_come, listeners_s(self._bounds), guards=False)

    def _stop_subscribers(self, deployment: Deployment) -> Steps:
        actors = self._subscribers.get(deployment.index, [])
        for actor in actors:
            actor.tell(STOP)
        yield Wait(lambda: all(actor.gone or has_said(actor, DONE) for actor in actors), listeners_s(self._bounds),
                   guards=False)

    # -- what is left

    def _look_for_leftovers(self, deployment: Deployment, *, clean_expected: bool) -> Steps:
        """Give it its bound to disappear, then write down what has not."""
        def left() -> list[str]:
            return self._bench.living(deployment) + sorted(self._bench.files(deployment))

        if clean_expected:
            yield Wait(lambda: not left() or not self._bench.may_remove(deployment), self._bounds.cleanup_s,
                       guards=False)
        self._seen.leftovers, self._seen.leftovers_checked_at = left(), self._bench.now()
