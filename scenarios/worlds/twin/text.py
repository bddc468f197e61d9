"""The text of a play in the twin, which has no tokenizers: bytes by the model's own vocabulary, prompts as recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from scenarios.workloads.workload import Workload


class RecordedTokenizer:
    """Decodes as the model's byte-level tokenizer does; encodes those texts that the workload has the tokens of."""

    def __init__(self, directory: str, workload: Workload) -> None:
        self._bytes, self._special = _vocabulary(directory)
        self._prompts = {_text(request.prompt): request.prompt_token_ids for request in workload.requests}

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self._prompts[text]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Bytes that are no character, or not yet one, become U+FFFD."""
        shown = (self._bytes[token] for token in ids if not (skip_special_tokens and token in self._special))
        return b"".join(shown).decode(errors="replace")


def _text(prompt: Any) -> str | None:
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    return text if isinstance(text, str) else None


@lru_cache(maxsize=4)
def _vocabulary(directory: str) -> tuple[dict[int, bytes], frozenset[int]]:
    """The bytes of each token, and which tokens are special."""
    found = json.loads((Path(directory) / "tokenizer.json").read_text())
    letters = _letters()
    plain = {token: bytes(letters[letter] for letter in text) for text, token in found["model"]["vocab"].items()
             if all(letter in letters for letter in text)}
    added = {entry["id"]: entry["content"].encode() for entry in found["added_tokens"]}
    return {**plain, **added}, frozenset(entry["id"] for entry in found["added_tokens"] if entry["special"])


def _letters() -> dict[str, int]:
    """Byte-level vocabularies write each byte as one letter: those that can be printed as themselves, the others
    moved to 256 and on, in their order (GPT-2's rule).
    """
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    moved = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(moved)}
