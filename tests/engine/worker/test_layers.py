"""Layers, each beside what transformers has of it."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from engine.worker.layers import RMSNorm

EPS = 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 30.0])
@torch.inference_mode()
def test_norm(dtype: torch.dtype, scale: float) -> None:
    random = torch.Generator().manual_seed(7)
    weight = torch.randn(64, generator=random).to(dtype)
    x = (torch.randn(40, 64, generator=random) * scale).to(dtype)
    reference = LlamaRMSNorm(64, eps=EPS)
    reference.weight = torch.nn.Parameter(weight)
    found = RMSNorm(weight, EPS)(x)
    assert found.dtype is dtype
    # Rounded once more or less than there: by the last digit of the type.
    torch.testing.assert_close(found, reference(x), rtol=4 * torch.finfo(dtype).eps, atol=0.0)
