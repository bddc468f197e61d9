"""Steps pure loops by hand: effects out, answers in, time where the test wants it."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from engine.effects import Beat, Call, Describe, Effect, Loop, MarkPoint, Now, Observe, Put, Receive, Send, Take


class Hand:
    """Answers effects from what the test put down. A Take or Receive with nothing to give moves time to its deadline.

    Raises AssertionError for a wait without a deadline that nothing would end: a hang.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.queues: dict[str, deque[Any]] = defaultdict(deque)
        self.inboxes: dict[str, deque[tuple[float, int, list[Any]]]] = defaultdict(deque)
        self.sent: list[tuple[str, list[Any], int]] = []
        self.marks: list[tuple[str, dict[str, Any] | None]] = []
        self.observed: list[tuple[str, dict[str, Any]]] = []
        self.beats: list[tuple[int, float]] = []
        self.worker: Any = None

    def step(self, loop: Loop[Any], answer: Any = None, error: BaseException | None = None) -> Effect:
        return loop.send(answer) if error is None else loop.throw(error)

    def run(self, loop: Loop[Any], until: Any = None) -> Any:
        """Drive to the end, or until `until(effect)` says so, before that effect is answered. -> the result, or None"""
        answer, error = None, None
        try:
            while True:
                effect = self.step(loop, answer, error)
                if until is not None and until(effect):
                    return None
                answer, error = None, None
                try:
                    answer = self.answer(effect)
                except AssertionError:
                    raise
                except (Exception, SystemExit) as raised:
                    error = raised
        except StopIteration as stop:
            return stop.value

    def answer(self, effect: Effect) -> Any:
        match effect:
            case Now():
                return self.now
            case Take(queue=queue, deadline=deadline):
                return self._take(queue, deadline)
            case Receive(inboxes=names, deadline=deadline):
                return self._receive(names, deadline)
            case Put(queue=queue, item=item):
                self.queues[queue].append(item)
            case Send(outbox=outbox, frames=frames, peer=peer):
                self.sent.append((outbox, frames, peer))
            case MarkPoint(mark=mark, data=data):
                self.marks.append((mark.value, data))
            case Describe(name=name, describe=describe):
                return self.answer(Observe(name, describe()))
            case Observe(name=name, data=data):
                self.observed.append((name, data))
            case Beat(count=count):
                self.beats.append((count, self.now))
            case Call(method=method, args=args, kwargs=kwargs):
                return getattr(self.worker, method)(*args, **kwargs)
            case _:
                raise AssertionError(f"nobody answers {type(effect).__name__}")
        return None

    def _take(self, queue: str, deadline: float | None) -> list[Any]:
        items = list(self.queues[queue])
        self.queues[queue].clear()
        if not items:
            assert deadline is not None, f"a wait for {queue!r} that nothing ends"
            self.now = max(self.now, deadline)
        return items

    def _receive(self, names: tuple[str, ...], deadline: float | None) -> Any:
        """Messages lie in an inbox with the time from which they can be read."""
        due = [(self.inboxes[name][0][0], name) for name in names if self.inboxes[name]]
        if due and (deadline is None or min(due)[0] <= deadline):
            at, name = min(due)
            self.now = max(self.now, at)
            _, peer, frames = self.inboxes[name].popleft()
            return name, peer, frames
        assert deadline is not None, f"a wait for {names} that nothing ends"
        self.now = max(self.now, deadline)
        return None
