"""Which tokens of which requests are computed in the next step. The engine and its twin both run this file.

Promises
- First come, first served, or by priority (request_queue.py). A request that does not fit waits at the head; nobody
  overtakes it.
- Progress: with unfinished requests and no step in flight, `schedule()` schedules a token or fails a request.
  The first of the running is never preempted in favour of another, and what can never fit fails alone.
- Every accepted request ends exactly once: in `update_from_output` (finished or failed) or in `abort_requests`.
- What a step in flight computes for a request that was aborted or preempted meanwhile is ignored.
- Workers are told of each request's end or preemption exactly once, even if nothing else is scheduled, and
  never of a request they do not know.

A request's life

    add_request -> WAITING -> RUNNING -> FINISHED_*        (a step: schedule -> workers -> update_from_output)
                      ^          |
                      +- PREEMPTED: its blocks went to an older request; later it is computed again

One step: running requests first, in the order in which they came in or of their priority, each with all it still has
to compute, within the budget (so a long prompt is computed in chunks, none longer than a threshold that may be set);
where blocks run out the last of the running requests is preempted.
Then, unless somebody was preempted, waiting requests in order. Several steps may be in flight, as long as
the workers execute them in order. With async scheduling a running request does not wait for its token in flight: that
is promised to it, and the workers take the one that they sampled: in a pipeline so many steps later as it has stages,
when the first one can know it. A promise ends with its step, or with a preemption;
nothing is computed beyond a length that ends the request in any case.

A worker that gets a step forgets `finished` and `preempted` first; then it takes `new`, then `cached`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.config import CacheConfig, SchedulerConfig
from engine.core.block_pool import CacheEvent
from engine.core.integrity import what_is_wrong
from engine.core.kv_cache import KVCacheManager
from engine.core.request import Request, RequestStatus, status_after_token
from engine.core.request_queue import QUEUES, RequestQueue
from engine.messages import (
    CachedRequestData,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    SchedulerStats,
)

#: Token ids travel to the model as 64-bit integers; a vocabulary is far below this.
MAX_TOKEN_ID = (1 << 31) - 1


class Scheduler:
    """Continuous batching over a paged cache of `num_blocks` blocks."""

    def __init__(self, config: SchedulerConfig, cache_config: CacheConfig, num_blocks: int,
                 block_size: int | None = None, max_model_len: int | None = None, *,
                 vocab_size: int | None = None, enable_events: bool = True, stages: int = 1) -> None:
        """`block_size` and `max_model_len` default to what the configs say; `stages` of the workers' pipeline.

        Who enables events must call `take_events` after each step, or they pile up.
        Raises ValueError for a cache of less than one block of one token, or a length of less than two.
        """
        max_model_len = config.max_model_len if max_model_len is None else max_model_len
        if max_model_len is None or max_model_len < 2:
            raise ValueError(f"max_model_len must leave room for a prompt and an answer, got {max_model_len}")
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.max_num_seqs = config.max_num_seqs
        self.most_at_once = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self.promises = config.async_scheduling
        self._stages = stages
        self.max_model_len = max_model_len
        self.max_token_id = MAX_TOKEN_ID if vocab_size is None else vocab_size - 1
        self.cache = KVCacheManager(num_blocks, block_size or cache_config.block_size,
                                    cache_config.enable_prefix_caching, enable_events=enable_events)
        self.requests: dict[str, Request] = {}  # every live request, by id
        self.running: list[Request] = []  # who is served first; the last gives way
        self.waiting: RequestQueue = QUEUES[config.policy]()
        self._step = 0
        # Told to the workers with the next step.
        self._finished: list[str] = []
        self._preempted: list[str] = []
        # Failed outside of a step's results; told to their clients by the next update.
        self._failed: dict[str, Request] = {}
        # By step: (request, its num_preemptions then, tokens computed after it, whether a token is sampled).
        self._in_flight: dict[int, list[tuple[Request, int, int, bool]]] = {}

    # -- requests come and go ---------------------------------------------------------------------------------

    def add_request(self, request: Request) -> bool:
        """Queue a request. -> False if a request of this id lives already; then nothing is changed.

        A request that can never be served is accepted too, and fails alone with the next update.
        """
        request_id = request.request_id
        if self.knows(request_id):
            return False
        reason = self._why_not(request)
        if reason is not None:
            request.finish(RequestStatus.FINISHED_ERROR, reason)
            self._failed[request_id] = request
        else:
            self.requests[request_id] = request
            self.waiting.add(request)
        return True

    def knows(self, request_id: str) -> bool:
        """Whether a request of this id lives, or has failed and its client was not told yet."""
        return request_id in self.requests or request_id in self._failed

    def abort_requests(self, request_ids: Iterable[str]) -> list[Request]:
        """End these requests now and free their blocks. -> those that lived; others are ignored.

        No output of a returned request appears any more, whatever is in flight.
        """
        aborted = []
        was_running = False
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is None:
                # Failed, but its client does not know yet: for the client this abort is its end.
                request = self._failed.pop(request_id, None)
                if request is not None:
                    request.status, request.stop_reason = RequestStatus.FINISHED_ABORTED, None
                    aborted.append(request)
                continue
            if request.status is RequestStatus.RUNNING:
                was_running = True
            else:
                del self.waiting[request_id]
            self._end(request, RequestStatus.FINISHED_ABORTED)
            aborted.append(request)
        if was_running:
            self._drop_finished()
        return aborted

    def reset_prefix_cache(self, preempt_running: bool = False) -> bool:
        """Forget all cached content. -> False, and nothing is changed, while requests hold blocks.

        With `preempt_running` they let go of them first, and are computed again later.
        """
        if preempt_running:
            while self.running:
                self._preempt(self.running.pop())
        return self.cache.reset_prefix_cache()

    # -- one step ---------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput | None:
        """Decide the next step. Its output must come back to `update_from_output`, also if it is empty.

        -> None where there is nothing to do before a step in flight has come back.
        """
        new: list[NewRequestData] = []
        cached: list[CachedRequestData] = []
        num_scheduled: dict[str, int] = {}
        work: list[tuple[Request, int, int, bool]] = []
        num_preempted_before = len(self._preempted)

        budget = self._schedule_running(cached, num_scheduled, work)
        if len(self._preempted) == num_preempted_before:
            self._schedule_waiting(new, num_scheduled, work, budget)

        if self._in_flight and not (num_scheduled or self._finished or self._preempted):
            return None
        step = self._step
        self._step = step + 1
        self._in_flight[step] = work
        finished, self._finished = self._finished, []
        preempted, self._preempted = self._preempted, []
        return SchedulerOutput(step, new, cached, num_scheduled, finished, preempted)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_output: ModelRunnerOutput
                           ) -> dict[int, list[EngineCoreOutput]]:
        """Take in what the workers sampled. -> outputs by client_index

        Raises ValueError when the answer does not belong to a step in flight or lacks a token: then the workers
        are out of step, and the engine must not go on.
        """
        step = scheduler_output.step
        if model_output.step != step:
            raise ValueError(f"step {step} was answered with the results of step {model_output.step}")
        work = self._in_flight.pop(step, None)
        if work is None:
            raise ValueError(f"step {step} is not in flight")
        outputs: dict[int, list[EngineCoreOutput]] = {}
        if self._failed:
            self._tell_failed(outputs)
        sampled = model_output.sampled
        cache, block_size, max_model_len = self.cache, self.cache.block_size, self.max_model_len
        some_finished = False
        for request, num_preemptions, num_computed, samples in work:
            if request.num_preemptions != num_preemptions or request.is_finished:
                continue
            if num_computed >= block_size:
                cache.cache_blocks(request, num_computed)
            if not samples:
                continue
            request_id = request.request_id
            tokens = sampled.get(request_id)
            if not tokens or len(tokens) != 1:
                raise ValueError(f"step {step} should have sampled one token for {request_id!r}, got {tokens}")
            request.num_output_placeholders -= self.promises
            token = tokens[0]
            num_preceding = len(request.all_token_ids) - request.num_prompt_tokens
            request.all_token_ids.append(token)
            end = status_after_token(request, token, max_model_len)
            finish_reason = None
            if end is not None:
                self._end(request, *end)
                some_finished, finish_reason = True, request.finish_reason
            told = EngineCoreOutput(request_id, [token], num_preceding, finish_reason, request.stop_reason,
                                    request.num_cached_tokens)
            client_index = request.client_index
            if client_index in outputs:
                outputs[client_index].append(told)
            else:
                outputs[client_index] = [told]
        if some_finished:
            self._drop_finished()
        return outputs

    # -- questions --------------------------------------------------------------------------------------------

    def has_unfinished_requests(self) -> bool:
        """Whether any accepted request has not reached its end, or has failed and its client was not told yet."""
        return bool(self.requests or self._failed)

    def has_finished_to_report(self) -> bool:
        """Whether a step must be made though no request lives: workers or clients have to be told of an end."""
        return bool(self._finished or self._preempted or self._failed)

    def get_request_counts(self) -> tuple[int, int]:
        """(running, waiting)"""
        return len(self.running), len(self.waiting)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(len(self.running), len(self.waiting), self.cache.num_free, self.cache.num_total)

    def take_events(self) -> list[CacheEvent]:
        """What became findable and what was evicted since the last call, in order."""
        return self.cache.take_events()

    def cached_hashes(self) -> list[int]:
        """Every block hash that can be found, sorted."""
        return self.cache.cached_hashes()

    def kept(self) -> dict[str, int]:
        """Sizes of what holds requests and steps: nothing is left in it when no request lives."""
        return {"running": len(self.running), "waiting": len(self.waiting), "in_flight": len(self._in_flight),
                "tables": self.cache.num_tables}

    def check_integrity(self) -> list[str]:
        """What is wrong with blocks, queues and promises, as sentences; empty when all is well."""
        return what_is_wrong(self.cache, self.requests, self.running, self.waiting, self._sampled_in_flight())

    def _sampled_in_flight(self) -> Counter[str]:
        """How many tokens steps in flight sample for each request, where those are promised."""
        return Counter(request.request_id for work in self._in_flight.values()
                       for request, num_preemptions, _, samples in work
                       if samples and self.promises and request.num_preemptions == num_preemptions)

    # -- inside -----------------------------------------------------------------------------------------------

    def _schedule_running(self, cached: list[CachedRequestData], num_scheduled: dict[str, int],
                          work: list[tuple[Request, int, int, bool]]) -> int:
        """-> what is left of the token budget"""
        budget = self.max_num_batched_tokens
        running, cache = self.running, self.cache
        index = 0
        while budget and index < len(running):
            request = running[index]
            start = request.num_computed_tokens
            num_tokens = len(request.all_token_ids) + request.num_output_placeholders
            num_new = min(num_tokens - start, budget, self.most_at_once)
            if num_new == 0 or (request.num_output_placeholders and (
                    self._step < request.next_decode_step or self._may_end(request, num_tokens))):
                index += 1  # its next token is still in flight
                continue
            if start + num_new > cache.capacity_tokens:
                del running[index]
                self._fail_too_long(request)
                continue
            blocks = self._allocate_or_preempt(request, num_new)
            if blocks is None:  # it was the youngest itself
                break
            request_id = request.request_id
            cached.append(CachedRequestData(
                request_id, request.all_token_ids[request.num_tokens_at_workers:], blocks, start))
            self._count(request, num_new, num_scheduled, work)
            budget -= num_new
            index += 1
        return budget

    def _may_end(self, request: Request, num_tokens: int) -> bool:
        """Whether it cannot go on beyond so many tokens, the last of which are promised."""
        return (num_tokens - request.num_prompt_tokens >= request.max_tokens or num_tokens >= self.max_model_len
                or num_tokens > self.cache.capacity_tokens)

    def _allocate_or_preempt(self, request: Request, num_new: int) -> list[int] | None:
        """Blocks for a running request, the youngest giving way. -> None if that was the request itself"""
        while (blocks := self.cache.allocate_slots(request, num_new)) is None:
            youngest = self.running.pop()
            self._preempt(youngest)
            if youngest is request:
                return None
        return blocks

    def _schedule_waiting(self, new: list[NewRequestData], num_scheduled: dict[str, int],
                          work: list[tuple[Request, int, int, bool]], budget: int) -> None:
        waiting, cache = self.waiting, self.cache
        while budget and waiting and len(self.running) < self.max_num_seqs:
            request = waiting.first()
            request_id = request.request_id
            if request.num_tokens > cache.capacity_tokens:  # it grew beyond the cache before it was preempted
                del waiting[request_id]
                self._fail_too_long(request)
                continue
            found, num_found_tokens = cache.get_computed_blocks(request)
            num_new = min(request.num_tokens - num_found_tokens, budget, self.most_at_once)
            if cache.allocate_slots(request, num_new, found) is None:
                break
            del waiting[request_id]
            waiting.admit(request, self.running)
            request.status = RequestStatus.RUNNING
            request.known_to_workers = True
            request.num_computed_tokens = num_found_tokens
            if request.num_cached_tokens < 0:
                request.num_cached_tokens = num_found_tokens
            new.append(NewRequestData(
                request_id, list(request.all_token_ids), request.num_prompt_tokens, request.sampling_params,
                cache.get_block_ids(request_id), num_found_tokens))
            self._count(request, num_new, num_scheduled, work)
            budget -= num_new

    def _count(self, request: Request, num_new: int, num_scheduled: dict[str, int],
               work: list[tuple[Request, int, int, bool]]) -> None:
        """`num_new` more tokens of this request are in the step, and the workers get to know all its tokens."""
        num_scheduled[request.request_id] = num_new
        num_tokens = len(request.all_token_ids) + request.num_output_placeholders
        request.num_computed_tokens = num_computed = request.num_computed_tokens + num_new
        samples = num_computed == num_tokens
        if samples and self.promises:
            request.num_output_placeholders += 1
            request.next_decode_step = self._step + self._stages
            num_tokens += 1
        request.num_tokens_at_workers = num_tokens
        work.append((request, request.num_preemptions, num_computed, samples))

    def _preempt(self, request: Request) -> None:
        """It was taken from the running; it waits at the head, as if nothing of it had been computed."""
        self.cache.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = request.num_output_placeholders = 0
        request.num_preemptions += 1
        request.known_to_workers = False
        self._preempted.append(request.request_id)
        self.waiting.give_back(request)

    def _end(self, request: Request, status: RequestStatus, stop_reason: int | str | None = None) -> None:
        """The one place where an accepted request ends. The caller takes it out of its queue."""
        request.finish(status, stop_reason)
        self.cache.free(request)
        del self.requests[request.request_id]
        if request.known_to_workers:
            self._finished.append(request.request_id)

    def _fail_too_long(self, request: Request) -> None:
        self._end(request, RequestStatus.FINISHED_ERROR,
                  f"its {request.num_tokens} tokens do not fit into the whole KV cache, "
                  f"which holds {self.cache.capacity_tokens}")
        self._failed[request.request_id] = request

    def _drop_finished(self) -> None:
        self.running = [request for request in self.running if not request.is_finished]

    def _tell_failed(self, outputs: dict[int, list[EngineCoreOutput]]) -> None:
        failed, self._failed = self._failed, {}
        for request in failed.values():
            outputs.setdefault(request.client_index, []).append(EngineCoreOutput(
                request.request_id, [], request.num_output_tokens, request.finish_reason, request.stop_reason))

    def _why_not(self, request: Request) -> str | None:
        """Why this request can never be served, or None."""
        num_tokens, tokens = request.num_tokens, request.all_token_ids
        if not num_tokens:
            return "the prompt has no tokens"
        if num_tokens >= self.max_model_len:
            return (f"the prompt has {num_tokens} tokens, but max_model_len is {self.max_model_len} "
                    f"and one token must be generated")
        if num_tokens > self.cache.capacity_tokens:
            return (f"the prompt has {num_tokens} tokens, but the whole KV cache holds "
                    f"{self.cache.capacity_tokens}")
        if min(tokens) < 0 or max(tokens) > self.max_token_id:
            return f"the prompt holds a token id outside 0..{self.max_token_id}"
        return None
