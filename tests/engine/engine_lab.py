"""Real engines for tests: configurations, who is alive, what is left.

The engine's modules are imported here, so a forked core or worker begins with them; no fault code is.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import torch

import engine.core.life
import engine.worker.life  # noqa: F401
from engine.config import CacheConfig, EngineConfig, RingConfig, SchedulerConfig
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.llm import LLM
from engine.messages import SamplingParams
from engine.process.identity import start_time
from engine.process.runtime_dir import SHM
from scenarios.lab.settings import LAB_BOUNDS, MODEL
from scenarios.workloads.workload import recorded

torch.set_num_threads(1)  # a thread pool would not survive the fork

#: The lab's bounds, but a request may wait for as long as a loaded machine needs to serve those before it.
BOUNDS = msgspec.structs.replace(LAB_BOUNDS, request_s=60.0, step_s=20.0, rpc_s=20.0, stall_s=30.0, startup_s=60.0,
                                 collective_s=10.0)
#: (pid, start time): one process, whoever uses its number later.
Identity = tuple[int, int]


def config(tp: int = 1, **changes: Any) -> EngineConfig:
    """Arguments are fields of EngineConfig; nested ones may be dicts of changes."""
    base = EngineConfig(
        model=str(MODEL), tensor_parallel_size=tp, device="cpu", start_method="fork", skip_tokenizer_init=True,
        bounds=BOUNDS, cache=CacheConfig(block_size=8, num_gpu_blocks=256),
        scheduler=SchedulerConfig(max_num_batched_tokens=256, max_num_seqs=32),
        ring=RingConfig(max_chunk_bytes=16 << 10, max_chunks=4, response_chunk_bytes=16 << 10, response_chunks=4))
    return msgspec.structs.replace(base, **{
        name: msgspec.structs.replace(getattr(base, name), **value) if isinstance(value, dict) else value
        for name, value in changes.items()})


SIXTY_FOUR = recorded("sixty-four").requests
#: Runs for as long as a test needs it.
ENDLESS = SamplingParams(max_tokens=900, ignore_eos=True)
PROMPT = SIXTY_FOUR[0].prompt_token_ids[:20]


def wrong_answers(llm: LLM, requests: Any = SIXTY_FOUR) -> list[int]:
    """The indices of the requests whose tokens differ from the recorded ones of transformers."""
    outputs = llm.generate([r.prompt_token_ids for r in requests], [r.params for r in requests])
    return [r.index for r, o in zip(requests, outputs, strict=True) if o.token_ids != r.reference_token_ids]


@contextlib.contextmanager
def async_llm(settings: EngineConfig) -> Iterator[AsyncLLM]:
    llm = AsyncLLM(settings)
    try:
        yield llm
    finally:
        llm.shutdown()


def run(main: Coroutine[Any, Any, Any], timeout_s: float = 60.0) -> Any:
    """asyncio.run with a bound: a test that hangs is a failure, not a stuck machine."""
    return asyncio.run(asyncio.wait_for(main, timeout_s))


# -- processes


def descendants(pid: int | None = None) -> list[Identity]:
    """All processes below `pid` (this process where None)."""
    found: list[Identity] = []
    for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                found.append((int(child), start_time(int(child)) or 0))
                found += descendants(int(child))
    return found


def core_of(llm: Any) -> Identity:
    process = llm.client.life.cores[0].process
    return process.pid, process.start_time


def engine_processes(llm: Any) -> list[Identity]:
    """The core and its workers, in the order of their ranks; of several cores all, and their coordinator."""
    if len(llm.client.life.cores) > 1:
        started = (handle.process for handle in llm.client.life._engines.all)
        return [(process.pid, process.start_time) for process in started]
    core = core_of(llm)
    return [core, *sorted(descendants(core[0]))]


def is_alive(identity: Identity) -> bool:
    return bool(identity[1]) and start_time(identity[0]) == identity[1]


def gone_within(processes: list[Identity], bound_s: float) -> list[Identity]:
    """Those that are still alive when the bound is over."""
    deadline = time.monotonic() + bound_s
    for identity in processes:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(identity[0])
            if is_alive(identity):
                select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            os.close(descriptor)
    return [identity for identity in processes if is_alive(identity)]


_T = TypeVar("_T")
_CLONE_NEWPID = 0x20000000


def lingering(start: Callable[[], _T]) -> tuple[_T, subprocess.Popen[bytes]]:
    """Start a child that is not gone when it was killed, as one that has a GPU: only once that is let go by `wait()`.

    It is the first process of a pid namespace: that one waits for the others, of which this one is.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    if libc.unshare(_CLONE_NEWPID):
        os.close(own)
        pytest.skip(f"no pid namespace can be made here: {os.strerror(ctypes.get_errno())}")
    try:
        return start(), subprocess.Popen(["sleep", "infinity"])
    finally:
        assert not libc.setns(own, _CLONE_NEWPID)
        os.close(own)


def until(condition: Callable[[], Any], bound_s: float = 10.0) -> Any:
    """What the condition says once it holds. Raises AssertionError at the bound."""
    deadline = time.monotonic() + bound_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {bound_s} s"
        time.sleep(0.002)  # nothing to wait on: files and tables of the kernel
    return found


# -- files


class Owned:
    """What one engine has in the file system, by its names."""

    def __init__(self, engine_id: str, path: str) -> None:
        self.engine_id = engine_id
        self.path = path

    @staticmethod
    def by(llm: Any) -> Owned:
        files = llm.client.life.files
        return Owned(files.engine_id, files.path)

    def left(self) -> list[str]:
        """Segments, locks and directories that exist."""
        return sorted(map(str, SHM.glob(f"*{self.engine_id}*"))) + ([self.path] if os.path.exists(self.path) else [])
