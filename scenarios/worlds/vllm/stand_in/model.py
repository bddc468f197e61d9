"""The model that is registered in place of the checkpoint's: it is never made, and says what vLLM asks its class."""

from __future__ import annotations

from typing import Any

from torch import nn


class StandInForCausalLM(nn.Module):
    supports_pp = True
    make_empty_intermediate_tensors = None  # of a model that hands on what a stage leaves: this one has nothing

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()

    def forward(self, input_ids: Any, positions: Any, intermediate_tensors: Any = None,
                inputs_embeds: Any = None) -> Any:
        raise NotImplementedError("the stand-in computes nothing")

    def embed_input_ids(self, input_ids: Any) -> Any:
        raise NotImplementedError("the stand-in computes nothing")

    def compute_logits(self, hidden_states: Any) -> Any:
        raise NotImplementedError("the stand-in computes nothing")

    def load_weights(self, weights: Any) -> set[str]:
        return set()
