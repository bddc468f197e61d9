"""Of the core."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_SCHEDULER, _CACHE = "engine/core/scheduler.py", "engine/core/kv_cache.py"
_UPDATE, _RUNNING = "Scheduler.update_from_output", "Scheduler._schedule_running"
_BY_ID = "the answer of a step is found by its call's id, and a step is answered once"
_NO_ORDER = "neither is seen by what the other one does"
_FIRST = "the main thread ends by the first one"
_REFUSED = "a configuration refuses such a block, and workers so few, before a core has a pool"
_LOG = "a line for an operator"
_AGAIN = "it is said again and again until it is heard, and whoever has heard it minds it no more"
_EMPTY = "with nothing to take or to store the lines behind it change nothing"

EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent("engine/core/request.py", "Request.__init__", "off-by-one", "0",
               "it is held against what it was, and against nothing else", "1", behind="self.num_preemptions = "),
    Equivalent("engine/core/request.py", "Request.__init__", "statement-gone", "self.came = 0",
               "only the queue that sets it when a request comes in reads it"),
    Equivalent(_CACHE, "KVCacheManager.allocate_slots", "branch-never-taken", "computed_blocks",
               "what was found ends where a block ends, and who comes in has nothing computed: what comes behind needs "
               "as many more blocks either way"),
    Equivalent(_SCHEDULER, _UPDATE, "branch-never-taken", "model_output.step != step", _BY_ID),
    Equivalent(_SCHEDULER, _UPDATE, "statement-gone", 'raise ValueError(f"step {step} is not in flight")', _BY_ID),
    Equivalent(_SCHEDULER, _UPDATE, "statement-gone",
               'raise ValueError(f"step {step} was answered with the results of step {model_output.step}")', _BY_ID),
    Equivalent("engine/core/block_pool.py", "BlockPool.store", "statement-gone",
               "self._tell_stored(run, run_parent, token_ids, run_start)",
               "a hash that is known has a known parent, so nothing new has come before it",
               behind="same[block] = None\n                "),
    Equivalent("engine/core/block_pool.py", "BlockPool.store", "off-by-one", "0",
               "it is set when a run gets its first hash, and is read of a run that has one", "1"),
    Equivalent(_CACHE, "KVCacheManager.allocate_slots", "branch-never-taken", "num_needed <= 0", _EMPTY),
    Equivalent(_CACHE, "KVCacheManager.allocate_slots", "off-by-one", "num_needed <= 0", _EMPTY, "num_needed < 0"),
    Equivalent(_CACHE, "KVCacheManager.get_computed_blocks", "branch-never-taken", "not self.enable_prefix_caching",
               "nothing can be found where `cache_blocks` has stored nothing"),
    Equivalent(_CACHE, "KVCacheManager.cache_blocks", "branch-never-taken", "last <= first", _EMPTY),
    Equivalent(_CACHE, "KVCacheManager.cache_blocks", "off-by-one", "last <= first", _EMPTY, "last < first"),
    Equivalent("engine/core/io/loops.py", "input_loop", "effects-swapped",
               'yield Observe("client-cut", {"client": index})\n                yield Put(INPUT, ClientGone(index))',
               _NO_ORDER),
    Equivalent("engine/core/io/loops.py", "_started", "sent-twice", "yield Put(INPUT, started)", _AGAIN),
    Equivalent("engine/core/io/loops.py", "Unheard.due", "off-by-one", "now < self._at + self.every_s",
               "at the very instant it is time, and the next look is soon"),
    Equivalent("engine/core/io/loops.py", "_whose", "exception-swallowed", "return None",
               "a function that ends returns None"),
    Equivalent("engine/core/engine_core.py", "EngineCore.busy_loop", "off-by-one", "1",
               "who reads a heartbeat asks whether it has grown", "2"),
    Equivalent("engine/core/engine_core.py", "EngineCore.__init__", "off-by-one", "0",
               "who reads a heartbeat asks whether it has grown", "1", behind="self._beats = "),
    Equivalent("engine/core/engine_core.py", "EngineCore._handle", "effects-swapped",
               'yield MarkPoint(Mark.DRAINING)\n            yield Observe("draining", {"running": running, "waiting": '
               'waiting, "deadline": self.drain.deadline})', _NO_ORDER),
    Equivalent("engine/core/block_pool.py", "BlockPool.__init__", "branch-never-taken",
               "num_blocks < 1 or block_size < 1", _REFUSED),
    Equivalent("engine/core/block_pool.py", "BlockPool.__init__", "condition-turned",
               "num_blocks < 1 or block_size < 1", _REFUSED, "((num_blocks < 1) and (block_size < 1))"),
    Equivalent(_SCHEDULER, "Scheduler.__init__", "branch-never-taken", "max_model_len is None or max_model_len < 2",
               "a core gives the number of its model or of its configuration, which refuses less than 2"),
    Equivalent(_SCHEDULER, "Scheduler.__init__", "statement-gone",
               'raise ValueError(f"max_model_len must leave room for a prompt and an answer, got {max_model_len}")',
               "a core gives the number of its model or of its configuration, which refuses less than 2"),
    Equivalent("engine/core/request.py", "hash_block", "off-by-one", "8",
               "a ninth byte, which is 0, tells no two parents apart", "9", behind="parent_hash.to_bytes("),
    Equivalent("engine/core/drain.py", "Drain.over", "off-by-one", "now >= self.deadline",
               "the instant itself: a clock has moved on by the next look", "now > self.deadline"),
    Equivalent(_SCHEDULER, "Scheduler.add_request", "branch-never-taken", "self.knows(request_id)",
               "the core has looked whether it is known"),
    Equivalent(_SCHEDULER, "Scheduler.add_request", "statement-gone", "return True",
               "the core has looked before, and does not ask whether it was taken"),
    Equivalent(_SCHEDULER, "Scheduler.add_request", "statement-gone", "return False",
               "None is as false as False, and the core asks for no more"),
    Equivalent("engine/core/life.py", "CoreLife.run", "branch-never-taken", "not self._parent_gone", _LOG),
    Equivalent("engine/core/life.py", "CoreLife.run", "condition-turned", "not self._parent_gone", _LOG),
    Equivalent("engine/core/life.py", "CoreLife._leave", "branch-never-taken", "farewell", _LOG),
    Equivalent("engine/core/life.py", "CoreLife._leave", "condition-turned", "farewell", _LOG),
    Equivalent("engine/core/life.py", "CoreLife._leave", "statement-gone", "yield LogLine(farewell)", _LOG),
    Equivalent("engine/core/life.py", "CoreLife._leave", "sent-twice", "yield Put(LEFT, True)",
               "who waits for the word takes all there are"),
    Equivalent("engine/core/life.py", "CoreLife._leave", "exception-swallowed",
               'yield LogLine("on the way out", error)', _LOG),
    Equivalent("engine/core/life.py", "CoreLife._start", "effects-swapped",
               'yield beside("parent-watch", self._watch_parent(executor))\n        '
               "yield OpenHeartbeat(recipe.beat, create=False)", _NO_ORDER),
    Equivalent("engine/core/life.py", "CoreLife._watch_parent", "effects-swapped",
               "yield Cancel(gone)\n        yield Put(INPUT, gone)", "both end the main thread, by the same error"),
    Equivalent("engine/core/life.py", "CoreLife._watch_parent", "sent-twice", "yield Put(INPUT, gone)", _FIRST),
    Equivalent("engine/core/life.py", "CoreLife._watch_needed", "effects-swapped",
               "yield Cancel(error)\n        yield Put(INPUT, error)", "both end the main thread, by the same error"),
    Equivalent("engine/core/life.py", "CoreLife._watch_needed", "sent-twice", "yield Put(INPUT, error)", _FIRST),
    Equivalent("engine/core/life.py", "CoreLife._watch_parent", "off-by-one", "1",
               "who would read the exit code is gone", "2"),
    Equivalent("engine/core/engine_core.py", "EngineCore._handle", "statement-gone",
               'raise TypeError(f"the core cannot handle {type(item).__name__}")',
               "whoever puts something into this queue puts one of what stands above: the input thread, a signal, and "
               "those who tell of a failure"),
    Equivalent("engine/core/io/pulse.py", "Pulse.missing", "off-by-one", "now - at > self._away_s",
               "the instant itself: a clock has moved on by the next look", "now - at >= self._away_s"),
)
