"""What stands around a scheduler in its tests: a model, a worker that checks every slot, a mirror of the cache.

`WorkerView` replays steps as a worker would. It keeps tokens and block tables per request and, for every slot
of the cache, which tokens its content was computed from. Before attention would read a slot it asserts that the
content belongs to exactly the request's own tokens: a wrongly shared, early reused or never computed block fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.block_pool import CacheEvent
from engine.core.request import Request, hash_block
from engine.core.scheduler import Scheduler
from engine.messages import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineCoreOutput,
    FinishReason,
    ModelRunnerOutput,
    SamplingParams,
    SchedulerOutput,
)

VOCAB = 7
EOS = 0


def next_token(tokens: Sequence[int]) -> int:
    """The fake model: a function of all tokens so far and of nothing else."""
    state = 1
    for token in tokens:
        state = (state * 1_000_003 + token + 1) % 2_147_483_647
    return state // 1000 % VOCAB


def expected_answer(prompt: Sequence[int], params: SamplingParams, max_model_len: int, capacity_tokens: int
                    ) -> tuple[list[int], FinishReason, int | None]:
    """What a request alone must be told: (tokens, finish reason, stop token). Says nothing of texts of errors."""
    if not prompt or len(prompt) >= max_model_len or len(prompt) > capacity_tokens:
        return [], FinishReason.ERROR, None
    tokens: list[int] = []
    while True:
        if len(prompt) + len(tokens) > capacity_tokens:
            return tokens, FinishReason.ERROR, None
        tokens.append(next_token([*prompt, *tokens]))
        if len(tokens) > params.min_tokens:
            if tokens[-1] == EOS and not params.ignore_eos:
                return tokens, FinishReason.STOP, None
            if tokens[-1] in params.stop_token_ids:
                return tokens, FinishReason.STOP, tokens[-1]
        if len(tokens) == params.max_tokens or len(prompt) + len(tokens) == max_model_len:
            return tokens, FinishReason.LENGTH, None


class Mirror:
    """A subscriber's copy of the set of findable hashes."""

    def __init__(self) -> None:
        self.hashes: set[int] = set()

    def apply(self, events: Sequence[CacheEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                parent = event.parent_block_hash
                assert parent is None or parent in self.hashes, f"the parent of {event} is not in the mirror"
                assert len(event.token_ids) == len(event.block_hashes) * event.block_size
                for index, block_hash in enumerate(event.block_hashes):
                    assert block_hash not in self.hashes, f"{block_hash} is stored twice"
                    tokens = event.token_ids[index * event.block_size:(index + 1) * event.block_size]
                    assert block_hash == hash_block(parent, tokens), f"{event} does not hash to what it says"
                    self.hashes.add(block_hash)
                    parent = block_hash
            elif isinstance(event, BlockRemoved):
                for block_hash in event.block_hashes:
                    self.hashes.remove(block_hash)
            else:
                assert isinstance(event, AllBlocksCleared)
                self.hashes.clear()


class _Known:
    def __init__(self, tokens: list[int], blocks: list[int], num_computed: int) -> None:
        self.tokens = tokens
        self.blocks = blocks
        self.num_computed = num_computed


class WorkerView:
    """Executes steps on a cache whose slots remember the tokens that their content was computed from."""

    def __init__(self, num_blocks: int, block_size: int, budget: int, max_num_seqs: int,
                 keeps_samples: bool = False) -> None:
        self.keeps_samples = keeps_samples
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.budget = budget
        self.max_num_seqs = max_num_seqs
        self.requests: dict[str, _Known] = {}
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self._learn(step)
        assert len(self.requests) <= self.max_num_seqs
        assert step.total_num_scheduled_tokens <= self.budget, "more tokens than the budget"
        for request_id, count in step.num_scheduled_tokens.items():
            self._write(request_id, count)
        return ModelRunnerOutput(step.step, {
            request_id: self._read_and_sample(request_id) for request_id in step.num_scheduled_tokens})

    def _learn(self, step: SchedulerOutput) -> None:
        for request_id in [*step.finished, *step.preempted]:
            assert request_id in self.requests, f"told to forget {request_id!r}, which is not known here"
            del self.requests[request_id]
        for data in step.new:
            assert data.request_id not in self.requests, f"{data.request_id!r} is new, but known here"
            self.requests[data.request_id] = _Known(
                list(data.token_ids), list(data.block_ids), data.num_computed_tokens)
        for data in step.cached:
            known = self.requests[data.request_id]
            known.tokens += data.new_token_ids
            known.blocks += data.new_block_ids
            assert known.num_computed == data.num_computed_tokens, "a gap or an overlap between two steps"
        told = [data.request_id for data in (*step.new, *step.cached)]
        assert sorted(told) == sorted(step.num_scheduled_tokens), "every scheduled request is told once"

    def _write(self, request_id: str, count: int) -> None:
        known = self.requests[request_id]
        assert count >= 1
        assert known.num_computed + count <= len(known.tokens), "scheduled beyond the known tokens"
        assert len(set(known.blocks)) == len(known.blocks)
        assert all(0 <= block < self.num_blocks for block in known.blocks)
        assert len(known.blocks) == -(-(known.num_computed + count) // self.block_size), "too few or too many blocks"
        for position in range(known.num_computed, known.num_computed + count):
            block = known.blocks[position // self.block_size]
            others = [r for r, other in self.requests.items() if r != request_id and block in other.blocks]
            assert not others, f"{request_id!r} writes into block {block}, which {others} read"
            self.slots[block, position % self.block_size] = tuple(known.tokens[:position + 1])
        known.num_computed += count

    def _read_and_sample(self, request_id: str) -> list[int]:
        known = self.requests[request_id]
        for position in range(known.num_computed):
            slot = known.blocks[position // self.block_size], position % self.block_size
            assert self.slots.get(slot) == tuple(known.tokens[:position + 1]), (
                f"{request_id!r} reads slot {slot} for position {position}: "
                f"found {self.slots.get(slot)}, wanted {tuple(known.tokens[:position + 1])}")
        if known.num_computed < len(known.tokens):
            return []
        token = next_token(known.tokens)
        if self.keeps_samples:
            known.tokens.append(token)
        return [token]


class Client:
    """Collects what the requests' callers are told, and refuses holes, doubles and anything after an end."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, EngineCoreOutput] = {}
        self.aborted: set[str] = set()

    def take(self, outputs: dict[int, list[EngineCoreOutput]]) -> None:
        for output in (output for of_client in outputs.values() for output in of_client):
            request_id = output.request_id
            assert request_id not in self.ends, f"{request_id!r} was told something after its end: {output}"
            assert request_id not in self.aborted, f"{request_id!r} was told something after its abort: {output}"
            tokens = self.tokens.setdefault(request_id, [])
            assert output.num_preceding == len(tokens), f"a hole or a double before {output}"
            assert output.new_token_ids or output.finish_reason is not None
            tokens += output.new_token_ids
            if output.finish_reason is not None:
                self.ends[request_id] = output


def make_request(request_id: str, prompt: Sequence[int], *, client_index: int = 0, **params: object) -> Request:
    return Request(request_id, prompt, SamplingParams(**params), EOS, client_index)


def run_to_end(scheduler: Scheduler, view: WorkerView, client: Client, *, max_steps: int = 1000) -> int:
    """Step until nothing is left to do. -> number of steps"""
    for count in range(max_steps):
        if not scheduler.has_unfinished_requests() and not scheduler.has_finished_to_report():
            return count
        step = scheduler.schedule()
        client.take(scheduler.update_from_output(step, view.execute(step)))
        assert scheduler.check_integrity() == []
    raise AssertionError(f"still not done after {max_steps} steps: {scheduler.requests}")
