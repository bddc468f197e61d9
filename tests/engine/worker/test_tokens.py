"""Greedy tokens are those of transformers, however the work is cut into steps, blocks and ranks."""

from __future__ import annotations

import pytest

from engine.messages import SamplingParams
from tests.engine.worker.model_driver import (
    BLOCK_SIZE,
    Blocks,
    Rank0,
    Sequence_,
    blocks_for,
    both_phases,
    play,
    ready_worker,
    recorded,
    sequences_of,
    with_ranks,
)

SIXTY_FOUR = recorded("sixty-four")


@pytest.fixture(scope="module")
def worker():
    worker = ready_worker()
    yield worker
    worker.shutdown()


def assert_equal(sequences: list[Sequence_], requests: list[dict]) -> None:
    wrong = [s.request_id for s, r in zip(sequences, requests, strict=True) if s.generated != r["reference_token_ids"]]
    assert not wrong, f"{len(wrong)} of {len(requests)} differ: {wrong}"


@pytest.mark.parametrize("play_as", [
    pytest.param({}, id="whole prompts, 16 together"),
    pytest.param({"together": 1}, id="one by one"),
    pytest.param({"together": 64}, id="all together"),
    pytest.param({"chunk": 13}, id="prompts in pieces of 13"),
    pytest.param({"chunk": 1, "together": 64}, id="prompts token by token"),
    pytest.param({"preempt_every": 3, "together": 8}, id="preempted again and again"),
])
def test_64_prompts_equal_transformers(worker, play_as) -> None:
    sequences = sequences_of(SIXTY_FOUR)
    play(both_phases(worker), sequences, **play_as)
    assert_equal(sequences, SIXTY_FOUR)
    assert not worker.runner.requests


@pytest.mark.parametrize("name", ["eight-mixed", "eight-even", "single", "pair", "long"])
def test_recorded_workloads_equal_transformers(worker, name: str) -> None:
    requests = recorded(name)
    sequences = sequences_of(requests)
    play(both_phases(worker), sequences, chunk=64)
    assert_equal(sequences, requests)


def test_a_shared_prefix_is_read_from_blocks_that_another_request_wrote(worker) -> None:
    """The second request computes nothing of the first 64 tokens; with its own blocks there it goes wrong."""
    first, second = recorded("eight-mixed")[2:4]
    shared = 64 // BLOCK_SIZE
    assert first["prompt_token_ids"][:64] == second["prompt_token_ids"][:64]
    blocks = Blocks()
    one, two = sequences_of([first, second])
    one.block_ids = blocks.take(blocks_for(len(one.prompt)))
    play(both_phases(worker), [one], blocks=blocks)

    def reading(prefix: list[int]) -> list[int]:
        reader = Sequence_("r-reader", two.prompt, two.params)
        reader.block_ids = [*prefix, *blocks.take(blocks_for(len(reader.prompt)) - shared)]
        reader.computed = 64
        play(both_phases(worker), [reader], blocks=blocks)
        return reader.generated

    assert reading(one.block_ids[:shared]) == second["reference_token_ids"]
    assert reading(blocks.take(shared)) != second["reference_token_ids"], "the cache is not read"


def test_the_table_of_blocks_decides_what_is_read(worker) -> None:
    """With the block of another request in its table most requests go wrong: the model reads far behind."""
    requests = [request for request in SIXTY_FOUR if 50 <= len(request["prompt_token_ids"]) < 100]
    right, wrong = sequences_of(requests), sequences_of(requests)
    blocks = Blocks()
    play(both_phases(worker), right, blocks=blocks)
    foreign = sequences_of(recorded("pair"))[0]
    play(both_phases(worker), [foreign], blocks=blocks)

    def with_a_foreign_block(output):
        answer = both_phases(worker)(output)
        for new in output.new:
            worker.runner.requests[new.request_id].block_ids[1] = foreign.block_ids[0]
        return answer

    play(with_a_foreign_block, wrong, blocks=blocks)
    assert_equal(right, requests)
    changed = [s.request_id for s, r in zip(wrong, requests, strict=True) if s.generated != r["reference_token_ids"]]
    assert len(changed) > len(requests) / 2, f"only {len(changed)} of {len(requests)} answers changed"


@pytest.mark.parametrize("world_size", [2, 4])
def test_64_prompts_equal_transformers_on_several_ranks(world_size: int) -> None:
    """Real processes over gloo; whole prompts, then in pieces with preemptions."""

    def use(rank0: Rank0) -> None:
        for play_as in ({"together": 32}, {"together": 8, "chunk": 48, "preempt_every": 5}):
            requests = SIXTY_FOUR if "chunk" not in play_as else SIXTY_FOUR[:16]
            sequences = sequences_of(requests)
            play(rank0.execute, sequences, **play_as)
            assert_equal(sequences, requests)

    with_ranks(world_size, use)


def test_seeded_draws_are_the_same_alone_in_a_batch_in_pieces_and_after_preemption(worker) -> None:
    def drawn(**play_as) -> list[list[int]]:
        requests = SIXTY_FOUR[:8]
        sequences = sequences_of(requests, temperature=1.5, top_p=0.95)
        for number, sequence in enumerate(sequences):
            sequence.params = SamplingParams(max_tokens=12, temperature=1.5, top_p=0.95, seed=number, ignore_eos=True)
        play(both_phases(worker), sequences, **play_as)
        return [sequence.generated for sequence in sequences]

    alone = drawn(together=1)
    assert drawn(together=8) == alone
    assert drawn(together=8, chunk=9) == alone
    assert drawn(together=4, preempt_every=2) == alone
    assert any(tokens != request["reference_token_ids"][:12]
               for tokens, request in zip(alone, SIXTY_FOUR, strict=False)), "drawn, not greedy"


def test_min_tokens_keeps_the_end_away(worker) -> None:
    """A request that would end by itself goes on to its least number of tokens."""
    request = recorded("eight-mixed")[5]
    reference = request["reference_token_ids"]
    assert reference[-1] == 2, "this recording ends with end-of-sequence"
    sequence = Sequence_("r", request["prompt_token_ids"], SamplingParams(max_tokens=24, min_tokens=len(reference)))
    play(both_phases(worker), [sequence])
    assert sequence.generated[: len(reference) - 1] == reference[:-1]
    assert sequence.generated[len(reference) - 1] != 2
