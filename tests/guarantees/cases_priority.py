"""Histories of requests with priorities."""

from engine.config import CacheConfig, SchedulerConfig
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent
from tests.guarantees.cases_steps import A, B, step

KEPT = "priority-kept"
#: What they ask: "a" is [1, 2], "b" is [3].
NEW_A, NEW_B = (A, [1, 2], 2, [0], 0, 2), (B, [3], 1, [1], 0, 1)


def hall(a: int, b: int) -> Builder:
    """Both have come, "a" first, with these priorities."""
    scheduler = SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=2, policy="priority")
    h = history(cache=CacheConfig(num_gpu_blocks=6, block_size=2), scheduler=scheduler).started(blocks=6)
    workload = h.play().workload
    asked = [{**request, "priority": priority} for request, priority in
             zip(workload["requests"], (a, b, *[0] * len(workload["requests"])), strict=False)]
    return h.promised(workload={**workload, "requests": asked}).called("a").called("b", 1)


@accepts(KEPT)
def the_more_urgent_one_comes_in_first() -> Builder:
    return step(step(hall(5, 1), new=(NEW_B,)), new=(NEW_A,))


@accepts(KEPT)
def who_is_less_urgent_gives_way_to_who_came_later() -> Builder:
    return step(step(hall(5, 1), new=(NEW_B, NEW_A)), cached=((B, [5], [], 1, 1),), preempted=(A,))


@rejects(KEPT)
def who_came_first_comes_in_first() -> Builder:
    return step(step(hall(5, 1), new=(NEW_A,)), new=(NEW_B,))


@rejects(KEPT)
def among_equals_the_later_one_comes_in_first() -> Builder:
    return step(step(hall(1, 1), new=(NEW_B,)), new=(NEW_A,))


@rejects(KEPT)
def who_came_last_gives_way_though_it_is_more_urgent() -> Builder:
    return step(step(hall(5, 1), new=(NEW_B, NEW_A)), cached=((A, [7], [], 2, 1),), preempted=(B,))


@silent(KEPT)
def nobody_waits() -> Builder:
    return step(hall(1, 5), new=(NEW_A, NEW_B))
