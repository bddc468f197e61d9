"""Imported by the fork server: whatever a process of a play would otherwise import in its first second."""

import torch

torch.set_num_threads(1)  # a thread pool would not survive the fork

import safetensors.torch  # noqa: E402
import torch.distributed  # noqa: E402
import zmq  # noqa: E402

import engine.core.life  # noqa: E402
import engine.frontend.async_llm  # noqa: E402
import engine.ipc.message_queue  # noqa: E402
import engine.process.consensus.group  # noqa: E402
import engine.process.consensus.introductions  # noqa: E402
import engine.wire.sockets  # noqa: E402
import engine.worker.life  # noqa: E402
import engine.worker.worker  # noqa: E402
import faults.real.ports  # noqa: E402
import scenarios.worlds.caller  # noqa: E402
import scenarios.worlds.listener  # noqa: E402, F401

__all__ = ["engine", "faults", "safetensors", "scenarios", "torch", "zmq"]
