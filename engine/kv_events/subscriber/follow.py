"""What a subscriber that keeps a mirror makes of its reading, and what the judges are told of it. Pure.

Promises
- What the follower reports is observed in that order: kv-batch, kv-gap, kv-healed, kv-unrecoverable, kv-restarted,
  kv-unverified, kv-snapshot.
- `kv-mirror` is observed when the mirror is settled and has changed, and at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from engine.effects import Describe, Loop, Now, Observe
from engine.errors import QueueCancelledError
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.reports import (
    Applied,
    Gap,
    Healed,
    Malformed,
    Report,
    Restarted,
    Snapshot,
    Unrecoverable,
    Unverified,
)
from engine.kv_events.subscriber.follower import KVEventFollower
from engine.kv_events.subscriber.reading import Reading
from engine.messages import BlockHash

#: One that never asks looks so often whether it may leave, also where nothing comes.
LOOK_S = 0.1


def follow(reading: Reading, mirror: KVCacheMirror, *, until: Callable[[KVEventFollower], bool] | None = None,
           ) -> Loop[str]:
    """Follow a publisher until the process is cancelled or `until(follower)` holds. -> why it ended"""
    shown: Any = None
    reason = "done"
    try:
        while until is None or not until(reading.follower):
            looks_again = until is not None and not reading.follower.replay
            yield from reading.turn((yield Now()) + LOOK_S if looks_again else None)
            settled, reading.settled = reading.settled, False
            while reading.told:
                report = reading.told.popleft()
                settled = settled or isinstance(report, Snapshot)
                feed(mirror, report)
                observation = observed(report)
                if observation is not None:
                    yield observation
            if settled and reading.follower.next == reading.follower.wire:
                state = (reading.follower.epoch, mirror.next_seq, mirror.unknown_since)
                if state != shown:
                    shown = state
                    yield Describe("kv-mirror", partial(mirror_data, mirror))
    except QueueCancelledError as told:
        reason = str(told)
    yield Describe("kv-mirror", partial(mirror_data, mirror))
    return reason


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
    blocks = [[_told(block.block_hash), _told(block.parent), block.token_ids] for block in mirror.blocks.values()]
    return {"hashes": [_told(value) for value in mirror.hashes()], "next_seq": mirror.next_seq,
            "unknown_since": mirror.unknown_since, "blocks": blocks, "errors": mirror.check_integrity()}


def _told(value: BlockHash | None) -> int | str | None:
    return value.hex() if isinstance(value, bytes) else value
