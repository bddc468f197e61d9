"""What is wrong with blocks and queues, as sentences; empty when all is well. Looks at what no promise shows."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.block_pool import BlockPool
from engine.core.kv_cache import KVCacheManager
from engine.core.request import RequestStatus
from engine.core.scheduler import Scheduler


def integrity(of: Scheduler | KVCacheManager) -> list[str]:
    return _of_scheduler(of) if isinstance(of, Scheduler) else _of_cache(of)


def _of_scheduler(scheduler: Scheduler) -> list[str]:
    cache = scheduler.cache
    wrong = _of_cache(cache)
    queued = [request.request_id for request in scheduler.running] + list(scheduler.waiting)
    if sorted(queued) != sorted(scheduler.requests):
        wrong.append(f"the live requests {sorted(scheduler.requests)} are not those in the queues {sorted(queued)}")
    for request in scheduler.running:
        if request.status is not RequestStatus.RUNNING:
            wrong.append(f"{request} is among the running")
    for request in scheduler.waiting.values():
        if request.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            wrong.append(f"{request} is among the waiting")
        if request.num_computed_tokens or cache.get_block_ids(request.request_id):
            wrong.append(f"{request} waits, but has computed tokens or blocks")
    num_listed = sum(len(cache.get_block_ids(request.request_id)) > 0 for request in scheduler.running)
    if num_listed != cache.num_tables:
        wrong.append(f"{cache.num_tables} requests hold blocks, {num_listed} of them are running")
    return wrong


def _of_cache(cache: KVCacheManager) -> list[str]:
    held = [0] * cache.num_total
    wrong = []
    for request_id, table in cache._tables.items():
        if len(set(table)) != len(table):
            wrong.append(f"request {request_id!r} lists a block twice: {table}")
        for block in table:
            held[block] += 1
    if cache._tables.keys() != cache._num_stored.keys():
        wrong.append("the requests with blocks are not the requests with stored blocks")
    return wrong + _of_pool(cache._pool, held)


def _of_pool(pool: BlockPool, held: Sequence[int]) -> list[str]:
    """`held[block]` is how many hold it by other books."""
    wrong = []
    for block, count in enumerate(pool.holders):
        if count != held[block]:
            wrong.append(f"block {block} counts {count} holders, but {held[block]} requests hold it")
        if (block in pool._free) == (count > 0):
            wrong.append(f"block {block} has {count} holders and is {'' if count else 'not '}in the free queue")
        block_hash = pool._hash_of[block]
        if block_hash is not None and block not in pool._by_hash.get(block_hash, ()):
            wrong.append(f"block {block} holds hash {block_hash}, but cannot be found by it")
    for block_hash, blocks in pool._by_hash.items():
        strangers = [block for block in blocks if pool._hash_of[block] != block_hash]
        if strangers or not blocks:
            wrong.append(f"hash {block_hash} leads to blocks {list(blocks)}, of which {strangers} do not hold it")
    if pool._free and not 0 <= min(pool._free) <= max(pool._free) < pool.num_blocks:
        wrong.append("the free queue holds a block that does not exist")
    return wrong
