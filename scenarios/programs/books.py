"""Books of an engine that are damaged on purpose, one table at a time, and what their self-check finds then (pure).

    core      three requests: two run and share a beginning, one waits; a fourth has left blocks that can be found
    client    two requests in flight
    mirror    two blocks, one behind the other

Promises: books are built anew for each damage, by what an engine does with them; what is done to them is what a stray
write would do, so it goes past every method. What nothing is done to comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine.config import Bounds, CacheConfig, LimitsConfig, SchedulerConfig
from engine.core.request import Request, RequestStatus
from engine.core.scheduler import Scheduler
from engine.effects import Loop, Observe
from engine.frontend.session import ClientSession
from engine.kv_events.mirror import KVCacheMirror
from engine.messages import BlockStored, KVEventBatch, ModelRunnerOutput, SamplingParams

_BLOCKS, _SIZE = 8, 2
_PARAMS = SamplingParams(max_tokens=4)
#: A hash that nobody has given.
_NO_HASH = 10**15


class Damage(NamedTuple):
    """`state`: what is done. `named`: what a sentence of the check must hold."""

    state: str
    named: str
    do: Callable[[Any], Any]


def core() -> Scheduler:
    """r0 is over, r1 and r2 run behind the blocks that it has left, r3 waits for a place."""
    scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2), CacheConfig(block_size=_SIZE),
                          _BLOCKS, max_model_len=16, enable_events=False)
    _comes(scheduler, "r0", [1, 2, 3], 1)
    _step(scheduler)
    for name in ("r1", "r2", "r3"):
        _comes(scheduler, name, [1, 2, int(name[1]) + 4], 4)
    _step(scheduler)
    return scheduler


def _comes(scheduler: Scheduler, name: str, prompt: list[int], tokens: int) -> None:
    scheduler.add_request(Request(name, prompt, SamplingParams(max_tokens=tokens)))


def _step(scheduler: Scheduler) -> None:
    """The one token that everybody gets is the same, so that one content lies in one block."""
    step = scheduler.schedule()
    assert step is not None, "nothing is in flight"
    scheduler.update_from_output(step, ModelRunnerOutput(step.step, {name: [9] for name in step.num_scheduled_tokens}))


def client() -> ClientSession:
    session = ClientSession(LimitsConfig(), Bounds(), suffix=lambda: "0")
    for name in ("r0", "r1"):
        session.add(name, [1, 2], _PARAMS, 0.0)
    return session


def mirror() -> KVCacheMirror:
    found = KVCacheMirror()
    found.apply(0, KVEventBatch(0.0, [BlockStored([1, 2], None, [5, 6, 7, 8], _SIZE, None)]))
    return found


# -- of the core -------------------------------------------------------------------------------------------------------


def _pool(scheduler: Scheduler) -> Any:
    return scheduler.cache._pool


def _tables(scheduler: Scheduler) -> dict[str, list[int]]:
    return scheduler.cache._tables


def _free(scheduler: Scheduler) -> int:
    """The block that is handed out next."""
    block: int = next(iter(_pool(scheduler)._free))
    return block


def _shared(scheduler: Scheduler) -> tuple[int, int]:
    """The block that two hold, and the hash of what is in it."""
    block = _tables(scheduler)["r1"][0]
    return block, _pool(scheduler)._hash_of[block]


def _counts_one_too_many(scheduler: Scheduler) -> None:
    _pool(scheduler).holders[_shared(scheduler)[0]] += 1


def _holds_twice(scheduler: Scheduler) -> None:
    """And its holders are counted, so nothing else is wrong."""
    table = _tables(scheduler)["r1"]
    table.append(table[0])
    _pool(scheduler).holders[table[0]] += 1


def _hides(scheduler: Scheduler) -> None:
    """Another block holds the same, so the hash still leads somewhere."""
    block, found = _shared(scheduler)
    other = _free(scheduler)
    _pool(scheduler)._hash_of[other] = found
    _pool(scheduler)._by_hash[found] = {other: None}


def _leads_nowhere(scheduler: Scheduler) -> None:
    _pool(scheduler)._by_hash[_NO_HASH], _pool(scheduler)._parents[_NO_HASH] = {}, None


def _holds_and_waits(scheduler: Scheduler) -> None:
    block = _free(scheduler)
    _pool(scheduler).take(1)
    _tables(scheduler)["r3"], scheduler.cache._num_stored["r3"] = [block], 0


def _is_of_nobody(scheduler: Scheduler) -> None:
    tables, stored = _tables(scheduler), scheduler.cache._num_stored
    tables["r9"], stored["r9"] = tables.pop("r1"), stored.pop("r1")


CORE = (
    Damage("a block counts a holder whom nobody knows", "counts 3 holders, but 2 requests hold it",
           _counts_one_too_many),
    Damage("a block that is held waits to be handed out", "has 2 holders and is in the free queue",
           lambda books: _pool(books)._free.update({_shared(books)[0]: None})),
    Damage("a block that nobody holds is never handed out", "has 0 holders and is not in the free queue",
           lambda books: _pool(books)._free.popitem(last=False)),
    Damage("what a block holds leads to another one alone", "cannot be found by it", _hides),
    Damage("a hash leads to a block that holds something else", "do not hold it",
           lambda books: _pool(books)._by_hash[_shared(books)[1]].update({_free(books): None})),
    Damage("a hash leads to no block", f"hash {_NO_HASH} leads to blocks []", _leads_nowhere),
    Damage("what stands before a block cannot be found", f"is cached without its parent {_NO_HASH}",
           lambda books: _pool(books)._parents.update({_shared(books)[1]: _NO_HASH})),
    Damage("a hash that is not cached has a parent on record", "have a parent on record",
           lambda books: _pool(books)._parents.update({_NO_HASH: None})),
    Damage("a block before the first one waits to be handed out", "a block that does not exist",
           lambda books: _pool(books)._free.update({-1: None})),
    Damage("a block behind the last one waits to be handed out", "a block that does not exist",
           lambda books: _pool(books)._free.update({_BLOCKS: None})),
    Damage("a request holds a block twice", "'r1' lists a block twice", _holds_twice),
    Damage("of a request that holds blocks it is not known which can be found", "requests with stored blocks",
           lambda books: books.cache._num_stored.pop("r1")),
    Damage("a request that is in no queue holds a table of blocks", "3 requests hold blocks, 2 of them are running",
           lambda books: (_tables(books).update(r9=[]), books.cache._num_stored.update(r9=0))),
    Damage("the blocks of one who runs are in the table of a request that is in no queue",
           "2 requests hold blocks, 1 of them are running", _is_of_nobody),
    Damage("a request lives in no queue", "are not those in the queues", lambda books: books.waiting.clear()),
    Damage("a request runs that does not live", "are not those in the queues", lambda books: books.requests.pop("r1")),
    Damage("one who runs is said to wait", "is among the running",
           lambda books: setattr(books.running[1], "status", RequestStatus.WAITING)),
    Damage("one who waits is said to run", "is among the waiting",
           lambda books: setattr(books.waiting["r3"], "status", RequestStatus.RUNNING)),
    Damage("one who waits has a computed token", "waits, but has computed tokens or blocks",
           lambda books: setattr(books.waiting["r3"], "num_computed_tokens", 1)),
    Damage("one who waits holds a block", "waits, but has computed tokens or blocks", _holds_and_waits),
)

# -- of a client, and of who follows -----------------------------------------------------------------------------------

CLIENT = (
    Damage("a request is known by the caller's id alone", "the two request tables differ",
           lambda books: books._by_internal.pop("r0-0")),
    Damage("a request is known by its own id alone", "the two request tables differ",
           lambda books: books._by_internal.update(other=object())),
    Damage("a byte too many is counted", "bytes in flight do not add up",
           lambda books: setattr(books, "bytes_in_flight", books.bytes_in_flight + 1)),
)
MIRROR = (
    Damage("a block is filed as another one", "is filed as",
           lambda books: books.blocks.update({(3, None, None, None, None): next(iter(books.blocks.values()))})),
)
_BOOKS: tuple[tuple[str, Callable[[], Any], tuple[Damage, ...]], ...] = (
    ("a core", core, CORE), ("a client", client, CLIENT), ("a mirror", mirror, MIRROR))


def look_at_books() -> Loop[None]:
    """Of each: `of`, `state`, `named` (empty where nothing was done), and what was `found`."""
    for of, build, damages in _BOOKS:
        for damage in (Damage("nothing was done to them", "", lambda books: None), *damages):
            damaged = build()
            damage.do(damaged)
            yield Observe("self-check", {"of": of, "state": damage.state, "named": damage.named,
                                         "found": damaged.check_integrity()})
