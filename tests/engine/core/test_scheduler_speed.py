"""The twin plays hundreds of schedules a second, so a step must be short, and stay so however many came before it."""

from __future__ import annotations

from engine.config import CacheConfig, SchedulerConfig
from engine.core.scheduler import Scheduler
from engine.messages import ModelRunnerOutput
from tests.effort import lines_run
from tests.engine.core.scheduler_fakes import make_request

#: Eight requests that decode, one token each: so many lines for each of them, and so many for the step.
LINES_OF_A_REQUEST, LINES_OF_A_STEP = 70, 60
REQUESTS = 8


def test_a_step_of_decoding_requests_runs_few_lines_also_after_many_steps():
    """Prefix caching and events are on."""
    scheduler = Scheduler(SchedulerConfig(), CacheConfig(), 2000, 16, 100_000)
    ids = [f"request-{number}" for number in range(REQUESTS)]
    for request_id in ids:
        scheduler.add_request(make_request(request_id, [1] * 30, max_tokens=10_000, ignore_eos=True))

    def steps(count: int, first: int) -> None:
        for number in range(first, first + count):
            step = scheduler.schedule()
            answers = {request_id: [number] for request_id in ids}
            scheduler.update_from_output(step, ModelRunnerOutput(step.step, answers))
            scheduler.take_events()

    blocks = 16  # a step in so many fills a block
    steps(1, 0)
    early = lines_run(lambda: steps(blocks, 1)) / blocks
    steps(400, 1 + blocks)
    late = lines_run(lambda: steps(blocks, 401 + blocks)) / blocks
    assert late <= 1.05 * early
    assert late <= LINES_OF_A_STEP + REQUESTS * LINES_OF_A_REQUEST
