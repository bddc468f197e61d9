"""Imported by the fork server: what a process of a play would otherwise import, or find out, in its first second."""

import gc
import os

gc.disable()  # an import leaves no garbage, and makes objects by the hundred thousand to look through for some

import multiprocessing.popen_fork  # noqa: E402
import multiprocessing.popen_forkserver  # noqa: E402

import msgspec  # noqa: E402

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # else numpy, which torch imports, starts threads of its own
import torch  # noqa: E402

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
import scenarios.worlds.launching  # noqa: E402
import scenarios.worlds.listener  # noqa: E402
from scenarios.worlds.forking import huge_pages  # noqa: E402

#: What is read with its type. How to read a type is found out once, where it is first asked for: each of the forked
#: would do so again.
TYPES = (
    scenarios.worlds.caller.CallerRecipe, scenarios.worlds.launching.LauncherRecipe,
    scenarios.worlds.listener.ListenerRecipe, faults.real.ports.PortsArgument, faults.real.board.Contents,
    engine.process.children.Bootstrap, engine.process.recipes.Recipe, engine.process.recipes.Word,
    engine.wire.handshake.Greeting, engine.messages.EngineHandshakeMetadata, engine.model_config.ModelConfig,
    engine.frontend.attachment.Attachment, engine.ipc.handle.Handle,
    engine.process.consensus.effects.Card, engine.process.consensus.effects.Member | None,
    engine.process.consensus.register.Answer)
for kind in TYPES:
    msgspec.msgpack.Decoder(kind)
gc.freeze()  # what is shared is no garbage: to look through it would copy it
gc.enable()
huge_pages.collapse()

__all__ = ["engine", "faults", "multiprocessing", "safetensors", "scenarios", "torch", "zmq"]
