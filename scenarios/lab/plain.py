"""A publisher without epochs, as the original (vLLM's) is, for a subscriber of ours. Pure, for both worlds.

What such a publisher does not send is taken off what ours sends, before the subscriber has it: the epoch of a batch,
and the report at the end of an answer. A question with a tag it does not answer, so none reaches ours.
"""

from __future__ import annotations

from typing import Any

from engine.effects import Effect, Loop, Receive, Send
from engine.errors import BadFrameError
from engine.kv_events.codec import END, encode_batch, end_frames, read_batch
from engine.messages import KVEventBatch
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
