"""A worker of vLLM's that computes nothing: tokens come from words kept in its cache (`words`), faults from the play.

What it does on the way of a step is on record as our own worker's would be: mark executing, and what it raised.
In each step its ranks meet in a gloo barrier, as in a model's all-reduce: who is missing holds up the others. Of
engines that step together all ranks meet, in dummy batches, too. A single rank is a part of its core: what it does is
on record there.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.gpu_worker import init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from engine.topology import Mark, core, worker
from scenarios.worlds.vllm.stand_in.calls import Called
from scenarios.worlds.vllm.stand_in.requests import Requests
from scenarios.worlds.vllm.stand_in.seat import Seat, seat_in

#: vLLM sizes its cache by it where nobody says how many blocks there are.
MEMORY_BYTES = 1 << 26


class Answer(AsyncModelRunnerOutput):
    """What a step says, fetched by the copy thread."""

    def __init__(self, output: ModelRunnerOutput, seat: Seat | None, call: int) -> None:
        self._output, self._seat, self._call = output, seat, call

    def get_output(self) -> ModelRunnerOutput:
        if self._seat is not None:
            self._seat.mark(Mark.COPYING, call=self._call)
        return self._output

    def get_kv_connector_output(self) -> None:
        return None


class StandInWorker(Called, WorkerBase):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        group = self.vllm_config.parallel_config
        engine, self._is_core = group.data_parallel_index, group.world_size == 1
        self._seat = seat_in(self.vllm_config.additional_config,
                             core(engine) if self._is_core else worker(self.rank, engine=engine))
        self._kept: ModelRunnerOutput | None = None
        self._calls = 0
        if self._seat is not None:
            self._seat.born()

    # -- start

    def init_device(self) -> None:
        torch.set_num_threads(1)
        self.device = torch.device("cpu")
        init_worker_distributed_environment(self.vllm_config, self.rank, self.distributed_init_method, self.local_rank,
                                            "gloo")

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        self._mark(Mark.LOADING)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def get_model(self) -> torch.nn.Module:
        return torch.nn.Identity()

    def get_kv_cache_spec(self) -> dict[str, FullAttentionSpec]:
        return {"model.layers.0.self_attn": FullAttentionSpec(
            block_size=self.cache_config.block_size, num_kv_heads=1, head_size=8, dtype=torch.float32)}

    def get_supported_kv_cache_layouts(self) -> list[str]:
        from vllm.v1.kv_cache_interface import KVCacheLayout

        return [layout.name for layout in KVCacheLayout]

    def determine_available_memory(self) -> int:
        return MEMORY_BYTES

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        self._requests = Requests(self.cache_config.block_size, self.model_config.get_vocab_size())

    def compile_or_warm_up_model(self) -> CompilationTimes:
        self._mark(Mark.READY)
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def update_max_model_len(self, max_model_len: int) -> None:
        self.model_config.max_model_len = max_model_len

    # -- steps

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        self._executing("execute_model")
        said = self._requests.execute(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        self._meet()
        names = list(said)
        self._kept = ModelRunnerOutput(req_ids=names, req_id_to_index={name: k for k, name in enumerate(names)},
                                       sampled_token_ids=[said[name] for name in names])
        return None

    def sample_tokens(self, grammar_output: GrammarOutput) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        self._executing("sample_tokens")
        kept, self._kept = self._kept, None
        assert kept is not None, "sample_tokens without a step before it"
        return Answer(kept, self._seat, self._calls - 1) if self.scheduler_config.async_scheduling else kept

    def execute_dummy_batch(self) -> None:
        if self._is_core:
            self._mark(Mark.DUMMY)
        self._executing("execute_dummy_batch")
        self._meet()

    def take_draft_token_ids(self) -> None:
        return None

    def check_health(self) -> None:
        self._executing("check_health")

    def shutdown(self) -> None:
        if self._seat is not None and not self._is_core:
            self._seat.observe("bye", reason="done")

    def _meet(self) -> None:
        if torch.distributed.get_world_size() > 1:
            torch.distributed.barrier()

    def _executing(self, method: str) -> None:
        if self._seat is not None:
            self._seat.mark(Mark.EXECUTING, call=self._calls, method=method)
        self._calls += 1

    def _mark(self, mark: Mark) -> None:
        if self._seat is not None:
            self._seat.mark(mark)
