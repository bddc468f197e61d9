"""What stands in for the weights in the twin: a rank that answers from recorded tokens.

A step costs time and the collectives of the real model, in its order and number, so that the nth collective
means the same in both worlds. What a rank has computed stands in slots that it reaches through block tables: whoever
finds something else there than it wrote, or goes on with another token than the recorded one, answers with a wrong one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from engine.config import EngineConfig
from engine.effects import Loop, MakeWorker
from engine.messages import ModelRunnerOutput, SchedulerOutput
from engine.model_config import ModelConfig, layers_of_stage
from engine.topology import Grid, Node, worker
from engine.worker.async_output import AsyncModelRunnerOutput
from engine.worker.phases import DUMMY, Phases
from sim.nodes.slots import Known, Slots
from sim.process.effects import Enter, Hand, Sleep, TakeOver
from sim.process.process import SimProcess

#: As many blocks as a small device would have, where none are configured.
NUM_BLOCKS = 64

class Model(Protocol):
    """Stands in for the weights: what it takes to answer a step."""

    last_token: int  # what comes after all that is known

    def continuation(self, prompt: tuple[int, ...]) -> Sequence[int]:
        """The tokens that follow this prompt, as far as they are known."""
        ...


class Computed(msgspec.Struct, frozen=True):
    """What a step leaves for its second phase. `sampled`: on a stage before the last, who has something to sample."""

    step: int
    sampled: dict[str, list[int]]


class Place:
    """Of a rank in its pipeline."""

    def __init__(self, grid: Grid, rank: int) -> None:
        self.count = grid.pp
        self.is_first, self.is_last = grid.stage(rank) == 0, grid.stage(rank) == grid.pp - 1
        self.is_output = rank == grid.output_rank
        self.tells = rank % grid.tp == 0  # what its stage computed


class Given(msgspec.Struct, frozen=True):
    """What the engines of a play run."""

    model_config: ModelConfig
    model: Any  # Model

    def make_worker(self, process: SimProcess, asked: MakeWorker) -> Any:
        return ModelStandIn(self.model, self.model_config, process, asked).call


class ModelStandIn:
    """One rank's model: knows its requests' tokens and answers with the recorded ones."""

    def __init__(self, model: Model, model_config: ModelConfig, process: SimProcess, asked: MakeWorker) -> None:
        self._model = model
        self._vocab_size = model_config.vocab_size
        self._config: EngineConfig = asked.config
        self._rank = asked.rank
        self._group: Any = None
        self._known: dict[str, Known] = {}
        self._slots = Slots(asked.config.cache.block_size)
        self._has_device = self._is_loaded = False
        self._num_blocks = 0  # of its cache, once it has one
        self._phases = Phases[Computed]()
        self._costs = process.kernel.costs
        stages = asked.config.pipeline_parallel_size
        grid = Grid(asked.world_size // stages, stages)
        self._stage = Place(grid, asked.rank)
        self._keeps_samples = asked.config.scheduler.async_scheduling
        layers = layers_of_stage(model_config.num_hidden_layers, grid.stage(asked.rank), grid.pp)
        self._collectives = 2 * len(layers)  # all-reduces of one step
        self._step_s = process.kernel.costs.model_step_s * len(layers) / model_config.num_hidden_layers
        #: On the first stage of several: the requests of a step whose tokens the last one will tell, the oldest first.
        self._untold: deque[tuple[int, list[Known]]] = deque()

        def nodes(ranks: Sequence[int]) -> list[Node]:
            return [worker(rank, engine=process.node.engine) for rank in ranks]

        self._across: Any = None
        shared, timeout_s = asked.config.device_communicator != "gloo", asked.config.bounds.collective_s
        if asked.across is not None:
            self._across = process.host.collective(asked.across.where, asked.across.names, timeout_s, shared=shared)
        if grid.tp > 1:
            self._group = process.host.collective(f"{asked.init_method}/{grid.stage(asked.rank)}",
                                                  nodes(grid.tp_group(asked.rank)), timeout_s, shared=shared)
        if grid.pp > 1:
            self._pipe = process.host.pipe(f"{asked.init_method}/pipe.{asked.rank % grid.tp}",
                                           nodes(grid.pp_group(asked.rank)), timeout_s, shared=shared)

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
        if step.at is not None:
            yield Enter(self._across, 1, "keep_step", step.at)
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
            return ModelRunnerOutput(step.step, {}) if self._stage.is_output else None
        if self._untold:
            yield from self._hear_samples(step)
        stage, group = self._stage, self._group
        given: Sequence[int] | None = None
        if not stage.is_first:
            given = yield TakeOver(self._pipe, "hidden_states", step.step, sum(scheduled.values()))
            if group is not None:
                yield Enter(group, 1, "all_gather")
        left: list[int] = []  # for the next stage
        if stage.count == 1:
            sampled = self._compute_all(scheduled)
        else:
            sampled, place = {}, 0
            for request_id, count in scheduled.items():
                part = None if given is None else given[place:place + count]
                place += count
                sampled[request_id], words = self._compute(request_id, count, part)
                left += words
        yield Sleep(self._step_s)
        if group is not None:
            yield Enter(group, self._collectives, "all_reduce")
        if not stage.is_last:
            yield Hand(self._pipe, "hidden_states", step.step, left)
        elif group is not None and any(sampled.values()):
            yield Enter(group, 1, "all_gather")
        self._phases.keep(Computed(step.step, sampled))
        return None

    def execute_dummy_batch(self, at: tuple[int, int]) -> Loop[None]:
        stage, group = self._stage, self._group
        yield Enter(self._across, 1, "keep_step", at)
        if not stage.is_first:
            yield TakeOver(self._pipe, "hidden_states", DUMMY, 1)
            if group is not None:
                yield Enter(group, 1, "all_gather")
        yield Sleep(self._step_s)
        if group is not None:
            yield Enter(group, self._collectives, "all_reduce")
        if not stage.is_last:
            yield Hand(self._pipe, "hidden_states", DUMMY, [0])

    def _compute_all(self, scheduled: dict[str, int]) -> dict[str, list[int]]:
        """What follows each of them, on the one stage that there is: as `_compute`, which most have no need of."""
        known, slots, tells, sampled = self._known, self._slots, self._stage.tells, dict[str, list[int]]()
        size = slots.block_size
        for request_id, count in scheduled.items():
            request = known[request_id]
            start, end = request.computed, len(request.tokens)
            if count == 1 and start + 1 == end <= len(request.blocks) * size:  # nearly always
                if not tells:
                    request.computed, sampled[request_id] = end, [request.next_token]
                    continue
                is_right = slots.write_next(request) if len(request.words) == start else None
                if is_right is not None:
                    request.computed, token = end, request.next_token
                    sampled[request_id] = [token if is_right and request.is_as_recorded else self._another(token)]
                    continue
            sampled[request_id] = self._compute(request_id, count, None)[0]
        return sampled

    def _compute(self, request_id: str, count: int, given: Sequence[int] | None) -> tuple[list[int], Sequence[int]]:
        """`count` more tokens of a request, with what the stage before says of them.

        -> what follows, where all that is known of it is computed then; and what the next stage is told of them
        """
        request, slots, stage = self._known[request_id], self._slots, self._stage
        start, known, blocks = request.computed, len(request.tokens), request.blocks
        end = start + count
        if count < 1 or end > known or end > len(blocks) * slots.block_size:
            raise RuntimeError(
                f"request {request_id!r}: {count} tokens from {start} on are scheduled, but rank {self._rank} knows "
                f"{known} tokens and {len(blocks)} blocks of {slots.block_size}")
        request.computed, is_last = end, end == known
        if not stage.tells:  # others hold the same
            return [request.next_token] if is_last else [], () if stage.is_last else [0] * count
        words = request.words_until(end) if given is None or stage.is_last else request.reads(start, given)
        new = words[start:] if given is None else given
        slots.write(blocks, start, new)
        if not is_last:
            return [], new
        is_right = slots.hold(blocks, words)
        if not stage.is_last:  # what is read wrong here goes on as something else
            return [request.next_token], new if is_right else [*new[:-1], new[-1] + 1]
        is_right = is_right and request.is_as_recorded and (given is None or list(given) == words[start:])
        return [request.next_token if is_right else self._another(request.next_token)], ()

    def _another(self, token: int) -> int:
        """A model that reads something else says so."""
        return (token + 1) % self._vocab_size

    def sample_tokens(self, grammar_output: None) -> Loop[ModelRunnerOutput | AsyncModelRunnerOutput | None]:
        computed, stage = self._phases.sample(), self._stage
        if computed is None or not (self._keeps_samples or stage.is_output):
            return None
        if not stage.is_last:
            self._await_samples(computed)
            return None
        yield Sleep(self._costs.model_sample_s)
        if self._keeps_samples:  # each rank goes on with what it sampled
            told = [(self._known[request_id], token) for request_id, tokens in computed.sampled.items()
                    for token in tokens]
            for known, token in told:
                known.says(token)
            if told and not stage.is_first:
                yield Hand(self._pipe, "sampled_tokens", computed.step, [token for _, token in told])
        if not stage.is_output:
            return None
        if self._keeps_samples:  # still on the device: nobody can read it there
            return AsyncModelRunnerOutput(computed.step, computed)
        return ModelRunnerOutput(computed.step, computed.sampled)

    def get_output(self, output: AsyncModelRunnerOutput) -> Loop[ModelRunnerOutput]:
        yield Sleep(self._costs.model_copy_s)
        computed: Computed = output.sampled
        return ModelRunnerOutput(output.step, computed.sampled)

    def _await_samples(self, computed: Computed) -> None:
        """These requests go on with tokens that this stage has not sampled."""
        known = [self._known[request_id] for request_id, tokens in computed.sampled.items() if tokens]
        if self._stage.is_first and known:
            self._untold.append((computed.step, known))
        elif not self._stage.is_first:
            for request in known:
                request.says(0)  # it only counts them

    def _hear_samples(self, step: SchedulerOutput) -> Loop[None]:
        """Of steps that the last stage is done with, and of those that this step goes on from."""
        untold = self._untold
        while untold and (untold[0][0] <= step.step - self._stage.count or any(
                self._known[request_id].computed + count > len(self._known[request_id].tokens)
                for request_id, count in step.num_scheduled_tokens.items())):
            number, requests = untold.popleft()
            tokens = yield TakeOver(self._pipe, "sampled_tokens", number, len(requests))
            for request, token in zip(requests, tokens, strict=True):
                request.says(token)
