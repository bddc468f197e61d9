"""All guarantees, by id, in the order of their chapters."""

from __future__ import annotations

from scenarios.guarantees.base import Guarantee
from scenarios.guarantees.cleanliness import GUARANTEES as CLEANLINESS
from scenarios.guarantees.death import GUARANTEES as DEATH
from scenarios.guarantees.kv import GUARANTEES as KV
from scenarios.guarantees.kv_ranks import GUARANTEES as KV_RANKS
from scenarios.guarantees.overload import GUARANTEES as OVERLOAD
from scenarios.guarantees.requests import GUARANTEES as REQUESTS
from scenarios.guarantees.ring import GUARANTEES as RING
from scenarios.guarantees.rpc import GUARANTEES as RPC
from scenarios.guarantees.transport import GUARANTEES as TRANSPORT

#: id -> Guarantee. A promise that is not here is not judged; ids are frozen, plans and reports refer to them.
GUARANTEES: dict[str, Guarantee] = {
    guarantee.id: guarantee
    for chapter in (TRANSPORT, REQUESTS, RING, RPC, DEATH, CLEANLINESS, KV, KV_RANKS, OVERLOAD)
    for guarantee in chapter
}


def guarantee(name: str) -> Guarantee:
    """By id or Python name. Raises KeyError naming what there is."""
    found = GUARANTEES.get(name.replace("_", "-"))
    if found is None:
        raise KeyError(f"no guarantee {name!r}; there are: {', '.join(GUARANTEES)}")
    return found
