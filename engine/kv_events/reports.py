"""What a follower of KV-cache events says, one small frozen value each. Pure.

Promises
- Reports come in the order of the publisher's numbers: applied to a mirror one after another, they are its history.
- Each can be printed and encoded as it is.

    Applied    Gap -> Healed | Unrecoverable    Restarted    Unverified    Snapshot    Malformed       told to the user
    Question                                    Settled                                  for the shell
"""

from __future__ import annotations

import msgspec

from engine.kv_events.codec import LivedBatch
from engine.messages import BlockStored


class Applied(msgspec.Struct, frozen=True, tag=True):
    """The next batch."""

    number: int
    batch: LivedBatch
    source: str  # "live" or "replay"


class Gap(msgspec.Struct, frozen=True, tag=True):
    """Batches `first` to `last` exist and did not come; they are asked for if there is a replay socket."""

    first: int
    last: int


class Healed(msgspec.Struct, frozen=True, tag=True):
    """Batches `first` to `last` of a gap have all been applied."""

    first: int
    last: int


class Unrecoverable(msgspec.Struct, frozen=True, tag=True):
    """Batches `first` to `last` will never come."""

    first: int
    last: int
    reason: str


class Restarted(msgspec.Struct, frozen=True, tag=True):
    """The publisher began a new life (`epoch` is None if it does not say which): numbers begin at 0 again."""

    epoch: int | None


class Unverified(msgspec.Struct, frozen=True, tag=True):
    """What was applied before batch `next` may be another life's: the publisher could not be held against it.

    Only of a publisher without epochs. The mirror is unknown from here on.
    """

    next: int
    reason: str


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """The publisher's whole state before batch `next`: what was known before it no longer matters."""

    next: int
    blocks: list[BlockStored]  # one block each


class Malformed(msgspec.Struct, frozen=True, tag=True):
    """A message was dropped because it is none. If it was a batch, its number will be missed."""

    channel: str  # "kv" or "replay"
    error: str


class Question(msgspec.Struct, frozen=True, tag=True):
    """Send this to the replay socket."""

    frames: list[bytes]


class Settled(msgspec.Struct, frozen=True, tag=True):
    """The publisher said that there is nothing before `next` that has not been applied or told as lost."""

    next: int


Notice = Gap | Healed | Unrecoverable | Restarted | Unverified | Snapshot
Report = Applied | Notice | Malformed | Question | Settled
