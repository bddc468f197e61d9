"""KV-cache events under the names that users of vLLM's `kv_events` know.

A change of the import is enough, but for configs and batches: these are frozen, and `msgspec.structs.replace` makes
the changed one.

The structs are vocabulary (engine/messages.py); their bytes are described in engine/kv_events/codec.py, the publisher's
decisions are in publisher/log.py there, its threads and sockets in publisher/life.py.
"""

from engine.config import KVEventsConfig
from engine.kv_events.publisher.process import (
    EventPublisher,
    EventPublisherFactory,
    NullEventPublisher,
    ZmqEventPublisher,
)
from engine.messages import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVCacheEvent, KVEventBatch

MEDIUM_GPU = "GPU"

__all__ = [
    "MEDIUM_GPU",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "EventBatch",
    "EventPublisher",
    "EventPublisherFactory",
    "KVCacheEvent",
    "KVEventBatch",
    "KVEventsConfig",
    "NullEventPublisher",
    "ZmqEventPublisher",
]
