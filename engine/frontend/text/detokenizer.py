"""Tokens to text, one token at a time, and stop strings.

Promises: the text grows only at its end and never takes back what it showed; with everything fed and `finish`
called it is what decoding all tokens at once gives. A character whose bytes are spread over several tokens
appears whole, once it is whole. The text ends before the stop string that is complete first, wherever token
borders fall in it; an end that may yet become a stop string is held back until that is decided. Special tokens
give no text, unless their caller wants it.

    context ... | already shown ... newest          decoded from the context on, because decoders look at the
                read_at             not yet whole   token before
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: What decoders put for bytes that are no character, or not yet one.
REPLACEMENT = "\ufffd"
#: So many tokens of the prompt give the first token its context.
CONTEXT_TOKENS = 6


class IncrementalDecoder:
    """Text of a growing list of tokens. `tokenizer` has `decode(ids, skip_special_tokens=True) -> str`."""

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int] = (), *, skip_special: bool = True) -> None:
        self._skip_special = skip_special
        # The tokenizer behind the wrapper decodes ten times as fast, and never tidies up spaces.
        self._decode: Callable[..., str] = getattr(tokenizer, "backend_tokenizer", tokenizer).decode
        self._ids = list(prompt_token_ids[-CONTEXT_TOKENS:])
        if self._text().endswith(REPLACEMENT):
            self._ids = []  # the prompt ends within a character: no context is better than half of one
        self._read_at = len(self._ids)
        self._shown = 0  # characters after read_at that were given out before the rest was whole

    def _text(self, stop: int | None = None) -> str:
        return self._decode(self._ids[:stop], skip_special_tokens=self._skip_special)

    def add(self, token_id: int) -> str:
        """-> the characters that this token made whole; often those of the token, sometimes none."""
        self._ids.append(token_id)
        pending = self._pending()
        if pending.endswith(REPLACEMENT):
            # Only the broken end may still change.
            whole = pending.rstrip(REPLACEMENT)
            fresh = whole[self._shown:]
            self._shown = max(self._shown, len(whole))
            return fresh
        fresh = pending[self._shown:]
        if pending:
            # What is shown now is the context of what comes; what was its context is never read again.
            del self._ids[:self._read_at]
            self._read_at, self._shown = len(self._ids), 0
        return fresh

    def finish(self) -> str:
        """-> what was held back because it was not whole."""
        return self._pending()[self._shown:]

    def _pending(self) -> str:
        return self._text()[len(self._text(self._read_at)):]


def find_stop(text: str, stop: Sequence[str], start: int) -> tuple[int, str] | None:
    """Where in `text`, from `start` on, the stop string begins that is complete first, and which it is.

    First is by its end, so that it does not matter how the text was cut into tokens; then the longest.
    """
    found = []
    for word in stop:
        at = text.find(word, start)
        if at >= 0:
            found.append((at + len(word), at, word))
    return min(found)[1:] if found else None


def undecided(text: str, stop: Sequence[str], start: int) -> int:
    """How many characters at the end of `text`, from `start` on, might be the beginning of a stop string."""
    longest = min(max(map(len, stop)) - 1, len(text) - start)
    for length in range(longest, 0, -1):
        end = text[-length:]
        if any(word.startswith(end) for word in stop):
            return length
    return 0


class Detokenizer:
    """The text of one request.

    `text` is what may be shown. `stop` strings count only in what comes after the first `min_tokens` tokens.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int] = (), stop: Sequence[str] = (),
                 min_tokens: int = 0, *, skip_special: bool = True) -> None:
        self.stopped_by: str | None = None
        self._decoder = IncrementalDecoder(tokenizer, prompt_token_ids, skip_special=skip_special)
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._tokens = 0
        self._whole = ""
        self._search_from = 0
        self._hidden = 0

    @property
    def text(self) -> str:
        return self._whole[: len(self._whole) - self._hidden] if self._hidden else self._whole

    def add(self, token_id: int) -> str | None:
        """Take the next token. -> the stop string that it completed; then the text is over."""
        self._tokens += 1
        return self._grow(self._decoder.add(token_id))

    def finish(self) -> None:
        """No token follows: show what was held back. That may complete a stop string."""
        if self.stopped_by is None and self._grow(self._decoder.finish()) is None:
            self._hidden = 0

    def _grow(self, fresh: str) -> str | None:
        self._whole += fresh
        if not self._stop:
            return None
        if self._tokens <= self._min_tokens:
            self._search_from = len(self._whole)
            return None
        hit = find_stop(self._whole, self._stop, self._search_from)
        if hit is not None:
            at, self.stopped_by = hit
            self._whole, self._hidden = self._whole[:at], 0
            return self.stopped_by
        self._hidden = undecided(self._whole, self._stop, self._search_from)
        # What was searched holds no stop string, except one that begins in the part that is held back.
        self._search_from = len(self._whole) - self._hidden
        return None
