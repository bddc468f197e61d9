"""What a caller asks for, checked against the model before anything is sent (pure).

Promises: a request that leaves here can be served; one that cannot fails alone, with a BadRequestError that
says the numbers. Nothing is clamped in silence: the answer of a request whose `max_tokens` reaches beyond the
model's length ends there with finish reason `length`, and that is the only limit applied later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.errors import BadRequestError
from engine.messages import SamplingParams
from engine.model_config import ModelConfig, max_model_len

#: Text, token ids, or one of both by name, as vLLM takes them: {"prompt": ...}, {"prompt_token_ids": ...}.
Prompt = str | Sequence[int] | dict[str, Any]
#: What travels as msgpack has 64 bits.
SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1


class ProcessedInput(msgspec.Struct, frozen=True, kw_only=True):
    """A request that can be served. `prompt` is None where the caller gave token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_id: int | None
    priority: int = 0


class InputProcessor:
    """Checks requests for one model. `tokenizer` may be None: then prompts are token ids."""

    def __init__(self, config: EngineConfig, model: ModelConfig, tokenizer: Any = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len(config, model)
        self.policy = config.scheduler.policy

    def process(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None,
                priority: int = 0) -> ProcessedInput:
        """Raises BadRequestError naming what cannot be served."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise BadRequestError(request_id, f"sampling_params must be SamplingParams, got {type(params).__name__}")
        text, token_ids = self._tokens_of(request_id, prompt)
        self._check_prompt(request_id, token_ids)
        self._check_params(request_id, params)
        self._check_priority(request_id, priority)
        eos = self.model.eos_token_ids
        if len(eos) > 1 and not params.ignore_eos:
            # A model may end its answers in several ways; the core knows one end and any number of stop tokens.
            stops = dict.fromkeys((*params.stop_token_ids, *eos[1:]))
            params = msgspec.structs.replace(params, stop_token_ids=tuple(stops))
        return ProcessedInput(request_id=request_id, prompt=text, prompt_token_ids=token_ids, sampling_params=params,
                              eos_token_id=eos[0] if eos else None, priority=priority)

    def _tokens_of(self, request_id: str, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, dict):
            if prompt.get("prompt_token_ids") is not None:
                return prompt.get("prompt"), self._tokens_of(request_id, list(prompt["prompt_token_ids"]))[1]
            if "prompt" not in prompt:
                raise BadRequestError(request_id, "a prompt given by name needs 'prompt' or 'prompt_token_ids', "
                                                  f"got {sorted(map(str, prompt))}")
            prompt = prompt["prompt"]
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise BadRequestError(request_id, "the prompt is text, but the engine runs without a tokenizer "
                                                  "(skip_tokenizer_init); give token ids")
            if not prompt:
                raise BadRequestError(request_id, "the prompt is empty")
            return prompt, list(self.tokenizer(prompt)["input_ids"])
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise BadRequestError(request_id, f"a prompt is text or token ids, got {type(prompt).__name__}")
        token_ids: list[Any] = list(prompt)
        if not {int}.issuperset(map(type, token_ids)):
            for place, token in enumerate(token_ids):
                if not isinstance(token, int) or isinstance(token, bool):
                    raise BadRequestError(request_id, f"token {place} of the prompt is {token!r}, not a whole number")
        return None, token_ids

    def _check_prompt(self, request_id: str, token_ids: list[int]) -> None:
        if not token_ids:
            raise BadRequestError(request_id, "the prompt is empty")
        if len(token_ids) >= self.max_model_len:
            raise BadRequestError(request_id, f"the prompt has {len(token_ids)} tokens; with at least one token of "
                                              f"output that is over the model's length of {self.max_model_len}")
        for edge in (min(token_ids), max(token_ids)):
            if not 0 <= edge < self.model.vocab_size:
                raise BadRequestError(request_id, f"token id {edge} at place {token_ids.index(edge)} of the prompt is "
                                                  f"outside the vocabulary of {self.model.vocab_size}")

    def _check_params(self, request_id: str, params: SamplingParams) -> None:
        if params.stop and self.tokenizer is None:
            raise BadRequestError(request_id, "stop strings need a tokenizer, but the engine runs without one "
                                              "(skip_tokenizer_init); use stop_token_ids")
        for token in params.stop_token_ids:
            if token >= self.model.vocab_size:
                raise BadRequestError(request_id, f"stop token id {token} is outside the vocabulary of "
                                                  f"{self.model.vocab_size}")
        numbers = {"seed": params.seed or 0, "max_tokens": params.max_tokens or 0, "top_k": params.top_k}
        for name, value in numbers.items():
            if not SMALLEST <= value <= LARGEST:
                raise BadRequestError(request_id, f"{name} {value} does not fit into 64 bits")

    def _check_priority(self, request_id: str, priority: Any) -> None:
        if type(priority) is not int or not SMALLEST <= priority <= LARGEST:
            raise BadRequestError(request_id, f"priority must be a whole number of 64 bits, got {priority!r}")
        if priority and self.policy != "priority":
            raise BadRequestError(request_id, f"priority {priority} is asked for, but the scheduler's policy is "
                                              f"{self.policy!r}; make the engine with policy 'priority'")
