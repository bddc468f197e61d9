"""A request as the core knows it: its tokens, how far they are computed, and how it ended.

Promises
- A request ends once: `finish` refuses a second end.
- Block hashes are a pure function of the token ids before them (blake2b over packed bytes), so every
  process, machine and world computes the same ones. They are computed once, block by block.

    tokens    [ prompt ................ | output ........ | promised ]    num_output_placeholders, with async scheduling
              [ computed ........... |      still to do   ]     num_computed_tokens counts scheduled tokens:
              [ known to workers ........... |            ]     a step in flight counts as computed
    hashes    [ h0 | h1 | h2 | ]                                one per full block, chained to the one before
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum

from engine.messages import EngineCoreRequest, FinishReason, SamplingParams


class RequestStatus(IntEnum):
    """Everything from FINISHED_STOPPED on is an end."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH = 4
    FINISHED_ABORTED = 5
    FINISHED_ERROR = 6


#: Of tokens: then the model's length is the only end.
UNLIMITED = 1 << 62
#: Beside the class, because finding an enum's member there takes as long as a call.
_FIRST_END = RequestStatus.FINISHED_STOPPED
_FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
}


def hash_block(parent_hash: int | None, token_ids: Sequence[int]) -> int:
    """The 64-bit name of a full block: of its own tokens and, through the parent, of all before them.

    Python's `hash` would differ between processes; a subscriber elsewhere must find the same number.
    """
    packed = struct.pack(f"<{len(token_ids)}q", *token_ids)
    parent = b"" if parent_hash is None else parent_hash.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(parent + packed, digest_size=8, person=b"kv-block").digest(), "little")


class Request:
    """One request. Mutated by the scheduler alone.

    `stop_reason` is the stop token that ended it, or the text that says why it failed.
    `num_cached_tokens` is how much of the prompt the prefix cache gave at its first start (-1 before that).
    """

    __slots__ = (
        "all_token_ids", "block_hashes", "came", "client_index", "eos_token_id", "known_to_workers", "max_tokens",
        "next_decode_step", "num_cached_tokens", "num_computed_tokens", "num_output_placeholders", "num_preemptions",
        "num_prompt_tokens", "num_tokens_at_workers", "priority", "request_id", "sampling_params", "status",
        "stop_reason",
    )

    def __init__(self, request_id: str, prompt_token_ids: Sequence[int], sampling_params: SamplingParams,
                 eos_token_id: int | None = None, client_index: int = 0, priority: int = 0) -> None:
        self.request_id = request_id
        self.priority = priority  # the lowest is served first, where the policy asks for it
        self.came = 0  # its number among those that came
        self.client_index = client_index
        self.sampling_params = sampling_params
        self.max_tokens = UNLIMITED if sampling_params.max_tokens is None else sampling_params.max_tokens
        self.eos_token_id = eos_token_id
        self.all_token_ids: list[int] = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.all_token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens = -1
        self.num_preemptions = 0
        self.num_output_placeholders = 0  # tokens that steps in flight sample, and that steps behind them compute
        self.next_decode_step = 0  # the first that may compute with a token that is promised
        self.num_tokens_at_workers = 0
        self.known_to_workers = False
        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        self.block_hashes: list[int] = []

    @classmethod
    def from_engine_core_request(cls, request: EngineCoreRequest) -> Request:
        return cls(request.request_id, request.prompt_token_ids, request.sampling_params,
                   request.eos_token_id, request.client_index, request.priority)

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.all_token_ids[:self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.all_token_ids[self.num_prompt_tokens:]

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.status >= _FIRST_END

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while the request lives."""
        return _FINISH_REASONS.get(self.status)

    def extend_block_hashes(self, block_size: int) -> None:
        """Hash the blocks that have become full since the last call. One block size per request."""
        hashes, tokens = self.block_hashes, self.all_token_ids
        parent = hashes[-1] if hashes else None
        for start in range(len(hashes) * block_size, len(tokens) - block_size + 1, block_size):
            parent = hash_block(parent, tokens[start:start + block_size])
            hashes.append(parent)

    def finish(self, status: RequestStatus, stop_reason: int | str | None = None) -> None:
        assert status >= RequestStatus.FINISHED_STOPPED, f"{status!r} is not an end"
        assert not self.is_finished, f"request {self.request_id!r} ends twice: {self.status!r}, then {status!r}"
        self.status = status
        self.stop_reason = stop_reason

    def __repr__(self) -> str:
        return (f"Request({self.request_id!r}, {self.status.name}, prompt={self.num_prompt_tokens}, "
                f"output={self.num_output_tokens}, computed={self.num_computed_tokens})")


def status_after_token(request: Request, token_id: int, max_model_len: int
                       ) -> tuple[RequestStatus, int | None] | None:
    """Whether `token_id`, just appended, ends the request: (status, stop_reason), or None to go on.

    None of the first `min_tokens` tokens ends it by what it is; a length limit always does. The end-of-sequence
    token gives no stop_reason, a stop token gives itself.
    """
    params = request.sampling_params
    num_tokens = len(request.all_token_ids)
    num_output_tokens = num_tokens - request.num_prompt_tokens
    if num_output_tokens > params.min_tokens:
        if token_id == request.eos_token_id and not params.ignore_eos:
            return RequestStatus.FINISHED_STOPPED, None
        if token_id in params.stop_token_ids:
            return RequestStatus.FINISHED_STOPPED, token_id
    if num_output_tokens >= request.max_tokens or num_tokens >= max_model_len:
        return RequestStatus.FINISHED_LENGTH, None
    return None
