"""vLLM's schedulers, counted: the core's marks of a play, and the gate by which a caller has it run so many steps.

All that is scheduled is decided by vLLM. Behind the last step that is allowed the scheduler pauses itself, as a caller
could have paused it by `pause_generation(mode="keep")` if it came at exactly that moment.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

from engine.topology import Mark, core
from scenarios.worlds.vllm.stand_in.events import hashes_of, watch
from scenarios.worlds.vllm.stand_in.gate import Gate
from scenarios.worlds.vllm.stand_in.seat import KEY, Seat, seat_in


class _Counted:
    """Before one of vLLM's schedulers."""

    _seat: Seat | None = None
    _gate: Gate | None = None
    _tells = False  # of its cache

    def __init__(self, vllm_config: Any, *args: Any, **named: Any) -> None:
        super().__init__(vllm_config, *args, **named)
        self._count, self._numbers = 0, dict[int, int]()  # numbers of steps that are not used yet
        index = vllm_config.parallel_config.data_parallel_index
        self._seat = seat_in(vllm_config.additional_config, core(index))
        if self._seat is not None:
            self._gate = Gate(vllm_config.additional_config[KEY]["folder"], index)
            self._seat.born()
            events = vllm_config.kv_events_config
            self._tells = events is not None and events.enable_kv_cache_events
            if self._tells:
                watch(self, self._seat)

    def schedule(self, *args: Any, **named: Any) -> Any:
        self._mark(Mark.STEP)
        output = super().schedule(*args, **named)  # type: ignore[misc]
        if output.total_num_scheduled_tokens and self._gate is not None and self._gate.counts():
            self.set_pause_state(PauseState.PAUSED_ALL)  # type: ignore[attr-defined]
        self._count += 1
        self._numbers[id(output)] = self._count
        self._mark(Mark.SCHEDULED, step=self._count)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **named: Any) -> Any:
        self._mark(Mark.EXECUTED, step=self._numbers.pop(id(scheduler_output), None))
        outputs = super().update_from_output(scheduler_output, *args, **named)  # type: ignore[misc]
        if self._gate is not None and scheduler_output.total_num_scheduled_tokens:
            self._gate.has_run(self.get_num_unfinished_requests())  # type: ignore[attr-defined]
        if self._tells and self._seat is not None and not self.has_unfinished_requests():  # type: ignore[attr-defined]
            self._seat.observe("kv-cache", hashes=hashes_of(self))
        return outputs

    def _mark(self, mark: Mark, **data: Any) -> None:
        if self._seat is not None:
            self._seat.mark(mark, **data)


class CountedScheduler(_Counted, Scheduler):
    pass


class CountedAsyncScheduler(_Counted, AsyncScheduler):
    pass
