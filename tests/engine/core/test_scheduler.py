"""The scheduler, one promise at a time."""

from __future__ import annotations

import pytest

from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request, RequestStatus
from engine.core.scheduler import Scheduler
from engine.messages import (
    EngineCoreOutput,
    EngineCoreRequest,
    FinishReason,
    ModelRunnerOutput,
    NewRequestData,
    SamplingParams,
    SchedulerOutput,
    SchedulerStats,
)
from tests.engine.core.scheduler_fakes import EOS, Client, WorkerView, expected_answer, make_request, run_to_end


def make_scheduler(*, blocks: int = 16, size: int = 2, budget: int = 64, seqs: int = 8, length: int = 100,
                   caching: bool = True) -> Scheduler:
    return Scheduler(SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seqs),
                     CacheConfig(enable_prefix_caching=caching), blocks, size, length)


def answer(scheduler: Scheduler, step: SchedulerOutput, *tokens: int) -> dict[int, list[EngineCoreOutput]]:
    """Every sampling request of the step gets the next of `tokens`, in order of schedule; 1 when they run out."""
    given = iter(tokens)
    sampled = {request.request_id: [next(given, 1)] if samples else []
               for request, _, _, samples in scheduler._in_flight.get(step.step, [])}
    return scheduler.update_from_output(step, ModelRunnerOutput(step.step, sampled))


def step(scheduler: Scheduler, *tokens: int) -> list[EngineCoreOutput]:
    outputs = answer(scheduler, scheduler.schedule(), *tokens)
    return [output for of_client in outputs.values() for output in of_client]


class TestOneRequest:
    def test_the_first_step_carries_the_prompt_and_the_next_ones_each_new_token(self):
        scheduler = make_scheduler()
        params = SamplingParams(max_tokens=4)
        scheduler.add_request(Request("a", [5, 6, 7], params, EOS))
        first = scheduler.schedule()
        assert first.new == [NewRequestData("a", [5, 6, 7], 3, params, [0, 1], 0)]
        assert first.num_scheduled_tokens == {"a": 3}
        answer(scheduler, first, 4)
        second = scheduler.schedule()
        assert [(d.new_token_ids, d.new_block_ids, d.num_computed_tokens) for d in second.cached] == [([4], [], 3)]
        answer(scheduler, second, 3)
        third = scheduler.schedule()
        assert [(d.new_token_ids, d.new_block_ids, d.num_computed_tokens) for d in third.cached] == [([3], [2], 4)]
        assert [first.step, second.step, third.step] == [0, 1, 2]

    def test_each_output_says_how_many_tokens_precede_it(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [5], max_tokens=3))
        told = [step(scheduler, token)[0] for token in (1, 2, 3)]
        assert [(o.new_token_ids, o.num_preceding, o.finish_reason) for o in told] == [
            ([1], 0, None), ([2], 1, None), ([3], 2, FinishReason.LENGTH)]

    def test_a_long_prompt_is_computed_in_chunks_and_sampled_after_the_last(self):
        scheduler = make_scheduler(budget=4)
        scheduler.add_request(make_request("a", list(range(1, 11))))
        first, *rest = [scheduler.schedule() for _ in range(3)]
        assert [s.num_scheduled_tokens for s in (first, *rest)] == [{"a": 4}, {"a": 4}, {"a": 2}]
        assert [(d.new_token_ids, d.num_computed_tokens) for s in rest for d in s.cached] == [([], 4), ([], 8)]
        assert [bool(answer(scheduler, s)) for s in (first, *rest)] == [False, False, True]

    def test_it_is_made_from_what_travels(self):
        request = Request.from_engine_core_request(
            EngineCoreRequest("a", [1, 2], SamplingParams(max_tokens=3), client_index=4, eos_token_id=9))
        assert (request.request_id, request.prompt_token_ids, request.max_tokens, request.client_index,
                request.eos_token_id, request.status) == ("a", [1, 2], 3, 4, 9, RequestStatus.WAITING)

    def test_outputs_are_sorted_by_client(self):
        scheduler = make_scheduler()
        for name, client in (("a", 0), ("b", 3), ("c", 0)):
            scheduler.add_request(make_request(name, [1, 2], client_index=client))
        outputs = answer(scheduler, scheduler.schedule())
        assert {client: [o.request_id for o in told] for client, told in outputs.items()} == {0: ["a", "c"], 3: ["b"]}


class TestEnds:
    @pytest.mark.parametrize("params, tokens, reason, stop", [
        ({"max_tokens": 9}, [1, EOS], FinishReason.STOP, None),
        ({"max_tokens": 2}, [1, 1], FinishReason.LENGTH, None),
        ({"max_tokens": 2}, [1, EOS], FinishReason.STOP, None),
        ({"max_tokens": 2, "ignore_eos": True}, [EOS, EOS], FinishReason.LENGTH, None),
        ({"max_tokens": 9, "stop_token_ids": (4, 5)}, [1, 5], FinishReason.STOP, 5),
        ({"max_tokens": 9, "min_tokens": 2}, [EOS, EOS, EOS], FinishReason.STOP, None),
        ({"max_tokens": 9, "min_tokens": 1, "stop_token_ids": (4,)}, [4, 4], FinishReason.STOP, 4),
        ({"max_tokens": 2, "min_tokens": 2}, [EOS, EOS], FinishReason.LENGTH, None),
    ])
    def test_a_request_ends_at(self, params, tokens, reason, stop):
        """...the end-of-sequence token, a stop token or max_tokens, min_tokens and ignore_eos being respected."""
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [5], **params))
        told = [step(scheduler, token)[0] for token in tokens]
        assert all(output.finish_reason is None for output in told[:-1])
        assert (told[-1].finish_reason, told[-1].stop_reason) == (reason, stop)
        assert not scheduler.has_unfinished_requests()

    def test_a_request_ends_at_the_models_length(self):
        scheduler = make_scheduler(length=5)
        scheduler.add_request(make_request("a", [5, 5, 5], max_tokens=9))
        assert [step(scheduler)[0].finish_reason for _ in range(2)] == [None, FinishReason.LENGTH]

    def test_workers_are_told_of_an_end_even_if_nothing_else_is_scheduled(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [5], max_tokens=1))
        step(scheduler)
        assert not scheduler.has_unfinished_requests()
        assert scheduler.has_finished_to_report()
        last = scheduler.schedule()
        assert (last.finished, last.num_scheduled_tokens) == (["a"], {})
        assert scheduler.update_from_output(last, ModelRunnerOutput(last.step, {})) == {}
        assert not scheduler.has_finished_to_report()
        assert scheduler.schedule().finished == []

    def test_blocks_are_free_as_soon_as_a_request_ends(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [5, 5, 5], max_tokens=1))
        step(scheduler)
        assert scheduler.stats() == SchedulerStats(0, 0, 16, 16)


class TestBadRequests:
    @pytest.mark.parametrize("prompt, why", [
        ([], "no tokens"),
        ([1] * 20, "max_model_len is 20"),
        ([1] * 19, "the whole KV cache holds 16"),
        ([1, -1], "token id outside"),
        ([1, 1 << 40], "token id outside"),
    ])
    def test_a_request_that_can_never_be_served_fails_alone_and_says_why(self, prompt, why):
        scheduler = make_scheduler(blocks=8, length=20)
        scheduler.add_request(make_request("good", [1, 2], max_tokens=1))
        assert scheduler.add_request(make_request("bad", prompt))
        told = {output.request_id: output for output in step(scheduler)}
        assert told["good"].finish_reason is FinishReason.LENGTH
        assert told["bad"].finish_reason is FinishReason.ERROR
        assert why in told["bad"].stop_reason
        assert scheduler.schedule().finished == ["good"], "workers never knew the bad one"

    def test_a_failure_is_told_even_if_no_other_request_lives(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("bad", []))
        assert scheduler.has_unfinished_requests() and scheduler.has_finished_to_report()
        assert [output.finish_reason for output in step(scheduler)] == [FinishReason.ERROR]
        assert not scheduler.has_unfinished_requests() and not scheduler.has_finished_to_report()

    def test_a_token_outside_the_vocabulary_fails_its_request(self):
        scheduler = Scheduler(SchedulerConfig(), CacheConfig(), 8, 2, 20, vocab_size=7)
        scheduler.add_request(make_request("a", [6, 7]))
        assert "outside 0..6" in step(scheduler)[0].stop_reason

    def test_a_prompt_that_fills_the_cache_exactly_is_served(self):
        scheduler = make_scheduler(blocks=2)
        scheduler.add_request(make_request("a", [1, 2, 3, 4], max_tokens=1))
        assert step(scheduler)[0].finish_reason is FinishReason.LENGTH

    def test_a_request_that_grows_beyond_the_cache_fails_and_the_others_go_on(self):
        scheduler = make_scheduler(blocks=3)
        view, client = WorkerView(3, 2, 64, 8), Client()
        scheduler.add_request(make_request("big", [1, 2, 3, 4], max_tokens=50, ignore_eos=True))
        scheduler.add_request(make_request("small", [5], max_tokens=3, ignore_eos=True))
        run_to_end(scheduler, view, client)
        assert client.ends["big"].finish_reason is FinishReason.ERROR
        assert "7 tokens do not fit into the whole KV cache, which holds 6" in client.ends["big"].stop_reason
        assert len(client.tokens["big"]) == 3
        assert client.ends["small"].finish_reason is FinishReason.LENGTH
        assert view.requests == {}

    def test_a_request_that_outgrew_the_cache_before_it_was_preempted_fails_instead_of_waiting_for_ever(self):
        scheduler = make_scheduler(blocks=2)
        scheduler.add_request(make_request("a", [1, 2, 3, 4], max_tokens=9, ignore_eos=True))
        step(scheduler)
        scheduler.reset_prefix_cache(preempt_running=True)
        assert "5 tokens do not fit" in step(scheduler)[0].stop_reason
        assert scheduler.schedule().finished == [], "workers had forgotten it when it was preempted"

    def test_a_doubled_add_of_a_live_id_is_ignored(self):
        scheduler = make_scheduler()
        assert scheduler.add_request(make_request("a", [1, 2], max_tokens=1))
        assert not scheduler.add_request(make_request("a", [3, 4, 5], max_tokens=1))
        assert scheduler.schedule().num_scheduled_tokens == {"a": 2}

    @pytest.mark.parametrize("blocks, length", [(0, 10), (4, 1), (4, 0), (4, None)])
    def test_a_scheduler_that_could_never_schedule_is_refused(self, blocks, length):
        with pytest.raises(ValueError):
            Scheduler(SchedulerConfig(), CacheConfig(), blocks, 16, length)

    @pytest.mark.parametrize("values", [{"max_num_batched_tokens": 0}, {"max_num_seqs": 0}, {"max_model_len": 1}])
    def test_a_configuration_by_which_nothing_could_be_scheduled_is_refused(self, values):
        with pytest.raises(ValueError, match="room"):
            SchedulerConfig(**values)

    def test_a_block_of_no_token_is_refused(self):
        with pytest.raises(ValueError, match="at least one token"):
            CacheConfig(block_size=0)


class TestOrder:
    def test_first_come_first_served_within_the_budget(self):
        scheduler = make_scheduler(budget=5)
        for name in "abc":
            scheduler.add_request(make_request(name, [1, 2, 3]))
        assert scheduler.schedule().num_scheduled_tokens == {"a": 3, "b": 2}

    def test_nobody_overtakes_a_request_that_does_not_fit_yet(self):
        scheduler = make_scheduler(blocks=4)
        for name, length in (("a", 4), ("big", 6), ("small", 1)):
            scheduler.add_request(make_request(name, [1] * length))
        assert list(scheduler.schedule().num_scheduled_tokens) == ["a"]

    def test_no_more_than_max_num_seqs_run(self):
        scheduler = make_scheduler(seqs=2)
        for name in "abc":
            scheduler.add_request(make_request(name, [1]))
        scheduler.schedule()
        assert scheduler.get_request_counts() == (2, 1)

    def test_a_running_request_left_out_for_the_budget_later_sends_all_tokens_workers_lack(self):
        scheduler = make_scheduler(budget=1)
        scheduler.add_request(make_request("a", [1], max_tokens=3))
        scheduler.add_request(make_request("b", [2], max_tokens=3))
        run_to_end(scheduler, WorkerView(16, 2, 1, 8), client := Client())
        assert client.ends.keys() == {"a", "b"}

    def test_one_token_for_eight_requests_on_the_smallest_cache_that_serves_one_still_ends(self):
        scheduler, view, client = make_scheduler(blocks=4, budget=1), WorkerView(4, 2, 1, 8), Client()
        for number in range(8):
            scheduler.add_request(make_request(f"r{number}", [1 + number % 6], max_tokens=7, ignore_eos=True))
        run_to_end(scheduler, view, client)
        assert len(client.ends) == 8
        assert all(end.finish_reason is FinishReason.LENGTH for end in client.ends.values())


class TestPrefixCache:
    def test_a_hit_is_not_computed_again_and_is_told(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [1, 2, 3, 4, 5], max_tokens=1))
        assert step(scheduler)[0].num_cached_tokens == 0
        scheduler.add_request(make_request("b", [1, 2, 3, 4, 5], max_tokens=1))
        second = scheduler.schedule()
        assert (second.num_scheduled_tokens, second.new[0].num_computed_tokens) == ({"b": 1}, 4)
        assert second.new[0].block_ids[:2] == [0, 1]
        assert answer(scheduler, second)[0][0].num_cached_tokens == 4

    def test_what_a_preempted_request_finds_of_its_own_does_not_count_as_cached(self):
        """The caller learns what the cache saved it at the start, not what a preemption cost."""
        scheduler, view, client = make_scheduler(blocks=5), WorkerView(5, 2, 64, 8), Client()
        requests = [make_request(name, [token] * 3, max_tokens=5, ignore_eos=True)
                    for name, token in (("a", 1), ("b", 2))]
        for request in requests:
            scheduler.add_request(request)
        run_to_end(scheduler, view, client)
        assert requests[1].num_preemptions > 0
        assert client.ends["b"].num_cached_tokens == 0

    def test_requests_of_the_same_step_do_not_share_what_is_not_computed_yet(self):
        scheduler, view, client = make_scheduler(), WorkerView(16, 2, 64, 8), Client()
        for name in "ab":
            scheduler.add_request(make_request(name, [1, 2, 3, 4, 5], max_tokens=6, ignore_eos=True))
        run_to_end(scheduler, view, client)
        assert client.tokens["a"] == client.tokens["b"]
        assert client.ends["b"].num_cached_tokens == 0

    def test_a_reset_while_requests_run_is_refused_or_preempts_them(self):
        scheduler, view, client = make_scheduler(), WorkerView(16, 2, 64, 8), Client()
        requests = [make_request(name, [1, 2, 3], max_tokens=6, ignore_eos=True) for name in "ab"]
        for request in requests:
            scheduler.add_request(request)
        first = scheduler.schedule()
        client.take(scheduler.update_from_output(first, view.execute(first)))
        assert scheduler.reset_prefix_cache() is False
        assert scheduler.reset_prefix_cache(preempt_running=True) is True
        assert scheduler.cached_hashes() == []
        assert list(scheduler.waiting) == ["a", "b"]
        run_to_end(scheduler, view, client)
        for request in requests:
            assert client.tokens[request.request_id] == expected_answer([1, 2, 3], request.sampling_params, 100, 32)[0]


class TestPreemption:
    def prepare(self) -> tuple[Scheduler, SchedulerOutput]:
        """Two requests of two blocks each fill four blocks; the older one needs a fifth."""
        scheduler = make_scheduler(blocks=4, size=2, caching=False)
        for name in "ab":
            scheduler.add_request(make_request(name, [1, 2, 3, 4], max_tokens=9, ignore_eos=True))
        step(scheduler)
        return scheduler, scheduler.schedule()

    def test_the_youngest_gives_way_to_the_oldest(self):
        scheduler, second = self.prepare()
        assert (second.preempted, second.num_scheduled_tokens) == (["b"], {"a": 1})
        assert scheduler.get_request_counts() == (1, 1)
        assert scheduler.check_integrity() == []

    def test_nobody_is_admitted_in_a_step_that_preempts(self):
        """Else the preempted one would take its place again at once and lose it with the next step."""
        scheduler = make_scheduler(blocks=4, budget=3, caching=False)
        for name in "ab":
            scheduler.add_request(make_request(name, [1, 2, 3, 4], max_tokens=9, ignore_eos=True))
        step(scheduler)
        step(scheduler)
        third = scheduler.schedule()
        assert (third.preempted, third.new, third.num_scheduled_tokens) == (["b"], [], {"a": 1})

    def test_it_comes_again_as_new_with_all_its_tokens_before_anybody_who_waits(self):
        scheduler, second = self.prepare()
        answer(scheduler, second)
        scheduler.add_request(make_request("c", [5]))
        assert scheduler.schedule().preempted == [], "a preemption is told once"
        scheduler.abort_requests(["a"])
        third = scheduler.schedule()
        assert [(data.request_id, data.token_ids) for data in third.new] == [("b", [1, 2, 3, 4, 1]), ("c", [5])]
        assert third.new[0].num_prompt_tokens == 4

    def test_its_stream_goes_on_without_a_hole_or_a_double(self):
        scheduler, view, client = make_scheduler(blocks=5), WorkerView(5, 2, 64, 8), Client()
        prompts = {"a": [1, 2, 3], "b": [4, 5, 6], "c": [1, 2, 4]}
        for name, prompt in prompts.items():
            scheduler.add_request(make_request(name, prompt, max_tokens=6, ignore_eos=True))
        requests = dict(scheduler.requests)
        run_to_end(scheduler, view, client)
        assert sum(request.num_preemptions for request in requests.values()) > 0
        for name, prompt in prompts.items():
            assert client.tokens[name] == expected_answer(prompt, requests[name].sampling_params, 100, 10)[0]

    def test_what_it_had_in_flight_is_ignored(self):
        scheduler = make_scheduler()
        request = make_request("a", [1, 2, 3], max_tokens=5)
        scheduler.add_request(request)
        first = scheduler.schedule()
        scheduler.reset_prefix_cache(preempt_running=True)
        again = scheduler.schedule()
        assert (again.preempted, [data.request_id for data in again.new]) == (["a"], ["a"])
        assert answer(scheduler, first) == {}
        assert request.output_token_ids == []
        assert answer(scheduler, again, 4)[0][0].new_token_ids == [4]


class TestAborts:
    def test_a_waiting_request_that_never_had_blocks_is_aborted_and_workers_never_hear_of_it(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [1]))
        assert [r.request_id for r in scheduler.abort_requests(["a"])] == ["a"]
        assert not scheduler.has_unfinished_requests() and not scheduler.has_finished_to_report()
        assert scheduler.check_integrity() == []

    def test_a_running_request_is_aborted_its_blocks_are_free_at_once_and_workers_are_told_once(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [1, 2, 3]))
        step(scheduler)
        aborted = scheduler.abort_requests(["a", "a"])
        assert [(r.request_id, r.status) for r in aborted] == [("a", RequestStatus.FINISHED_ABORTED)]
        assert scheduler.cache.num_used == 0
        assert scheduler.schedule().finished == ["a"]
        assert scheduler.schedule() is None

    def test_what_is_in_flight_for_an_aborted_request_is_ignored_and_not_cached(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [1, 2, 3]))
        scheduler.add_request(make_request("b", [4, 5, 6]))
        first = scheduler.schedule()
        scheduler.abort_requests(["a"])
        assert [output.request_id for output in answer(scheduler, first)[0]] == ["b"]
        assert scheduler.cache.num_cached == 1
        assert scheduler.check_integrity() == []

    def test_a_new_request_of_the_same_id_is_not_fed_what_the_aborted_one_had_in_flight(self):
        scheduler, view, client = make_scheduler(), WorkerView(16, 2, 64, 8), Client()
        scheduler.add_request(make_request("a", [1, 2, 3]))
        first = scheduler.schedule()
        result = view.execute(first)
        scheduler.abort_requests(["a"])
        second = make_request("a", [6, 5], max_tokens=3, ignore_eos=True)
        scheduler.add_request(second)
        assert scheduler.update_from_output(first, result) == {}
        run_to_end(scheduler, view, client)
        assert client.tokens["a"] == expected_answer([6, 5], second.sampling_params, 100, 32)[0]

    def test_a_preempted_request_is_aborted_and_not_told_to_workers_again(self):
        scheduler, second = TestPreemption().prepare()
        assert second.preempted == ["b"]
        assert [r.request_id for r in scheduler.abort_requests(["b"])] == ["b"]
        answer(scheduler, second)
        third = scheduler.schedule()
        assert (third.finished, third.preempted) == ([], [])

    def test_a_request_that_failed_but_was_not_told_yet_ends_by_its_abort(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("bad", []))
        aborted = scheduler.abort_requests(["bad"])
        assert [(r.request_id, r.finish_reason) for r in aborted] == [("bad", FinishReason.ABORT)]
        assert step(scheduler) == []

    def test_an_unknown_or_ended_id_is_ignored(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [1], max_tokens=1))
        step(scheduler)
        assert scheduler.abort_requests(["a", "nobody"]) == []

    def test_ten_thousand_waiting_requests_are_aborted_one_by_one_and_all_are_gone(self):
        """A burst of aborts against a long queue must not take a scan of the queue each."""
        scheduler = make_scheduler()
        ids = [f"r{number}" for number in range(10_000)]
        for request_id in ids:
            scheduler.add_request(make_request(request_id, [1]))
        assert sum(len(scheduler.abort_requests([request_id])) for request_id in reversed(ids)) == 10_000
        assert scheduler.get_request_counts() == (0, 0)


class TestAnswersOutOfStep:
    def test_an_answer_to_another_step_is_an_error(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [1]))
        first = scheduler.schedule()
        with pytest.raises(ValueError, match="step 0 was answered with the results of step 5"):
            scheduler.update_from_output(first, ModelRunnerOutput(5, {"a": [1]}))

    def test_an_answer_that_comes_twice_is_an_error(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [1]))
        first = scheduler.schedule()
        answer(scheduler, first)
        with pytest.raises(ValueError, match="step 0 is not in flight"):
            scheduler.update_from_output(first, ModelRunnerOutput(0, {"a": [1]}))

    @pytest.mark.parametrize("sampled", [{}, {"a": []}, {"a": [1, 2]}])
    def test_an_answer_without_exactly_one_token_is_an_error(self, sampled):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [1]))
        with pytest.raises(ValueError, match="should have sampled one token for 'a'"):
            scheduler.update_from_output(scheduler.schedule(), ModelRunnerOutput(0, sampled))


class TestIntegrity:
    """The check must find what it is for."""

    def test_a_request_lost_from_its_queue_is_found(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [1, 2]))
        scheduler.waiting.clear()
        assert any("are not those in the queues" in text for text in scheduler.check_integrity())

    def test_blocks_that_no_running_request_holds_are_found(self):
        scheduler = make_scheduler()
        request = make_request("a", [1, 2])
        scheduler.cache.allocate_slots(request, 2)
        assert any("1 requests hold blocks, 0 of them are running" in text for text in scheduler.check_integrity())

    def test_a_waiting_request_with_blocks_is_found(self):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [1, 2]))
        scheduler.cache.allocate_slots(scheduler.requests["a"], 2)
        assert any("waits, but has" in text for text in scheduler.check_integrity())
