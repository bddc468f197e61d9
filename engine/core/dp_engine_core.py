"""A core beside others (pure): it tells the coordinator what it has to do, and in lockstep it steps as the others do.

Promises
- Counts are told whenever they have changed, and never waited for.
- In lockstep each turn executes one forward, of work or a dummy one, so all ranks have executed as many at each
  all-reduce; what the wave and its steps are follows from `engine/coordinator/waves.py` alone.
- A pause is answered when all ranks have agreed to it, and nothing is in flight any more; behind a resume no rank steps
  before all have resumed. `run_steps` counts forwards, so that all ranks rest behind the same one. Of these calls each
  begins when the one before was answered: what a client asks in one breath, all ranks do at the same places.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from engine.coordinator.board import Start
from engine.coordinator.sockets import COORDINATOR
from engine.coordinator.waves import Report, StartWave, Waves
from engine.core.engine_core import LATER, EngineCore
from engine.core.io.items import OUTPUT, Outgoing, Terminate
from engine.effects import Loop, MarkPoint, Now, Observe, Put
from engine.errors import CollectiveError
from engine.messages import EngineCoreOutputs, EngineCoreRequest, SchedulerOutput
from engine.process.consensus.effects import Reduce
from engine.topology import Mark
from engine.wire.codec import Utility

#: The group of the cores that step together.
GROUP = "dp"
_STEERING = frozenset({"pause_scheduler", "resume_scheduler", "run_steps"})
#: Who is told of a wave's end where there is no coordinator.
OWN_CLIENT = 0


class CountedEngineCore(EngineCore):
    """It tells a coordinator how much it has to do."""

    _counted: tuple[int, int] = (0, 0)

    def _looked(self) -> Loop[None]:
        counts = self.scheduler.get_request_counts()
        if self.config.is_counted and counts != self._counted:
            self._counted = counts
            yield from self._report(self._stats())

    def _stats(self) -> EngineCoreOutputs:
        return EngineCoreOutputs(self.engine_index, scheduler_stats=self.scheduler.stats())

    def _report(self, said: EngineCoreOutputs) -> Loop[None]:
        yield Put(OUTPUT, Outgoing(COORDINATOR if self.config.has_coordinator else OWN_CLIENT, said))


class DPEngineCore(CountedEngineCore):
    """It executes a forward whenever any rank does."""

    def __init__(self, *arguments: Any, waves: Waves, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.waves = waves
        self._waiting: deque[Utility] = deque()  # calls that steer, behind the one that is not answered yet

    # -- steps

    def _unfinished(self) -> bool:
        """Whether it asks for more forwards. What is in flight the others have executed, too, or will with it."""
        return self.scheduler.has_unfinished_requests()

    def _has_to_stay(self) -> bool:
        return super()._has_to_stay() or self.waves.running or self.waves.due

    def _may_schedule(self) -> bool:
        return not self.waves.holds and super()._may_schedule()

    def _may_step(self) -> bool:
        return self.waves.due or self.waves.may_step(self._unfinished()) or super()._may_step()

    def _step(self) -> Loop[None]:
        waves = self.waves
        if not waves.due:
            yield from self._forward()
        if waves.due:
            yield from self._agree()
        if self._allowance == 0 and not waves.due:
            waves.halt()
            yield from self._rest("halt")

    def _forward(self) -> Loop[None]:
        """One, at least where any rank has work."""
        before = self.forwards
        if super()._may_step():
            yield from super()._step()
        if self.forwards == before:
            if not self.waves.may_step(self._unfinished()):
                return  # the workers were told of ends, which is no forward
            yield MarkPoint(Mark.DUMMY, {"wave": self.waves.wave, "step": self.waves.step})
            yield from self.executor.execute_dummy_batch(self._place())
            self._count()
        self.waves.stepped()

    def _count(self, *, forwards: bool = True) -> None:
        """A step without tokens is none that the others execute."""
        if forwards:
            super()._count()

    def _stamped(self, scheduled: SchedulerOutput) -> SchedulerOutput:
        return msgspec.structs.replace(scheduled, at=self._place()) if scheduled.num_scheduled_tokens else scheduled

    def _stats(self) -> EngineCoreOutputs:
        return msgspec.structs.replace(super()._stats(), counted_at=self._place())

    def _place(self) -> tuple[int, int]:
        """Wave, and step of it."""
        return self.waves.wave, self.waves.step

    def _agree(self) -> Loop[None]:
        """Nothing is in flight then: a core that waits for others does not hear how its own workers fare."""
        waves = self.waves
        yield from self._use_all()
        wave, step, votes = waves.wave, waves.step, waves.votes(self._unfinished())
        deadline = (yield Now()) + self.config.bounds.collective_s
        try:
            answer = yield Reduce(GROUP, votes, waves.op, deadline)
        except CollectiveError as error:
            yield Observe("consensus-failed", {"blamed": list(error.blamed), "reason": str(error)})
            raise
        was_paused, resumes = waves.paused, "resume_scheduler" in self._later
        reports = waves.on_answer(answer)
        yield Observe("consensus", {"wave": wave, "step": step, "votes": votes, "answer": answer,
                                    "running": waves.running})
        if waves.wave > wave:
            yield MarkPoint(Mark.WAVE_DONE, {"wave": wave})
        yield from self._tell(reports)
        if waves.paused and not was_paused:
            yield MarkPoint(Mark.PAUSED, {"wave": waves.wave})
            yield from self._answer_later("pause_scheduler")
        if resumes:
            yield MarkPoint(Mark.RESUMED, {"wave": waves.wave})
            yield from self._answer_later("resume_scheduler")

    def _tell(self, reports: list[Report]) -> Loop[None]:
        for report in reports:
            if isinstance(report, StartWave):
                yield Observe("start-wave", {"wave": report.wave})
                yield from self._report(EngineCoreOutputs(self.engine_index, start_wave=report.wave))
            else:
                yield Observe("wave-complete", {"wave": report.wave})
                yield from self._report(EngineCoreOutputs(self.engine_index, wave_complete=report.wave))

    def _rest(self, why: str) -> Loop[None]:
        yield Observe("rest", {"why": why, "pausing": self.waves.pausing, "paused": self.waves.paused})

    def _go_on(self, why: str) -> Loop[None]:
        unfinished = self._unfinished()
        reports = self.waves.resume(unfinished)
        yield Observe("go-on", {"why": why, "unfinished": unfinished})
        yield from self._tell(reports)

    # -- inputs

    def _handle(self, item: Any) -> Loop[None]:
        if isinstance(item, Start):
            waves = self.waves
            was_running = waves.running
            waves.on_start(item.wave, item.exclude)
            yield Observe("start-heard", {"wave": item.wave, "exclude": item.exclude, "at": waves.wave,
                                          "runs": waves.running and not was_running})
        elif isinstance(item, Terminate):
            allowance = self._allowance
            yield from super()._handle(item)
            self._allowance = allowance  # behind which step all rest is not its own to say
        else:
            yield from super()._handle(item)

    def _added(self, request: EngineCoreRequest) -> Loop[None]:
        yield from self._tell(self.waves.on_request(request.current_wave))

    # -- utilities

    def _utility(self, call: Utility) -> Loop[None]:
        """Those that steer one after another, so that all ranks come to each of them at the same place."""
        if call.method in _STEERING and self._is_steered:
            self._waiting.append(call)
        else:
            yield from super()._utility(call)

    def _answer_later(self, method: str) -> Loop[None]:
        yield from super()._answer_later(method)
        while self._waiting and not self._is_steered:
            yield from super()._utility(self._waiting.popleft())

    @property
    def _is_steered(self) -> bool:
        return not _STEERING.isdisjoint(self._later)

    def _pause_scheduler(self) -> Loop[Any]:
        self._allowance = None
        paused = self.waves.pause()
        yield from self._rest("pause")
        return self.steps if paused else LATER

    def _resume_scheduler(self) -> Loop[Any]:
        self._allowance = None
        yield from self._go_on("resume")
        return LATER if self.waves.due else self.steps

    def _run_steps(self, steps: int) -> Loop[Any]:
        if not self.waves.paused:
            raise ValueError("ranks that step together run a number of steps out of a pause only: pause them first")
        found = yield from super()._run_steps(steps)
        yield from self._go_on("steps")
        return found

    def _steps_are_over(self) -> Loop[None]:
        """Also where there was nothing to run them for."""
        self.waves.halt()
        yield from self._rest("halt")
        yield MarkPoint(Mark.PAUSED, {"wave": self.waves.wave})
        yield from super()._steps_are_over()
