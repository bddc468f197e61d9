"""What the processes say to each other: the engine's vocabulary on the wire and in the ring.

Array-like msgspec Structs travel as short msgpack arrays; new fields go at the end with a default, so an
older peer still reads a newer one's message. Names follow vLLM V1; what travels between the processes of an engine
is smaller and in an order of its own, so neither kind's client talks to the other's core. KV-cache events are the
exception: their bytes are vLLM's (`engine/kv_events/codec.py`).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Annotated, Any

import msgspec


class EngineCoreRequestType:
    """The one-byte type frame of a message to the core."""

    ADD = b"\x00"
    ABORT = b"\x01"
    START_DP_WAVE = b"\x02"
    UTILITY = b"\x03"
    LEAVE = b"\x06"  # to a headless core, which nobody else can tell that its client has no more use for it


ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"
#: The number of a wave as it travels. Nobody counts so far: one that is larger was never a wave, and the next one
#: after the largest that msgpack can carry would end whoever has to say it.
Wave = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
#: Of the client that is to be answered: nobody else is.
ClientIndex = Annotated[int, msgspec.Meta(ge=0)]
_INFINITE = float("inf")


class FinishReason(IntEnum):
    """Why a request ended. The integer is what travels: vLLM's up to ERROR; at REFUSED, ours, vLLM has another."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REFUSED = 4

    def __str__(self) -> str:
        return self.name.lower()


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen. `temperature` 0, the default (vLLM's is 1), is greedy. Raises ValueError, TypeError.

    As in vLLM, `stop` may be one string, `top_k` -1, and `max_tokens` None: up to the model's length.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if self.top_k == -1:
            msgspec.structs.force_setattr(self, "top_k", 0)
        if type(self.stop) is not tuple:
            stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
            msgspec.structs.force_setattr(self, "stop", stop)
        if type(self.stop_token_ids) is not tuple:
            msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        try:
            self._check()
        except TypeError as error:
            raise TypeError(f"a sampling parameter is of the wrong kind ({error}): {self}") from None

    def _check(self) -> None:
        if not 0.0 <= self.temperature < _INFINITE:
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not self.top_k >= 0:
            raise ValueError(f"top_k must be 0 (all) or more, got {self.top_k}")
        if self.max_tokens is not None and not self.max_tokens >= 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not self.min_tokens >= 0 or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            raise ValueError(f"min_tokens must lie between 0 and max_tokens ({self.max_tokens}), got {self.min_tokens}")
        if not all(self.stop):
            raise ValueError("a stop string must not be empty")
        if self.stop_token_ids and min(self.stop_token_ids) < 0:
            raise ValueError("stop_token_ids must not be negative")


class EngineCoreRequest(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """ADD. `request_id` is the internal id (the caller's id and a suffix), unique for ever."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    client_index: ClientIndex = 0
    current_wave: Wave = 0
    arrival_time: float = 0.0
    eos_token_id: int | None = None
    priority: int = 0


class EngineCoreOutput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """New tokens of one request. `num_preceding` tokens were sent before these: a hole is seen at once."""

    request_id: str
    new_token_ids: list[int]
    num_preceding: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0


class UtilityOutput(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a UTILITY call: `failure` is None, or says what went wrong."""

    call_id: int
    failure: str | None = None
    result: Any = None


class SchedulerStats(msgspec.Struct, frozen=True, array_like=True):
    num_running: int = 0
    num_waiting: int = 0
    blocks_free: int = 0
    blocks_total: int = 0


class EngineCoreOutputs(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One message core -> frontend."""

    engine_index: int = 0
    outputs: list[EngineCoreOutput] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    utility_output: UtilityOutput | None = None
    finished_requests: list[str] | None = None
    wave_complete: Wave | None = None
    start_wave: Wave | None = None
    step: int = 0  # steps the core has executed when it sent this
    counted_at: tuple[Wave, int] | None = None  # to a coordinator: wave, and step of it, at which the stats were taken


# -- handshake ----------------------------------------------------------------------------------------


class EngineZmqAddresses(msgspec.Struct, frozen=True):
    inputs: list[str]
    outputs: list[str]
    coordinator_input: str | None = None
    coordinator_output: str | None = None
    frontend_stats_publish_address: str | None = None


class EngineHandshakeMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """The frontend's answer to HELLO: where to connect, and the parallel configuration both sides must share.

    Without inputs and outputs it is that of a head which asks nothing of this core.
    """

    addresses: EngineZmqAddresses
    parallel_config: dict[str, int | str | bool]
    head: Any = None  # engine.process.consensus.effects.Member: who says this, to one that it has not started
    coordinator: Any = None  # the same of the coordinator, where there is one


# -- one step ---------------------------------------------------------------------------------------------


class NewRequestData(msgspec.Struct, frozen=True, array_like=True):
    """A request the workers see for the first time, or again after a preemption."""

    request_id: str
    token_ids: list[int]  # prompt, and after a preemption also what was generated before it
    num_prompt_tokens: int
    sampling_params: SamplingParams
    block_ids: list[int]
    num_computed_tokens: int


class CachedRequestData(msgspec.Struct, frozen=True, array_like=True):
    """A request the workers know: what is new since their last step."""

    request_id: str
    new_token_ids: list[int]
    new_block_ids: list[int]
    num_computed_tokens: int


class SchedulerOutput(msgspec.Struct, frozen=True, array_like=True):
    """What the workers shall compute in one step.

    `num_scheduled_tokens[request_id]` tokens of each request, from its `num_computed_tokens` on. A token is
    sampled for a request whose scheduled tokens reach the end of its known tokens. Pickled, it is one msgpack array:
    every rank reads it in every step, and that takes a third of the time.
    """

    step: int
    new: list[NewRequestData]
    cached: list[CachedRequestData]
    num_scheduled_tokens: dict[str, int]
    finished: list[str]  # the workers forget these
    preempted: list[str]  # the workers forget these; they come again as `new`
    at: tuple[int, int] | None = None  # wave and step of engines that step together: all have to be there

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return _scheduler_output, (msgspec.msgpack.encode(self),)


class ModelRunnerOutput(msgspec.Struct, frozen=True, array_like=True):
    """Sampled tokens by request; a request whose prefill goes on has an empty list. Pickled as `SchedulerOutput` is."""

    step: int
    sampled: dict[str, list[int]]

    def __reduce__(self) -> tuple[Any, ...]:
        return _model_runner_output, (msgspec.msgpack.encode(self),)


_SCHEDULER_OUTPUTS = msgspec.msgpack.Decoder(SchedulerOutput)
_MODEL_RUNNER_OUTPUTS = msgspec.msgpack.Decoder(ModelRunnerOutput)


def _scheduler_output(packed: bytes) -> SchedulerOutput:
    return _SCHEDULER_OUTPUTS.decode(packed)


def _model_runner_output(packed: bytes) -> ModelRunnerOutput:
    return _MODEL_RUNNER_OUTPUTS.decode(packed)


class ReplyStatus(IntEnum):
    SUCCESS = 0
    FAILURE = 1


# -- KV-cache events (vLLM's wire format, see engine/kv_events/codec.py) --------------------------------------

#: 64-bit integers by default; whole digests as bytes where a publisher is configured so.
BlockHash = bytes | int


def _nothing() -> None:
    return None


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


class KVCacheEvent(msgspec.Struct, omit_defaults=True, tag=True, frozen=True):
    """Base of the tagged maps inside a batch. Equal by content, and hashable, for who keeps events in sets.

    `medium` and `lora_name` travel even when they are None: a factory's value is never omitted.
    """

    def __hash__(self) -> int:
        return hash((type(self), *map(_hashable, msgspec.structs.astuple(self))))


class BlockStored(KVCacheEvent, frozen=True):
    """`block_hashes[i]` holds `token_ids[i * block_size:]`; the parent of the first is `parent_block_hash`."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = msgspec.field(default_factory=_nothing)
    lora_name: str | None = msgspec.field(default_factory=_nothing)
    extra_keys: list[tuple[Any, ...] | None] | None = None  # what else went into the hashes, one entry a block
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None  # LOCAL or REMOTE, as the publisher sees it
    ownership: str | None = None  # the tier that holds the copy
    session_id: str | None = None  # who caused it; the block may serve others
    lookahead_token_ids: list[list[int]] | None = None  # behind each block, where the hashes depend on them


class BlockRemoved(KVCacheEvent, frozen=True):
    block_hashes: list[BlockHash]
    medium: str | None = msgspec.field(default_factory=_nothing)
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent, frozen=True):
    pass


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """What a publisher takes. `ts`: seconds of the wall clock; a rank of None is filled in by the publisher."""

    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVEventBatch(EventBatch, frozen=True):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


# -- outcomes a caller sees ---------------------------------------------------------------------------------


class Outcome(StrEnum):
    """How a request ended for its caller. Every accepted request gets exactly one."""

    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"
    REFUSED = "refused"
    ENGINE_DEAD = "engine-dead"


class CompletionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to a request, by vLLM's names. There is always one: `index` is 0."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What `generate` yields: cumulative tokens and text of one request; `outputs[0]` has the same by vLLM's names."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finished: bool
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0

    @property
    def outputs(self) -> list[CompletionOutput]:
        return [CompletionOutput(index=0, text=self.text, token_ids=self.token_ids, finish_reason=self.finish_reason,
                                 stop_reason=self.stop_reason)]
