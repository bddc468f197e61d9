"""Steps in flight: handed to the workers, their results not used yet (pure).

Promises: results are used in the order in which the steps were scheduled, and there are never more steps than the
queue's depth; of a step that failed the error that came first is raised: its execute's before its sample's, and an
earlier step's before a later one's.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from engine.effects import Loop, MarkPoint
from engine.executor.abstract import Executor
from engine.executor.calls import PendingCall
from engine.messages import ModelRunnerOutput, SchedulerOutput
from engine.topology import Mark


class StepInFlight(NamedTuple):
    """`sampled` is None for a step without tokens, which answers itself."""

    scheduled: SchedulerOutput
    executed: PendingCall
    sampled: PendingCall | None

    @property
    def has_failed(self) -> bool:
        return self.executed.error is not None or (self.sampled is not None and self.sampled.error is not None)


class BatchQueue:
    """At most `depth` steps, the oldest first."""

    def __init__(self, executor: Executor, depth: int) -> None:
        self.depth = depth
        self.current: SchedulerOutput | None = None  # that is handed over, or waited for, or was last
        self._executor = executor
        self._steps: deque[StepInFlight] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def numbers(self) -> list[int]:
        return [step.scheduled.step for step in self._steps]

    @property
    def failing(self) -> SchedulerOutput | None:
        """The step that an error is of: where one is being handed over the oldest before it that a rank has failed in,
        else the one in hand.
        """
        steps = self._steps
        if self.current is not None and steps and steps[-1].scheduled.step < self.current.step:
            return next((step.scheduled for step in steps if step.has_failed), self.current)
        return self.current

    @property
    def is_full(self) -> bool:
        """Whether no more may be asked for: also where a rank is known to have failed in one of the steps."""
        return len(self._steps) >= self.depth or any(step.has_failed for step in self._steps)

    def submit(self, scheduled: SchedulerOutput) -> Loop[None]:
        """Both phases are asked for before either is waited for."""
        self.current = scheduled
        executed = yield from self._executor.execute_model(scheduled, non_block=True)
        sampled = None
        if scheduled.num_scheduled_tokens:
            yield MarkPoint(Mark.SUBMITTED, {"step": scheduled.step})
            sampled = yield from self._executor.sample_tokens(None, non_block=True)
        self._steps.append(StepInFlight(scheduled, executed, sampled))

    def oldest(self) -> Loop[tuple[SchedulerOutput, ModelRunnerOutput]]:
        """-> the oldest step and its result. Raises what it failed with."""
        scheduled, executed, sampled = self._steps.popleft()
        self.current = scheduled
        result = yield from self._executor.wait(*[executed] if sampled is None else [executed, sampled])
        if result is None:
            raise RuntimeError(f"step {scheduled.step}: the workers had nothing to sample")
        return scheduled, result
