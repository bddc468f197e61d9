"""Promises about the events that describe the KV cache: numbered, heard, replayed, and true."""

from __future__ import annotations

from itertools import pairwise

from engine.topology import Channel, Mark
from scenarios.guarantees.base import (
    DAMAGE,
    DEATHS,
    LOSSES,
    PROCESS,
    Envelope,
    Finding,
    Guarantee,
    Where,
    has_kv_events,
    has_subscribers,
)
from scenarios.guarantees.chapters.events.blocks import CHAPTER
from scenarios.guarantees.readers.readings import TRIES
from scenarios.history.events.followers import (
    Follower,
    caches_of,
    covers,
    followers,
    handed_over,
    lost_by_publisher,
    publishers,
    window_floor,
)
from scenarios.history.events.mirrors import beginnings, impossible, misjudged, untrue
from scenarios.history.history import EngineLife, Fate, History, Record, kind_of
from scenarios.history.names import base

SOURCE = "vLLM V1 ZMQ reliability analysis"
_SENT, _ROUNDED_S = f"/{Channel.KV.value}:send", 0.001

#: One that is killed begins a second life, and that must be right; one that fails inside may be anything.
_SUBSCRIBER = Where(DEATHS - {Fate.KILL}, nodes="subscriber.*", why="the subscriber itself is hit")
_DAMAGED = Where(DAMAGE, sites="*/kv:*", why="the wire has no checksum")
_CHANGED = tuple(Where(frozenset({Fate.CORRUPT}), sites=f"{whose}.*",
                      why="no checksum: changed bytes may be other tokens, or other blocks")
                 for whose in ("frontend", "core", "worker"))
_ANSWER_DAMAGED = Where(DAMAGE, sites="core.*/replay:*", why="the wire has no checksum")
_PUBLISHER = Where(PROCESS, nodes="core.*", why="who should replay is hit")
#: The core is stopped as a whole, or a thread of it that is neither the publisher's nor the one that replays.
_STEP_STOPPED = (
    Where(frozenset({Fate.STALL}), nodes="core.*", why="the step itself is stopped"),
    *(Where(frozenset({Fate.HANG}), nodes="core.*", sites=sites, why="the step itself is stopped")
      for sites in ("*/[!kr]*", "*/rpc:*", "*/re[!p]*")),
)
#: What makes an answer incomplete: after so many tries its batch counts as lost.
_TAKEN = DAMAGE | LOSSES
_ANY_DEATH = Where(PROCESS, nodes="worker.*", why="the engine goes down with it")


def check_kv_seq(history: History) -> Finding:
    finding = Finding(history)
    for node in publishers(history):
        for expected, record in enumerate(handed_over(history, node)):
            if record.data["seq"] != expected:
                finding.broke("{} numbered a batch {} where {} was next", node, record.data["seq"], expected,
                              at=record.at, node=node)
                break
        _judge_times(finding, node)
        for record in history.by_node("kv-lost").get(node, ()):
            finding.witness("batch {} of {} was dropped and kept its number", record.data["seq"], node, at=record.at,
                            node=node)
    for follower in followers(history):
        live = [r.data["seq"] for r in follower.batches if r.data.get("source") == "live"]
        if follower.gaps or any(later - earlier != 1 for earlier, later in pairwise([-1, *live])):
            finding.witness("{} knew by their numbers which batches it had not heard live", follower.node,
                            node=follower.node)
        lives = follower.publishers
        if len(lives) > 1 and not follower.restarts:
            _judge_untold_restart(finding, follower, lives[-1])
        if len(lives) > 1 and follower.followed(lives[0], lives[-1]):
            if follower.restarts:
                finding.witness("{} told a restart from a gap", follower.node, at=follower.restarts[0].at,
                                node=follower.node)
            else:
                finding.broke("{} followed a publisher into its next life without noticing", follower.node,
                              node=follower.node)
    return finding


def _judge_times(finding: Finding, node: str) -> None:
    """A batch that names its life was handed over in it: by the wall clock, of which the life's name is a time, too."""
    history = finding.history
    since, known = history.records(node)[0].at, {r.data["seq"]: r.at for r in handed_over(history, node)}
    for record in history.records(node):
        if record.site.endswith(_SENT) and record.data.get("epoch") and record.data["seq"] in known:
            into = record.data["ts"] - record.data["epoch"] * 1e-6
            if not -_ROUNDED_S <= into <= known[record.data["seq"]] - since + _ROUNDED_S:
                finding.broke("{} says that batch {} is of {:.3f} s into its life", node, record.data["seq"], into,
                              at=record.at, node=node)


def _judge_untold_restart(finding: Finding, follower: Follower, publisher: str) -> None:
    """Who has heard of the life before tells of the next one when its first batch has come."""
    history = finding.history
    edge = f"{base(publisher)}->{base(follower.node)}/{Channel.KV.value}"
    sent = {record.digest for record in history.records(publisher) if record.site == f"{edge}:send"}
    came = next((r for r in history.records(follower.node) if r.site == f"{edge}:receive" and r.digest in sent
                 and "fate" not in r.data), None)
    if came is not None and follower.batches and follower.batches[0].number < came.number:
        finding.broke("{} was not told that {} is another life of its publisher, though it heard of it",
                      follower.node, publisher, at=came.at, node=follower.node)


def check_kv_gap_seen(history: History) -> Finding:
    finding = Finding(history)
    bound = history.bounds.replay_s + history.bounds.detection_s
    for follower in followers(history):
        if not follower.publisher:
            continue
        applied: set[int] = set()
        latest = -1
        known = follower.gaps + follower.unrecoverable
        for record in follower.batches:
            seq = record.data["seq"]
            if record.data.get("source") == "live":
                for missing in range(latest + 1, seq):
                    if missing not in applied and not covers(known, missing, record.number):
                        finding.broke("{} took batch {} without noticing that {} had not come", follower.node, seq,
                                      missing, at=record.at, node=follower.node)
                        break
            applied.add(seq)
            latest = max(latest, seq)
        left = follower.left_at()
        _judge_silence(finding, follower, applied, known, left, bound)
        for gap in follower.gaps:
            finding.witness("{} noticed that batches {} to {} were missing", follower.node, gap.data["first"],
                            gap.data["last"], at=gap.at, node=follower.node)
    return finding


def _judge_silence(finding: Finding, follower: Follower, applied: set[int], known: list[Record], left: float,
                   bound: float) -> None:
    """Batches behind the last one that came: nothing but the subscriber's own poll can tell of them."""
    history = finding.history
    latest = max(applied, default=-1)
    joined = history.records(follower.node)[0].at
    for record in handed_over(history, follower.publisher):
        seq = record.data["seq"]
        if seq in applied or covers(known, seq) or seq < latest:
            continue
        since = max(record.at, joined)
        until = min(left, history.ends.at(follower.publisher), history.closing_at(EngineLife(follower.engine, 0)))
        waited = until - since - history.faults.frozen_s(follower.node, since, max(since, until)) \
            - history.faults.frozen_s(follower.publisher, since, max(since, until))
        if waited > bound:
            finding.broke("{} never knew of batch {}, handed over {:.3f} s before it left", follower.node, seq, waited,
                          at=record.at, node=follower.node, bound=bound, measured=waited)
            return


def check_kv_replay_complete(history: History) -> Finding:
    finding = Finding(history)
    for follower in followers(history):
        if not follower.publisher:
            continue
        last = -1
        for record in follower.batches:
            seq = record.data["seq"]
            if seq <= last:
                finding.broke("{} applied batch {} after batch {}", follower.node, seq, last, at=record.at,
                              node=follower.node)
                break
            missing = next((n for n in range(last + 1, seq) if not covers(follower.unrecoverable, n, record.number)),
                           None)
            if missing is not None:
                finding.broke("{} applied batch {} before batch {}, which was not given up", follower.node, seq,
                              missing, at=record.at, node=follower.node)
                break
            last = seq
        lost = lost_by_publisher(history, follower.publisher)
        for given_up in follower.unrecoverable:
            if _asked_in_vain(follower, given_up) >= TRIES:
                continue
            floor = window_floor(history, follower.publisher, given_up.at)
            seq = next((n for n in range(max(floor, given_up.data["first"]), given_up.data["last"] + 1)
                        if n not in lost), None)
            if seq is not None:
                finding.broke("{} gave up batch {}, which the publisher still had", follower.node, seq, at=given_up.at,
                              node=follower.node)
        for healed in follower.healed:
            if healed.data["first"] > healed.data["last"]:
                finding.broke("{} told that {} to {} are healed, which is nothing", follower.node,
                              healed.data["first"], healed.data["last"], at=healed.at, node=follower.node)
        for gap in () if follower.killed else follower.gaps:
            _judge_gap(finding, follower, gap)
    return finding


def _asked_in_vain(follower: Follower, given_up: Record) -> int:
    """Questions and answers that the plan took, and the last questions that came when nobody was there to hear them."""
    history, publisher = follower.history, follower.publisher
    core, me = base(publisher), base(follower.node)
    there, back = (f"{one}->{other}/{Channel.REPLAY.value}" for one, other in ((me, core), (core, me)))
    taken = sum(receipt.fate in _TAKEN and receipt.site in (f"{there}:receive", f"{back}:receive")
                for receipt in history.faults.receipts)
    if taken and history.play.options.without_epochs and len(follower.befell) > 1:
        return TRIES  # an answer counts where it holds what was heard: a loss voids those that lean on it, too
    mine = [r for r in history.records(follower.node) if r.number < given_up.number and r.site == f"{there}:send"]
    # On its way out a core ends its threads. One that ends before is no excuse.
    gone_at = min([history.ends.at(publisher), *(record.at for record in history.by_node("dying").get(publisher, ()))])
    read = {_message(r) for r in history.records(publisher) if r.site == f"{there}:receive"}
    ends = [*(r.at for r in mine[1:]), given_up.at]
    return taken + sum(gone_at <= end and _message(question) not in read
                       for question, end in list(zip(mine, ends, strict=False))[-TRIES:])


def _message(crossing: Record) -> tuple[str, int]:
    return crossing.digest, crossing.occurrence


def _is_told(follower: Follower, gap: Record) -> bool:
    """Whether whoever follows the subscriber was told how the gap ended."""
    last = follower.last_of(gap)
    return last < gap.data["first"] or covers(follower.unrecoverable, last) or any(
        healed.number > gap.number and healed.data["last"] >= last for healed in follower.healed)


def _judge_gap(finding: Finding, follower: Follower, gap: Record) -> None:
    history, applied = finding.history, follower.applied
    first, last = gap.data["first"], follower.last_of(gap)
    replayed = {r.data["seq"] for r in follower.batches if r.data.get("source") == "replay"}
    missing = [seq for seq in range(first, last + 1) if seq not in applied and not covers(follower.unrecoverable, seq)]
    if not missing:
        healed = sum(seq in replayed for seq in range(first, last + 1))
        if not _is_told(follower, gap):
            finding.broke("{} has all of the gap {} to {}, and never said that it is healed", follower.node, first,
                          last, at=gap.at, node=follower.node)
        elif healed:
            finding.witness("{} had {} missing batches replayed, {} to {}", follower.node, healed, first, last,
                            at=gap.at, node=follower.node)
        return
    closing_at = history.closing_at(EngineLife(follower.engine, 0))
    until = min(follower.left_at(), closing_at, history.ends.at(follower.publisher))
    waited = until - gap.at
    if not history.faults.stands_still(until, follower.node) and (
            history.simulated or waited > history.bounds.replay_s + history.bounds.detection_s):
        finding.broke("{} never got batch {} of the gap {} to {}", follower.node, missing[0], first, last, at=gap.at,
                      node=follower.node, bound=history.bounds.replay_s, measured=waited)
    else:
        finding.unclear("{} left {:.3f} s after it noticed the gap {} to {}", follower.node, waited, first, last,
                        at=gap.at, node=follower.node)


def check_kv_gap_too_old(history: History) -> Finding:
    finding = Finding(history)
    for follower in followers(history):
        if not follower.publisher:
            continue
        applied = follower.applied
        lost = lost_by_publisher(history, follower.publisher)
        for missing in range(max(applied, default=-1)):
            if missing in applied:
                continue
            if not covers(follower.unrecoverable, missing):
                finding.broke("{} went on behind batch {}, which it never had, and called nothing unrecoverable",
                              follower.node, missing, node=follower.node)
                break
        for given_up in follower.unrecoverable:
            first, last = given_up.data["first"], given_up.data["last"]
            floor = window_floor(history, follower.publisher, given_up.at)
            if first < floor or any(seq in lost for seq in range(first, last + 1)):
                finding.witness("batches {} to {} were gone for good (the oldest left was {}), and {} said so", first,
                                last, max(floor, 0), follower.node, at=given_up.at, node=follower.node)
    return finding


def check_kv_mirror_true(history: History) -> Finding:
    finding, possible = Finding(history), beginnings(history.play)
    for follower in followers(history):
        if not follower.publisher:
            continue
        caches = caches_of(history, follower.publisher)
        for snapshot in follower.snapshots:
            if snapshot.data["next_seq"] != follower.next_at(snapshot):
                finding.broke("{} took the state before batch {} for the one before batch {}", follower.node,
                              snapshot.data["next_seq"], follower.next_at(snapshot), at=snapshot.at,
                              node=follower.node)
            mirror = next((mirror for mirror in follower.mirrors if mirror.number > snapshot.number), None)
            if mirror is not None and mirror.data["next_seq"] == snapshot.data["next_seq"] and len(
                    mirror.data["hashes"]) != snapshot.data["blocks"]:
                finding.broke("{} was told a state of {} blocks, and mirrors {}", follower.node,
                              snapshot.data["blocks"], len(mirror.data["hashes"]), at=mirror.at, node=follower.node)
        for mirror in follower.mirrors:
            unknown_since = follower.unknown_since(mirror)
            if mirror.data.get("unknown_since") != unknown_since:
                finding.broke("{}'s mirror is unknown since batch {}, and says {}", follower.node, unknown_since,
                              mirror.data.get("unknown_since"), at=mirror.at, node=follower.node)
            if unknown_since is not None:
                continue
            told = impossible(follower, mirror)
            strange = misjudged(mirror, told) if told else mirror.data.get("errors", ())
            for error in (*untrue(mirror, possible, told.get("hashes", ())), *strange):
                finding.broke("{}'s mirror is not in order: {}", follower.node, error, at=mirror.at, node=follower.node)
            for cache in caches.get(mirror.data["next_seq"], ()):
                ours, theirs = set(mirror.data["hashes"]) - set(told.get("hashes", ())), set(cache.data["hashes"])
                if ours != theirs:
                    finding.broke("{}'s mirror at batch {} lacks {} blocks and has {} too many", follower.node,
                                  mirror.data["next_seq"], len(theirs - ours), len(ours - theirs), at=mirror.at,
                                  node=follower.node)
                elif theirs and (follower.gaps or follower.restarts):
                    after = "a snapshot" if any(s.number < mirror.number for s in follower.snapshots) else (
                        "a gap" if follower.gaps else "a restart")
                    finding.witness("{}'s mirror equals the cache of {} blocks at batch {} after {}", follower.node,
                                    len(theirs), mirror.data["next_seq"], after, at=mirror.at, node=follower.node)
    return finding


def check_kv_never_stalls(history: History) -> Finding:
    finding = Finding(history)
    bound = history.bounds.detection_s
    troubles = [r for r in history.faults.receipts if kind_of(r.node) == "subscriber"
                or f"/{Channel.KV.value}:" in r.site or f"/{Channel.REPLAY.value}:" in r.site]
    began = [(r.at, f"{r.node} met {r.fate}") for r in troubles]
    began += [(record.at, f"{node} had a full queue") for node, record in history.marks(Mark.KV_DROPPED.value)]
    began += [(record.at, f"{node} was asked what is no question") for node, record in history.observed("bad-frame")
              if kind_of(node) == "core" and record.data.get("edge") == Channel.REPLAY.value]
    began.sort()
    for node, records in history.by_node("kv-published").items():
        after = 0
        for record in records:
            # Nothing is taken off for a publisher thread that stands still: the step must not wait for it.
            finding.took("handing over batch {}", record.data["seq"], bound=bound, at=record.at, node=node,
                         measured=record.data.get("took", 0.0))
            after += bool(began) and record.at > began[0][0]
        if after:
            finding.witness("{} batches were handed over without delay after {}", after, began[0][1], at=began[0][0],
                            node=node)
    return finding


GUARANTEES = (
    Guarantee(
        id="kv-seq", chapter=CHAPTER, source=SOURCE, check=check_kv_seq, applies=has_kv_events,
        sentence="Batches of one publisher life are numbered 0, 1, 2, ... when handed over; one dropped at a full "
                 "queue or not encodable keeps its number and counts as unrecoverable; a restart is told apart from "
                 "a gap. Each is of the time at which it was handed over.",
        wrong={
            "numbers": "numbers a batch when it is sent, so what was dropped leaves no gap",
            "restart": "calls all its lives the same",
            "time": "tells the time by a clock of its own",
        },
        witness="a batch was dropped and kept its number, a subscriber joined late or lost some, or a publisher was "
                "restarted",
        envelope=Envelope(outside=(_DAMAGED,)),
    ),
    Guarantee(
        id="kv-gap-seen", chapter=CHAPTER, source=SOURCE, check=check_kv_gap_seen, applies=has_subscribers,
        sentence="A subscriber knows of every loss (slow reader, late join, cut connection): by the next batch, or in "
                 "silence within its poll of the replay socket.",
        wrong={
            "next": "takes the next batch as it comes",
            "silence": "does not ask when it hears nothing more",
        },
        witness="batches did not come live and the subscriber said so",
        envelope=Envelope(outside=(_SUBSCRIBER, _DAMAGED, _PUBLISHER, _ANY_DEATH)),
    ),
    Guarantee(
        id="kv-replay-complete", chapter=CHAPTER, source=SOURCE, check=check_kv_replay_complete,
        applies=has_subscribers,
        sentence="After a gap inside the window, replay yields exactly the missing batches, in order, then the end "
                 "marker; live and replayed batches never interleave into a wrong state.",
        wrong={
            "exact": "leaves batches out of its answer",
            "interleave": "applies live batches while the replay is still on its way",
        },
        witness="missing batches were replayed and applied in their place",
        envelope=Envelope(outside=(_SUBSCRIBER, _DAMAGED, _ANSWER_DAMAGED, _PUBLISHER, _ANY_DEATH)),
    ),
    Guarantee(
        id="kv-gap-too-old", chapter=CHAPTER, source=SOURCE, check=check_kv_gap_too_old, applies=has_subscribers,
        sentence="A gap older than the window is reported as unrecoverable, never passed over in silence.",
        wrong="begins the replay at the oldest batch it still has, as if nothing were missing before it",
        witness="batches were gone for good and the subscriber said so",
        envelope=Envelope(outside=(_SUBSCRIBER, _DAMAGED, _ANSWER_DAMAGED)),
    ),
    Guarantee(
        id="kv-mirror-true", chapter=CHAPTER, source=SOURCE, check=check_kv_mirror_true, applies=has_subscribers,
        sentence="A mirror built from batches, replays and snapshots equals the engine's own cache, its blocks spell "
                 "what requests were asked and given, and of what it is told that cannot be it says so.",
        wrong="passes a gap over, so its mirror lacks the blocks of the batches that it missed",
        witness="a mirror that had a gap or a restart behind it was compared with a cache that was not empty",
        envelope=Envelope(outside=(_SUBSCRIBER, *_CHANGED)),
    ),
    Guarantee(
        id="kv-never-stalls", chapter=CHAPTER, source=SOURCE, check=check_kv_never_stalls, applies=has_kv_events,
        sentence="A slow or dead subscriber or publisher never delays a step.",
        wrong="waits for room in a full queue in the middle of a step",
        witness="batches were handed over after a subscriber, its connection, its question or the queue was in "
                "trouble",
        envelope=Envelope(outside=_STEP_STOPPED),
    ),
)
