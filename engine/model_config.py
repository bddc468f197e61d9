"""What a Hugging Face directory says about its model: the one place that reads config.json.

Promises: a Llama checkpoint gives a `ModelConfig`; anything else ends in a ConfigError of one line that says
what is wrong and in which file. Needs neither torch nor transformers, so the frontend and the core read the
model's length, vocabulary and end-of-sequence tokens from here, and the workers its shape.

Both spellings of the rotary parameters are read: `rope_theta` beside `rope_scaling`, and `rope_parameters`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.errors import ConfigError

#: Kinds of rotary scaling that depend on the position alone.
ROPE_TYPES = ("default", "linear", "llama3")
DTYPES = ("float32", "bfloat16", "float16")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a Llama. Sizes are of the whole model, not of one rank's shard."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] = {}
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # the first is the request's own, the others count as stop tokens


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); a model is a Hugging Face directory") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds no JSON object")
    return values


def _eos_token_ids(*sources: dict[str, Any]) -> tuple[int, ...]:
    """config.json's ids first, then those that only generation_config.json names."""
    found: list[int] = []
    for source in sources:
        value = source.get("eos_token_id")
        found += [value] if isinstance(value, int) else value or []
    return tuple(dict.fromkeys(found))


def _rope(values: dict[str, Any], path: Path) -> tuple[float, dict[str, Any]]:
    scaling = dict(values.get("rope_parameters") or values.get("rope_scaling") or {})
    theta = float(scaling.pop("rope_theta", None) or values.get("rope_theta") or 10_000.0)
    kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    if kind not in ROPE_TYPES:
        raise ConfigError(f"{path}: rope type {kind!r} is not supported, only {', '.join(ROPE_TYPES)}")
    needed = {"linear": ("factor",), "default": (), "llama3": (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")}[kind]
    missing = [name for name in needed if not isinstance(scaling.get(name), int | float)]
    if missing:
        raise ConfigError(f"{path}: rope type {kind!r} lacks {', '.join(missing)}")
    return theta, {} if kind == "default" else {"rope_type": kind, **{name: scaling[name] for name in needed}}


def read_model_config(directory: str | Path) -> ModelConfig:
    """Raises ConfigError where the directory is not that of a Llama that can be served."""
    directory = Path(directory)
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such model directory")
    path = directory / "config.json"
    values = _read_json(path)
    if values.get("model_type") != "llama":
        architecture = (values.get("architectures") or [values.get("model_type")])[0]
        raise ConfigError(f"{path}: architecture {architecture!r} is not supported, only LlamaForCausalLM")
    if values.get("quantization_config"):
        raise ConfigError(f"{path}: quantized weights are not supported")
    if values.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{path}: hidden_act {values['hidden_act']!r} is not supported, only 'silu'")
    dtype = values.get("dtype") or values.get("torch_dtype") or "float32"
    if dtype not in DTYPES:
        raise ConfigError(f"{path}: dtype {dtype!r} is not supported, only {', '.join(DTYPES)}")
    generation = directory / "generation_config.json"
    theta, scaling = _rope(values, path)
    heads = values.get("num_attention_heads")
    try:
        model = msgspec.convert({
            **{name: value for name, value in values.items()
               if name in ModelConfig.__struct_fields__ and value is not None},
            "num_key_value_heads": values.get("num_key_value_heads") or heads,
            "head_dim": values.get("head_dim") or values.get("hidden_size", 0) // (heads or 1),
            "dtype": dtype, "rope_theta": theta, "rope_scaling": scaling,
            "eos_token_ids": _eos_token_ids(values, _read_json(generation) if generation.exists() else {}),
        }, type=ModelConfig)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if model.num_attention_heads % model.num_key_value_heads:
        raise ConfigError(f"{path}: {model.num_key_value_heads} key-value heads do not divide "
                          f"{model.num_attention_heads} attention heads")
    return model


def read_servable_model(config: EngineConfig) -> ModelConfig:
    """What can be said before any process is started. Raises ConfigError."""
    model = read_model_config(config.model)
    check_servable(config, model)
    if not any(Path(config.model).glob("*.safetensors")):
        raise ConfigError(f"{config.model}: no weights, there is no *.safetensors in this model directory")
    return model


def check_servable(config: EngineConfig, model: ModelConfig) -> None:
    """Raises ConfigError where this model cannot be served as configured."""
    check_parallel(model, config.tensor_parallel_size, config.pipeline_parallel_size)
    max_model_len(config, model)


def layers_of_stage(layers: int, stage: int, stages: int) -> range:
    """Which layers a stage has. What does not divide goes to the stages before the last one, which has the head, too.

    As vLLM cuts them: 5 layers in 2 stages are 3 and 2, in 4 stages 1, 1, 2 and 1.
    """
    counts = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        counts[-place] += 1
    first = sum(counts[:stage])
    return range(first, first + counts[stage])


def check_parallel(model: ModelConfig, tensor_parallel_size: int, pipeline_parallel_size: int = 1) -> None:
    """Raises ConfigError where the model cannot be cut into that many shards, or its layers into so many stages.

    Key-value heads may be fewer than the ranks: then each is held by several.
    """
    tp, kv_heads = tensor_parallel_size, model.num_key_value_heads
    if tp < 1:
        raise ConfigError(f"tensor_parallel_size must be at least 1, got {tp}")
    if not 1 <= pipeline_parallel_size <= model.num_hidden_layers:
        raise ConfigError(f"pipeline_parallel_size must lie between 1 and the model's {model.num_hidden_layers} "
                          f"layers, got {pipeline_parallel_size}")
    for name, count in (("attention heads", model.num_attention_heads), ("MLP columns", model.intermediate_size)):
        if count % tp:
            raise ConfigError(f"tensor_parallel_size {tp} does not divide the model's {count} {name}")
    if kv_heads % tp and tp % kv_heads:
        raise ConfigError(f"tensor_parallel_size {tp} neither divides nor is a multiple of the model's "
                          f"{kv_heads} key-value heads")


def max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """The most tokens, prompt and output together, that one request may have.

    Raises ConfigError where the configuration asks for more than the model was built for.
    """
    asked = config.scheduler.max_model_len
    if asked is None:
        return model.max_position_embeddings
    if not 1 <= asked <= model.max_position_embeddings:
        raise ConfigError(f"max_model_len must lie between 1 and the model's {model.max_position_embeddings}, "
                          f"got {asked}")
    return asked
