"""The subscriber's loop: it follows a publisher and keeps a mirror, in both worlds. Pure.

Promises
- What the follower reports is observed in that order: kv-batch, kv-gap, kv-healed, kv-unrecoverable, kv-restarted,
  kv-unverified, kv-snapshot.
- `kv-mirror` is observed when the mirror is settled and has changed, and at the end.
- Neither socket starves the other: they are looked at in turns, also by a reader that takes one message at a time.
- A question is asked, or counts as unanswered, after what had already come was read.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from engine.effects import Loop, Now, Observe, Receive, Send
from engine.errors import QueueCancelledError, UnroutableError
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.reports import (
    Applied,
    Gap,
    Healed,
    Malformed,
    Question,
    Report,
    Restarted,
    Settled,
    Snapshot,
    Unrecoverable,
    Unverified,
)
from engine.kv_events.subscriber.follower import KVEventFollower
from engine.ports import Unroutable

#: Messages read in a row before what they brought is handed on.
BURST_MESSAGES = 1000


def next_reports(follower: KVEventFollower, deadline: float | None, *, live: str = "kv",
                 replay: str = "replay") -> Loop[list[Report]]:
    """Read until there is something to report, and on while messages are there. -> what happened, in order.

    Empty at the deadline. One that is over reads what is there, and waits for nothing.
    """
    found: list[Report] = []
    for messages in count(1):
        inboxes = (live, replay) if follower.live_first else (replay, live)
        message = yield Receive(inboxes if follower.replay else (live,),
                                0.0 if found else _earlier(deadline, follower.deadline()))
        now = yield Now()
        if message is not None:
            found += yield from _ask(_read(follower, live, message, now), replay)
        if message is None or (message[0] == live and not follower.live_first):  # there was no answer to read
            found += yield from _ask(follower.on_time(now), replay)
        follower.live_first = not follower.live_first
        enough = message is None or messages >= BURST_MESSAGES
        if enough and (found or (deadline is not None and now >= deadline)):
            return found
    raise AssertionError("the count has no end")


def subscriber_loop(follower: KVEventFollower, mirror: KVCacheMirror, *, live: str = "kv", replay: str = "replay",
                    until: Callable[[KVEventFollower], bool] | None = None,
                    deadline: float | None = None) -> Loop[KVCacheMirror]:
    """Follow a publisher until the process is cancelled, `until(follower)` holds, or `deadline`. -> the mirror"""
    shown: Any = None
    try:
        while until is None or not until(follower):
            reports = yield from next_reports(follower, deadline, live=live, replay=replay)
            if not reports and deadline is not None and (yield Now()) >= deadline:
                break
            for report in reports:
                feed(mirror, report)
                observation = observed(report)
                if observation is not None:
                    yield observation
            if any(isinstance(report, Settled | Snapshot) for report in reports) and follower.next == follower.wire:
                state = (follower.epoch, mirror.next_seq, mirror.unknown_since)
                if state != shown:
                    shown = state
                    yield Observe("kv-mirror", mirror_data(mirror))
    except QueueCancelledError:
        pass
    yield Observe("kv-mirror", mirror_data(mirror))
    return mirror


class UntilCaughtUp:
    """When a subscriber may leave that is told to stop: the `until` of a `subscriber_loop`.

    It stays until an answer came after it was told, and nothing is missing. One that cannot ask leaves at once.
    `told()`: whether it was told. `ready()` is called once: when the publisher has answered, or at once.
    """

    def __init__(self, told: Callable[[], bool], ready: Callable[[], None]) -> None:
        self._told = told
        self._ready = ready
        self._said_ready = False
        self._answers_when_told: int | None = None

    def __call__(self, follower: KVEventFollower) -> bool:
        if not self._said_ready and (not follower.replay or follower.answers):
            self._said_ready = True
            self._ready()
        if not self._told():
            return False
        if not follower.replay:
            return True
        if self._answers_when_told is None:
            self._answers_when_told = follower.answers
        return follower.answers > self._answers_when_told and follower.caught_up


def feed(mirror: KVCacheMirror, report: Report) -> None:
    """Keep a mirror up to date with a follower's reports."""
    if isinstance(report, Applied):
        mirror.apply(report.number, report.batch)
    elif isinstance(report, Unrecoverable):
        mirror.lose(report.first, report.last)
    elif isinstance(report, Restarted):
        mirror.restart()
    elif isinstance(report, Unverified):
        mirror.lose(report.next, report.next - 1)  # no number is lost
    elif isinstance(report, Snapshot):
        mirror.begin_from(report.next, report.blocks)


def observed(report: Report) -> Observe | None:
    """What the judges are told of a report."""
    match report:
        case Applied(number=number, batch=batch, source=source):
            return Observe("kv-batch", {"seq": number, "source": source, "rank": batch.data_parallel_rank})
        case Gap(first=first, last=last):
            return Observe("kv-gap", {"first": first, "last": last})
        case Healed(first=first, last=last):
            return Observe("kv-healed", {"first": first, "last": last})
        case Unrecoverable(first=first, last=last, reason=reason):
            return Observe("kv-unrecoverable", {"first": first, "last": last, "reason": reason})
        case Restarted(epoch=epoch):
            return Observe("kv-restarted", {"epoch": epoch})
        case Unverified(next=number, reason=reason):
            return Observe("kv-unverified", {"next_seq": number, "reason": reason})
        case Snapshot(next=number, blocks=blocks):
            return Observe("kv-snapshot", {"next_seq": number, "blocks": len(blocks)})
        case Malformed(channel=channel, error=error):
            return Observe("bad-frame", {"edge": channel, "error": error})
    return None


def mirror_data(mirror: KVCacheMirror) -> dict[str, Any]:
    """JSON and msgpack alike: a hash of bytes becomes hexadecimal."""
    hashes = [value.hex() if isinstance(value, bytes) else value for value in mirror.hashes()]
    return {"hashes": hashes, "next_seq": mirror.next_seq, "unknown_since": mirror.unknown_since,
            "errors": mirror.check_integrity()}


def _read(follower: KVEventFollower, live: str, message: Any, now: float) -> list[Report]:
    inbox, _, frames = message
    return follower.on_live(frames, now) if inbox == live else follower.on_replay(frames, now)


def _ask(reports: list[Report], replay: str) -> Loop[list[Report]]:
    """Send the questions. -> the rest"""
    rest = []
    for report in reports:
        if isinstance(report, Question):
            try:
                yield Send(replay, report.frames)
            except (Unroutable, UnroutableError):  # unanswered, then: it will be asked again
                pass
        else:
            rest.append(report)
    return rest


def _earlier(one: float | None, other: float | None) -> float | None:
    times = [time for time in (one, other) if time is not None]
    return min(times) if times else None

