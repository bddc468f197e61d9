"""The promise about data-parallel ranks that publish their KV events side by side."""

from __future__ import annotations

from itertools import zip_longest

from scenarios.guarantees.base import DAMAGE, Envelope, Finding, Guarantee, Where, has_subscribers
from scenarios.guarantees.chapters.blocks import CHAPTER
from scenarios.guarantees.chapters.kv import SOURCE
from scenarios.history.followers import Follower, followers, handed_over
from scenarios.history.history import History, kind_of, life_of
from scenarios.history.play import RankStream, Said

_DAMAGED = Where(DAMAGE, sites="*/kv:*", why="the wire has no checksum")
_ANSWER_DAMAGED = Where(DAMAGE, sites="core.*/replay:*", why="the wire has no checksum")


def check_kv_ranks_apart(history: History) -> Finding:
    finding = Finding(history)
    own, other = history.play.config.data_parallel_rank, history.lab.other_rank
    heard = sum([_judge_own(finding, follower, own) for follower in followers(history)])
    if other is None or not other.published:
        return finding
    for follower in followers(history):
        _judge_deaf(finding, follower, own)
    batches = [said for said in other.said if said.what == "kv-batch"]
    _judge_other(finding, other, batches)
    if heard and batches:
        finding.witness("{} batches of rank {} and {} of rank {} were heard beside each other", heard, own,
                        len(batches), other.rank)
        for at, what in _hazards(history):
            after = sum(said.at > at for said in batches)
            if after:
                finding.witness("{} batches of rank {} were heard after {} of rank {} {}", after, other.rank, *what,
                                at=at)
    return finding


def _hazards(history: History) -> list[tuple[float, tuple[str, int, str]]]:
    """What befell the played rank: when, to whom, what."""
    own = history.play.config.data_parallel_rank
    found = [(receipt.at, (receipt.node, own, f"met {receipt.fate}")) for receipt in history.faults.receipts]
    return found + [(records[0].at, (node, own, "was born")) for node, records in history.by_node("born").items()
                    if kind_of(node) == "core" and life_of(node)]


def _judge_own(finding: Finding, follower: Follower, rank: int) -> int:
    """A subscriber of the played engine. -> how many batches it heard"""
    history, node = finding.history, follower.node
    records = history.by_node("kv-batch").get(node, [])
    stranger = next((r for r in records if r.data.get("rank", rank) != rank), None)
    if stranger is not None:
        finding.broke("{} follows rank {} and took batch {} of rank {}", node, rank, stranger.data["seq"],
                      stranger.data["rank"], at=stranger.at, node=node)
    lives = sum(kind_of(born) == "core" for born in history.by_node("born"))
    if len(follower.restarts) >= max(1, lives):
        finding.broke("{} was told of {} restarts of a publisher with {} lives", node, len(follower.restarts), lives,
                      at=follower.restarts[-1].at, node=node)
    return len(records)


def _judge_deaf(finding: Finding, follower: Follower, rank: int) -> None:
    """Nobody publishes where this subscriber was told to listen: it heard nothing, and there was time to."""
    history, publisher = finding.history, follower.publisher
    if not publisher or follower.killed or follower.node in history.by_node("kv-batch"):
        return
    since = max(history.records(follower.node)[0].at, handed_over(history, publisher)[0].at)
    until = min(follower.left_at(), history.ends.at(publisher), history.closing_at(0))
    waited = until - since - history.faults.frozen_s(follower.node, since, max(since, until), publisher)
    if waited > history.bounds.replay_s + history.bounds.detection_s:
        finding.broke("{} heard nothing of rank {} in {:.3f} s", follower.node, rank, waited, node=follower.node)


def _judge_other(finding: Finding, other: RankStream, batches: list[Said]) -> None:
    """The neighbour, whom no fault of a plan befalls, and its subscriber: the stream is whole."""
    history = finding.history
    if not history.lab.neighbour.get("alive") or not history.lab.neighbour.get("served"):
        finding.broke("rank {} did not go on beside this engine", other.rank)
    stranger = next((said for said in batches if said.data.get("rank") != other.rank), None)
    if stranger is not None:
        finding.broke("the subscriber of rank {} took batch {} of rank {}", other.rank, stranger.data["seq"],
                      stranger.data.get("rank"), at=stranger.at)
    for said in other.said:
        if said.what == "kv-restarted":
            finding.broke("the subscriber of rank {} was told of a restart, and there was none", other.rank, at=said.at)
    applied = [said.data["seq"] for said in batches]
    wanted = [seq for seq in range(other.published) if seq not in other.lost]
    if applied == wanted:
        _judge_mirror(finding, other)
    elif applied == wanted[:len(applied)]:
        # A lab that starved may have ended it before it had caught up.
        tell = finding.unclear if history.starved(history.bounds.replay_s) else finding.broke
        tell("the subscriber of rank {} had {} of its {} batches when it ended", other.rank, len(applied), len(wanted))
    else:
        wrong = next(pair for pair in zip_longest(applied, wanted) if pair[0] != pair[1])
        finding.broke("the subscriber of rank {} applied batch {} where {} was next", other.rank, *wrong)


def _judge_mirror(finding: Finding, other: RankStream) -> None:
    mirror = next((said for said in reversed(other.said) if said.what == "kv-mirror"), None)
    if mirror is None:
        finding.broke("the subscriber of rank {} never told what its mirror holds", other.rank)
        return
    for error in mirror.data.get("errors") or ():
        finding.broke("the mirror of rank {} is not in order: {}", other.rank, error, at=mirror.at)
    if mirror.data.get("unknown_since") is not None:
        finding.broke("the mirror of rank {} is unknown since batch {}", other.rank, mirror.data["unknown_since"],
                      at=mirror.at)
    elif mirror.data["next_seq"] == other.cache_next and set(mirror.data["hashes"]) != set(other.cache):
        finding.broke("the mirror of rank {} differs from its cache of {} blocks", other.rank, len(other.cache),
                      at=mirror.at)


GUARANTEES = (
    Guarantee(
        id="kv-ranks-apart", chapter=CHAPTER, source=SOURCE, check=check_kv_ranks_apart, applies=has_subscribers,
        sentence="A subscriber of one data-parallel rank sees batches of this rank only, and a loss, a replay or the "
                 "death of one rank leaves its neighbours' streams whole.",
        wrong="forgets to move its addresses by its rank, so two ranks publish at one",
        witness="two ranks of one base endpoint published, and the subscribers of both heard batches",
        envelope=Envelope(outside=(_DAMAGED, _ANSWER_DAMAGED)),
    ),
)
