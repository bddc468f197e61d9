"""One object to two readers and an answer from the first: MessageQueue beside vLLM's, Pipe, ZMQ PUSH and the floor.

A placement is a set of fresh processes. Within one run all transports take turns, a placement each, so that a busy
machine hits them alike; shown are medians of the placements' medians, and what counts is their ratio.
RINGTWIN_PLACEMENTS sets how many (default 2, `make soak` 3). vLLM's queue takes part where `vllm` can be imported: a
virtual environment beside this one with `pip install --no-deps vllm==0.33.0 psutil`. The last column is the floor:
everybody spins on bare memory, and the payload is copied in and out.

    pytest tests/benchmarks/test_ring.py -s
"""

from __future__ import annotations

import os
import statistics
import time
from typing import NamedTuple

import pytest

zmq = pytest.importorskip("zmq")
numpy = pytest.importorskip("numpy")
pytest.importorskip("pytest_benchmark")

from tests.benchmarks.transports import NO_VLLM, WAYS, BySpin  # noqa: E402

PLACEMENTS = int(os.environ.get("RINGTWIN_PLACEMENTS", "2"))
BURST = 2000
OURS = "MessageQueue"


class Case(NamedTuple):
    """The payload is sent `rounds` times, `gap_s` apart, or all in one burst."""

    name: str
    payload: object
    rounds: int = 200
    gap_s: float = 0.0
    burst: bool = False


CASES = [
    Case("64 B", bytes(64)),
    Case("1 KiB", bytes(1 << 10)),
    Case("16 KiB", bytes(16 << 10)),
    Case("64 B, 5 ms apart", bytes(64), rounds=80, gap_s=0.005),
    Case("64 B, 1.2 s apart", bytes(64), rounds=1, gap_s=1.2),  # vLLM's readers spin for a second, then park
    Case("64 B, burst, each", bytes(64), rounds=BURST, burst=True),
    Case("256 KiB", bytes(256 << 10), rounds=60),
    Case("4 MiB bytes", bytes(4 << 20), rounds=30),
    Case("4 MiB ndarray", numpy.zeros(4 << 20, "u1"), rounds=30),
    Case("32 MiB bytes", bytes(32 << 20), rounds=5),
    Case("32 MiB ndarray", numpy.zeros(32 << 20, "u1"), rounds=5),
]


def run(transport, case) -> float:
    """Seconds per object, the median; of a burst, the mean."""
    if case.burst:
        began = time.perf_counter()
        for left in reversed(range(case.rounds)):
            transport.send((left, case.payload))
        assert transport.answer() == 2
        return (time.perf_counter() - began) / case.rounds
    times = []
    for _ in range(case.rounds):
        if case.gap_s:
            time.sleep(case.gap_s)
        began = time.perf_counter()
        transport.send(case.payload)
        answer = transport.answer()
        times.append(time.perf_counter() - began)
        assert answer == len(case.payload)
    return statistics.median(times)


def takes_part(way, case) -> bool:
    return not (case.burst and way is BySpin)  # it has one slot


def measure(folder, cases, placements) -> dict[str, dict[str, list[float]]]:
    """{case: {transport: microseconds in each placement}}"""
    found = {case.name: {name: [] for name in WAYS} for case in cases}
    for placement in range(placements):
        for name, (way, kind) in WAYS.items():
            sockets = folder / f"{placement}-{name}"
            sockets.mkdir()
            transport = way(kind, sockets)
            try:
                for case in cases:
                    if takes_part(way, case):
                        run(transport, case._replace(rounds=3, gap_s=0.0))
                        found[case.name][name].append(run(transport, case) * 1e6)
            finally:
                transport.close()
    return found


def table(found) -> str:
    lines = ["median us" + " " * 12 + "".join(f"{name:>19}" for name in WAYS) + f"   (x {OURS})"]
    for case, ways in found.items():
        ours = statistics.median(ways[OURS])
        cells = [f"{statistics.median(v):12.1f} {statistics.median(v) / ours:5.2f}x" if v else " " * 18 + "-"
                 for v in ways.values()]
        lines.append(f"{case:<21}" + "".join(cells))
    return "\n".join([*lines, f"no column for vLLM: {NO_VLLM}"] if NO_VLLM else lines)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    measured = measure(tmp_path_factory.mktemp("sockets"), CASES, PLACEMENTS)
    yield measured
    print("\n" + table(measured))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_ring_beside_others(found, benchmark, case):
    """All came to where they should; how long it took is told, and judged by nobody: a busy machine is no bug."""
    benchmark.extra_info.update({name: statistics.median(times) for name, times in found[case.name].items() if times})
    benchmark.pedantic(lambda: None)
    for name, (way, _) in WAYS.items():
        assert len(found[case.name][name]) == (PLACEMENTS if takes_part(way, case) else 0)
