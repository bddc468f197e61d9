"""Steps the lives of processes by hand: what children, parents and signals do happens where the test says so.

    hand.later(2.0, hand.sigterm)           something happens while a loop waits, at that time
    hand.instead[Call] = failing            what an effect is answered with, or raises, in place of the usual
    Run(hand, loop).to(wanted).end()        leave a loop before an effect, and go on with it
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from engine import effects as e
from engine.errors import QueueCancelledError
from engine.model_config import ModelConfig
from engine.process.consensus.effects import JoinGroup, LeaveGroup, Reduce
from engine.process.files import EngineFiles
from engine.topology import Node
from tests.engine.core.loops import Hand

ME = e.Identity(100, 1, 1)
FILES = EngineFiles("e0", "/run/e0")
MODEL = ModelConfig(vocab_size=100, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                    num_key_value_heads=1, head_dim=8, max_position_embeddings=128)

#: Effects of a test that makes no sense any more.
MANY = 50_000
#: A wait has ended because a child has.
_AN_END = object()


class ExitedError(BaseException):
    """The process has ended itself, with this code."""


class LifeHand(Hand):
    """A thread that a life starts runs when the test runs it, or when it is joined."""

    def __init__(self) -> None:
        super().__init__()
        self.instead: dict[type, Callable[[Any], Any]] = {}
        self.events: list[tuple[float, Callable[[], None]]] = []
        self.done: list[e.Effect] = []  # all effects but looks at the time
        self.recipes: dict[Node, Any] = {}  # of the children, None until they were told
        self.words: deque[tuple[Node, Any]] = deque()  # of the children, not yet heard
        self.ended: dict[Node, e.Gone] = {}
        self.ending: list[tuple[Node, str]] = []  # how children were let go
        self.obey = True  # whether they go
        self.told_parent: list[Any] = []
        self.threads: dict[str, e.StartThread] = {}
        self.cancelled: Exception | None = None
        self.terminates: tuple[str | None, Any] | None = None
        self.alive: set[e.Identity] = set()
        self.sockets: list[str] = []
        self.heartbeat: tuple[int, float | None] = (0, None)
        self.over_at: float | None = None  # when nobody is connected any more to the outputs

    def later(self, at: float, action: Callable[[], Any]) -> None:
        self.events.append((at, action))
        self.events.sort(key=lambda event: event[0])

    def sigterm(self) -> None:
        queue, item = self.terminates
        if queue is None:
            raise SystemExit(item)
        self.queues[queue].append(item)

    def run_thread(self, name: str) -> None:
        """To its end, as a process runs it: a failure is told, a cancellation is none."""
        thread = self.threads[name]
        try:
            self.run(thread.loop)
        except QueueCancelledError:
            pass
        except Exception as error:
            if thread.told is not None:
                self.queues[thread.told].append(e.ThreadFailed(name, error))

    def names(self) -> list[str]:
        """What was observed, by name."""
        return [name for name, _ in self.observed]

    def seen(self, kind: type) -> list[Any]:
        return [effect for effect in self.done if isinstance(effect, kind)]

    # -- answers

    def answer(self, effect: e.Effect) -> Any:
        if not isinstance(effect, e.Now):
            self.done.append(effect)
            assert len(self.done) < MANY, "a loop that never waits"
        instead = self.instead.get(type(effect))
        return self._usual(effect) if instead is None else instead(effect)

    def _usual(self, effect: e.Effect) -> Any:
        match effect:
            case e.WhoAmI():
                return ME
            case e.ClaimFiles():
                return FILES
            case e.ReadModel():
                return MODEL
            case e.OpenSocket(spec=spec):
                self.sockets.append(spec.name)
                return spec.address
            case e.IsOver():
                return self.over_at is not None and self.now >= self.over_at
            case e.IsAlive(process=process):
                return process in self.alive
            case e.ReadHeartbeat():
                return self.heartbeat
            case e.Waiting(queue=queue):
                return len(self.queues[queue])
            case e.OnTerminate(queue=queue, item=item):
                self.terminates = queue, item
            case e.Cancel(error=error):
                self.cancelled = self.cancelled or error
            case e.StartThread(name=name):
                self.threads[name] = effect
            case e.JoinThread(name=name):
                if name in self.threads:
                    self.run_thread(name)
                return True
            case e.ExitNow(code=code):
                raise ExitedError(code)
            case e.TellParent(message=message):
                self.told_parent.append(message)
            case e.StartChild(node=node):
                self.recipes[node] = None
                return e.Identity(200 + len(self.recipes), 1, ME.pid)
            case e.TellChild(node=node, recipe=recipe):
                self.recipes[node] = recipe
            case e.Receive(inboxes=names, deadline=deadline, ends=ends):
                return self._hear(names, deadline, ends)
            case e.HearChildren(nodes=nodes, deadline=deadline):
                return self._until(deadline, lambda: self._word(nodes)) or None
            case e.AwaitEnds(nodes=nodes, deadline=deadline):
                return self._until(deadline, lambda: {node: self.ended[node] for node in nodes if node in self.ended})
            case e.EndChild(node=node, how=how):
                self.ending.append((node, how))
                if self.obey or how == "kill":
                    self.ended.setdefault(node, e.Gone({"terminate": 0, "hang-up": 0, "kill": -9}[how]))
            case (e.AwaitParent() | e.OpenHeartbeat() | e.SweepFiles() | e.HoldFiles() | e.RemoveFiles() | e.Close()
                  | e.LogLine() | e.EndProcesses() | e.MakeWorker() | JoinGroup() | LeaveGroup()):
                pass
            case Reduce(values=values):  # of a group in which it is alone
                return list(values)
            case _:
                return super().answer(effect)
        return None

    def _word(self, nodes: tuple[Node, ...]) -> Any:
        for place, (node, _) in enumerate(self.words):
            if node in nodes:
                found = self.words[place]
                del self.words[place]
                return found
        return next(((node, self.ended[node]) for node in nodes if node in self.ended), None)

    def _take(self, queue: str, deadline: float | None) -> list[Any]:
        def items() -> list[Any]:
            found = list(self.queues[queue])
            self.queues[queue].clear()
            return found

        return self._until(deadline, items)

    def _hear(self, names: tuple[str, ...], deadline: float | None, ends: tuple[Node, ...]) -> Any:
        """Messages lie in an inbox with the time from which they can be read."""
        def message() -> Any:
            for name in names:
                if self.inboxes[name] and self.inboxes[name][0][0] <= self.now:
                    _, peer, frames = self.inboxes[name].popleft()
                    return name, peer, frames
            if self.cancelled is not None:
                raise self.cancelled
            return _AN_END if any(node in self.ended for node in ends) else None

        for at, *_ in (self.inboxes[name][0] for name in names if self.inboxes[name]):
            self.later(at, lambda: None)
        found = self._until(deadline, message)
        return None if found is _AN_END else found

    def _until(self, deadline: float | None, look: Callable[[], Any]) -> Any:
        """What `look` finds, now or when something has happened, at the latest at the deadline."""
        while not (found := look()):
            if self.events and (deadline is None or self.events[0][0] <= max(deadline, self.now)):
                at, action = self.events.pop(0)
                self.now = max(self.now, at)
                action()
                continue
            assert deadline is not None, "a wait that nothing ends"
            if self.now >= deadline:
                return found
            self.now = deadline
        return found


class Run:
    """A loop that can be left before an effect, and gone on with."""

    def __init__(self, hand: LifeHand, loop: e.Loop[Any]) -> None:
        self._hand = hand
        self._loop = loop
        self.effect = next(loop)

    def to(self, wanted: Callable[[e.Effect], Any]) -> Run:
        while not wanted(self.effect):
            self._step()
        return self

    def end(self) -> Any:
        """-> what the loop returns"""
        try:
            while True:
                self._step()
        except StopIteration as stop:
            return stop.value

    def _step(self) -> None:
        try:
            answer = self._hand.answer(self.effect)
        except AssertionError:
            raise
        except (Exception, SystemExit) as error:
            self.effect = self._loop.throw(error)
        else:
            self.effect = self._loop.send(answer)
