"""Drives workers by hand-made steps, in this process or in forked ranks that meet over gloo.

The steps are not the scheduler's: blocks are scattered, prompts are cut where the test says, and requests that
share a prefix share its blocks. So the model side is tested without the engine, and the engine's own scheduler
cannot hide a fault of the model side.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config import Bounds, CacheConfig, EngineConfig
from engine.messages import CachedRequestData, NewRequestData, SamplingParams, SchedulerOutput
from engine.worker.worker import Worker

#: Forked ranks inherit torch's threads only by name: nothing may have started any.
torch.set_num_threads(1)

SCENARIOS = Path(__file__).parents[3] / "scenarios"
MODEL = str(SCENARIOS / "model")
BLOCK_SIZE = 16
NUM_BLOCKS = 2048


def recorded(name: str) -> list[dict[str, Any]]:
    return json.loads((SCENARIOS / "recorded" / f"{name}.json").read_text())["requests"]


def config_of(**changes: Any) -> EngineConfig:
    return EngineConfig(**{"model": MODEL, "device": "cpu", "bounds": Bounds(collective_s=30.0),
                           "cache": CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks=NUM_BLOCKS), **changes})


def ready_worker(config: EngineConfig | None = None, rank: int = 0, world_size: int = 1, init_method: str = "",
                 ) -> Worker:
    worker = Worker(config or config_of(), rank, world_size, init_method)
    worker.init_device()
    worker.load_model()
    worker.initialize_cache(worker.get_num_blocks())
    return worker


class Blocks:
    """Hands out block numbers in a scattered order, never twice."""

    def __init__(self, seed: int = 0) -> None:
        self._free = list(range(NUM_BLOCKS))
        random.Random(seed).shuffle(self._free)

    def take(self, count: int) -> list[int]:
        return [self._free.pop() for _ in range(count)]


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


class Sequence_:
    """One request as a scheduler would remember it."""

    def __init__(self, request_id: str, prompt: Sequence[int], params: SamplingParams) -> None:
        self.request_id = request_id
        self.prompt = list(prompt)
        self.params = params
        self.tokens = list(prompt)
        self.block_ids: list[int] = []
        self.computed = 0
        self.sent = 0  # tokens the workers have been told; 0: they do not know the request

    @property
    def generated(self) -> list[int]:
        return self.tokens[len(self.prompt):]

    @property
    def finished(self) -> bool:
        return len(self.generated) >= self.params.max_tokens


def play(execute: Callable[[SchedulerOutput], Any], sequences: list[Sequence_], *, chunk: int = 10_000,
         blocks: Blocks | None = None, together: int = 16, preempt_every: int = 0) -> None:
    """Run all to their `max_tokens`, `together` at a time, prompts in pieces of `chunk` tokens.

    With `preempt_every` n, in every nth step the youngest running request loses its blocks and starts again.
    """
    blocks = blocks or Blocks()
    waiting, running, finished, step = list(sequences), [], [], 0
    while waiting or running:
        step += 1
        while waiting and len(running) < together:
            running.append(waiting.pop(0))
        preempted: list[str] = []
        if preempt_every and step % preempt_every == 0 and running[-1].sent:
            victim = running[-1]
            victim.computed, victim.sent, victim.block_ids = 0, 0, []
            preempted.append(victim.request_id)
        new, cached, scheduled = [], [], {}
        for sequence in running:
            count = min(chunk, len(sequence.tokens) - sequence.computed)
            fresh = blocks.take(blocks_for(sequence.computed + count) - len(sequence.block_ids))
            sequence.block_ids += fresh
            if sequence.sent == 0:
                new.append(NewRequestData(sequence.request_id, list(sequence.tokens), len(sequence.prompt),
                                          sequence.params, list(sequence.block_ids), sequence.computed))
            else:
                cached.append(CachedRequestData(sequence.request_id, sequence.tokens[sequence.sent:], fresh,
                                                sequence.computed))
            sequence.sent = len(sequence.tokens)
            sequence.computed += count
            scheduled[sequence.request_id] = count
        answer = execute(SchedulerOutput(step, new, cached, scheduled, finished, preempted))
        assert answer.step == step
        finished = []
        for sequence in list(running):
            told = answer.sampled[sequence.request_id]
            assert len(told) == (sequence.computed == len(sequence.tokens))
            sequence.tokens += told
            if sequence.finished:
                running.remove(sequence)
                finished.append(sequence.request_id)
    execute(SchedulerOutput(step + 1, [], [], {}, finished, []))


def sequences_of(requests: list[dict[str, Any]], **params: Any) -> list[Sequence_]:
    return [Sequence_(f"r{request['index']}", request["prompt_token_ids"], SamplingParams(
        max_tokens=len(request["reference_token_ids"]), ignore_eos=True, **params)) for request in requests]


# -- ranks as processes


def both_phases(worker: Worker) -> Callable[[SchedulerOutput], Any]:
    """-> what runs a whole step on this worker"""

    def step(output: SchedulerOutput) -> Any:
        answer = worker.execute_model(output)
        if not output.num_scheduled_tokens:
            return answer
        assert answer is None, "a step with tokens answers when it is sampled"
        return worker.sample_tokens()

    return step


class Rank0:
    """What the parent sees of the forked ranks: it is rank 0 itself."""

    def __init__(self, worker: Worker, pipes: list[Any]) -> None:
        self.worker = worker
        self._pipes = pipes

    def execute(self, output: SchedulerOutput) -> Any:
        for pipe in self._pipes:
            pipe.send(output)
        return both_phases(self.worker)(output)


def _serve(rank: int, world_size: int, config: EngineConfig, init_method: str, pipe: Any) -> None:
    worker = ready_worker(config, rank, world_size, init_method)
    while (output := pipe.recv()) is not None:
        assert both_phases(worker)(output) is None, "only the output rank answers"
    worker.shutdown()


def with_ranks(world_size: int, use: Callable[[Rank0], None], config: EngineConfig | None = None) -> None:
    """Fork ranks 1.. and call `use` with rank 0; every rank must end cleanly.

    The whole runs in a forked child of its own, so that no process group is left in the test process.
    """
    import multiprocessing

    config = config or config_of()
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        init_method = f"file://{folder}/meeting"

        def rank_zero() -> None:
            pipes, children = [], []
            for rank in range(1, world_size):
                mine, theirs = fork.Pipe()
                children.append(fork.Process(target=_serve, args=(rank, world_size, config, init_method, theirs),
                                             daemon=True))
                children[-1].start()
                theirs.close()
                pipes.append(mine)
            worker = ready_worker(config, 0, world_size, init_method)
            use(Rank0(worker, pipes))
            for pipe in pipes:
                pipe.send(None)
            worker.shutdown()
            for child in children:
                child.join(30)
                assert child.exitcode == 0

        in_child(rank_zero)


def in_child(call: Callable[[], None], limit_s: int = 120) -> None:
    """Run `call` in a forked child; its failure is this process's AssertionError."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(reader)
        signal.alarm(limit_s)  # a rank that hangs ends the child, not the test run
        code = 0
        try:
            call()
        except BaseException:
            os.write(writer, traceback.format_exc()[-4000:].encode())
            code = 1
        if code:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        told = b""
        _, status = os.waitpid(pid, 0)
        told = stream.read()
    assert status == 0, told.decode() or f"the ranks ended with status {status}"
