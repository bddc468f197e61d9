"""The promise about data-parallel ranks that publish their KV events side by side."""

from __future__ import annotations

from itertools import zip_longest

from scenarios.guarantees.base import DAMAGE, Envelope, Finding, Guarantee, Where, has_subscribers
from scenarios.guarantees.chapters.events.blocks import CHAPTER
from scenarios.guarantees.chapters.events.kv import SOURCE
from scenarios.history.events.followers import (
    Follower,
    caches_of,
    followers,
    handed_over,
    lost_by_publisher,
    publishers,
)
from scenarios.history.history import EngineLife, History
from scenarios.history.names import kind_of, life_of

_DAMAGED = Where(DAMAGE, sites="*/kv:*", why="the wire has no checksum")
_ANSWER_DAMAGED = Where(DAMAGE, sites="core.*/replay:*", why="the wire has no checksum")


def check_kv_ranks_apart(history: History) -> Finding:
    finding = Finding(history)
    following = followers(history)
    for follower in following:
        _judge_own(finding, follower)
    published = {history.engine_of(core).engine for core in publishers(history)}
    if len(published) < 2:
        return finding
    spared = [follower for follower in following if follower.engine in published - history.struck]
    for follower in following:
        if follower in spared:
            _judge_whole(finding, follower)
        _judge_deaf(finding, follower)
    heard = {follower.engine: history.by_node("kv-batch").get(follower.node, []) for follower in following}
    if len(heard) > 1 and all(heard.values()):
        finding.witness("{} were heard beside each other", " and ".join(
            f"{len(batches)} batches of rank {history.data_parallel_rank(engine)}"
            for engine, batches in sorted(heard.items())))
        for follower in spared:
            _witness_hazards(finding, follower)
    return finding


def _witness_hazards(finding: Finding, follower: Follower) -> None:
    """What befell the other ranks, and was followed by batches of this one."""
    history, rank = finding.history, finding.history.data_parallel_rank(follower.engine)
    met = [(receipt.at, receipt.node, f"met {receipt.fate}") for receipt in history.faults.receipts]
    met += [(records[0].at, node, "was born") for node, records in history.by_node("born").items()
            if kind_of(node) == "core" and life_of(node)]
    for at, node, what in met:
        after = sum(record.at > at for record in history.by_node("kv-batch").get(follower.node, ()))
        if after:
            other = history.data_parallel_rank(history.engine_of(node).engine)
            finding.witness("{} batches of rank {} were heard after {} of rank {} {}", after, rank, node, other, what,
                            at=at)


def _judge_own(finding: Finding, follower: Follower) -> None:
    history, node, rank = finding.history, follower.node, finding.history.data_parallel_rank(follower.engine)
    records = history.by_node("kv-batch").get(node, [])
    stranger = next((r for r in records if r.data.get("rank", rank) != rank), None)
    if stranger is not None:
        finding.broke("{} follows rank {} and took batch {} of rank {}", node, rank, stranger.data["seq"],
                      stranger.data["rank"], at=stranger.at, node=node)
    lives = sum(kind_of(born) == "core" and history.engine_of(born).engine == follower.engine
                for born in history.by_node("born"))
    if len(follower.restarts) >= max(1, lives) + follower.late:
        finding.broke("{} was told of {} restarts of a publisher with {} lives", node, len(follower.restarts), lives,
                      at=follower.restarts[-1].at, node=node)


def _judge_deaf(finding: Finding, follower: Follower) -> None:
    """Nobody publishes where this subscriber was told to listen: it heard nothing, and there was time to."""
    history, publisher = finding.history, follower.publisher
    if not publisher or follower.killed or follower.node in history.by_node("kv-batch"):
        return
    since = max(history.records(follower.node)[0].at, handed_over(history, publisher)[0].at)
    until = min(follower.left_at(), history.ends.at(publisher), history.closing_at(EngineLife(follower.engine, 0)))
    waited = until - since - history.faults.frozen_s(follower.node, since, max(since, until), publisher)
    if waited > history.bounds.replay_s + history.bounds.detection_s:
        finding.broke("{} heard nothing of rank {} in {:.3f} s", follower.node,
                      history.data_parallel_rank(follower.engine), waited, node=follower.node)


def _judge_whole(finding: Finding, follower: Follower) -> None:
    """Of an engine that nothing befell: its stream is whole."""
    history, node, publisher = finding.history, follower.node, follower.publisher
    assert publisher is not None, "its engine published"
    rank = history.data_parallel_rank(follower.engine)
    applied = [record.data["seq"] for record in history.by_node("kv-batch").get(node, ())]
    lost = lost_by_publisher(history, publisher)
    wanted = [seq for seq in (record.data["seq"] for record in handed_over(history, publisher)) if seq not in lost]
    if applied == wanted:
        _judge_mirror(finding, follower, publisher, rank)
    elif applied == wanted[:len(applied)]:
        # A lab that starved may have ended it before it had caught up.
        tell = finding.unclear if history.starved(history.bounds.replay_s) else finding.broke
        tell("the subscriber of rank {} had {} of its {} batches when it ended", rank, len(applied), len(wanted),
             node=node)
    else:
        wrong = next(pair for pair in zip_longest(applied, wanted) if pair[0] != pair[1])
        finding.broke("the subscriber of rank {} applied batch {} where {} was next", rank, *wrong, node=node)


def _judge_mirror(finding: Finding, follower: Follower, publisher: str, rank: int) -> None:
    history, node = finding.history, follower.node
    mirror = next(reversed(history.by_node("kv-mirror").get(node, [])), None)
    if mirror is None:
        finding.broke("the subscriber of rank {} never told what its mirror holds", rank, node=node)
        return
    caches = caches_of(history, publisher).get(mirror.data["next_seq"], [])
    if mirror.data.get("unknown_since") is not None:
        finding.broke("the mirror of rank {} is unknown since batch {}", rank, mirror.data["unknown_since"],
                      at=mirror.at, node=node)
    elif caches and not any(set(mirror.data["hashes"]) == set(cache.data["hashes"]) for cache in caches):
        finding.broke("the mirror of rank {} differs from its cache of {} blocks", rank, len(caches[-1].data["hashes"]),
                      at=mirror.at, node=node)


GUARANTEES = (
    Guarantee(
        id="kv-ranks-apart", chapter=CHAPTER, source=SOURCE, check=check_kv_ranks_apart, applies=has_subscribers,
        sentence="A subscriber of one data-parallel rank sees batches of this rank only, and a loss, a replay or the "
                 "death of one rank leaves its neighbours' streams whole.",
        wrong={
            "own": "does not say in its batches which rank it is",
            "whole": "forgets to move its addresses by its rank, so two ranks publish at one",
        },
        witness="two ranks of one base endpoint published, and the subscribers of both heard batches",
        envelope=Envelope(outside=(_DAMAGED, _ANSWER_DAMAGED)),
    ),
)
