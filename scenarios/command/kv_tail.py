"""`ringtwin kv-tail`: what a publisher of KV-cache events says, as it says it. Ours or vLLM's: the format is one.

Promises
- One line a batch or notice, in order; with `--json` each line is one JSON object with the key "what".
- A line a second tells the rate, also in silence; the last line sums up, also after Ctrl-C.
- Nothing is written anywhere but to where the caller says, and no thread or socket is left.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

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
)
from engine.kv_events.subscriber.process import KVEventSubscriber
from engine.messages import BlockRemoved, BlockStored
from engine.ports import Clock
from scenarios.command.checks import BadInputError

#: How often the rate is told.
RATE_S = 1.0


class Tail:
    """Turns reports into lines, and counts. Pure: the time is an argument."""

    def __init__(self, now: float, mirror: KVCacheMirror | None = None) -> None:
        self._began = self._told_at = now
        self._mirror = mirror
        self._told_batches = 0
        self.batches = self.events = self.replayed = self.gaps = self.lost = 0

    def entry(self, report: Report) -> dict[str, Any]:
        """A report as one flat object."""
        match report:
            case Applied(number=number, batch=batch, source=source):
                self.batches += 1
                self.events += len(batch.events)
                self.replayed += source == "replay"
                return {"what": "batch", "number": number, "source": source, "ts": batch.ts,
                        "rank": batch.data_parallel_rank, "epoch": batch.epoch, **_content(batch.events)}
            case Gap(first=first, last=last):
                self.gaps += 1
                return {"what": "gap", "first": first, "last": last}
            case Healed(first=first, last=last):
                return {"what": "healed", "first": first, "last": last}
            case Unrecoverable(first=first, last=last, reason=reason):
                self.lost += last - first + 1
                return {"what": "unrecoverable", "first": first, "last": last, "reason": reason}
            case Restarted(epoch=epoch):
                return {"what": "restarted", "epoch": epoch}
            case Snapshot(next=number, blocks=blocks):
                return {"what": "snapshot", "next": number, "blocks": len(blocks)}
            case Malformed(channel=channel, error=error):
                return {"what": "malformed", "channel": channel, "error": error}
        return {"what": type(report).__name__.lower()}

    def rate(self, now: float) -> dict[str, Any] | None:
        """The rate since it was told last, once `RATE_S` is over."""
        passed = now - self._told_at
        if passed < RATE_S:
            return None
        rate = (self.batches - self._told_batches) / passed
        self._told_at, self._told_batches = now, self.batches
        return {"what": "rate", "batches_per_s": round(rate, 1), "batches": self.batches, **self._mirrored()}

    def total(self, now: float) -> dict[str, Any]:
        return {"what": "total", "seconds": round(now - self._began, 3), "batches": self.batches,
                "events": self.events, "replayed": self.replayed, "gaps": self.gaps, "lost": self.lost,
                **self._mirrored()}

    def _mirrored(self) -> dict[str, Any]:
        if self._mirror is None:
            return {}
        return {"blocks": len(self._mirror.blocks), "chains": chains(self._mirror),
                "unknown_since": self._mirror.unknown_since}


def chains(mirror: KVCacheMirror) -> int:
    """How many prefix chains are cached: blocks that are nobody's parent."""
    blocks = list(mirror.blocks.values())
    return len({block.block_hash for block in blocks} - {block.parent for block in blocks})


def _content(events: list[Any]) -> dict[str, int]:
    found: Counter[str] = Counter(stored=0, removed=0, cleared=0)
    for event in events:
        if isinstance(event, BlockStored):
            found["stored"] += len(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            found["removed"] += len(event.block_hashes)
        else:
            found["cleared"] += 1
    return dict(found)


def as_text(entry: dict[str, Any]) -> str:
    """A line to read: the range first, then what is not nothing. Unknown since 0 is not nothing."""
    rest = {key: value for key, value in entry.items()
            if value not in (None, 0, "") or key == "batches_per_s" or (key == "unknown_since" and value is not None)}
    what = rest.pop("what")
    number = entry.get("number", "")
    if "first" in entry:
        number = f"{entry['first']}..{entry['last']}"
    for key in ("number", "first", "last", "epoch", "ts", "rank"):
        rest.pop(key, None)
    said = ", ".join(str(value) if key in ("source", "reason", "error") else f"{key.replace('_', ' ')} {value}"
                     for key, value in rest.items())
    return f"{what:<13} {number!s:>12}  {said}".rstrip()


def as_json(entry: dict[str, Any]) -> str:
    return msgspec.json.encode(entry).decode()


def tail(endpoint: str, replay: str | None, topic: str, write: Callable[[str], Any], *, json: bool = False,
         mirror: bool = False, seconds: float | None = None) -> None:
    """Raises BadInputError for an endpoint that is none."""
    import zmq

    try:
        subscriber = KVEventSubscriber(endpoint, replay, topic, poll_s=RATE_S)
    except (zmq.ZMQError, ValueError) as error:
        raise BadInputError(f"{endpoint}{f' or {replay}' if replay else ''}: {error}; "
                            f"an endpoint is tcp://HOST:PORT or ipc://FILE") from None
    with subscriber:
        follow(subscriber, time, write, json=json, mirror=mirror, seconds=seconds)


def follow(subscriber: KVEventSubscriber, clock: Clock, write: Callable[[str], Any], *, json: bool = False,
           mirror: bool = False, seconds: float | None = None) -> Tail:
    """Write lines until `seconds` are over, or for ever. -> what was counted

    KeyboardInterrupt is the caller's to handle; the sum is written before it goes on.
    """
    form = as_json if json else as_text
    began = clock.monotonic()
    tail = Tail(began, subscriber.mirror if mirror else None)
    try:
        while True:
            left = RATE_S if seconds is None else min(RATE_S, began + seconds - clock.monotonic())
            if left <= 0:
                return tail
            for report in subscriber.poll(left):
                write(form(tail.entry(report)))
            rate = tail.rate(clock.monotonic())
            if rate is not None:
                write(form(rate))
    finally:
        write(form(tail.total(clock.monotonic())))
