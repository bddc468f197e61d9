"""Turns the tokens of each request into what its caller sees.

Promises: a `RequestOutput` holds all tokens and all text so far; the text is the `Detokenizer`'s, so it never
shrinks. The token that completes a stop string, and the stop or end-of-sequence token, are among the tokens;
their text is not shown. Once a stop string is found, later tokens change nothing.

The order of tokens, doubled or missing outputs and errors are the session's business: what comes here comes
once and in order. A life goes

    add -> on_tokens ... (a stop string found: the caller ends the request in the core) -> on_end
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.frontend.text.detokenizer import Detokenizer
from engine.frontend.text.input_processor import ProcessedInput
from engine.messages import FinishReason, RequestOutput


class Progress(msgspec.Struct, frozen=True):
    """What new tokens made of a request. `stop_string`: they completed it, so the core must be told to stop."""

    output: RequestOutput
    stop_string: str | None = None


class RequestState:
    """One request's tokens and text. Without a tokenizer the text stays empty."""

    def __init__(self, inputs: ProcessedInput, tokenizer: Any = None) -> None:
        self.inputs = inputs
        self.token_ids: list[int] = []
        self.num_cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        params = inputs.sampling_params
        self.detokenizer = None if tokenizer is None else Detokenizer(
            tokenizer, inputs.prompt_token_ids, params.stop, params.min_tokens,
            skip_special=params.skip_special_tokens)
        self._ends = set(params.stop_token_ids)
        if inputs.eos_token_id is not None and not params.ignore_eos:
            self._ends.add(inputs.eos_token_id)

    def add_tokens(self, token_ids: Sequence[int], num_cached_tokens: int = 0) -> str | None:
        """-> the stop string that one of these tokens completed; those after it are left out."""
        self.num_cached_tokens = self.num_cached_tokens or num_cached_tokens
        if self.detokenizer is not None and self.detokenizer.stopped_by is not None:
            return None
        for token in token_ids:
            self.token_ids.append(token)
            if self.detokenizer is None or self._is_end(token):
                continue
            stopped = self.detokenizer.add(token)
            if stopped is not None:
                return stopped
        return None

    def finish(self, finish_reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """The request has ended. A stop string wins over the end that the core saw, and so does one that only the
        text held back completes.
        """
        self.finish_reason, self.stop_reason = finish_reason, stop_reason
        if self.detokenizer is not None:
            self.detokenizer.finish()
            if self.detokenizer.stopped_by is not None and finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                self.finish_reason, self.stop_reason = FinishReason.STOP, self.detokenizer.stopped_by

    def output(self) -> RequestOutput:
        """What the caller sees now."""
        return RequestOutput(
            request_id=self.inputs.request_id, prompt=self.inputs.prompt,
            prompt_token_ids=self.inputs.prompt_token_ids, token_ids=self.token_ids.copy(),
            text=self.detokenizer.text if self.detokenizer is not None else "",
            finished=self.finish_reason is not None,
            finish_reason=str(self.finish_reason) if self.finish_reason is not None else None,
            stop_reason=self.stop_reason, num_cached_tokens=self.num_cached_tokens,
        )

    def _is_end(self, token: int) -> bool:
        """The rule of the core: the first `min_tokens` tokens never end a request."""
        return token in self._ends and len(self.token_ids) > self.inputs.sampling_params.min_tokens


class OutputProcessor:
    """The requests of one client, by the id their caller gave."""

    def __init__(self, tokenizer: Any = None) -> None:
        self.tokenizer = tokenizer
        self.requests: dict[str, RequestState] = {}

    def add(self, inputs: ProcessedInput) -> None:
        """Before the request is sent: its first tokens may come at once."""
        self.requests[inputs.request_id] = RequestState(inputs, self.tokenizer)

    def on_tokens(self, request_id: str, token_ids: Sequence[int], num_cached_tokens: int = 0) -> Progress | None:
        """None where nobody waits for this request any more."""
        state = self.requests.get(request_id)
        if state is None:
            return None
        stopped = state.add_tokens(token_ids, num_cached_tokens)
        return Progress(state.output(), stopped)

    def on_end(self, request_id: str, finish_reason: FinishReason, stop_reason: int | str | None = None,
               ) -> RequestOutput:
        """-> the last output of a request that finished or was aborted; it is forgotten here."""
        state = self.requests.pop(request_id)
        state.finish(finish_reason, stop_reason)
        return state.output()

    def forget(self, request_id: str) -> None:
        """The request ended with an error: its caller gets that instead of an output."""
        self.requests.pop(request_id, None)
