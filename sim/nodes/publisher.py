"""The publisher of KV events in the twin: the engine's own log and loops; and a neighbour that consists of one.

The neighbour is another engine on the same host, perhaps another data-parallel rank. Of it only what publishes is
there: the engine's own KV cache, with a block of a prompt at each step, and the publisher. It records for the lab.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from engine.config import KVEventsConfig
from engine.core.block_pool import CacheEvent
from engine.core.kv_cache import KVCacheManager
from engine.core.request import Request
from engine.effects import Loop, Now, Observe, Take
from engine.kv_events.publisher.life import start_publisher
from engine.kv_events.publisher.log import hand_over
from engine.messages import KVEventBatch, SamplingParams
from engine.wire.wiring import KV, REPLAY
from sim.process.effects import Sleep
from sim.stage import Stage

#: What the lab says to a neighbour, by its queue: compute all prompts once more.
ROUNDS, ROUND = "rounds", "round"
#: No life of the played engine has this one.
NEIGHBOURS_EPOCH = 1000


def events_of(stage: Stage) -> KVEventsConfig:
    """Where the lab has its engines publish."""
    return msgspec.structs.replace(stage.config.kv_events, endpoint=stage.address(KV),
                                   replay_endpoint=stage.address(REPLAY), bind=True)


def neighbour_main(stage: Stage, rank: int | None, prompts: Sequence[Sequence[int]],
                   round_is_over: Callable[[], None]) -> Loop[None]:
    """The main thread of a neighbour, from one round to the next: each begins with an empty cache.

    A `rank` of None publishes nothing.
    """
    cache = KVCacheManager(stage.num_gpu_blocks, stage.config.cache.block_size)
    log = None if rank is None else (yield from start_publisher(events_of(stage), rank, epoch=NEIGHBOURS_EPOCH))
    while True:
        for _ in (yield Take(ROUNDS, None)):
            cache.reset_prefix_cache()
            for prompt in prompts:
                for events in _compute(cache, prompt):
                    if log is not None and events:
                        yield from hand_over(log, KVEventBatch((yield Now()), events), queue=KV)
                    yield Sleep(stage.sim.costs.model_step_s)
            yield Observe("kv-cache", {"hashes": cache.cached_hashes()})
            round_is_over()


def _compute(cache: KVCacheManager, prompt: Sequence[int]) -> Iterator[list[CacheEvent]]:
    """A request that comes, is computed a block at a step, and ends. -> the events of each step"""
    request = Request("alone", prompt, SamplingParams())
    found, computed = cache.get_computed_blocks(request)
    taken = cache.allocate_slots(request, request.num_tokens - computed, found)
    assert taken is not None, "one prompt at a time fits, or the played engine could not serve it either"
    for end in range(computed + cache.block_size, request.num_tokens + 1, cache.block_size):
        cache.cache_blocks(request, end)
        yield cache.take_events()
    cache.free(request)
    yield cache.take_events()  # what was evicted for a prompt that filled no block
