"""What a stopped subscriber costs an engine: the time of a step with one and without, in turns, in one engine.

    pytest tests/benchmarks/test_kv_engine.py -s                   a few turns; `make soak` takes forty
    KV_TURNS=1500 pytest tests/benchmarks/test_kv_engine.py -s

The aim is less than 1 %; it is printed beside what was measured. Asserted is that every request is served meanwhile,
and that the publisher dropped in every measured turn.

Every block holds one token, so that each step stores a block for each request and publishes a batch: more than any
real engine says. A turn takes a quarter of a second, so that a machine that slows down and recovers hits both halves
alike: one while the subscriber is connected and stopped by SIGSTOP, one while it is not connected. Of each half the
second of two workloads counts. Buffers and high-water mark are so small that the first one fills them. One turn differs
from the next by some 10 %, so it takes a thousand of them to know the difference to half a per cent.
"""

from __future__ import annotations

import math
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("zmq")
pytest.importorskip("torch")

from engine.config import SchedulerConfig  # noqa: E402
from engine.frontend.llm import LLM  # noqa: E402
from engine.messages import SamplingParams  # noqa: E402
from scenarios.worlds.addresses import reserved_ports  # noqa: E402
from tests.engine.engine_lab import SIXTY_FOUR, config, engine_processes  # noqa: E402

TURNS = int(os.environ.get("KV_TURNS", "6"))
REQUESTS, TOKENS = 16, 12
HWM = 1
SOCKET_BUFFER = 4096
BOUND_S = 60.0

#: Once per line of its input: connects, takes a message and stops itself. Continued, it tells how many more had been
#: kept for it, and is not connected any more.
READER = """
import os, signal, sys, zmq
context = zmq.Context()
for _ in sys.stdin:
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 1)
    socket.setsockopt(zmq.RCVBUF, 4096)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(sys.argv[1])
    socket.recv_multipart()
    print("connected", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    kept = 0
    while socket.poll(20):
        socket.recv_multipart()
        kept += 1
    socket.close()
    print(kept, flush=True)
"""


class Stand:
    def __init__(self, llm: LLM, endpoint: str) -> None:
        self._llm = llm
        prompts = [r.prompt_token_ids for r in SIXTY_FOUR[:REQUESTS]]
        self._work = prompts, SamplingParams(max_tokens=TOKENS, ignore_eos=True)
        self._core = engine_processes(llm)[0][0]
        self._reader = subprocess.Popen([sys.executable, "-c", READER, endpoint], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)

    def close(self) -> None:
        self._reader.kill()
        self._reader.communicate()

    def warm_step_s(self) -> tuple[float, float]:
        """After what fills the buffers, or without them warms as much."""
        self.step_s()
        return self.step_s()

    def step_s(self) -> tuple[float, float]:
        """The mean time of a step over one workload, by the clock and of the thread that steps."""
        assert self._llm.call_utility("reset_prefix_cache")
        prompts, params = self._work
        began, computed = time.perf_counter(), self._computed_s()
        served = self._llm.generate(prompts, params)
        took, computed = time.perf_counter() - began, self._computed_s() - computed
        assert [len(request.token_ids) for request in served] == [TOKENS] * REQUESTS
        return took / TOKENS, computed / TOKENS  # all run together: a step for each token

    def _computed_s(self) -> float:
        """Of the core's main thread, which steps; others encode and send. NaN where the kernel does not say."""
        try:
            return int(Path(f"/proc/{self._core}/task/{self._core}/schedstat").read_text().split()[0]) / 1e9
        except FileNotFoundError:
            return math.nan

    def with_stopped_subscriber(self) -> tuple[float, float]:
        print(file=self._reader.stdin)
        self._until_told()
        assert self._reader.stdout.readline() == "connected\n"
        os.waitid(os.P_PID, self._reader.pid, os.WSTOPPED)
        measured = self.warm_step_s()
        os.kill(self._reader.pid, signal.SIGCONT)
        kept = int(self._reader.stdout.readline())
        assert kept < TOKENS, f"{kept} batches were kept: it dropped nothing before the turn"
        return measured

    def _until_told(self) -> None:
        end = time.monotonic() + BOUND_S
        while not select.select([self._reader.stdout], [], [], 0.0)[0]:
            assert time.monotonic() < end
            self.step_s()


@pytest.fixture
def stand() -> Iterator[Stand]:
    held = ExitStack()
    endpoint, replay = (f"tcp://127.0.0.1:{port}" for port in reserved_ports(held, 2))
    settings = config(
        1, cache={"block_size": 1, "num_gpu_blocks": 4096},
        scheduler=SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=REQUESTS),
        kv_events={"enable_kv_cache_events": True, "endpoint": endpoint, "replay_endpoint": replay, "bind": True,
                   "hwm": HWM, "socket_buffer_bytes": SOCKET_BUFFER, "buffer_steps": 1000})
    with held, LLM(config=settings) as llm:
        stand = Stand(llm, endpoint)
        try:
            yield stand
        finally:
            stand.close()


def test_a_stopped_subscriber_does_not_slow_the_steps(stand: Stand) -> None:
    """Turn by turn; what counts is the median of the turns' ratios, and how sure it is."""
    stand.step_s()
    alone, stopped = [], []
    for turn in range(TURNS):
        for measure, into in ((stand.with_stopped_subscriber, stopped), (stand.warm_step_s, alone))[
                ::1 if turn % 2 else -1]:
            into.append(measure())
    for what, ours, theirs in zip(("by the clock", "processor time of the thread that steps"),
                                  zip(*stopped, strict=True), zip(*alone, strict=True), strict=True):
        say(what, ours, theirs)


def say(what: str, stopped: Sequence[float], alone: Sequence[float]) -> None:
    changes = sorted(100 * (ours / theirs - 1) for ours, theirs in zip(stopped, alone, strict=True))
    reach = round(0.98 * TURNS ** 0.5)  # of the ranks between which the true median lies 95 times in a hundred
    low, high = changes[max(0, TURNS // 2 - reach)], changes[min(TURNS - 1, TURNS // 2 + reach)]
    print(f"\na step, {what}: {1e3 * statistics.median(alone):.3f} ms without a subscriber, "
          f"{1e3 * statistics.median(stopped):.3f} ms with a stopped one: {statistics.median(changes):+.2f} %, the "
          f"median of {TURNS} turns (95 % sure: {low:+.2f} to {high:+.2f} %; fastest: "
          f"{100 * (min(stopped) / min(alone) - 1):+.2f} %; aim: less than 1 %)")
