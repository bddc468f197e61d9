"""What stands in for the weights in the twin: a rank that answers from recorded tokens.

A step costs time and the collectives of the real model, in its order and number, so that the nth collective
means the same in both worlds. What a rank has computed stands in slots that it reaches through block tables: whoever
finds something else there than it wrote, or goes on with another token than the recorded one, answers with a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from engine.config import EngineConfig
from engine.effects import Loop, MakeWorker
from engine.messages import ModelRunnerOutput, SchedulerOutput
from engine.model_config import ModelConfig
from engine.topology import worker
from engine.worker.phases import Phases
from sim.nodes.slots import Known, Slots
from sim.process.effects import Enter, Sleep
from sim.process.process import SimProcess

#: As many blocks as a small device would have, where none are configured.
NUM_BLOCKS = 64


class Model(Protocol):
    """Stands in for the weights: what it takes to answer a step."""

    collectives: int  # all-reduces of one step
    last_token: int  # what comes after all that is known

    def continuation(self, prompt: tuple[int, ...]) -> Sequence[int]:
        """The tokens that follow this prompt, as far as they are known."""
        ...


class Given(msgspec.Struct, frozen=True):
    """What the engines of a play run."""

    model_config: ModelConfig
    model: Any  # Model

    def make_worker(self, process: SimProcess, asked: MakeWorker) -> Any:
        return ModelStandIn(self.model, self.model_config.vocab_size, process, asked).call


class ModelStandIn:
    """One rank's model: knows its requests' tokens and answers with the recorded ones."""

    def __init__(self, model: Model, vocab_size: int, process: SimProcess, asked: MakeWorker) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._costs = process.kernel.costs
        self._config: EngineConfig = asked.config
        self._rank = asked.rank
        self._group: Any = None
        self._known: dict[str, Known] = {}
        self._slots = Slots(asked.config.cache.block_size)
        self._has_device = self._is_loaded = False
        self._num_blocks = 0  # of its cache, once it has one
        self._phases = Phases[ModelRunnerOutput]()
        if asked.world_size > 1:
            ranks = [worker(rank, engine=process.node.engine) for rank in range(asked.world_size)]
            self._group = process.host.collective(asked.init_method, ranks, asked.config.bounds.collective_s,
                                                  shared=asked.config.device_communicator != "gloo")

    def call(self, thread: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answers `Call`. Raises AttributeError for a method that a worker does not have."""
        return getattr(self, method)(*args, **kwargs)

    def init_device(self) -> None:
        self._has_device = True

    def load_model(self) -> Loop[None]:
        if not self._has_device:
            raise RuntimeError("init_device comes first")
        yield Sleep(self._costs.model_load_s)
        self._is_loaded = True

    def get_num_blocks(self) -> int:
        """Where none are configured, what fits: no two devices have room for the same."""
        return self._config.cache.num_gpu_blocks or NUM_BLOCKS - self._rank

    def initialize_cache(self, num_blocks: int) -> None:
        if num_blocks > self.get_num_blocks():
            raise MemoryError(f"{num_blocks} blocks do not fit")
        self._num_blocks = num_blocks

    def check_health(self) -> None:
        return None

    def num_requests(self) -> int:
        return len(self._known)

    def execute_model(self, step: SchedulerOutput) -> Loop[ModelRunnerOutput | None]:
        known, model = self._known, self._model
        if not (self._is_loaded and self._num_blocks):
            raise RuntimeError("load_model and initialize_cache come first")
        self._phases.execute()
        for request_id in (*step.finished, *step.preempted):
            known.pop(request_id, None)
        for new in step.new:
            prompt = tuple(new.token_ids[:new.num_prompt_tokens])
            continuation = model.continuation(prompt)
            if not continuation and not 0 <= min(prompt) <= max(prompt) < self._vocab_size:
                raise IndexError("index out of range in self")  # as an embedding says it
            known[new.request_id] = Known(new, continuation, model.last_token)
        for cached in step.cached:
            known[cached.request_id].goes_on(cached)
        scheduled = step.num_scheduled_tokens
        if not scheduled:
            return None if self._rank else ModelRunnerOutput(step.step, {})  # only the output rank answers
        sampled = {request_id: self._compute(request_id, count) for request_id, count in scheduled.items()}
        yield Sleep(self._costs.model_step_s)
        if self._group is not None:
            yield Enter(self._group, model.collectives, "all_reduce")
            if any(sampled.values()):
                yield Enter(self._group, 1, "all_gather")
        self._phases.keep(ModelRunnerOutput(step.step, sampled))
        return None

    def _compute(self, request_id: str, count: int) -> list[int]:
        """`count` more tokens of a request. -> what follows, where all that is known of it is computed then"""
        request, slots = self._known[request_id], self._slots
        start, end = request.computed, request.computed + count
        if count < 1 or end > len(request.tokens) or end > len(request.blocks) * slots.block_size:
            raise RuntimeError(
                f"request {request_id!r}: {count} tokens from {start} on are scheduled, but rank {self._rank} knows "
                f"{len(request.tokens)} tokens and {len(request.blocks)} blocks of {slots.block_size}")
        request.computed, is_last = end, end == len(request.tokens)
        if self._rank == 0:  # who answers; the others hold the same
            words = request.words_until(end)
            slots.write(request.blocks, start, words[start:])
            if is_last and not (request.is_as_recorded and slots.hold(request.blocks, words)):
                return [(request.next_token + 1) % self._vocab_size]  # a model that reads something else says so
        return [request.next_token] if is_last else []

    def sample_tokens(self, grammar_output: None) -> Loop[ModelRunnerOutput | None]:
        output = self._phases.sample()
        if output is not None:
            yield Sleep(self._costs.model_sample_s)
            if self._config.scheduler.async_scheduling:  # each rank goes on with what it sampled
                for request_id, tokens in output.sampled.items():
                    for token in tokens:
                        self._known[request_id].says(token)
        return None if self._rank else output
