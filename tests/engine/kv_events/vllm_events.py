"""vLLM's `kv_events`, where it can be imported: from this environment, or from one named by KV_VLLM_PYTHONPATH."""

from __future__ import annotations

import os
import sys
from typing import Any

WHY_NOT = "vLLM cannot be imported here; KV_VLLM_PYTHONPATH may name the site-packages of an environment that has it"


def vllm_events() -> Any:
    """The module, or None where it cannot be imported, whatever the reason."""
    folder = os.environ.get("KV_VLLM_PYTHONPATH")
    if folder and folder not in sys.path:
        sys.path.append(folder)  # behind our own: what both have is ours
    try:
        from vllm.distributed import kv_events
    except Exception:
        return None
    return kv_events
