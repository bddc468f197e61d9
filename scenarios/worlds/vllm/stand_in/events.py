"""What a core of vLLM's says of its cache's events beside them: how they are numbered, and what is true.

Its own publisher numbers and sends them; nothing of it is changed. What is told here no subscriber hears.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

from scenarios.worlds.vllm.stand_in.seat import Seat


def watch(scheduler: Any, seat: Seat) -> None:
    """Each batch that its scheduler hands to its publisher is on record as the next one."""
    publisher, numbers = scheduler.kv_event_publisher, count()
    hand_over = publisher.publish

    def publish(events: Any) -> None:
        began = time.monotonic()
        hand_over(events)
        seat.observe("kv-published", seq=next(numbers), took=time.monotonic() - began)

    publisher.publish = publish


def hashes_of(scheduler: Any) -> list[int]:
    """Of all blocks that can be found in its cache, as its events name them; sorted."""
    pool = scheduler.kv_cache_manager.block_pool
    return sorted({maybe_convert_block_hash(get_block_hash(block.block_hash)) for block in pool.blocks
                   if block.block_hash is not None})
