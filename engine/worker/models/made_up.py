"""Steps that are nobody's: what a rank computes before it serves.

Promises: a runner knows no request behind them, and has no cache. `largest_step` is a step of all ranks together,
`warm_up` of a runner whose stage and model are alone.
"""

from __future__ import annotations

from engine.config import SchedulerConfig
from engine.messages import CachedRequestData, NewRequestData, SamplingParams, SchedulerOutput
from engine.worker.model_runner import ModelRunner

#: Prompts up to so many tokens are tried: what is chosen for more is loaded by then, or worth its wait.
MOST_TOKENS = 256
_DRAWN = SamplingParams(temperature=1.0, top_k=8, top_p=0.9, seed=0, min_tokens=1)


def largest_step(runner: ModelRunner, scheduler: SchedulerConfig, length: int) -> None:
    """The step that takes most memory, once, on a cache made for it. `length`: the most tokens of a request."""
    sizes, left = [], scheduler.max_num_batched_tokens
    while left > 0 and len(sizes) < scheduler.max_num_seqs:
        sizes.append(min(left, length))
        left -= sizes[-1]
    new = _requests(runner, sizes)
    _step(runner, new=new, scheduled={request.request_id: request.num_prompt_tokens for request in new})
    _forget(runner, new)


def warm_up(runner: ModelRunner, scheduler: SchedulerConfig, length: int) -> None:
    """Prompts of one token, two, four and so on, then a token of the first of them, of the first two and so on."""
    most = max(1, min(MOST_TOKENS, scheduler.max_num_batched_tokens, length // 2))
    new = _requests(runner, [1 << power for power in range(most.bit_length())], answer=1 + most.bit_length())
    for request in new:
        _step(runner, new=[request], scheduled={request.request_id: request.num_prompt_tokens})
    computed = {request.request_id: request.num_prompt_tokens for request in new}
    for count in range(1, 1 + len(new)):
        names = list(computed)[:count]
        told = [] if runner.keeps_samples else [0]
        _step(runner, cached=[CachedRequestData(name, told, [], computed[name]) for name in names],
              scheduled=dict.fromkeys(names, 1))
        for name in names:
            computed[name] += 1
    runner.execute_dummy_batch()
    _forget(runner, new)


def _requests(runner: ModelRunner, sizes: list[int], answer: int = 0) -> list[NewRequestData]:
    """Prompts of so many tokens, every second one drawn; each with room for an answer, in a cache made for them."""
    new: list[NewRequestData] = []
    blocks = 0
    for size in sizes:
        ids = list(range(blocks, blocks - (-(size + answer) // runner.block_size)))
        params = _DRAWN if len(new) % 2 else SamplingParams()
        new.append(NewRequestData(f"made-up-{len(new)}", [0] * size, size, params, ids, 0))
        blocks += len(ids)
    runner.initialize_cache(blocks)
    return new


def _step(runner: ModelRunner, *, new: list[NewRequestData] | None = None, scheduled: dict[str, int],
          cached: list[CachedRequestData] | None = None) -> None:
    runner.execute_model(SchedulerOutput(0, new or [], cached or [], scheduled, [], []))
    runner.sample_tokens()


def _forget(runner: ModelRunner, new: list[NewRequestData]) -> None:
    runner.execute_model(SchedulerOutput(0, [], [], {}, [request.request_id for request in new], []))
    runner.caches = []
