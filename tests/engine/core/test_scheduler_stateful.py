"""Random lives of many requests on a tiny cache, against the promises of the scheduler and of the KV cache."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import CacheConfig, SchedulerConfig
from engine.core.scheduler import Scheduler
from engine.messages import FinishReason, ModelRunnerOutput, SchedulerOutput
from tests.engine.core.scheduler_fakes import VOCAB, Client, Mirror, WorkerView, expected_answer, make_request

# Prompts are beginnings and endings of few texts, so prefixes are shared often and differ late.
BEGINNINGS = st.sampled_from([(1, 2, 3, 4, 5, 6, 1, 2), (1, 2, 3, 4, 1, 1), (6, 5, 4), ()])
ENDINGS = st.sampled_from([(), (5,), (5, 6, 1), (2, 2)]) | st.lists(st.integers(1, VOCAB - 1), max_size=9).map(tuple)


class SchedulerLife(RuleBasedStateMachine):
    """One scheduler, one worker that checks every slot it reads, one mirror, clients that count."""

    @initialize(
        num_blocks=st.integers(1, 20), block_size=st.integers(1, 4), budget=st.integers(1, 40),
        max_num_seqs=st.integers(1, 6), max_model_len=st.sampled_from([40, 24, 9, 2]),
        caching=st.sampled_from([True, True, True, False]), depth=st.integers(1, 3),
        policy=st.sampled_from(["fcfs", "priority"]), threshold=st.sampled_from([0, 0, 1, 5]), promises=st.booleans())
    def start(self, num_blocks: int, block_size: int, budget: int, max_num_seqs: int, max_model_len: int,
              caching: bool, depth: int, policy: str, threshold: int, promises: bool) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, policy=policy,
                            async_scheduling=promises,
                            long_prefill_token_threshold=threshold),
            CacheConfig(enable_prefix_caching=caching), num_blocks, block_size, max_model_len, vocab_size=VOCAB)
        self.view = WorkerView(num_blocks, block_size, budget, max_num_seqs, promises)
        self.client = Client()
        self.mirror = Mirror()
        self.depth = depth
        self.expected: dict[str, tuple[list[int], FinishReason, int | None]] = {}
        self.in_flight: list[tuple[SchedulerOutput, ModelRunnerOutput]] = []
        self.aborts: list[str] = []

    # -- what happens

    @rule(beginning=BEGINNINGS, ending=ENDINGS, max_tokens=st.integers(1, 14), min_tokens=st.integers(0, 4),
          ignore_eos=st.booleans(), stop=st.sets(st.integers(1, VOCAB - 1), max_size=1), client=st.integers(0, 1),
          priority=st.integers(-1, 2))
    def add(self, beginning: tuple[int, ...], ending: tuple[int, ...], max_tokens: int, min_tokens: int,
            ignore_eos: bool, stop: set[int], client: int, priority: int) -> None:
        request = make_request(
            f"r{len(self.expected)}", beginning + ending, client_index=client, max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens), ignore_eos=ignore_eos, stop_token_ids=tuple(stop))
        request.priority = priority
        self.expected[request.request_id] = expected_answer(
            request.prompt_token_ids, request.sampling_params, self.scheduler.max_model_len,
            self.scheduler.cache.capacity_tokens)
        assert self.scheduler.add_request(request)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """Of anybody: waiting, running, preempted, in flight, failed, ended or aborted before."""
        ids = data.draw(st.lists(st.sampled_from(sorted(self.expected)), min_size=1, max_size=3))
        alive = {r for r in ids if r not in self.client.ends and r not in self.client.aborted}
        aborted = [request.request_id for request in self.scheduler.abort_requests(ids)]
        assert sorted(aborted) == sorted(alive), "an abort ends whoever has not ended yet, once"
        self.client.aborted |= alive

    @precondition(lambda self: len(self.in_flight) < self.depth)
    @rule()
    def step(self) -> None:
        """The workers execute steps in order; their answers may come back later."""
        self._schedule()

    @precondition(lambda self: self.in_flight)
    @rule()
    def answer(self) -> None:
        step, result = self.in_flight.pop(0)
        self.client.take(self.scheduler.update_from_output(step, result))

    @rule()
    def step_and_answer(self) -> None:
        self._schedule()
        while self.in_flight:
            self.answer()

    @rule(preempt_running=st.booleans())
    def reset_cache(self, preempt_running: bool) -> None:
        holds_blocks = self.scheduler.cache.num_used > 0
        assert self.scheduler.reset_prefix_cache(preempt_running) == (preempt_running or not holds_blocks)

    def _schedule(self) -> None:
        before = set(self.scheduler.requests)
        calm = not self.in_flight
        output = self.scheduler.schedule()
        failed = before - set(self.scheduler.requests)
        if output is None:
            assert not calm, "nothing to do, and nothing is in flight"
            return
        if calm and before:
            assert output.num_scheduled_tokens or failed, f"no progress with {before} unfinished"
        self.in_flight.append((output, self.view.execute(output)))

    # -- what always holds

    @invariant()
    def books_are_in_order(self) -> None:
        assert self.scheduler.check_integrity() == []

    @invariant()
    def mirror_is_true(self) -> None:
        self.mirror.apply(self.scheduler.take_events())
        assert sorted(self.mirror.hashes) == self.scheduler.cached_hashes()
        assert self.scheduler.cache.num_cached == len(self.mirror.hashes)

    @invariant()
    def tokens_are_a_prefix_of_the_lonely_answer(self) -> None:
        for request_id, tokens in self.client.tokens.items():
            assert tokens == self.expected[request_id][0][:len(tokens)]

    def teardown(self) -> None:
        """Everything ends, and everybody who was not aborted was told exactly the lonely answer."""
        if not hasattr(self, "scheduler"):
            return
        while self.in_flight:
            self.answer()
        bound = 50 + sum(2 * (len(answer[0]) + 60) for answer in self.expected.values())
        while self.scheduler.has_unfinished_requests() or self.scheduler.has_finished_to_report():
            self.step_and_answer()
            self.books_are_in_order()
            self.mirror_is_true()
            bound -= 1
            assert bound, "the requests do not come to an end"
        for request_id, (tokens, reason, stop_token) in self.expected.items():
            if request_id in self.client.aborted:
                assert request_id not in self.client.ends
                continue
            end = self.client.ends[request_id]
            assert self.client.tokens[request_id] == tokens
            assert end.finish_reason is reason
            if reason is FinishReason.ERROR:
                assert isinstance(end.stop_reason, str) and end.stop_reason
            else:
                assert end.stop_reason == stop_token
        assert self.view.requests == {}, "the workers still know requests that have ended"
        cache = self.scheduler.cache
        assert (cache.num_used, cache.num_free, cache.num_tables) == (0, cache.num_total, 0)


EXAMPLES = int(os.environ.get("SCHEDULER_EXAMPLES", "150"))
SchedulerLife.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


class TestSchedulerLife(SchedulerLife.TestCase):
    """Random adds, aborts, steps, late answers and cache resets keep every promise."""
