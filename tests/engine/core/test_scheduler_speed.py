"""The twin plays hundreds of schedules a second, so a step must cost microseconds."""

from __future__ import annotations

from time import perf_counter

from engine.config import CacheConfig, SchedulerConfig
from engine.core.scheduler import Scheduler
from engine.messages import ModelRunnerOutput
from tests.engine.core.scheduler_fakes import make_request

STEPS = 500
BOUND_S = 60e-6


def seconds_per_step() -> float:
    """Eight requests that decode, one token each per step, prefix caching and events on."""
    scheduler = Scheduler(SchedulerConfig(), CacheConfig(), 2000, 16, 100_000)
    ids = [f"request-{number}" for number in range(8)]
    for request_id in ids:
        scheduler.add_request(make_request(request_id, [1] * 30, max_tokens=10_000, ignore_eos=True))
    began = perf_counter()
    for number in range(STEPS):
        step = scheduler.schedule()
        scheduler.update_from_output(step, ModelRunnerOutput(step.step, {request_id: [number] for request_id in ids}))
        scheduler.take_events()
    return (perf_counter() - began) / STEPS


def test_a_step_of_eight_decoding_requests_costs_less_than_60_microseconds():
    """The best of ten: the bound is on the code, not on who else uses the machine."""
    assert min(seconds_per_step() for _ in range(10)) < BOUND_S
