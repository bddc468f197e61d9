"""The whole engine, real processes: greedy tokens are those of transformers whatever the engine is made to do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from engine.core.scheduler import Scheduler
from engine.frontend.llm import LLM
from engine.ipc import queue
from engine.ipc.framing import is_overflow
from engine.messages import SamplingParams
from scenarios.lab.settings import MODEL
from scenarios.workloads.workload import recorded
from tests.engine.engine_lab import SIXTY_FOUR, config, wrong_answers


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_64_prompts_at_once_and_again_from_cached_prefixes(tp: int) -> None:
    """The first pass computes, the second finds the prompts in the cache; both answer as the reference."""
    with LLM(config=config(tp, cache={"num_gpu_blocks": 2048})) as llm:
        assert wrong_answers(llm) == []
        outputs = llm.generate([r.prompt_token_ids for r in SIXTY_FOUR], [r.params for r in SIXTY_FOUR])
        assert [o.token_ids for o in outputs] == [r.reference_token_ids for r in SIXTY_FOUR]
        cached = [o.num_cached_tokens for o in outputs]
        assert all(n >= len(r.prompt_token_ids) - 16 for n, r in zip(cached, SIXTY_FOUR, strict=True))


def told(tmp_path: Path) -> Counter:
    """What the forked processes wrote down."""
    return Counter((tmp_path / "told").read_text().split())


def tell(tmp_path: Path, word: str) -> None:
    with open(tmp_path / "told", "a") as file:
        file.write(word + "\n")


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """The forked core writes down what befell requests in its steps: "preempted", "in-pieces"."""
    schedule = Scheduler.schedule

    def watched(self):
        scheduled = schedule(self)
        if scheduled is None:
            return None
        if self._in_flight.keys() - {scheduled.step}:
            tell(tmp_path, "in-flight")
        if any(request.num_output_placeholders > 1 for request in self.running):
            tell(tmp_path, "promised-twice")
        for _ in scheduled.preempted:
            tell(tmp_path, "preempted")
        for new in scheduled.new:
            if scheduled.num_scheduled_tokens[new.request_id] < len(new.token_ids) - new.num_computed_tokens:
                tell(tmp_path, "in-pieces")
        return scheduled

    monkeypatch.setattr(Scheduler, "schedule", watched)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_cache_for_two_requests_makes_many_wait_and_be_preempted(tp: int, steps, tmp_path) -> None:
    with LLM(config=config(tp, cache={"num_gpu_blocks": 40, "enable_prefix_caching": False},
                           scheduler={"max_num_seqs": 8})) as llm:
        assert wrong_answers(llm) == []
        stats = llm.call_utility("get_stats")
        assert stats[2:] == [40, 40], "all blocks are free again"
    assert told(tmp_path)["preempted"] > 0


@pytest.mark.parametrize("tp", [1, 2])
def test_prompts_in_pieces_of_at_most_24_tokens(tp: int, steps, tmp_path) -> None:
    with LLM(config=config(tp, scheduler={"max_num_batched_tokens": 24, "max_num_seqs": 8})) as llm:
        assert wrong_answers(llm) == []
    assert told(tmp_path)["in-pieces"] > 0


@pytest.mark.parametrize(("tp", "depth", "promises"), [
    (1, 2, False), (1, 2, True), (2, 2, False), (2, 2, True), (2, 3, True), (4, 2, True)])
def test_several_steps_in_flight_in_a_cache_that_is_too_small(tp: int, depth: int, promises: bool, steps,
                                                              tmp_path) -> None:
    """Prompts in pieces, preemptions; with and without promised tokens."""
    with LLM(config=config(tp, max_concurrent_batches=depth, cache={"num_gpu_blocks": 40}, scheduler={
            "max_num_batched_tokens": 96, "max_num_seqs": 8, "async_scheduling": promises})) as llm:
        assert wrong_answers(llm) == []
        assert llm.call_utility("get_stats")[2:] == [40, 40], "all blocks are free again"
    seen = told(tmp_path)
    assert min(seen["preempted"], seen["in-flight"], seen["in-pieces"]) > 0
    assert (seen["promised-twice"] > 0) == promises, "one more than the step that samples it"


def test_the_tcp_transport_carries_the_same_tokens() -> None:
    with LLM(config=config(2, sockets={"transport": "tcp"})) as llm:
        assert wrong_answers(llm, SIXTY_FOUR[:16]) == []


def test_steps_that_are_larger_than_a_chunk_take_the_other_way(monkeypatch, tmp_path) -> None:
    """Chunks of 512 bytes: a step with new prompts overflows, a small one does not; so do answers of some size."""
    def watched(parts, max_chunk_bytes):
        overflows = is_overflow(parts, max_chunk_bytes)
        tell(tmp_path, f"{max_chunk_bytes}-{overflows}")
        return overflows

    monkeypatch.setattr(queue, "is_overflow", watched)
    ring = {"max_chunk_bytes": 512, "response_chunk_bytes": 64}
    with LLM(config=config(2, ring=ring)) as llm:
        assert wrong_answers(llm, SIXTY_FOUR[:16]) == []
    assert {"512-True", "512-False", "64-True", "64-False"} <= told(tmp_path).keys()


@pytest.mark.slow
def test_a_spawned_engine_answers_as_a_forked_one() -> None:
    with LLM(config=config(2, start_method="spawn")) as llm:
        assert wrong_answers(llm, SIXTY_FOUR[:8]) == []


def test_seeded_samples_are_the_same_in_every_engine_and_in_any_company() -> None:
    """The seed belongs to the request: neither the engine's life nor the batch around it matters."""
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=24, ignore_eos=True) for seed in range(6)]
    prompts = [r.prompt_token_ids for r in SIXTY_FOUR[:6]]
    with LLM(config=config()) as llm:
        together = [o.token_ids for o in llm.generate(prompts, params)]
    with LLM(config=config(seed=5)) as llm:
        alone = [llm.generate([prompt], [asked])[0].token_ids for prompt, asked in zip(prompts, params, strict=True)]
    assert together == alone
    with LLM(config=config()) as llm:
        others = llm.generate([prompts[0]] * 6, params)
    assert len({tuple(o.token_ids) for o in others}) > 1, "different seeds choose differently"


# -- where an answer ends, with the real tokenizer


@pytest.fixture(scope="module")
def speaking():
    with LLM(config=config(skip_tokenizer_init=False)) as llm:
        yield llm


def greedy(llm: LLM, **asked) -> object:
    return llm.generate("the ring wakes", SamplingParams(**{"max_tokens": 32, "ignore_eos": True, **asked}))[0]


def test_text_goes_in_and_comes_out(speaking: LLM) -> None:
    output = greedy(speaking)
    assert output.prompt == "the ring wakes"
    assert output.finish_reason == "length" and len(output.token_ids) == 32
    tokenizer = speaking._service.inputs.tokenizer
    whole = tokenizer.decode(output.prompt_token_ids + output.token_ids, skip_special_tokens=True)
    assert whole == tokenizer.decode(output.prompt_token_ids, skip_special_tokens=True) + output.text


def test_a_stop_string_ends_the_text_before_it_and_frees_the_request(speaking: LLM) -> None:
    whole = greedy(speaking).text
    word = whole.split()[3]
    output = greedy(speaking, stop=(word,))
    assert output.finish_reason == "stop" and output.stop_reason == word
    assert output.text == whole[:whole.index(word)]
    assert len(output.token_ids) < 32
    assert len(speaking.client.session) == 0
    speaking.call_utility("ping")  # the abort that frees it in the core travels before this
    assert speaking.call_utility("get_stats")[:2] == [0, 0]


def test_a_stop_token_ends_the_answer_and_names_itself(speaking: LLM) -> None:
    tokens = greedy(speaking).token_ids
    stop = tokens[5]
    output = greedy(speaking, stop_token_ids=(stop,))
    assert output.token_ids == tokens[:tokens.index(stop) + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)


def test_min_tokens_come_before_any_stop(speaking: LLM) -> None:
    stop = greedy(speaking).token_ids[2]
    output = greedy(speaking, stop_token_ids=(stop,), min_tokens=12)
    assert len(output.token_ids) >= 12


def test_the_end_of_sequence_token_ends_unless_it_is_ignored() -> None:
    """Among the recorded answers there are some that end by themselves."""

    requests = [r for name in ("eight-mixed", "sixty-four") for r in recorded(name).requests if not r.params.ignore_eos]
    assert requests, f"the recordings in {MODEL.parent} hold an answer that ends by itself"
    with LLM(config=config()) as llm:
        for request in requests:
            ended = llm.generate([request.prompt_token_ids], [request.params])[0]
            assert ended.token_ids == request.reference_token_ids
            on = SamplingParams(max_tokens=request.params.max_tokens, ignore_eos=True)
            went_on = llm.generate([request.prompt_token_ids], [on])[0]
            assert len(went_on.token_ids) == on.max_tokens
            if len(ended.token_ids) < request.params.max_tokens:
                assert ended.finish_reason == "stop"
