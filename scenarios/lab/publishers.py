"""Publishers that are none of ours, or that say what cannot be, for a subscriber of ours. Pure, for both worlds.

    without_epochs   as the original's (vLLM's): no epoch in a batch, no report at the end of an answer; a question with
                     a tag it does not answer, so none reaches ours
    impossible       batch 2 of the first life that is heard tells of blocks that no cache has
    misnumbered      batches 1 and 20 are heard once more, by numbers that nobody has given

Nothing on the wire is damaged: what is heard is changed before the subscriber has it, and put on record.
"""

from __future__ import annotations

from typing import Any

from engine.effects import Effect, Loop, Observe, Receive, Send
from engine.errors import BadFrameError
from engine.kv_events.codec import END, encode_batch, end_frames, number_frame, read_batch
from engine.messages import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from engine.wire.wiring import KV, REPLAY
from faults.between import between

#: Frames of a question without a tag: an empty one and a number.
_PLAIN_QUESTION = 2
_ENDED_BY_A_REPORT = 5


def without_epochs(loop: Loop[None]) -> Loop[None]:
    """`loop`, as it goes where its publisher is the original's."""
    def answer(effect: Effect) -> Loop[Any]:
        if isinstance(effect, Send) and effect.outbox == REPLAY and len(effect.frames) != _PLAIN_QUESTION:
            return None
        got = yield effect
        if not isinstance(effect, Receive) or got is None or got[0] not in (KV, REPLAY):
            return got
        inbox, peer, frames = got
        return inbox, peer, _plain(inbox, frames)

    return between(loop, answer)


def _plain(inbox: str, frames: list[Any]) -> list[Any]:
    """A message that is none stays what it is."""
    if inbox == REPLAY and len(frames) == _ENDED_BY_A_REPORT and bytes(frames[2]) == END:
        return end_frames()
    try:
        batch = read_batch(frames[-1])
    except (BadFrameError, IndexError):
        return frames
    plain = KVEventBatch(batch.ts, batch.events, batch.data_parallel_rank)
    return [*frames[:-1], encode_batch(plain, None, None)]


# -- what cannot be ----------------------------------------------------------------------------------------------------

_SHORT, _ONE, _OTHER, _BEHIND, _OWN, _TWICE, _NEVER = (10**15 + number for number in range(7))


def _stored(block_hash: int, parent: int | None, tokens: int = 4, medium: str | None = None) -> BlockStored:
    return BlockStored([block_hash], parent, [7] * tokens, 4, None, medium)


#: One that lacks a token; two that are each other's parents, and a child of theirs; one that is its own parent; one
#: that lies in two places and goes from one of them, and from a third one; one that goes and never came.
EVENTS: list[BlockStored | BlockRemoved | AllBlocksCleared] = [
    _stored(_SHORT, None, 3), _stored(_ONE, _OTHER), _stored(_OTHER, _ONE), _stored(_BEHIND, _ONE),
    _stored(_OWN, _OWN), _stored(_TWICE, None), _stored(_TWICE, None, medium="CPU"),
    BlockRemoved([_TWICE], "CPU"), BlockRemoved([_TWICE], "DISK"), BlockRemoved([_NEVER])]
#: What a mirror of them holds, which of their blocks cannot be, and in how many sentences that is said: that a batch
#: stores too few tokens is one of its own.
TOLD = {"hashes": [_SHORT, _ONE, _OTHER, _BEHIND, _OWN, _TWICE],
        "named": [_SHORT, _ONE, _OTHER, _OWN, _TWICE, _NEVER], "sentences": 7}
IMPOSSIBLE = 2
#: Which batches are heard again, and by which numbers.
NEVER_GIVEN = {number_frame(1): number_frame(1001), number_frame(20): number_frame(2020)}


def impossible(loop: Loop[None]) -> Loop[None]:
    """`loop`, as it goes where a batch of its publisher holds `EVENTS`, too."""
    lives: list[int | None] = []

    def answer(effect: Effect) -> Loop[Any]:
        got = yield effect
        if not isinstance(effect, Receive) or got is None or got[0] not in (KV, REPLAY):
            return got
        inbox, peer, frames = got
        try:
            batch = read_batch(frames[-1])
        except (BadFrameError, IndexError):
            return got
        lives[:] = lives or [batch.epoch]
        if batch.epoch != lives[0] or bytes(frames[-2]) != number_frame(IMPOSSIBLE):
            return got
        yield Observe("impossible", {"seq": IMPOSSIBLE, **TOLD})
        changed = KVEventBatch(batch.ts, [*batch.events, *EVENTS], batch.data_parallel_rank)
        return inbox, peer, [*frames[:-1], encode_batch(changed, None, batch.epoch)]

    return between(loop, answer)


def misnumbered(loop: Loop[None]) -> Loop[None]:
    """`loop`, which hears some batches twice, and by the wrong number then."""
    again: list[Any] = []
    to_come = dict(NEVER_GIVEN)

    def answer(effect: Effect) -> Loop[Any]:
        if isinstance(effect, Receive) and again and KV in effect.inboxes:
            yield Observe("malformed", {"edge": KV})
            return again.pop()
        got = yield effect
        if isinstance(effect, Receive) and got is not None and got[0] == KV:
            inbox, peer, (topic, number, payload) = got
            wrong = to_come.pop(bytes(number), None)
            if wrong is not None:
                again.append((inbox, peer, [topic, wrong, payload]))
        return got

    return between(loop, answer)
