"""Promises about who goes before whom where requests have priorities."""

from __future__ import annotations

from faults.journal import Record
from scenarios.guarantees.base import DAMAGE, MEMORY, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.guests import Limits
from scenarios.guarantees.replay import limits_of
from scenarios.history.history import EngineLife, History
from scenarios.history.play import Play
from scenarios.history.steps import Step, asked_of, steps_of

#: By its priority, then by when the core took it: the lowest goes first.
_Turn = tuple[int, int]


class _Hall:
    """Who waits and who runs in one life of an engine."""

    def __init__(self, finding: Finding, engine: EngineLife, limits: Limits) -> None:
        self.finding, self.core, self._limits = finding, engine.core, limits
        self._asked = asked_of(finding.history, engine)
        self._turn: dict[str, _Turn] = {}
        self._waiting: set[str] = set()
        self._running: set[str] = set()

    def happens(self, record: Record) -> bool:
        """A request came or left. -> whether it is known what was asked"""
        request = record.data["request"]
        if record.site == "freed" or record.data["action"] == "abort":
            self._leaves(request)
        elif record.data["action"] == "add":
            asked = self._asked.get(request)
            if asked is None:
                return False
            self._turn[request] = asked.priority, record.number
            if self._limits.can_serve(asked.prompt):
                self._waiting.add(request)
        return True

    def steps(self, step: Step) -> None:
        for request in step.finished:
            self._leaves(request)
        for request in step.preempted:
            self._gives_way(request, step)
        came = [entry.request for entry in step.came]
        last = max(came, key=self._turn.__getitem__, default=None)
        before = {request: self._turn[request] for request in self._waiting.difference(came)}
        if last is not None and before:
            first = min(before, key=before.__getitem__)
            if before[first] < self._turn[last]:
                self._broke(step, "{!r} came in before {!r}, which waited and goes before it", last, first)
            elif any(self._turn[request][1] > turn[1] for request in came for turn in before.values()):
                self.finding.witness("{!r} came in before somebody who had come earlier", came[0],
                                     at=step.record.at, node=self.core)
        self._waiting.difference_update(came)
        self._running.update(came)

    def _gives_way(self, request: str, step: Step) -> None:
        if request not in self._running:
            return  # it was aborted in the meantime
        last = max(self._running, key=self._turn.__getitem__)
        if last != request:
            self._broke(step, "{!r} gave way, and {!r} went on, which goes behind it", request, last)
        elif any(self._turn[other][1] > self._turn[request][1] for other in self._running):
            self.finding.witness("{!r} gave way to somebody who had come later", request, at=step.record.at,
                                 node=self.core)
        self._running.discard(request)
        self._waiting.add(request)

    def _leaves(self, request: str) -> None:
        self._waiting.discard(request)
        self._running.discard(request)

    def _broke(self, step: Step, template: str, *args: object) -> None:
        self.finding.broke("step {} of {}: " + template, step.record.data["step"], self.core, *args, at=step.record.at,
                           node=self.core)


def check_priority_kept(history: History) -> Finding:
    finding = Finding(history)
    for engine in history.engines:
        steps, limits = steps_of(history, engine), limits_of(history, engine)
        if not steps or limits is None:
            continue
        hall = _Hall(finding, engine, limits)
        met: list[Step | Record] = [*steps, *_events(history, engine)]
        for one in sorted(met, key=lambda one: one.number):
            if one.number > steps[-1].number:
                break
            if isinstance(one, Step):
                hall.steps(one)
            elif not hall.happens(one):
                return finding
    return finding


def _events(history: History, engine: EngineLife) -> list[Record]:
    """What befalls the core's requests beside its steps."""
    return [record for name in ("request", "freed") for record in history.by_node(name).get(engine.core, ())]


def _has_priorities(play: Play) -> bool:
    return play.config.scheduler.policy == "priority"


GUARANTEES = (
    Guarantee(
        id="priority-kept", chapter="Requests and tokens", source="vLLM V1 scheduler", check=check_priority_kept,
        applies=_has_priorities,
        sentence="Where requests have priorities nobody comes in before one that waits with a lower number, or with "
                 "the same and came earlier; and who gives way is the last in that order.",
        wrong={"turn": "lets requests come in in the order in which they came",
               "way": "takes the blocks of whoever came in last"},
        witness="somebody came in before one that had come earlier, or gave way to one that had come later",
        envelope=Envelope(outside=(
            MEMORY, Where(DAMAGE, sites="*/requests:receive", why="changed bytes may be another request"))),
    ),
)
