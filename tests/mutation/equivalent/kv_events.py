"""Of KV events: publisher, codec, mirror."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_CODEC, _MIRROR = "engine/kv_events/codec.py", "engine/kv_events/mirror.py"
_LIFE, _LOG = "engine/kv_events/publisher/life.py", "engine/kv_events/publisher/log.py"
_REPLAYS = "engine/kv_events/publisher/replays.py"
_IN_ORDER = "the follower lets batches and states out in the order of their numbers, so no other one is ever given"
_FALSE = "whoever calls asks only whether it is true"


def _guard(function: str, sentence: str) -> tuple[Equivalent, ...]:
    return (Equivalent(_MIRROR, function, "branch-never-taken", "number != self.next_seq", _IN_ORDER),
            Equivalent(_MIRROR, function, "statement-gone",
                       f'raise ValueError(f"the mirror expects batch {{self.next_seq}}, got {sentence}")', _IN_ORDER))


EQUIVALENT: tuple[Equivalent, ...] = (
    *_guard("KVCacheMirror.apply", "{number}"),
    *_guard("KVCacheMirror.begin_from", "a snapshot before {number}"),
    Equivalent(_CODEC, "snapshot_request", "off-by-one", "0", "nobody reads the number of a question for a state"),
    Equivalent(_LIFE, "end_publisher", "sent-twice", "yield Put(KV, None)",
               "the loop ends at the first one, and nobody takes the second one out of the queue"),
    Equivalent(_LOG, "tell", "effects-swapped", "yield Observe(name, data)\n    yield Warn(name, data)",
               "neither waits, and nobody reads the two by each other's place"),
    Equivalent(_LOG, "KVEventLog._snapshot", "exception-swallowed", "continue",
               "it is the last statement of its loop, which goes on either way"),
    Equivalent("engine/kv_events/publisher/state.py", "PublishedState._apply", "branch-never-taken", "alone",
               "of an event with one block the loop behind it does the same"),
    Equivalent(_REPLAYS, "_send_chunk", "statement-gone", "return False", _FALSE),
)
