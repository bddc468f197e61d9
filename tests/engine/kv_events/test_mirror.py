"""What a mirror says of itself: of the present state, and of a batch that was applied in two goes."""

from __future__ import annotations

import pytest

from engine.kv_events.mirror import KVCacheMirror
from engine.messages import BlockRemoved, BlockStored, KVEventBatch


def _strange() -> KVCacheMirror:
    mirror = KVCacheMirror()
    mirror.apply(0, KVEventBatch(1.0, [BlockRemoved([9])]))
    assert len(mirror.check_integrity()) == 1
    return mirror


def test_what_was_strange_in_a_life_is_not_said_of_the_next_one() -> None:
    mirror = _strange()
    mirror.restart()
    assert mirror.check_integrity() == []


def test_what_was_strange_before_a_snapshot_is_not_said_of_it() -> None:
    """What is strange in the snapshot itself is."""
    mirror = _strange()
    mirror.begin_from(1, [BlockStored([1], None, [1, 2], 2, None)])
    assert mirror.check_integrity() == []
    mirror = _strange()
    mirror.begin_from(1, [BlockStored([1], None, [1], 2, None)])
    assert mirror.check_integrity() != []


def test_a_batch_that_was_broken_off_can_be_applied_again() -> None:
    """It stopped behind its removal: again it removes what is gone, and nothing is strange about that."""
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
    assert (mirror.hashes(), mirror.check_integrity(), mirror.next_seq) == ([2], [], 2)
