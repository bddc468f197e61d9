"""One rank's shard of a Llama: some of its layers, a part of each.

Promises: with the same tokens and the same cache, all ranks of a stage end a layer with the same hidden states; logits
are those of the whole vocabulary on every rank of the last stage. Per step it costs two all_reduce per layer and,
where somebody samples, one all_gather.

    embedding            on the first stage, whole on every rank (no collective, and a tied head needs no second copy)
    layers               `engine.model_config.layers_of_stage`
    norm, head           on the last stage
    q, k, v (one matrix) column-parallel, by heads; key-value heads are repeated where ranks outnumber them
    attention output     row-parallel
    gate, up (one)       column-parallel
    down                 row-parallel
    head                 rows of the vocabulary, the last share filled up with zeros; gathered and cut
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from engine.model_config import ModelConfig
from engine.worker.attention import AttentionPlan, attend, write_cache
from engine.worker.layers import (
    ColumnParallelLinear,
    RMSNorm,
    RotaryEmbedding,
    RowParallelLinear,
    Shard,
    scaled,
)
from engine.worker.weights import Checkpoint


class LlamaLayer:
    """Attention and MLP of one layer. `shard` says which heads and columns are this rank's."""

    def __init__(self, model: ModelConfig, checkpoint: Checkpoint, index: int, shard: Shard, group: Any) -> None:
        prefix = f"model.layers.{index}."
        hidden, size, wide = model.hidden_size, model.head_dim, model.intermediate_size
        query_heads, kv_heads = shard.of(model.num_attention_heads), shard.of_kv_heads(model.num_key_value_heads)
        self.heads = query_heads.stop - query_heads.start
        self.kv_heads = kv_heads.stop - kv_heads.start
        self.head_dim = size

        def norm(name: str) -> RMSNorm:
            return RMSNorm(checkpoint.read(f"{prefix}{name}.weight", [hidden]), model.rms_norm_eps)

        def columns(parts: list[tuple[str, int, slice]], biased: bool) -> ColumnParallelLinear:
            """Several projections of the same input as one matrix."""
            weight = torch.cat([checkpoint.read(f"{prefix}{name}.weight", [whole, hidden], rows=rows)
                                for name, whole, rows in parts])
            bias = torch.cat([checkpoint.read(f"{prefix}{name}.bias", [whole], rows=rows)
                              for name, whole, rows in parts]) if biased else None
            return ColumnParallelLinear(weight, bias)

        def rows(name: str, whole: int, part: slice, biased: bool) -> RowParallelLinear:
            weight = checkpoint.read(f"{prefix}{name}.weight", [hidden, whole], columns=part)
            return RowParallelLinear(weight, checkpoint.read(f"{prefix}{name}.bias", [hidden]) if biased else None,
                                     group)

        kv = (model.num_key_value_heads * size, scaled(kv_heads, size))
        query = (model.num_attention_heads * size, scaled(query_heads, size))
        self.input_norm = norm("input_layernorm")
        self.qkv = columns([("self_attn.q_proj", *query), ("self_attn.k_proj", *kv), ("self_attn.v_proj", *kv)],
                           model.attention_bias)
        self.output = rows("self_attn.o_proj", *query, model.attention_bias)
        self.post_norm = norm("post_attention_layernorm")
        self.gate_up = columns([("mlp.gate_proj", wide, shard.of(wide)), ("mlp.up_proj", wide, shard.of(wide))],
                               model.mlp_bias)
        self.down = rows("mlp.down_proj", wide, shard.of(wide), model.mlp_bias)

    def __call__(self, hidden: torch.Tensor, turn: Any, cache: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """hidden [T, hidden] -> [T, hidden]; keys and values go to `cache`."""
        heads = self.qkv(self.input_norm(hidden)).view(-1, self.heads + 2 * self.kv_heads, self.head_dim)
        values = heads[:, self.heads + self.kv_heads:]
        queries, keys = turn(heads[:, : self.heads + self.kv_heads]).split([self.heads, self.kv_heads], dim=1)
        write_cache(cache, keys, values, plan.slots)
        hidden = hidden + self.output(attend(queries, cache, plan))
        gate, up = self.gate_up(self.post_norm(hidden)).chunk(2, dim=-1)
        return hidden + self.down(functional.silu(gate) * up)


class LlamaModel:
    """Loads its shard when it is made. Raises ConfigError for weights that do not fit `model`."""

    embedding: torch.Tensor  # of the first stage
    norm: RMSNorm  # and head, of the last one
    head: torch.Tensor

    def __init__(self, model: ModelConfig, checkpoint: Checkpoint, shard: Shard, group: Any, length: int,
                 dtype: torch.dtype, device: str, layers: range | None = None) -> None:
        """`length`: the most positions a request may have; `group`: the stage's collectives; `layers`: all, if None."""
        layers = range(model.num_hidden_layers) if layers is None else layers
        self.config = model
        self.group = group
        self.is_first, self.is_last = layers.start == 0, layers.stop == model.num_hidden_layers
        whole = [model.vocab_size, model.hidden_size]
        if self.is_first:
            self.embedding = checkpoint.read("model.embed_tokens.weight", whole)
        self.layers = [LlamaLayer(model, checkpoint, i, shard, group) for i in layers]
        if self.is_last:
            self.norm = RMSNorm(checkpoint.read("model.norm.weight", [model.hidden_size]), model.rms_norm_eps)
            head = "model.embed_tokens.weight" if model.tie_word_embeddings else "lm_head.weight"
            has_it = self.is_first and model.tie_word_embeddings and shard.world_size == 1
            self.head = self.embedding if has_it else checkpoint.read(head, whole, rows=shard.of(model.vocab_size))
        self.rotary = RotaryEmbedding(model, length, dtype, device)
        self.heads = self.layers[0].heads
        self.kv_heads = self.layers[0].kv_heads

    def use(self, group: Any) -> None:
        """From here on the collectives are this one's."""
        self.group = group
        for layer in self.layers:
            layer.output.group = layer.down.group = group

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens [T] -> hidden states [T, hidden], on the first stage"""
        return functional.embedding(tokens, self.embedding)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, caches: list[torch.Tensor],
                plan: AttentionPlan) -> torch.Tensor:
        """hidden [T, hidden], positions [T]; caches: one per layer -> hidden states [T, hidden], not yet normalised."""
        cos, sin = self.rotary.at(positions)

        def turn(heads: torch.Tensor) -> torch.Tensor:
            return self.rotary.turn(heads, cos, sin)

        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, turn, cache, plan)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [n, hidden] -> [n, vocab_size] float32, on every rank of the last stage. All must call it together."""
        part = functional.linear(self.norm(hidden), self.head)
        return self.group.all_gather(part, -1)[:, : self.config.vocab_size].float()
