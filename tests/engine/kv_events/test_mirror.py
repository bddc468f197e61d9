"""A mirror by itself: parents and tokens, and a batch that was applied in two goes."""

from __future__ import annotations

import pytest

from engine.kv_events.mirror import KVCacheMirror
from engine.messages import BlockRemoved, BlockStored, KVEventBatch


def test_the_mirror_knows_parents_and_tokens() -> None:
    """Three blocks of one prompt."""
    mirror = KVCacheMirror()
    mirror.apply(0, KVEventBatch(0.0, [BlockStored([1, 2, 3], None, [1, 2, 3, 4, 5, 6], 2, None, "GPU")]))
    assert [(b.block_hash, b.parent, b.token_ids) for b in mirror.blocks.values()] == [
        (1, None, (1, 2)), (2, 1, (3, 4)), (3, 2, (5, 6))]
    assert mirror.hashes() == [1, 2, 3]


def test_a_batch_that_was_broken_off_can_be_applied_again() -> None:
    """It stopped behind its removal: again it removes what is gone."""
    removal, second = BlockRemoved([1]), BlockStored([2], None, [5], 1, None)

    class Breaks(list):
        def __iter__(self):
            yield removal
            raise KeyboardInterrupt

    mirror = KVCacheMirror()
    mirror.apply(0, KVEventBatch(1.0, [BlockStored([1], None, [5], 1, None)]))
    with pytest.raises(KeyboardInterrupt):
        mirror.apply(1, KVEventBatch(1.0, Breaks()))
    mirror.apply(1, KVEventBatch(1.0, [removal, second]))
    assert (mirror.hashes(), mirror.next_seq) == ([2], 2)
