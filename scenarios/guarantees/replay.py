"""Each engine's steps, played by hand beside what its core said of itself: once for a history, for all who ask."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from engine.topology import Channel, Mark, mark_site
from scenarios.guarantees.guests import Limits, NotFree, Wrong
from scenarios.guarantees.service import Service
from scenarios.history.history import EngineLife, Fate, History, Record
from scenarios.history.steps import Asked, Step, asked_of, steps_of
from scenarios.law.carried import carried

_EXECUTED = mark_site("", Mark.EXECUTED)


class Moment(NamedTuple):
    """An engine that has used the results of so many of its steps, before anybody asked for anything more."""

    running: int
    waiting: int
    free: int
    has_work: bool


class Served:
    """One life of one engine. `wrong`: the first step that breaks a rule, and which; nothing is known behind it."""

    def __init__(self, engine: EngineLife, limits: Limits, steps: list[Step]) -> None:
        self.engine = engine
        self.service = Service(limits)
        self.steps = steps
        self.moments: list[Moment] = []
        self.waited = 0
        self.wrong: tuple[Record, str] | None = None
        self.batches = 0  # of events: one for each step, or reset, that changed what can be found
        self.handed_over = 0
        self.numbers: set[int] = set()
        self.books: list[tuple[Record, str]] = []  # where the core's own books are others
        self.befell: list[int] = []  # the core's records of what befell its requests and its cache beside its steps
        self.unserved: list[tuple[str, int]] = []  # who can never be served, and the core's record of its coming
        self.whole = True  # all that was asked of it is known

    def _note(self) -> None:
        service = self.service
        self.waited += bool(service.waiting)
        self.batches += service.blocks.has_changed()
        self.moments.append(Moment(len(service.running), len(service.waiting), service.blocks.free, service.has_work))

    def play(self, events: Iterator[Record], asked: dict[str, Asked]) -> None:
        upcoming = next(events, None)
        for step in [*self.steps, None]:
            while upcoming is not None and (step is None or upcoming.number < step.number):
                if not self._happens(upcoming, asked):
                    self.whole = False
                    return
                upcoming = next(events, None)
            if step is not None:
                try:
                    self.service.serve(step)
                except Wrong as wrong:
                    self.wrong = step.record, str(wrong)
                    if isinstance(wrong, NotFree):
                        self.books.append(self.wrong)
                    return

    def _happens(self, record: Record, asked: dict[str, Asked]) -> bool:
        """-> whether all is known of it"""
        service, data = self.service, record.data
        if record.site.endswith(_EXECUTED):
            if not service.in_flight:
                return False
            service.uses()
            self._note()
            return True
        if record.site in ("request", "reset"):
            self.befell.append(record.number)
        if record.site == "blocks":
            self.books += [(record, text) for text in _differences(service, data)]
        elif record.site == "kv-cache":
            count = len(data["hashes"] or ())
            if count != len(service.blocks.found_in):
                self.books.append((record, f"its cache has {count} hashes, its steps have left "
                                           f"{len(service.blocks.found_in)}"))
            if self.handed_over != self.batches:
                self.books.append((record, f"it has handed over {self.handed_over} batches of events, its cache has "
                                           f"changed {self.batches} times"))
        elif record.site in ("kv-published", "kv-lost"):
            self.numbers.add(data["seq"])
            self.handed_over = len(self.numbers)
        elif record.site == "reset":
            if data["preempts"]:
                service.all_give_way()
            if data["done"] != (not any(service.blocks.holders)):
                self.books.append((record, "its cache was reset while requests held blocks" if data["done"] else
                                   "its cache was not reset, although nobody held a block"))
            elif data["done"]:
                service.reset()
                self.batches += service.blocks.has_changed()
        elif data["action"] == "add":
            if data["request"] not in asked:
                return False
            before = service.unserved
            service.comes(asked[data["request"]])
            if service.unserved > before:
                self.unserved.append((data["request"], record.number))
        elif data["action"] == "abort":
            service.leaves(data["request"])
        return True


def _differences(service: Service, data: dict[str, object]) -> Iterator[str]:
    """What the core says when it is idle, against what its steps have left."""
    kept = data.get("kept")
    if not isinstance(kept, dict) or "running" not in kept:
        return
    free, running, waiting = service.blocks.free, len(service.running), len(service.waiting)
    told = {"free": data["free"], "cached": data["cached"], "requests": data["requests"], "untold": data["untold"],
            "running": kept["running"], "waiting": kept["waiting"], "tables": kept["tables"]}
    left = {"free": free, "cached": len(service.blocks.found_in), "requests": running + waiting,
            "untold": service.has_ends_to_tell, "running": running, "waiting": waiting,
            "tables": sum(bool(guest.blocks) for guest in service.running)}
    for name, number in left.items():
        if told[name] != number:
            yield f"its books have {told[name]} as {name}, its steps have left {number}"


@lru_cache(maxsize=1)
def replayed(history: History) -> list[Served]:
    """Every engine that told of a step. The last history is kept: several promises ask for it."""
    found = []
    for engine in history.engines:
        steps, limits = steps_of(history, engine), limits_of(history, engine)
        if steps and limits is not None:
            served = Served(engine, limits, steps)
            served.play(_beside(history, engine), _known(history, engine))
            found.append(served)
    return found


def _known(history: History, engine: EngineLife) -> dict[str, Asked]:
    """What was asked of it, less what was damaged on the way: nobody knows what the core has read."""
    asked = asked_of(history, engine)
    damaged = {carried(history, hit) for hit in history.faults.hit(Fate.CORRUPT, channel=Channel.REQUESTS.value)}
    for operation in history.operations if damaged else ():
        if operation.request in damaged and operation.internal is not None:
            asked.pop(operation.internal, None)
    return asked


def limits_of(history: History, engine: EngineLife) -> Limits | None:
    """As configured; the number of blocks, where it is not, as the core said when it was ready."""
    config = history.play.config
    blocks = config.cache.num_gpu_blocks
    for record in history.by_node("ready").get(engine.core, ()):
        blocks = blocks or record.data["num_gpu_blocks"]
    if blocks is None:
        return None
    return Limits(config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs, blocks,
                  config.cache.block_size, config.scheduler.max_model_len, config.cache.enable_prefix_caching,
                  config.scheduler.policy == "priority", config.scheduler.long_prefill_token_threshold,
                  config.scheduler.async_scheduling, history.grid_of(engine.core).pp)


def _beside(history: History, engine: EngineLife) -> Iterator[Record]:
    """What befalls the core's requests and its cache beside its steps, and its books, in its own order."""
    names = "request", "reset", "blocks", "kv-cache", "kv-published", "kv-lost"
    records = [record for name in names for record in history.by_node(name).get(engine.core, ())]
    records += history.crossings.get(engine.core + _EXECUTED, ())
    return iter(sorted(records, key=_number))


def _number(record: Record) -> int:
    return record.number
