"""The tokenizer of a model directory, and the checks of prompts that need it.

Needs no torch; transformers is imported where a tokenizer needs more than its tokenizer.json, and never with
`skip_tokenizer_init`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.frontend.text.input_processor import InputProcessor
from engine.model_config import read_model_config

#: Classes that add nothing to tokenizer.json.
PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")


class JsonTokenizer:
    """A tokenizer that is all in its tokenizer.json: what transformers wraps, without its seconds of import."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        self.backend_tokenizer = Tokenizer.from_file(str(path))
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self.backend_tokenizer.encode(text).ids}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def load_tokenizer(directory: str) -> Any:
    """The directory's own tokenizer, offline. Raises ConfigError where there is none that loads."""
    path = Path(directory)
    try:
        settings = msgspec.json.decode((path / "tokenizer_config.json").read_bytes())
        if settings.get("tokenizer_class") in PLAIN_CLASSES and (path / "tokenizer.json").exists():
            return JsonTokenizer(path / "tokenizer.json")
    except Exception as error:  # the loaders raise whatever their files made them
        raise _unreadable(directory, error) from None
    # Other classes change what the file says (a <s> in front or not, old rules for spaces).
    return transformers_tokenizer(directory)


def transformers_tokenizer(directory: str) -> Any:
    """The directory's tokenizer as transformers loads it, offline. Raises ConfigError where none loads."""
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:
        raise _unreadable(directory, error) from None


def _unreadable(directory: str, error: Exception) -> ConfigError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ConfigError(f"{directory}: the tokenizer cannot be loaded ({reason}); "
                       "with skip_tokenizer_init prompts are token ids")


def inputs_of(config: EngineConfig) -> InputProcessor:
    """Raises ConfigError where the model directory is not one that can be served."""
    model = read_model_config(config.model)
    tokenizer = None if config.skip_tokenizer_init else load_tokenizer(config.tokenizer_directory)
    return InputProcessor(config, model, tokenizer)
