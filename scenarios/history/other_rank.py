"""What became of a neighbouring rank's KV events, from what its processes recorded. Pure.

The neighbour is no node of a play: of its journals the lab keeps this much, in `Lab.other_rank`.
"""

from __future__ import annotations

from collections.abc import Iterable

from faults.journal import Kind, Record
from scenarios.history.play import RankStream, Said


def stream_of(rank: int, publisher: Iterable[Record], subscriber: Iterable[Record]) -> RankStream:
    """`publisher`: all that its core recorded. `subscriber`: the same of who followed it; each in its own order."""
    published, lost, cache, cache_next = 0, [], [], None
    for record in publisher:
        if record.kind is not Kind.OBSERVATION:
            continue
        if record.site in ("kv-published", "kv-lost"):
            published = max(published, record.data["seq"] + 1)
            lost += [record.data["seq"]] if record.site == "kv-lost" else []
        elif record.site == "kv-cache":
            cache, cache_next = record.data["hashes"], published
    said = [Said(at=record.at, what=record.site, data=record.data) for record in subscriber
            if record.kind is Kind.OBSERVATION and record.site.startswith("kv-")]
    return RankStream(rank=rank, published=published, lost=lost, cache=cache, cache_next=cache_next, said=said)
