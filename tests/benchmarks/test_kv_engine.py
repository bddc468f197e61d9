"""What a stopped subscriber costs an engine: the time of a step with one and without, in turns, in one engine.

    pytest tests/benchmarks/test_kv_engine.py -s
    KV_TURNS=60 pytest tests/benchmarks/test_kv_engine.py -s

The aim is less than 1 %; it is printed beside what was measured. Asserted is that every request is served meanwhile.

Every block holds one token, so that each step stores a block for each request and publishes a batch: more than any
real engine says. The subscriber is stopped by SIGSTOP once it is connected. Buffers and high-water mark are so small
that the publisher has filled them, and drops, before a turn is measured; of a turn's workloads the fastest one counts.
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
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("zmq")
pytest.importorskip("torch")

from engine.config import SchedulerConfig  # noqa: E402
from engine.frontend.llm import LLM  # noqa: E402
from engine.messages import SamplingParams  # noqa: E402
from scenarios.worlds.addresses import free_ports  # noqa: E402
from tests.engine.engine_lab import SIXTY_FOUR, config, engine_processes  # noqa: E402

TURNS = int(os.environ.get("KV_TURNS", "12"))
REQUESTS, TOKENS = 16, 12
HWM = 16
SOCKET_BUFFER = 4096
#: Workloads of a turn: so many, and so short, that the fastest one was disturbed by nobody.
TRIES = 25
BOUND_S = 60.0

#: Says that it is connected with the first batch that it gets.
READER = """
import sys, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.RCVHWM, 1)
socket.setsockopt(zmq.RCVBUF, 4096)
socket.setsockopt(zmq.SUBSCRIBE, b"")
socket.connect(sys.argv[1])
socket.recv_multipart()
print("connected", flush=True)
while True:
    socket.recv_multipart()
"""


class Stand:
    def __init__(self, llm: LLM, endpoint: str) -> None:
        self._llm, self._endpoint = llm, endpoint
        prompts = [r.prompt_token_ids for r in SIXTY_FOUR[:REQUESTS]]
        self._work = prompts, SamplingParams(max_tokens=TOKENS, ignore_eos=True)

        self._core = engine_processes(llm)[0][0]

    def fastest_step_s(self) -> tuple[float, float]:
        """By the clock, and the processor time of the thread that steps."""
        by_clock, by_thread = zip(*(self.step_s() for _ in range(TRIES)), strict=True)
        return min(by_clock), statistics.median(by_thread)

    def step_s(self) -> tuple[float, float]:
        """The mean time of a step over one workload, with an empty cache at its beginning."""
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

    @contextmanager
    def stopped_subscriber(self) -> Iterator[None]:
        reader = subprocess.Popen([sys.executable, "-c", READER, self._endpoint], stdout=subprocess.PIPE, text=True)
        try:
            end = time.monotonic() + BOUND_S
            while not select.select([reader.stdout], [], [], 0.0)[0]:
                assert time.monotonic() < end
                self.step_s()
            os.kill(reader.pid, signal.SIGSTOP)
            self.fastest_step_s()  # its buffers and its high-water mark fill
            yield
        finally:
            reader.kill()
            reader.communicate()


@pytest.fixture
def stand() -> Iterator[Stand]:
    endpoint, replay = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    settings = config(
        1, cache={"block_size": 1, "num_gpu_blocks": 4096},
        scheduler=SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=REQUESTS),
        kv_events={"enable_kv_cache_events": True, "endpoint": endpoint, "replay_endpoint": replay, "bind": True,
                   "hwm": HWM, "socket_buffer_bytes": SOCKET_BUFFER, "buffer_steps": 1000})
    with LLM(config=settings) as llm:
        yield Stand(llm, endpoint)


def test_a_stopped_subscriber_does_not_slow_the_steps(stand: Stand) -> None:
    """Turn by turn; what counts is the median of the turns' ratios, and how sure it is."""
    stand.step_s()
    alone, stopped = [], []
    for turn in range(TURNS):
        def with_subscriber() -> None:
            with stand.stopped_subscriber():
                stopped.append(stand.fastest_step_s())

        def without() -> None:
            stand.fastest_step_s()  # as warm as the other one
            alone.append(stand.fastest_step_s())

        first, second = (without, with_subscriber)[::1 if turn % 2 else -1]
        first()
        second()
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
