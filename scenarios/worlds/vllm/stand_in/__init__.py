"""What vLLM loads in place of a device: a platform, a worker and a model that compute nothing. In its processes."""

from __future__ import annotations

_HERE = "scenarios.worlds.vllm.stand_in"
#: Names by which vLLM finds them.
PLATFORM, WORKER = f"{_HERE}.platform.StandInPlatform", f"{_HERE}.worker.StandInWorker"
MODEL, SCHEDULER = f"{_HERE}.model:StandInForCausalLM", f"{_HERE}.scheduler"
#: vLLM wants to know of one; none of it is ever called.
ATTENTION = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
#: The architecture of the lab's model.
ARCHITECTURE = "LlamaForCausalLM"


def platform() -> str:
    """Entry point of the group `vllm.platform_plugins`."""
    return PLATFORM


def register() -> None:
    """Entry point of the group `vllm.general_plugins`."""
    import torch
    from vllm import ModelRegistry

    ModelRegistry.register_model(ARCHITECTURE, MODEL)
    for name in ("empty_cache", "empty_host_cache"):  # they have no back end where there is no device
        setattr(torch.accelerator, name, lambda: None)
