"""Executes steps: keeps what each request has said so far, runs the model's layers of its stage, and samples on the
output rank.

Promises: a step's answer depends on the `SchedulerOutput`s alone, so ranks that get the same ones never
diverge: tokens reach every rank from the scheduler, also those that the output rank sampled itself; with async
scheduling every rank of the last stage samples, and chooses the same, and tells it to its like in the first one. That
hears of a step's tokens `stages` steps later, or before it computes with them. A token is
sampled for a request exactly when its scheduled tokens reach the end of what is known of it. `finished` and
`preempted` requests are forgotten before anything else is done, also in a step that schedules nothing. All
collectives of a step lie in `execute_model`, `sample_tokens` has none.
"""

from __future__ import annotations

import mmap
from collections import deque
from typing import Any, NamedTuple

import torch

from engine.messages import CachedRequestData, ModelRunnerOutput, NewRequestData, SchedulerOutput
from engine.worker.async_output import AsyncModelRunnerOutput
from engine.worker.attention import Chunk, make_plan
from engine.worker.models.llama import LlamaModel
from engine.worker.parallel.stages import IntermediateTensors, Stage
from engine.worker.phases import DUMMY, Phases
from engine.worker.sampler import Draw, sample, seed_of


class CachedRequestState:
    """What a worker knows of one request."""

    __slots__ = ("banned", "block_ids", "num_computed_tokens", "num_prompt_tokens", "params", "seed", "token_ids")

    def __init__(self, new: NewRequestData, seed: int, eos_token_ids: tuple[int, ...]) -> None:
        self.token_ids = list(new.token_ids)
        self.num_prompt_tokens = new.num_prompt_tokens
        self.num_computed_tokens = new.num_computed_tokens
        self.block_ids = list(new.block_ids)
        self.params = new.sampling_params
        self.seed = seed
        # Until min_tokens are out, what would end the request must not be chosen.
        ends = self.params.stop_token_ids + (() if self.params.ignore_eos else eos_token_ids)
        self.banned = ends if self.params.min_tokens else ()

    def add(self, cached: CachedRequestData) -> None:
        self.token_ids += cached.new_token_ids
        self.block_ids += cached.new_block_ids
        self.num_computed_tokens = cached.num_computed_tokens

    def lacks(self, count: int) -> bool:
        """Whether its next `count` tokens are not all known."""
        return self.num_computed_tokens + count > len(self.token_ids)

    def draw(self) -> Draw:
        known = len(self.token_ids)
        early = self.banned and known - self.num_prompt_tokens < self.params.min_tokens
        return Draw(self.params, self.seed, known, self.banned if early else ())


class Computed(NamedTuple):
    """What a step leaves for its second phase. `ending`: the requests of the rows of `logits`."""

    step: int
    scheduled: list[str]
    ending: list[str]
    logits: torch.Tensor | None  # None: nobody's scheduled tokens reach their end


def allocate_cache(shape: list[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """All zeros: what a block holds before its first use is read (and masked), so it must be finite.

    On CPU the pages are the system's zero pages until they are written, so a large cache costs nothing.
    """
    if device != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = 1
    for size in shape:
        count *= size
    pages = mmap.mmap(-1, max(1, count * dtype.itemsize))
    return torch.frombuffer(pages, dtype=dtype, count=count).view(shape)


class ModelRunner:
    """Runs one rank's model. `initialize_cache` comes before the first step."""

    def __init__(self, model: LlamaModel, stage: Stage, *, block_size: int, dtype: torch.dtype, device: str,
                 rank: int = 0, seed: int = 0, keeps_samples: bool = False) -> None:
        """`keeps_samples`: the scheduler does not tell what was sampled; each rank goes on with what was."""
        self.model = model
        self.stage = stage
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self.rank = rank
        self.seed = seed
        self.keeps_samples = keeps_samples
        self.caches: list[torch.Tensor] = []
        self._scratch: list[torch.Tensor] = []  # what dummy batches write into
        self.requests: dict[str, CachedRequestState] = {}
        self._phases = Phases[Computed]()
        #: On the first stage of several: the requests of a step whose tokens the last one will tell, the oldest first.
        self._untold: deque[tuple[int, list[CachedRequestState]]] = deque()

    def block_bytes(self) -> int:
        """What one block takes on this rank, all layers together."""
        model = self.model
        token = 2 * model.kv_heads * model.config.head_dim * self.dtype.itemsize
        return token * self.block_size * len(model.layers)

    def initialize_cache(self, num_blocks: int) -> None:
        """One cache per layer: [2, num_blocks, block_size, kv_heads, head_dim]."""
        self.caches = []
        shape = [2, num_blocks, self.block_size, self.model.kv_heads, self.model.config.head_dim]
        self.caches = [allocate_cache(shape, self.dtype, self.device) for _ in self.model.layers]

    @torch.inference_mode()
    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | None:
        """The first phase of a step. -> None; on the output rank an empty answer to a step without tokens.

        Raises RuntimeError where the scheduler and this worker disagree about a request, or the last step was not
        sampled.
        """
        self._phases.execute()
        self._update(output)
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            return ModelRunnerOutput(output.step, {}) if self.stage.is_output else None
        self._hear_samples(output)
        # Requests of one token first: they attend as one batch.
        order = sorted(scheduled, key=lambda request_id: scheduled[request_id] > 1)
        rows, ending = self._forward(order, scheduled, output.step)
        logits = self.model.logits(rows) if ending and self.stage.is_last else None
        self._phases.keep(Computed(output.step, list(scheduled), ending, logits))
        return None

    @torch.inference_mode()
    def execute_dummy_batch(self) -> None:
        """A forward of one token in a cache of its own: all collectives of a step, and nothing is changed by it."""
        if not self._scratch:
            shape = [2, 1, self.block_size, self.model.kv_heads, self.model.config.head_dim]
            self._scratch = [allocate_cache(shape, self.dtype, self.device) for _ in self.model.layers]
        plan = make_plan([Chunk([0], 0, 1)], self.block_size, self.model.heads // self.model.kv_heads, self.dtype,
                         self.device)
        nothing = torch.zeros(1, dtype=torch.long, device=self.device)
        hidden = self.model.embed(nothing) if self.stage.is_first else self.stage.receive(DUMMY, 1).hidden_states
        hidden = self.model.forward(hidden, nothing, self._scratch, plan)
        if not self.stage.is_last:
            self.stage.send(DUMMY, IntermediateTensors(hidden))

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: None = None) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        """The second phase. -> what was sampled, on the output rank; None on the others, and after no execute.

        With `keeps_samples` somebody asks `get_output` for it. `grammar_output`: carried for structured output, which
        is not built.
        """
        computed = self._phases.sample()
        if computed is None or not (self.keeps_samples or self.stage.is_output):
            return None
        states = [self.requests[request_id] for request_id in computed.ending]
        if not self.stage.is_last:
            self._await_samples(computed.step, states)
            return None
        tokens = [] if computed.logits is None else sample(computed.logits, [state.draw() for state in states])
        sampled: dict[str, list[int]] = {request_id: [] for request_id in computed.scheduled}
        for state, request_id, token in zip(states, computed.ending, tokens, strict=True):
            sampled[request_id].append(token)
            if self.keeps_samples:
                state.token_ids.append(token)
        if tokens and self.keeps_samples and not self.stage.is_first:
            self.stage.tell_samples(computed.step, tokens)
        if not self.stage.is_output:
            return None
        return (AsyncModelRunnerOutput if self.keeps_samples else ModelRunnerOutput)(computed.step, sampled)

    def get_output(self, output: AsyncModelRunnerOutput) -> ModelRunnerOutput:
        """What `sample_tokens` left. On another thread than all else: it touches nothing of the runner."""
        return ModelRunnerOutput(output.step, output.sampled)

    def _await_samples(self, step: int, states: list[CachedRequestState]) -> None:
        """These requests go on with tokens that this stage has not sampled."""
        if self.stage.is_first and states:
            self._untold.append((step, states))
        elif not self.stage.is_first:
            for state in states:
                state.token_ids.append(0)  # it only counts them

    def _hear_samples(self, output: SchedulerOutput) -> None:
        """Of steps that the last stage is done with, and of those that this step goes on from."""
        scheduled, untold = output.num_scheduled_tokens, self._untold
        while untold and (untold[0][0] <= output.step - self.stage.count or any(
                self._state(request_id).lacks(count) for request_id, count in scheduled.items())):
            step, states = untold.popleft()
            for state, token in zip(states, self.stage.hear_samples(step, len(states)), strict=True):
                state.token_ids.append(token)  # of one that was preempted meanwhile, nobody asks any more

    def _update(self, output: SchedulerOutput) -> None:
        for request_id in output.finished:
            self.requests.pop(request_id, None)
        for request_id in output.preempted:
            self.requests.pop(request_id, None)
        for new in output.new:
            seed = seed_of(new.sampling_params, new.request_id, self.seed)
            self.requests[new.request_id] = CachedRequestState(new, seed, self.model.config.eos_token_ids)
        for cached in output.cached:
            state = self.requests.get(cached.request_id)
            if state is None:
                raise RuntimeError(f"step {output.step} goes on with request {cached.request_id!r}, "
                                   f"which rank {self.rank} does not know")
            state.add(cached)

    def _forward(self, order: list[str], scheduled: dict[str, int], step: int) -> tuple[Any, list[str]]:
        """-> hidden states of the rows that are sampled from, on the last stage; and their requests."""
        tokens: list[int] = []
        positions: list[int] = []
        chunks: list[Chunk] = []
        ends: list[int] = []
        ending: list[str] = []
        for request_id in order:
            state, count = self._state(request_id), scheduled[request_id]
            start = state.num_computed_tokens
            end = start + count
            if count < 1 or end > len(state.token_ids) or end > len(state.block_ids) * self.block_size:
                raise RuntimeError(
                    f"request {request_id!r}: {count} tokens from {start} on are scheduled, but rank {self.rank} knows "
                    f"{len(state.token_ids)} tokens and {len(state.block_ids)} blocks of {self.block_size}")
            tokens += state.token_ids[start:end]
            positions += range(start, end)
            chunks.append(Chunk(state.block_ids, start, count))
            if end == len(state.token_ids):
                ends.append(len(tokens) - 1)
                ending.append(request_id)
            # A later step says it again; until then this is what was computed.
            state.num_computed_tokens = end
        plan = make_plan(chunks, self.block_size, self.model.heads // self.model.kv_heads, self.dtype, self.device)
        if self.stage.is_first:
            hidden = self.model.embed(torch.tensor(tokens, device=self.device))
        else:
            hidden = self.stage.receive(step, len(tokens)).hidden_states
        hidden = self.model.forward(hidden, torch.tensor(positions, device=self.device), self.caches, plan)
        if not self.stage.is_last:
            self.stage.send(step, IntermediateTensors(hidden))
        elif len(ends) != len(tokens):
            hidden = hidden.index_select(0, torch.tensor(ends, dtype=torch.long, device=self.device))
        return hidden, ending

    def _state(self, request_id: str) -> CachedRequestState:
        state = self.requests.get(request_id)
        if state is None:
            raise RuntimeError(f"request {request_id!r} is scheduled, but rank {self.rank} does not know it")
        return state
