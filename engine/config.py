"""All that can be configured, and every bound by name.

A play records the whole `EngineConfig`; the guarantees read their bounds from that record. `Bounds` holds
each time-out with its reason; scenarios shrink them, users rarely touch them.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from engine.topology import Grid

_ADDRESS = re.compile(r"tcp://[^/]+:[1-9]\d{0,4}|ipc:///.+")


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
    collective_s: float = 280.0  # a collective: who waits there says so before it counts as stalled


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
    #: A prompt of so many bytes, or so much that a call is given or answers, is a frame of its own behind its message
    #: (`engine/wire/buffers.py`); what is shorter the socket would copy all the same. 0: all is in the body.
    own_frame_bytes: int = 64 << 10
    #: SO_SNDBUF and SO_RCVBUF. 0 leaves the system's; None: half a GiB where the machine has plenty of memory.
    buffer_bytes: int | None = 0
    router_mandatory: bool = True  # False: as vLLM, a frame for an unconnected core vanishes in silence

    def __post_init__(self) -> None:
        if self.io_threads < 1:
            raise ValueError(f"io_threads must be 1 or more, got {self.io_threads}")
        if self.heartbeat_s < 0.0 or 0.0 < self.heartbeat_s < 0.001:
            raise ValueError(f"heartbeat_s must be 0 (none) or a millisecond or more, got {self.heartbeat_s}")
        if self.own_frame_bytes < 0:
            raise ValueError(f"own_frame_bytes must be 0 (none) or more, got {self.own_frame_bytes}")
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
    #: Offline: `data_parallel_size` clients have one core each, of `data_parallel_rank`, and no coordinator. The cores
    #: meet here, `tcp://host:port` or `ipc:///path`, where the one of rank 0 listens, and step together.
    master_address: str | None = None
    #: Who spreads requests: one client over all cores; "hybrid": several clients, each over the cores that it starts;
    #: "external": the same with one core each, so whoever asks chooses the client. These have a coordinator.
    load_balancing: Literal["internal", "hybrid", "external"] = "internal"
    #: Where cores greet the head, `tcp://host:port` or `ipc:///path`: the client that starts rank 0 and a coordinator.
    #: Needed where others start cores, too: other clients, or launchers that have none (headless).
    head_address: str | None = None
    size_local: int | None = None  # how many cores are started here, from `data_parallel_rank` on; None: all of them
    rank_local: int = 0  # how many others are started before them on this host: their devices come behind those

    def __post_init__(self) -> None:
        if self.head_address is not None and not _ADDRESS.fullmatch(str(self.head_address)):
            raise ValueError(f"head_address must be tcp://host:port or ipc:///path, got {self.head_address!r}")
        if self.head_address is not None and self.master_address is not None:
            raise ValueError("cores that greet a head are told by it where they meet: give no master_address")
        if self.load_balancing != "internal" and self.head_address is None:
            raise ValueError(f"with {self.load_balancing} load balancing cores greet a head: give its head_address")
        if (self.size_local is not None and self.size_local < 1) or self.rank_local < 0:
            raise ValueError(f"size_local must be 1 or more, and rank_local 0 or more, got {self.size_local}, "
                             f"{self.rank_local}")
        if self.master_address is not None:
            if not _ADDRESS.fullmatch(str(self.master_address)):
                raise ValueError(f"master_address must be tcp://host:port or ipc:///path, got {self.master_address!r}")
            if self.coordinator:
                raise ValueError("cores that meet at a master_address have a client each, and no coordinator")
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
    #: How many cores one client spreads its requests over, each with all of the model; offline, how many clients there
    #: are, with a core each.
    data_parallel_size: int = 1
    #: Which of several engines this is that share the base endpoints of `kv_events`: it publishes beside them. Offline,
    #: which of them that step together.
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
    def is_offline(self) -> bool:
        """Whether the ranks have a client each."""
        return self.data_parallel_size > 1 and self.data_parallel.master_address is not None

    @property
    def is_spread(self) -> bool:
        """Whether not all cores are started by one."""
        return self.data_parallel_size > 1 and self.data_parallel.head_address is not None

    @property
    def local_ranks(self) -> range:
        """The cores that are started here."""
        if not self.is_spread:
            return range(self.data_parallel_size)
        first = self.data_parallel_rank
        return range(first, first + (self.data_parallel.size_local or self.data_parallel_size - first))

    @property
    def is_head(self) -> bool:
        return self.data_parallel_rank == 0

    @property
    def client_ranks(self) -> range:
        """The cores that the client asks which is started with this."""
        internal = self.data_parallel.load_balancing == "internal"
        return range(self.data_parallel_size) if internal else self.local_ranks

    @property
    def client_indices(self) -> range:
        """The clients of all cores that are not all started by one, each by the place of its own cores."""
        internal = self.data_parallel.load_balancing == "internal"
        return range(1 if internal else self.data_parallel_size // len(self.local_ranks))

    @property
    def has_coordinator(self) -> bool:
        return self.data_parallel_size > 1 and not self.is_offline and (
            self.data_parallel.coordinator or self.data_parallel.load_balancing != "internal" or self.is_lockstep)

    @property
    def is_counted(self) -> bool:
        """Whether somebody wants to know how much each core has to do."""
        return self.has_coordinator and self.data_parallel.load_balancing != "external"

    @property
    def is_lockstep(self) -> bool:
        return self.data_parallel_size > 1 and (
            self.data_parallel.lockstep or self.data_parallel.load_balancing == "external" or self.is_offline)

    @property
    def grid(self) -> Grid:
        return Grid(self.tensor_parallel_size, self.pipeline_parallel_size)

    @property
    def tokenizer_directory(self) -> str:
        return self.tokenizer or self.model

    def __post_init__(self) -> None:
        if isinstance(self.scheduler, dict) or isinstance(self.data_parallel, dict):
            return  # looked at when they are taken for what they are
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
        if self.is_offline or self.is_spread:
            self._check_group()

    def _check_group(self) -> None:
        rank, size, options = self.data_parallel_rank, self.data_parallel_size, self.data_parallel
        if rank >= size:
            raise ValueError(f"data_parallel_rank must be below data_parallel_size, got {rank} of {size}")
        if not self.is_spread:
            return
        if self.local_ranks.stop > size:
            raise ValueError(f"there are {size} ranks, and size_local is {options.size_local} from rank {rank} on")
        local = len(self.local_ranks)
        if options.load_balancing == "hybrid" and (size % local or rank % local):
            raise ValueError("with hybrid load balancing each client has as many cores as any other: size_local is "
                             f"{options.size_local}, of {size} from rank {rank} on")
        if options.load_balancing == "external" and local != 1:
            raise ValueError("with external load balancing each client has one core: size_local is 1, not "
                             f"{options.size_local}")


def config_from(values: dict[str, Any]) -> EngineConfig:
    """The config a run recorded. Raises msgspec.ValidationError where it is not one."""
    return msgspec.convert(values, EngineConfig)
