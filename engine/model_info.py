"""What can be said about a model directory without loading it, so that a bad one fails before any process starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError

ARCHITECTURES = ("LlamaForCausalLM",)


def read_model_config(model: str | Path) -> dict[str, Any]:
    """The directory's config.json. Raises ConfigError naming the file."""
    path = Path(model) / "config.json"
    if not Path(model).is_dir():
        raise ConfigError(f"model {str(model)!r} is not a directory; give an ordinary Hugging Face model directory")
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: not a Hugging Face model directory") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def check_model(config: EngineConfig) -> dict[str, Any]:
    """Raises ConfigError where this model cannot be served with this configuration. -> its config.json"""
    info = read_model_config(config.model)
    architectures = info.get("architectures") or ["unknown"]
    if not set(architectures) & set(ARCHITECTURES):
        raise ConfigError(f"model {config.model!r} is a {', '.join(architectures)}; "
                          f"served are {', '.join(ARCHITECTURES)}")
    folder = Path(config.model)
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"model {config.model!r} has no weights: no *.safetensors in the directory")
    tp, heads = config.tensor_parallel_size, info.get("num_attention_heads")
    if tp < 1:
        raise ConfigError(f"tensor_parallel_size must be at least 1, got {tp}")
    if not isinstance(heads, int) or heads % tp:
        raise ConfigError(f"tensor_parallel_size {tp} does not divide the model's {heads} attention heads")
    return info


def max_model_len(config: EngineConfig, info: dict[str, Any]) -> int:
    """The longest sequence: the model's own limit, or what the configuration says below it."""
    limit = int(info.get("max_position_embeddings", 2048))
    wanted = config.scheduler.max_model_len
    if wanted is not None and wanted > limit:
        raise ConfigError(f"max_model_len {wanted} is beyond the model's {limit} positions")
    return wanted or limit
