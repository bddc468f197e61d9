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
    kv,
    kv_ranks,
    overload,
    requests,
    ring,
    ring_waits,
    rpc,
    steps,
    text,
)
from scenarios.law import law

#: id -> Guarantee. A promise that is not here is not judged; ids are frozen, plans and reports refer to them.
GUARANTEES: dict[str, Guarantee] = {
    guarantee.id: guarantee
    for chapter in (law, delivery, handshake, bad_frames, requests, text, steps, ring, ring_waits, rpc, death,
                    cleanliness, holdings, kv, kv_ranks, overload)
    for guarantee in chapter.GUARANTEES
}


def guarantee(name: str) -> Guarantee:
    """By id or Python name. Raises KeyError naming what there is."""
    found = GUARANTEES.get(name.replace("_", "-"))
    if found is None:
        raise KeyError(f"no guarantee {name!r}; there are: {', '.join(GUARANTEES)}")
    return found
