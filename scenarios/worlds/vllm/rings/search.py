"""Where the rings of a play lie: segments in the memory of their writers, known by their size.

Whoever stands beside the processes opens them by way of `/proc`, also where these have a /dev/shm of their own.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from engine.topology import Engine, Node
from scenarios.worlds.vllm.environment import VARIABLES
from scenarios.worlds.vllm.rings.layout import Ring, Shape

#: As the lab sets it for the broadcast, and as vLLM has it for answers.
RPC_BYTES, RESPONSE_BYTES = int(VARIABLES["VLLM_MQ_MAX_CHUNK_BYTES_MB"]) << 20, 24 << 20
_FOLDER = "/dev/shm"


def shapes_of(engine: Engine) -> dict[tuple[Node, str], tuple[Shape, tuple[Node, ...]]]:
    """By writer and name, as sites have them: what its ring looks like, and who reads it. Empty without workers."""
    if not engine.workers:
        return {}
    rpc = Shape(len(engine.workers), RPC_BYTES), tuple(engine.workers)
    answers = {(node, "response"): (Shape(1, RESPONSE_BYTES), (engine.core,)) for node in engine.workers}
    return {(engine.core, "rpc"): rpc, **answers}


def ring_of(pid: int, shape: Shape) -> Ring | None:
    """The one of this shape in the memory of its writer. None: it is not there yet, or the writer has gone."""
    with contextlib.suppress(OSError):
        path, _ = _place_of(pid, shape)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return Ring(mmap.mmap(fd, shape.size), shape)
        finally:
            os.close(fd)
    return None


def flags_in(pid: int, shape: Shape) -> int:
    """Where a writer has the flags of this ring of its: an address. Raises OSError where it has none."""
    return _place_of(pid, shape)[1] + shape.flags_at


def _place_of(pid: int, shape: Shape) -> tuple[str, int]:
    """Its file, and where that lies in the writer's memory. Raises OSError where there is none."""
    for name, address in _segments(pid).items():
        path = f"/proc/{pid}/root{name}"
        with contextlib.suppress(FileNotFoundError):  # unlinked, and still in its memory
            if os.stat(path).st_size == shape.size:
                return path, address
    raise FileNotFoundError(f"process {pid} has no ring of {shape.size} bytes")


def _segments(pid: int) -> dict[str, int]:
    """Where each lies in its memory, from its begin on."""
    lines = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {parts[5]: int(parts[0].partition("-")[0], 16) for parts in lines
            if len(parts) == 6 and parts[5].startswith(f"{_FOLDER}/") and not int(parts[2], 16)}
