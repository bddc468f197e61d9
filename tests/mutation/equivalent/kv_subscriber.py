"""Of whoever follows KV events."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_ROOM = "engine/kv_events/subscriber/"
_ORDER = "of this count only the order matters, and it still grows with each"

SUBSCRIBER: tuple[Equivalent, ...] = (
    Equivalent(_ROOM + "follower.py", "KVEventFollower.on_live", "off-by-one", "1", _ORDER),
    Equivalent(_ROOM + "follower.py", "KVEventFollower.on_replay", "off-by-one", "1", _ORDER),
    Equivalent(_ROOM + "question.py", "Questions.ended", "off-by-one", "1", _ORDER),
    Equivalent(_ROOM + "question.py", "Questions._new_tag", "off-by-one", "1", _ORDER),
    Equivalent(_ROOM + "life.py", "subscriber_life", "sent-twice", "yield Put(ENDINGS, None)",
               "who waits for an ending takes all that there are at once, and then waits no more"),
)
