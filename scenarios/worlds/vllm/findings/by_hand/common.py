"""What these programs share: vLLM with the stand-in in place of a device, and who of a process's descendants lives."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scenarios.worlds.vllm.edits.copy import make_copy
from scenarios.worlds.vllm.edits.registry import edits_of
from scenarios.worlds.vllm.environment import ROOT, VARIABLES, installed, make_path

STEP_S = 2
ARGUMENTS = {"model": str(ROOT / "scenarios/model"), "tensor_parallel_size": 2, "distributed_executor_backend": "mp",
             "skip_tokenizer_init": True, "enforce_eager": True, "disable_log_stats": True, "block_size": 4,
             "num_gpu_blocks_override": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 200,
             "async_scheduling": False, "generation_config": "vllm"}


@contextmanager
def prepared(mend: str) -> Iterator[None]:
    """Before vLLM is imported. `mend`: the edit to play with, where `--mended` was said. Ends all that was started."""
    place = Path(tempfile.mkdtemp(prefix="by-hand-"))
    path = [make_path(place)]
    if "--mended" in sys.argv:
        path.insert(0, make_copy(installed(Path(sys.executable)), place / "edited", edits_of([mend])))
    (place / "s").mkdir()
    os.environ.update({**VARIABLES, "PYTHONPATH": os.pathsep.join(map(str, path)), "TMPDIR": str(place / "s"),
                       "VLLM_RPC_BASE_PATH": str(place / "s"), "VLLM_WORKER_MULTIPROC_METHOD": "fork",
                       "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(STEP_S), "VLLM_LOGGING_LEVEL": "CRITICAL"})
    sys.path[:0] = map(str, path)
    from scenarios.worlds.vllm.host.isolation import adopt_orphans, own_shared_memory

    own_shared_memory()
    adopt_orphans()  # so that what is left can be ended
    try:
        yield
    finally:
        for pid in reversed(family(os.getpid())):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)


def engine(**more: Any) -> Any:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**{**ARGUMENTS, **more}))


def two_engines(**more: Any) -> Any:
    """Of one client, each of a single rank in its core."""
    return engine(tensor_parallel_size=1, data_parallel_size=2, distributed_executor_backend="uni", **more)


def program() -> Any:
    """It generates and waits."""
    from vllm import LLM

    return LLM(**ARGUMENTS)


def params(tokens: int = 6, **more: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**{"max_tokens": tokens, "ignore_eos": True, "temperature": 0.0, "detokenize": False, **more})


async def ask(llm: Any, name: str, tokens: int = 6, rank: int | None = None, **more: Any) -> tuple[str, int]:
    """-> why it ended, how many tokens it has"""
    last: Any = None
    async for output in llm.generate({"prompt_token_ids": [5, 6, 7]}, params(tokens, **more), name,
                                     data_parallel_rank=rank):
        last = output
    return last.outputs[0].finish_reason, len(last.outputs[0].token_ids)


async def told(what: str, asked: Coroutine[Any, Any, Any], at_most_s: float = 8.0) -> Any:
    """Prints and gives back what came of it: its result, its error, or None where nothing did in that time."""
    began = time.monotonic()
    task = asyncio.ensure_future(asked)
    await asyncio.wait([task], timeout=at_most_s)  # what hangs may hang as it is cancelled, too
    came: Any = None
    if not task.done():
        said = "hangs"
    elif (error := task.exception()) is not None:
        came, said = error, f"raised {type(error).__name__}: {error}"[:200]
    else:
        came = task.result()
        said = f"gave {came!r}"[:200]
    print(f"{what}: {said} [{time.monotonic() - began:.2f} s]", flush=True)
    return came


def awaited(main: Coroutine[Any, Any, bool]) -> bool:
    """What hangs is left behind."""
    return asyncio.new_event_loop().run_until_complete(main)


def leave(kept: bool) -> None:
    """At once: what vLLM does as an interpreter ends may wait for processes that are gone."""
    sys.stdout.flush()
    os._exit(not kept)


def told_of(what: str, call: Callable[[], Any], at_most_s: int = 8) -> Any:
    """The same of a call that waits. To be called by the main thread."""
    def late(*_: Any) -> None:
        raise _LateError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(at_most_s)
    came: Any = None
    try:
        came = call()
        said = f"gave {came!r}"[:200]
    except _LateError:
        said = "hangs"
    except Exception as error:
        came, said = error, f"raised {type(error).__name__}: {error}"[:200]
    finally:
        signal.alarm(0)
    print(f"{what}: {said}", flush=True)
    return came


class _LateError(BaseException):
    pass


def core_of(llm: Any, index: int = 0) -> int:
    """The pid of its core."""
    client = llm.engine_core if hasattr(llm, "engine_core") else llm.llm_engine.engine_core
    return int(client.resources.engine_manager.processes[index].pid)


def family(pid: int) -> list[int]:
    """Its descendants, nearest first."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            found += map(int, file.read().split())
    return found + [one for child in found for one in family(child)]


def called(pids: Iterable[int], title: str) -> list[int]:
    return [pid for pid in pids if title_of(pid).startswith(title)]


def title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    """Whether it comes to be so in that time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def left(pids: Iterable[int], seconds: float) -> list[str]:
    """Titles of those that live after that time; fewer are waited for no longer than all have gone."""
    pids = list(pids)
    within(seconds, lambda: not any(map(lives, pids)))
    return [f"{title_of(pid)} ({pid})" for pid in pids if lives(pid)]
