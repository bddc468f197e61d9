"""Batches of KV events: what each publisher handed over, what each subscriber knew of it, and what it missed."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from engine.topology import Channel, NodeKind
from faults.journal import Kind, Record
from faults.plan import Fate
from scenarios.history.history import FOREVER, History
from scenarios.history.names import base
from scenarios.history.receipts import Receipt

_LATER = frozenset({Fate.DELAY, Fate.REORDER})
_LIVE = f"/{Channel.KV.value}:send"

# -- what was published -------------------------------------------------------------------------------------------


def handed_over(history: History, node: str) -> list[Record]:
    """Batches in the order in which they got their numbers, also those dropped at the full queue at once."""
    records = [*history.by_node("kv-published").get(node, ()), *history.by_node("kv-lost").get(node, ())]
    records.sort(key=lambda record: record.number)
    first: dict[int, Record] = {}
    found = []
    for record in records:
        seq = record.data["seq"]
        known = first.get(seq)
        if known is not None and known.site == "kv-published" and record.site == "kv-lost":
            continue  # it could not be encoded: the number was given before
        first.setdefault(seq, record)
        found.append(record)
    return found


def publishers(history: History) -> list[str]:
    return list(dict.fromkeys([*history.by_node("kv-published"), *history.by_node("kv-lost")]))


def lost_by_publisher(history: History, node: str) -> set[int]:
    return {record.data["seq"] for record in history.by_node("kv-lost").get(node, ())}


def window_floor(history: History, node: str, moment: float) -> int:
    """The oldest batch that the publisher still had at that moment.

    Where time is real a batch may have gone out before it is written down that it was handed over, and the next one has
    its place in the window before it goes.
    """
    latest = max((record.data["seq"] for record in handed_over(history, node) if record.at <= moment), default=-1)
    if not history.simulated:
        latest = max([latest, *(record.data["seq"] + 1 for record in history.records(node)
                                if record.at <= moment and record.kind is Kind.CROSSING and _LIVE in record.site)])
    return latest + 1 - history.play.config.kv_events.buffer_steps


def caches_of(history: History, node: str) -> dict[int, list[Record]]:
    """The cache's own content by the number of the next batch; several where nothing happened in between."""
    handed = [(record.number, record.data["seq"]) for record in handed_over(history, node)]
    found: dict[int, list[Record]] = {}
    at = 0
    for cache in history.by_node("kv-cache").get(node, ()):
        while at < len(handed) and handed[at][0] < cache.number:
            at += 1
        found.setdefault(handed[at - 1][1] + 1 if at else 0, []).append(cache)
    return found


# -- what a subscriber knows --------------------------------------------------------------------------------------


class Follower:
    """One subscriber: what it applied and what it said about gaps, in its own order, since the last restart."""

    def __init__(self, history: History, node: str) -> None:
        self.node = node
        self.history = history
        self.restarts = history.by_node("kv-restarted").get(node, [])
        floor = self.restarts[-1].number if self.restarts else -1

        def mine(name: str) -> list[Record]:
            return [r for r in history.by_node(name).get(node, ()) if r.number > floor]

        self.batches, self.gaps, self.healed = mine("kv-batch"), mine("kv-gap"), mine("kv-healed")
        self.unrecoverable, self.mirrors = mine("kv-unrecoverable"), mine("kv-mirror")
        self.snapshots, self.unverified = mine("kv-snapshot"), mine("kv-unverified")
        self.engine = history.engine_of(node).engine
        #: The lives of its own engine's core that published.
        self.publishers = [core for core in publishers(history) if history.engine_of(core).engine == self.engine]
        self.publisher = self.publishers[-1 if self.restarts else 0] if self.publishers else ""  # nobody published

    @property
    def applied(self) -> set[int]:
        return {record.data["seq"] for record in self.batches}

    def next_at(self, record: Record) -> int:
        """The number that was next when it said this: all before it were applied or given up."""
        applied = [r.data["seq"] for r in self.batches if r.number < record.number]
        given_up = [r.data["last"] for r in self.unrecoverable if r.number < record.number]
        return max([*applied, *given_up], default=-1) + 1

    def unknown_since(self, record: Record) -> int | None:
        """The first loss that nothing has made up for when it said this: no snapshot, no clearing of the cache."""
        clearing = {sent.data["seq"] for sent in self.history.records(self.publisher)
                    if "clears" in sent.data and sent.site.endswith(":send")}
        known: int | None = None
        told = sorted((*self.unrecoverable, *self.unverified, *self.snapshots, *self.batches), key=_place)
        for said in told:
            if said.number > record.number:
                break
            if said.site == "kv-snapshot" or (said.site == "kv-batch" and said.data["seq"] in clearing):
                known = None
            elif known is None and said.site != "kv-batch":
                known = said.data["first" if said.site == "kv-unrecoverable" else "next_seq"]
        return known

    def last_of(self, gap: Record) -> int:
        """The last number of a gap that exists: an answer may prove that the batch behind it has a wrong number."""
        last: int = gap.data["last"]
        if not self.history.play.options.misnumbered_batch:
            return last
        found = next((r.number for r in self.history.by_node("bad-frame").get(self.node, ()) if r.number > gap.number
                      and r.data["edge"] == Channel.KV.value), 0)
        ends = [r.data["next"] for r in self.history.records(self.node) if r.number < found and "oldest" in r.data]
        return min(last, ends[-1] - 1) if ends else last

    def followed(self, first: str, last: str) -> bool:
        """Whether it applied batches while one publisher was, and while the other was: one of each at least."""
        applied = self.history.by_node("kv-batch").get(self.node, [])
        began = handed_over(self.history, last)[0].at
        return first != last and bool(applied) and applied[0].at < began < applied[-1].at

    @property
    def killed(self) -> bool:
        """By the plan: it could not finish what it had begun. Its next life is another follower."""
        return any(r.fate == Fate.KILL and r.node == self.node for r in self.history.faults.receipts)

    @property
    def is_exact(self) -> bool:
        """Whether what it does can be told to the moment: who was killed or stood still is late, and what a live batch
        that is held back and other faults of its messages make of each other is not foreseen."""
        stood = any(stall.node == self.node for stall in self.history.faults.stalls)
        return not (self.killed or stood or (self.late and len(self.befell) > 1))

    @property
    def late(self) -> int:
        """How many live batches the plan has held back: one of a life that is over may be heard behind the next."""
        return sum(receipt.fate in _LATER and f"/{Channel.KV.value}:" in receipt.site for receipt in self.befell)

    @property
    def befell(self) -> list[Receipt]:
        """The faults that befell its messages."""
        me = base(self.node)
        return [receipt for receipt in self.history.faults.receipts
                if _carries_events(receipt.site) and me in receipt.site]

    def left_at(self) -> float:
        """When it stopped following."""
        bye = self.history.by_node("bye").get(self.node)
        end = bye[0].at if bye else self.history.ended_at
        return min(end, self.history.ends.at(self.node))


def _carries_events(site: str) -> bool:
    return any(f"/{channel.value}:" in site for channel in (Channel.KV, Channel.REPLAY))


def _place(record: Record) -> int:
    return record.number


@lru_cache(maxsize=1)
def followers(history: History) -> list[Follower]:
    """The last history is kept: several promises ask for it."""
    return [Follower(history, node) for node in history.of_kind(NodeKind.SUBSCRIBER)]


def covers(records: list[Record], seq: int, before: float = FOREVER) -> bool:
    return any(r.data["first"] <= seq <= r.data["last"] and r.number < before for r in records)


# -- what was missing ---------------------------------------------------------------------------------------------


class Hole(msgspec.Struct, kw_only=True):
    """Batches `first` to `last` were missing, as their subscriber told. `healed_at` is None while they are."""

    first: int
    last: int
    noticed_at: float
    healed_at: float | None = None
    unrecoverable: bool = False


def holes_of(history: History, node: str) -> list[Hole]:
    """Every hole that a subscriber told of, in all its publisher's lives, each with how it ended."""
    told = sorted((record for name in ("kv-gap", "kv-healed", "kv-unrecoverable", "kv-restarted")
                   for record in history.by_node(name).get(node, ())), key=_place)
    holes: list[Hole] = []
    of_former_lives = 0
    for record in told:
        if record.site == "kv-restarted":
            of_former_lives = len(holes)
            continue
        first, last = record.data["first"], record.data["last"]
        concerned = [hole for hole in holes[of_former_lives:] if first <= hole.last and hole.first <= last]
        if record.site == "kv-gap" or (record.site == "kv-unrecoverable" and not concerned):
            holes.append(Hole(first=first, last=last, noticed_at=record.at,
                              unrecoverable=record.site == "kv-unrecoverable"))
            continue
        for hole in concerned:
            if record.site == "kv-unrecoverable":
                hole.unrecoverable = True
            elif last >= hole.last and hole.healed_at is None:
                hole.healed_at = record.at
    return holes
