"""Whether a scheduler's books agree with each other (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.core.kv_cache import KVCacheManager
from engine.core.request import Request, RequestStatus
from engine.core.request_queue import RequestQueue


def what_is_wrong(cache: KVCacheManager, requests: Mapping[str, Request], running: Sequence[Request],
                  waiting: RequestQueue, in_flight: Mapping[str, int]) -> list[str]:
    """As sentences; none when all is well. `in_flight`: how many promised tokens each request's steps sample."""
    wrong = cache.check_integrity()
    queued = [request.request_id for request in running] + list(waiting)
    if sorted(queued) != sorted(requests):
        wrong.append(f"the live requests {sorted(requests)} are not those in the queues {sorted(queued)}")
    for request in running:
        if request.status is not RequestStatus.RUNNING:
            wrong.append(f"{request} is among the running")
    for request in waiting.values():
        if request.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            wrong.append(f"{request} is among the waiting")
        if request.num_computed_tokens or cache.get_block_ids(request.request_id):
            wrong.append(f"{request} waits, but has computed tokens or blocks")
    num_listed = sum(len(cache.get_block_ids(request.request_id)) > 0 for request in running)
    if num_listed != cache.num_tables:
        wrong.append(f"{cache.num_tables} requests hold blocks, {num_listed} of them are running")
    for name, request in requests.items():
        if request.num_output_placeholders != in_flight.get(name, 0):
            wrong.append(f"{request} has {request.num_output_placeholders} promised tokens, its steps in flight sample "
                         f"{in_flight.get(name, 0)}")
    return wrong
