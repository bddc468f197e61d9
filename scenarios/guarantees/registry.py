"""All guarantees, by id, in the order of their chapters."""

from __future__ import annotations

from scenarios.guarantees.base import Guarantee
from scenarios.guarantees.chapters import (
    bad_frames,
    cleanliness,
    death,
    delivery,
    handshake,
    holdings,
    overload,
    requests,
    steps,
    text,
)
from scenarios.guarantees.chapters.events import blocks, kv, publishing, ranks
from scenarios.guarantees.chapters.rings import queue, ring, ring_waits, rpc
from scenarios.guarantees.readers import promises as kv_readers
from scenarios.law import law

#: id -> Guarantee. A promise that is not here is not judged; ids are frozen, plans and reports refer to them.
GUARANTEES: dict[str, Guarantee] = {
    guarantee.id: guarantee
    for chapter in (law, delivery, handshake, bad_frames, requests, text, steps, ring, ring_waits, queue, rpc, death,
                    cleanliness, holdings, blocks, kv, kv_readers, publishing, ranks, overload)
    for guarantee in chapter.GUARANTEES
}


def guarantee(name: str) -> Guarantee:
    """By id or Python name. Raises KeyError naming what there is."""
    found = GUARANTEES.get(name.replace("_", "-"))
    if found is None:
        raise KeyError(f"no guarantee {name!r}; there are: {', '.join(GUARANTEES)}")
    return found
