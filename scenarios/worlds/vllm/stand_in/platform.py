"""A platform of vLLM's that needs no device: its worker is the stand-in's."""

from __future__ import annotations

from typing import Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from scenarios.worlds.vllm.stand_in import ATTENTION, WORKER


class StandInPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    device_control_env_var = "RINGTWIN_NO_DEVICES"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_attn_backend_cls(cls, *args: Any, **options: Any) -> str:
        return ATTENTION

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 1 << 30

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "stand-in"

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        pass

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        pass

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = WORKER
        cache.block_size = cache.block_size or 16

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: Any) -> None:
        """Words fit into blocks of any size."""
