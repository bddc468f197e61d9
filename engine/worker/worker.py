"""One rank: its device, its process group, its shard of the model, its cache.

Promises: the methods are called in the order in which they stand here, on all ranks alike, and each of them
raises ConfigError for what the user can mend (model directory, tensor_parallel_size, device, dtype). Nothing
here opens a socket or knows of rings: `life.py` calls these methods by name.

    init_device -> load_model -> determine_available_memory -> initialize_cache
        -> (execute_model -> sample_tokens) ... -> shutdown
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.messages import ModelRunnerOutput, SchedulerOutput
from engine.model_config import (
    ModelConfig,
    check_parallel,
    layers_of_stage,
    max_model_len,
    read_model_config,
)
from engine.process.consensus.effects import Across
from engine.topology import Grid
from engine.worker.async_output import AsyncModelRunnerOutput
from engine.worker.layers import Shard
from engine.worker.memory import free_memory_bytes
from engine.worker.model_runner import ModelRunner
from engine.worker.models.llama import LlamaModel
from engine.worker.models.made_up import largest_step, warm_up
from engine.worker.parallel.alone import Alone
from engine.worker.parallel.distributed import ProcessGroup, choose_device
from engine.worker.parallel.stages import Stage
from engine.worker.weights import Checkpoint

logger = logging.getLogger(__name__)

#: What a cache on a CPU may take at least, where nobody says how much.
LEAST_CACHE_BYTES = 256 << 20
#: Below this many hidden units a second thread costs more than it brings.
SINGLE_THREAD_HIDDEN_SIZE = 512


class Worker:
    """Rank `rank` of `world_size`: so many stages of as many ranks as the configuration says.

    `group` is an open process group. Where it is None, `init_device` makes one by
    `make_group(rank, world_size, init_method, device, timeout_s, communicator, tp)`; a wrapped one comes in either way.
    `across`: its like in engines that step together with this one. `local_dp_rank`: engines before it on this host.
    """

    def __init__(self, config: EngineConfig, rank: int = 0, world_size: int = 1, init_method: str = "",
                 group: Any = None, *, across: Across | None = None, local_dp_rank: int = 0,
                 make_group: Callable[..., Any] = ProcessGroup) -> None:
        self.config = config
        self.rank = rank
        self.world_size = world_size
        self.init_method = init_method
        self.group = group
        self.device = "cpu"
        self.model_config: ModelConfig | None = None
        self.runner: ModelRunner | None = None
        self._across = across
        self._local_dp_rank = local_dp_rank
        self._make_group = make_group

    @property
    def grid(self) -> Grid:
        """As many stages as are configured, of all the ranks that there are."""
        stages = self.config.pipeline_parallel_size
        return Grid(self.world_size // stages, stages)

    def init_device(self) -> None:
        """Choose the device and meet the other ranks. Reads config.json first: no rank waits for a bad one."""
        self.model_config = read_model_config(self.config.model)
        check_parallel(self.model_config, self.grid.tp, self.grid.pp)
        self.device = choose_device(self.config.device, self.rank, self.world_size, self._local_dp_rank)
        if self.device == "cpu":
            if self.world_size > 1 or self.model_config.hidden_size <= SINGLE_THREAD_HIDDEN_SIZE:
                torch.set_num_threads(1)
        else:
            torch.cuda.set_device(self.device)
        if self.group is None:
            self.group = self._make_group(self.rank, self.world_size, self.init_method, self.device,
                                          self.config.bounds.collective_s, self.config.device_communicator,
                                          self.grid.tp)
        across, bounds = self._across, self.config.bounds
        if across is not None:
            self.group.meet_engines(across.place, across.names, across.where, bounds.collective_s, bounds.startup_s)

    def load_model(self) -> None:
        """Read this rank's shard of the weights."""
        config, model = self.config, self.model_config
        assert model is not None, "init_device comes first"
        dtype = getattr(torch, model.dtype if config.dtype == "auto" else config.dtype)
        grid = self.grid
        layers = layers_of_stage(model.num_hidden_layers, grid.stage(self.rank), grid.pp)
        with torch.inference_mode(), Checkpoint(config.model, dtype, self.device) as checkpoint:
            shard = LlamaModel(model, checkpoint, Shard(self.rank % grid.tp, grid.tp), self.group,
                               max_model_len(config, model), dtype, self.device, layers)
        self.runner = self._runner(shard, dtype, self.group)
        if self.device != "cpu":
            self.warm_up()

    def _runner(self, shard: LlamaModel, dtype: torch.dtype, group: Any) -> ModelRunner:
        config = self.config
        return ModelRunner(shard, Stage(group, self.grid, self.rank, shard.config.hidden_size, dtype, self.device),
                           block_size=config.cache.block_size, dtype=dtype, device=self.device, rank=self.rank,
                           seed=config.seed, keeps_samples=config.scheduler.async_scheduling)

    def warm_up(self) -> None:
        """What a device loads when it is first asked for something is loaded before anybody waits for a step.

        Each rank computes alone: else those of the last stage would wait for all before them.
        """
        runner, alone = self._loaded(), Alone(self.grid.tp)
        runner.model.use(alone)
        try:
            warm_up(self._runner(runner.model, runner.dtype, alone), self.config.scheduler,
                    max_model_len(self.config, self.model_config))
        finally:
            runner.model.use(self.group)

    def determine_available_memory(self) -> int:
        """Bytes that this rank's cache may take.

        On CPU `cpu_cache_bytes`, or what one request of the full length needs (256 MiB at least), as long as all ranks
        together leave half of the free memory alone. On a GPU its fraction of the whole memory, less the weights and
        the peak of the largest step, divided among the ranks that share the GPU.
        """
        if self.device == "cpu":
            asked = self.config.cache.cpu_cache_bytes
            return asked if asked is not None else min(
                max(LEAST_CACHE_BYTES, self._full_length_bytes()), free_memory_bytes() // (2 * self.world_size))
        torch.cuda.reset_peak_memory_stats()
        largest_step(self._loaded(), self.config.scheduler, max_model_len(self.config, self.model_config))
        sharing = -(-self.world_size // torch.cuda.device_count())
        total = torch.cuda.get_device_properties(self.device).total_memory
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        return max(0, int(total * self.config.cache.memory_fraction / sharing) - peak)

    def get_num_blocks(self) -> int:
        """How many blocks this rank can hold: as configured, or what fits. The least of all ranks counts.

        Raises ConfigError where not even one request of the full length fits.
        """
        config = self.config.cache
        if config.num_gpu_blocks is not None:
            return config.num_gpu_blocks
        available_bytes, needed_bytes = self.determine_available_memory(), self._full_length_bytes()
        if available_bytes < needed_bytes:
            raise ConfigError(f"worker.{self.rank}: the cache may take {available_bytes} bytes, but one request of the "
                              f"full length needs {needed_bytes}; lower max_model_len, or give the cache more")
        return available_bytes // self._loaded().block_bytes()

    def _full_length_bytes(self) -> int:
        """Of the cache, for one request of the model's full length."""
        blocks = -(-max_model_len(self.config, self.model_config) // self.config.cache.block_size)
        return blocks * self._loaded().block_bytes()

    def initialize_cache(self, num_blocks: int) -> None:
        """Allocate the paged cache. Raises ConfigError for a number of blocks below 1."""
        if num_blocks < 1:
            raise ConfigError(f"the cache needs at least 1 block, got {num_blocks}")
        self._loaded().initialize_cache(num_blocks)

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | None:
        """The first phase of a step: None, or where it has no tokens the output rank's answer."""
        if output.at is not None:
            self.group.keep_step(*output.at)
        return self._loaded().execute_model(output)

    def execute_dummy_batch(self, at: tuple[int, int]) -> None:
        """A forward of one token that is nobody's, in step with the ranks of other engines."""
        self.group.keep_step(*at)
        self._loaded().execute_dummy_batch()

    def sample_tokens(self, grammar_output: None = None) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        """The second phase; the answer comes from the output rank, the others return None."""
        return self._loaded().sample_tokens(grammar_output)

    def get_output(self, output: AsyncModelRunnerOutput) -> ModelRunnerOutput:
        """What a step has sampled, once it is here. By the thread that answers, while the next step is computed."""
        return self._loaded().get_output(output)

    def check_health(self) -> None:
        """Returns while this rank can compute: an RPC of its own, so that no step is needed to ask."""
        self._loaded()

    def num_requests(self) -> int:
        """How many requests this rank knows: none when the core has told it of all their ends."""
        return len(self.runner.requests) if self.runner is not None else 0

    def shutdown(self) -> None:
        """Leave the group and let go of the model; safe to call twice, and before anything was loaded."""
        self.runner = None
        group, self.group = self.group, None
        if group is not None:
            group.close()

    def _loaded(self) -> ModelRunner:
        if self.runner is None:
            raise RuntimeError(f"worker.{self.rank} has no model: load_model comes first")
        return self.runner
