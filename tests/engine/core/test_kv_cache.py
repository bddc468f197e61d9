"""The KV cache manager: who holds what, what is found again, what its events say."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine.core.kv_cache import KVCacheManager
from engine.core.request import Request, hash_block
from engine.messages import AllBlocksCleared, BlockRemoved, BlockStored
from tests.engine.core.scheduler_fakes import Mirror, make_request


def start(cache: KVCacheManager, request_id: str, tokens: list[int], *, compute: bool = True) -> Request:
    """A request with this prompt, all of it allocated and, if asked, computed."""
    request = make_request(request_id, tokens)
    found, num_found = cache.get_computed_blocks(request)
    assert cache.allocate_slots(request, len(tokens) - num_found, found) is not None
    request.num_computed_tokens = len(tokens)
    if compute:
        cache.cache_blocks(request, len(tokens))
    return request


def chain(tokens: list[int], size: int = 2) -> list[int]:
    request = make_request("x", tokens)
    request.extend_block_hashes(size)
    return request.block_hashes


class TestHashes:
    def test_a_hash_is_the_same_in_every_process(self):
        """PYTHONHASHSEED differs between processes; a subscriber on another host must find the same number."""
        code = "from engine.core.request import hash_block; print(hash_block(hash_block(None, [1, 2]), [3, 4]))"
        path = os.pathsep.join(sys.path)
        told = {subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": path},
                               capture_output=True, text=True, check=True).stdout for seed in ("1", "2")}
        assert told == {f"{hash_block(hash_block(None, [1, 2]), [3, 4])}\n"}

    def test_a_hash_is_an_unsigned_64_bit_integer(self):
        assert all(0 <= hash_block(None, [token]) < 1 << 64 for token in range(200))

    def test_a_hash_names_everything_before_its_block_too(self):
        assert chain([1, 2, 9, 9])[1] != chain([3, 4, 9, 9])[1]

    def test_a_block_at_the_beginning_differs_from_the_same_block_behind_a_parent_of_zero(self):
        assert hash_block(None, [1, 2]) != hash_block(0, [1, 2])

    def test_hashes_grow_block_by_block_to_what_they_are_at_once(self):
        request = make_request("a", [1])
        for token in range(2, 12):
            request.all_token_ids.append(token)
            request.extend_block_hashes(4)
        assert request.block_hashes == chain(list(range(1, 12)), 4)
        assert len(request.block_hashes) == 2


class TestReuse:
    def test_a_full_computed_block_is_found_by_a_request_with_the_same_beginning(self):
        cache = KVCacheManager(8, 2)
        first = start(cache, "a", [1, 2, 3, 4, 5])
        found, num_tokens = cache.get_computed_blocks(make_request("b", [1, 2, 3, 4, 6]))
        assert (found, num_tokens) == (cache.get_block_ids(first.request_id)[:2], 4)

    def test_the_whole_prompt_is_never_found_because_its_last_token_must_be_computed(self):
        cache = KVCacheManager(8, 2)
        start(cache, "a", [1, 2, 3, 4])
        assert cache.get_computed_blocks(make_request("b", [1, 2, 3, 4]))[1] == 2

    def test_a_block_that_is_allocated_but_not_computed_is_not_found(self):
        cache = KVCacheManager(8, 2)
        start(cache, "a", [1, 2, 3, 4, 5], compute=False)
        assert cache.get_computed_blocks(make_request("b", [1, 2, 3, 4, 5])) == ([], 0)

    def test_only_the_computed_part_of_a_chunked_prompt_is_found(self):
        cache = KVCacheManager(8, 2)
        first = start(cache, "a", [1, 2, 3, 4, 5], compute=False)
        cache.cache_blocks(first, 3)
        assert cache.get_computed_blocks(make_request("b", [1, 2, 3, 4, 5]))[1] == 2

    def test_a_block_behind_a_missing_one_is_not_found(self):
        cache = KVCacheManager(8, 2)
        start(cache, "a", [9, 9, 3, 4, 5])
        assert cache.get_computed_blocks(make_request("b", [1, 2, 3, 4, 5])) == ([], 0)

    def test_freed_content_is_found_until_it_is_evicted(self):
        cache = KVCacheManager(3, 2)
        cache.free(start(cache, "a", [1, 2, 3, 4, 5]))
        assert cache.get_computed_blocks(make_request("b", [1, 2, 3, 4, 5]))[1] == 4
        start(cache, "c", [7, 7, 7, 7, 7])
        assert cache.get_computed_blocks(make_request("b", [1, 2, 3, 4, 5])) == ([], 0)

    def test_without_prefix_caching_nothing_is_found_and_nothing_is_told(self):
        cache = KVCacheManager(8, 2, enable_prefix_caching=False)
        start(cache, "a", [1, 2, 3, 4, 5])
        assert cache.get_computed_blocks(make_request("b", [1, 2, 3, 4, 5])) == ([], 0)
        assert cache.take_events() == []


class TestAllocation:
    def test_shared_blocks_have_two_holders_and_become_free_with_the_last(self):
        cache = KVCacheManager(8, 2)
        first, second = start(cache, "a", [1, 2, 3, 4, 5]), start(cache, "b", [1, 2, 3, 4, 6])
        assert cache.num_used == 4
        cache.free(first)
        assert cache.num_used == 3
        assert cache.check_integrity() == []
        cache.free(second)
        assert (cache.num_used, cache.num_free, cache.num_total) == (0, 8, 8)

    def test_a_refused_allocation_changes_nothing(self):
        cache = KVCacheManager(4, 2)
        start(cache, "a", [1, 2, 3, 4, 5])
        cache.take_events()
        second = make_request("b", [1, 2, 3, 4, 5, 6, 7, 8, 9])
        found, num_found = cache.get_computed_blocks(second)
        assert cache.allocate_slots(second, 9 - num_found, found) is None
        assert (cache.num_used, cache.num_tables, cache.take_events()) == (3, 1, [])
        assert cache.check_integrity() == []

    def test_found_blocks_in_the_free_queue_do_not_count_twice_as_room(self):
        cache = KVCacheManager(3, 2)
        cache.free(start(cache, "a", [1, 2, 3, 4, 5]))
        second = make_request("b", [1, 2, 3, 4, 5, 6, 7])
        found, num_found = cache.get_computed_blocks(second)
        assert num_found == 4
        assert cache.allocate_slots(second, 3, found) is None

    def test_taking_new_blocks_never_evicts_the_blocks_just_found(self):
        cache = KVCacheManager(4, 2)
        cache.free(start(cache, "a", [1, 2, 3, 4]))
        cache.free(start(cache, "b", [8, 8, 9, 9]))  # younger: the blocks of a are next to go
        third = make_request("c", [1, 2, 3, 4, 5, 6, 7])
        found, num_found = cache.get_computed_blocks(third)
        assert num_found == 4
        assert set(cache.allocate_slots(third, 3, found)).isdisjoint(found)
        assert cache.check_integrity() == []

    def test_a_decode_step_takes_a_block_only_at_a_boundary(self):
        cache = KVCacheManager(4, 2)
        request = start(cache, "a", [1, 2, 3])
        assert cache.allocate_slots(request, 1) == []
        request.num_computed_tokens = 4
        assert len(cache.allocate_slots(request, 1)) == 1

    def test_the_content_that_went_unused_for_longest_is_evicted_first(self):
        cache = KVCacheManager(4, 2)
        for name, token in (("a", 1), ("b", 2), ("c", 3)):
            cache.free(start(cache, name, [token, token, 0]))
        start(cache, "a again", [1, 1, 0])  # takes the one empty block
        start(cache, "d", [4, 4])
        assert chain([2, 2])[0] not in cache.cached_hashes()
        assert chain([3, 3])[0] in cache.cached_hashes()

    def test_a_chain_is_evicted_from_its_end(self):
        cache = KVCacheManager(3, 2)
        cache.free(start(cache, "a", [1, 2, 3, 4, 5, 6]))
        start(cache, "b", [9, 9])
        hashes = chain([1, 2, 3, 4, 5, 6])
        assert [h in cache.cached_hashes() for h in hashes] == [True, True, False]

    def test_a_request_that_never_had_blocks_can_be_freed(self):
        cache = KVCacheManager(2, 2)
        cache.free(make_request("a", [1]))
        assert cache.num_free == 2

    def test_an_empty_cache_is_refused(self):
        with pytest.raises(ValueError, match="at least one block"):
            KVCacheManager(0, 16)


class TestEvents:
    def test_blocks_are_stored_with_their_tokens_and_the_hash_before_them(self):
        cache = KVCacheManager(8, 2)
        request = start(cache, "a", [1, 2, 3, 4, 5], compute=False)
        cache.cache_blocks(request, 2)
        cache.cache_blocks(request, 5)
        h = chain([1, 2, 3, 4])
        assert cache.take_events() == [
            BlockStored([h[0]], None, [1, 2], 2, None),
            BlockStored([h[1]], h[0], [3, 4], 2, None),
        ]

    def test_blocks_behind_a_prefix_hit_name_the_shared_block_as_parent(self):
        cache = KVCacheManager(8, 2)
        start(cache, "a", [1, 2, 3])
        cache.take_events()
        start(cache, "b", [1, 2, 5, 6, 7, 8, 9])
        h = chain([1, 2, 5, 6, 7, 8])
        assert cache.take_events() == [BlockStored(h[1:], h[0], [5, 6, 7, 8], 2, None)]

    def test_the_same_content_in_two_blocks_is_stored_with_the_first_and_removed_with_the_last(self):
        cache = KVCacheManager(4, 2)
        first = start(cache, "a", [1, 2, 3, 4], compute=False)
        second = start(cache, "b", [1, 2, 3, 4], compute=False)
        for request in (first, second):
            cache.cache_blocks(request, 4)
        h = chain([1, 2, 3, 4])
        assert cache.take_events() == [BlockStored(h, None, [1, 2, 3, 4], 2, None)]
        cache.free(first)
        third = start(cache, "c", [9, 9, 9, 9])  # overwrites the blocks of a
        assert [type(event) for event in cache.take_events()] == [BlockStored]
        assert set(h) <= set(cache.cached_hashes())
        assert cache.check_integrity() == []
        cache.free(second)
        cache.free(third)
        start(cache, "d", [8, 8, 8, 8])
        assert cache.take_events()[:2] == [BlockRemoved([h[1]]), BlockRemoved([h[0]])]

    def test_an_event_ends_before_a_block_that_is_cached_already_and_goes_on_behind_it(self):
        cache = KVCacheManager(12, 2)
        long = start(cache, "long", [1, 2, 3, 4, 5, 6], compute=False)
        start(cache, "short", [1, 2, 3, 4])
        cache.take_events()
        cache.cache_blocks(long, 6)
        h = chain([1, 2, 3, 4, 5, 6])
        assert cache.take_events() == [BlockStored([h[2]], h[1], [5, 6], 2, None)]

    def test_eviction_is_told_before_the_new_content(self):
        cache = KVCacheManager(1, 2)
        cache.free(start(cache, "a", [1, 2]))
        start(cache, "b", [3, 4])
        assert cache.take_events() == [
            BlockStored(chain([1, 2]), None, [1, 2], 2, None), BlockRemoved(chain([1, 2])),
            BlockStored(chain([3, 4]), None, [3, 4], 2, None)]

    def test_a_reset_clears_mirror_and_cache_alike(self):
        cache = KVCacheManager(4, 2)
        mirror = Mirror()
        cache.free(start(cache, "a", [1, 2, 3, 4, 5]))
        assert cache.reset_prefix_cache() is True
        events = cache.take_events()
        assert events[-1] == AllBlocksCleared()
        mirror.apply(events)
        assert mirror.hashes == set() == set(cache.cached_hashes())
        assert cache.get_computed_blocks(make_request("b", [1, 2, 3, 4, 5])) == ([], 0)
        assert cache.check_integrity() == []

    def test_a_reset_is_refused_while_blocks_are_held(self):
        cache = KVCacheManager(4, 2)
        start(cache, "a", [1, 2, 3])
        cache.take_events()
        assert cache.reset_prefix_cache() is False
        assert cache.cached_hashes() == chain([1, 2])
        assert cache.take_events() == []

    def test_with_events_off_none_pile_up(self):
        cache = KVCacheManager(1, 2, enable_events=False)
        cache.free(start(cache, "a", [1, 2]))
        cache.free(start(cache, "b", [3, 4]))
        cache.reset_prefix_cache()
        assert cache.take_events() == []


class TestIntegrity:
    """The check must find what it is for: each of these damages the books in one way."""

    @pytest.fixture
    def cache(self) -> KVCacheManager:
        cache = KVCacheManager(6, 2)
        start(cache, "a", [1, 2, 3, 4, 5])
        cache.free(start(cache, "b", [7, 8, 9]))
        assert cache.check_integrity() == []
        return cache

    def test_a_holder_too_many_is_found(self, cache):
        cache._pool.holders[cache.get_block_ids("a")[0]] += 1
        assert any("counts 2 holders, but 1" in text for text in cache.check_integrity())

    def test_a_lost_block_is_found(self, cache):
        cache._pool._free.popitem()
        assert any("0 holders and is not in the free queue" in text for text in cache.check_integrity())

    def test_a_held_block_in_the_free_queue_is_found(self, cache):
        cache._pool._free[cache.get_block_ids("a")[0]] = None
        assert any("1 holders and is in the free queue" in text for text in cache.check_integrity())

    def test_a_block_that_lost_its_entry_is_found(self, cache):
        del cache._pool._by_hash[chain([7, 8])[0]]
        assert any("cannot be found by it" in text for text in cache.check_integrity())

    def test_an_entry_that_leads_to_other_content_is_found(self, cache):
        cache._pool._by_hash[chain([7, 8])[0]][cache.get_block_ids("a")[2]] = None
        assert any("do not hold it" in text for text in cache.check_integrity())

    def test_an_orphaned_hash_is_found(self, cache):
        cache._pool._forget(cache.get_block_ids("a")[0])
        assert any("without its parent" in text for text in cache.check_integrity())

    def test_a_block_listed_twice_is_found(self, cache):
        cache._tables["a"].append(cache._tables["a"][0])
        assert any("lists a block twice" in text for text in cache.check_integrity())
