"""All that can be configured, and every bound by name.

A play records the whole `EngineConfig`; the guarantees read their bounds from that record. `Bounds` holds
each time-out with its reason; scenarios shrink them, users rarely touch them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.topology import Grid


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Every wait of the engine ends within one of these, in seconds."""

    startup_s: float = 600.0  # spawn to READY, weights and warm-up included
    handshake_s: float = 300.0  # one handshake message to the next
    step_s: float = 300.0  # a worker's answer to a step; then it counts as stalled
    rpc_s: float = 300.0  # any other RPC
    heartbeat_s: float = 1.0  # the core's loop beats at least this often while it is idle
    stall_s: float = 320.0  # no beat for this long: the core counts as stalled (above step_s)
    detection_s: float = 0.1  # SIGKILL of a process until every caller is told
    request_s: float = 600.0  # no output of a request for this long: its caller gets an error
    output_gap_s: float = 5.0  # a missing output frame may come late by this much
    drain_s: float = 30.0  # SIGTERM: running requests may finish within
    linger_s: float = 4.0  # the death notice may take this long to leave the process
    orphan_s: float = 2.0  # parent gone: all descendants gone within
    cleanup_s: float = 5.0  # shutdown: nothing remains after
    ring_recheck_s: float = 1.0  # a sleeping reader looks at the flag at least this often
    terminate_s: float = 5.0  # SIGTERM to a child, then SIGKILL
    replay_s: float = 5.0  # a replay's next frame, and a subscriber's poll in silence
    collective_s: float = 300.0  # torch.distributed's own time-out


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int = 16
    num_gpu_blocks: int | None = None  # None: from memory (`memory_fraction`, `cpu_cache_bytes`)
    memory_fraction: float = 0.9
    cpu_cache_bytes: int | None = None  # None: at least 256 MiB and one request of the full length, if that fits
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        if not 0.0 < self.memory_fraction <= 1.0:
            raise ValueError(f"memory_fraction must be above 0 and at most 1, got {self.memory_fraction}")
        if self.block_size < 1:
            raise ValueError(f"a block holds at least one token, got block_size={self.block_size}")


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    max_model_len: int | None = None  # None: from the model
    policy: Literal["fcfs", "priority"] = "fcfs"  # priority: the lowest first, who came first among equals
    #: The next step is scheduled before the tokens of the last one are known: the workers take those that they sampled.
    async_scheduling: bool = False
    long_prefill_token_threshold: int = 0  # a step computes no more of one prompt than this; 0: up to its budget

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < 1 or self.max_num_seqs < 1:
            raise ValueError(f"a step needs room for one token of one request, got max_num_batched_tokens="
                             f"{self.max_num_batched_tokens}, max_num_seqs={self.max_num_seqs}")
        if self.long_prefill_token_threshold < 0:
            raise ValueError(f"long_prefill_token_threshold must be 0 (no threshold) or more, got "
                             f"{self.long_prefill_token_threshold}")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError(f"max_model_len must leave room for a prompt and an answer, got {self.max_model_len}")


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Admission: with HWM 0 the sockets bound nothing, so the client and the core do."""

    max_requests: int = 1024
    max_request_bytes: int = 64 << 20  # prompts in flight, as encoded


class RingConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_chunk_bytes: int = 16 << 20
    max_chunks: int = 10
    response_chunk_bytes: int = 24 << 20
    response_chunks: int = 10


class SocketConfig(msgspec.Struct, frozen=True, kw_only=True):
    transport: Literal["ipc", "tcp"] = "ipc"
    #: With tcp: which ends may be remote, so that theirs speak it; the others keep to ipc (`engine/wire/places.py`).
    remote: tuple[Literal["cores", "clients"], ...] = ("cores", "clients")
    host: str = "127.0.0.1"  # where tcp sockets are bound: an address of this host; nobody is authenticated
    io_threads: int = 1  # of each process: they carry the messages of all its sockets
    #: tcp: whoever says nothing for five of these counts as gone, so a connection that is lost in silence ends; 0: off.
    heartbeat_s: float = 0.0
    request_hwm: int = 0
    output_hwm: int = 0
    output_linger_s: float = 4.0
    overflow_hwm: int = 0
    #: SO_SNDBUF and SO_RCVBUF. 0 leaves the system's; None: half a GiB where the machine has plenty of memory.
    buffer_bytes: int | None = 0
    router_mandatory: bool = True  # False: as vLLM, a frame for an unconnected core vanishes in silence

    def __post_init__(self) -> None:
        if self.io_threads < 1:
            raise ValueError(f"io_threads must be 1 or more, got {self.io_threads}")
        if self.heartbeat_s < 0.0 or 0.0 < self.heartbeat_s < 0.001:
            raise ValueError(f"heartbeat_s must be 0 (none) or a millisecond or more, got {self.heartbeat_s}")
        if not self.host or any(sign in self.host for sign in "*/[] "):
            raise ValueError(f"host must be one address or name of this host, got {self.host!r}")
        if self.transport == "tcp" and not self.remote:
            raise ValueError("transport 'tcp' needs somebody who may be remote: 'cores', 'clients' or both")


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's arguments. An `endpoint` of None lets the engine choose one in its runtime directory."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] = "zmq"
    endpoint: str | None = None
    replay_endpoint: str | None = None
    bind: bool | None = None  # None: vLLM's rule, an endpoint with `*` or `::` and ipc are bound, others connected to
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
    subscriber_hwm: int = 100_000
    socket_buffer_bytes: int = 0
    replay: bool = True


class DataParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the cores of one client belong together, where there are several."""

    #: Each of them executes as many steps as every other one, dummy batches where it has no work: what a mixture of
    #: experts needs that is spread over them.
    lockstep: bool = False
    #: A process of its own carries their counts to all clients. Cores in lockstep have it always: it wakes them.
    coordinator: bool = False
    wave_protocol: Literal["old", "new"] = "new"  # see engine/coordinator/waves.py
    score: Literal["old", "new"] = "new"  # by which a client chooses a core: see engine/frontend/balance.py
    sync_interval: int = 16  # steps from one all-reduce of what is left to do to the next
    repair: bool = True  # START is repeated: one that is lost costs time, and hangs nobody
    changed_s: float = 0.1  # counts that have changed are told so long after the last ones
    unchanged_s: float = 5.0  # and those that have not
    settle_s: float = 0.05  # in lockstep: so much later while the cores still report a step

    def __post_init__(self) -> None:
        if self.sync_interval < 1:
            raise ValueError(f"sync_interval must be 1 step or more, got {self.sync_interval}")
        if not 0.0 < self.changed_s <= self.unchanged_s or self.settle_s < 0.0:
            raise ValueError(f"changed_s must be above 0 and at most unchanged_s, and settle_s not below 0, got "
                             f"{self.changed_s}, {self.unchanged_s}, {self.settle_s}")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. `model` is an ordinary Hugging Face directory."""

    model: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    #: Steps that may be in flight at once; None: one a stage, and one more with `scheduler.async_scheduling`.
    max_concurrent_batches: int | None = None
    distributed_executor_backend: str = "auto"  # "uni", "mp": see engine/executor/registry.py
    #: How many cores one client spreads its requests over, each with all of the model.
    data_parallel_size: int = 1
    #: Which of several engines this is that share the base endpoints of `kv_events`: it publishes beside them.
    data_parallel_rank: int = 0
    data_parallel: DataParallelConfig = DataParallelConfig()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: What carries the ranks' collectives where it is not nccl; auto: shared memory where there is any, else gloo.
    device_communicator: Literal["auto", "shm", "gloo"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    seed: int = 0
    start_method: Literal["auto", "spawn", "fork"] = "auto"
    runtime_dir: str | None = None  # None: the system's temporary directory
    skip_tokenizer_init: bool = False
    tokenizer: str | None = None  # its directory; None: the model's
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    limits: LimitsConfig = LimitsConfig()
    ring: RingConfig = RingConfig()
    sockets: SocketConfig = SocketConfig()
    kv_events: KVEventsConfig = KVEventsConfig()
    bounds: Bounds = Bounds()

    @property
    def batch_queue_size(self) -> int:
        """How deep the core's queue of steps is."""
        ahead = 1 if self.scheduler.async_scheduling else 0
        return self.max_concurrent_batches or self.pipeline_parallel_size + ahead

    @property
    def has_coordinator(self) -> bool:
        return self.data_parallel_size > 1 and (self.data_parallel.coordinator or self.is_lockstep)

    @property
    def is_lockstep(self) -> bool:
        return self.data_parallel_size > 1 and self.data_parallel.lockstep

    @property
    def grid(self) -> Grid:
        return Grid(self.tensor_parallel_size, self.pipeline_parallel_size)

    @property
    def tokenizer_directory(self) -> str:
        return self.tokenizer or self.model

    def __post_init__(self) -> None:
        if self.pipeline_parallel_size < 1:
            raise ValueError(f"pipeline_parallel_size must be 1 or more, got {self.pipeline_parallel_size}")
        if self.max_concurrent_batches is not None and self.max_concurrent_batches < 1:
            raise ValueError(f"max_concurrent_batches must be 1 or more, got {self.max_concurrent_batches}")
        if self.scheduler.async_scheduling and self.batch_queue_size < 2:
            raise ValueError("async_scheduling needs room for a second step in flight, but max_concurrent_batches is 1")
        if self.data_parallel_size < 1:
            raise ValueError(f"data_parallel_size must be 1 or more, got {self.data_parallel_size}")
        if self.data_parallel_rank < 0:
            raise ValueError(f"data_parallel_rank must be 0 or more, got {self.data_parallel_rank}")


def config_from(values: dict[str, Any]) -> EngineConfig:
    """The config a run recorded. Raises msgspec.ValidationError where it is not one."""
    return msgspec.convert(values, EngineConfig)
