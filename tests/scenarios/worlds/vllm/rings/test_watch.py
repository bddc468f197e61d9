"""Rings of real processes, watched from outside; their writer stores as vLLM's does."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.topology import Mark, tensor_parallel
from faults.journal import RELAYED, Kind, read_journal
from faults.plan import Fate, Fault, behind, hang, kill, marked, plan, stall, terminate, until
from faults.real.board import create_board
from faults.real.processes import is_alive, is_stopped, start_ticks
from scenarios.worlds.vllm.relay.passage import Ends
from scenarios.worlds.vllm.rings import tripwire
from scenarios.worlds.vllm.rings.layout import Ring, Shape
from scenarios.worlds.vllm.rings.search import RPC_BYTES
from scenarios.worlds.vllm.rings.tripwire import Tripwire
from scenarios.worlds.vllm.rings.watch import watches_of

#: What is awaited comes within this.
WAIT_S = 10.0
SHAPE = Shape(2, RPC_BYTES)
#: Where worker 1 begins a step: what is behind it counts from then on.
BEGINS = hang("worker.1", at=marked("worker.1", Mark.EXECUTING), until=until(seconds=0.0))
seen = pytest.mark.skipif(tripwire.obstacle() is not None, reason=str(tripwire.obstacle()))


def _writes(path: str, up: Any) -> None:
    """Message after message, each read at once by whom its flags say; byte 0 of the segment's end says how many."""
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), SHAPE.size)
    up.set()
    count = 0
    while True:
        for chunk in range(SHAPE.chunks):
            flags = SHAPE.flags_at + chunk * (1 + SHAPE.readers)
            memory[flags] = 0
            start = chunk * SHAPE.chunk_bytes
            memory[start:start + 9] = b"\0\0\1\0\0\0\2ab"
            memory[flags + 1] = memory[flags + 2] = 0
            memory[flags] = 1
            count += 1
            time.sleep(0.002)
            memory[flags + 1] = memory[flags + 2] = 1


class Bench:
    def __init__(self, folder: Path, *faults: Fault) -> None:
        (folder / "journals").mkdir()
        self._folder = folder
        self.path = Path(f"/dev/shm/ringtwin-test-{os.getpid()}")
        self.path.write_bytes(bytes(SHAPE.size))
        self.board = create_board(folder, plan(BEGINS, *(behind("f1", one) for one in faults)), tensor_parallel(2))
        fork = multiprocessing.get_context("fork")
        up = fork.Event()
        self.writer = fork.Process(target=_writes, args=(str(self.path), up), daemon=True)
        self.writer.start()
        assert up.wait(WAIT_S) and self.writer.pid is not None
        self.pid = self.writer.pid
        self.ticks = start_ticks(self.pid)
        self.board.seat("core.0").enter(self.pid, self.ticks)
        self.watches = watches_of(Ends(self.board, folder))
        with self.path.open("r+b") as file:
            self.ring = Ring(mmap.mmap(file.fileno(), SHAPE.size), SHAPE)
        self.until(lambda: all(map(self.ring.is_written, range(SHAPE.chunks))))
        for watch in self.watches:
            watch.arm()

    def begin(self) -> None:
        self.board.seat("worker.1").fired("f1", time.monotonic())

    def until(self, holds: Callable[[], bool], most_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + most_s
        while not holds():
            assert time.monotonic() < deadline, "what was awaited has not come"
            for watch in getattr(self, "watches", ()):
                watch.look()

    def stop_behind_a_message(self) -> None:
        while True:
            os.kill(self.pid, signal.SIGSTOP)
            self.until(lambda: is_stopped(self.pid, self.ticks))
            if any(map(self.ring.unread, range(SHAPE.chunks))):
                return
            os.kill(self.pid, signal.SIGCONT)

    def records(self, node: str = "core.0") -> list[Any]:
        path = self._folder / "journals" / RELAYED / f"{node}@0.journal"
        return read_journal(path).records if path.exists() else []

    def has_fired(self) -> bool:
        return self.board.fired_at("f2") is not None

    def close(self) -> None:
        self.writer.kill()
        self.writer.join()
        self.path.unlink()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*faults: Fault) -> Bench:
        made.append(Bench(tmp_path, *faults))
        return made[-1]

    yield make
    for one in made:
        one.close()


@seen
@pytest.mark.parametrize(("store", "flags"), [("reset", [0, 1, 1]), ("readers", [0, 0, 0]), ("written", [1, 0, 0])])
def test_a_writer_is_stopped_right_behind_a_store(bench: Callable[..., Bench], store: str, flags: list[int]) -> None:
    site = f"core.0/rpc:store.{store}"
    one = bench(stall("core.0", at=site, nth=3, until=until(seconds=60)))
    one.begin()
    one.until(lambda: one.has_fired() and is_stopped(one.pid, one.ticks))
    [receipt] = [record for record in one.records() if record.kind is Kind.RECEIPT]
    assert (receipt.data["site"], receipt.nth) == (site, 3)
    chunk = [record for record in one.records() if record.site == site][-1].data["chunk"]
    at = SHAPE.flags_at + chunk * (1 + SHAPE.readers)
    assert list(one.path.read_bytes()[at:at + 3]) == flags
    os.kill(one.pid, signal.SIGCONT)
    one.until(lambda: not one.ring.unread(chunk) and one.ring.is_written(chunk))
    assert not is_stopped(one.pid, one.ticks)


@seen
@pytest.mark.parametrize("make", [kill, terminate])
def test_a_writer_dies_right_behind_a_store(bench: Callable[..., Bench], make: Callable[..., Fault]) -> None:
    one = bench(make("core.0", at="core.0/rpc:store.readers", nth=2))
    one.begin()
    one.until(lambda: one.has_fired() and not is_alive(one.pid, one.ticks))
    assert sum(not one.ring.is_written(chunk) for chunk in range(SHAPE.chunks)) == 1


@seen
def test_what_is_stored_is_changed_before_anybody_may_read_it(bench: Callable[..., Bench]) -> None:
    one = bench(Fault(id="", site="core.0/rpc:store.data", fate=Fate.CORRUPT, nth=2, byte=0))
    one.begin()
    one.until(one.has_fired)
    chunk = [record for record in one.records() if record.kind is Kind.CROSSING][-1].data["chunk"]
    payload = one.ring.payload(chunk)
    assert payload is not None and bytes(payload) == bytes([ord("a") ^ 0xFF, ord("b")])


@seen
def test_stores_before_the_begin_do_not_count(bench: Callable[..., Bench]) -> None:
    one = bench(kill("core.0", at="core.0/rpc:store.reset"))
    for chunk in range(SHAPE.chunks):  # it goes round
        one.until(lambda chunk=chunk: bool(one.ring.unread(chunk)))
    assert not one.has_fired() and not one.records()
    one.begin()
    one.until(one.has_fired)


def test_a_reader_is_struck_while_a_message_waits_for_it(bench: Callable[..., Bench]) -> None:
    one = bench(kill("worker.1", at="worker.1/rpc:store.read"))
    one.stop_behind_a_message()
    reader = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    reader.start()
    assert reader.pid is not None
    one.board.seat("worker.1").enter(reader.pid, start_ticks(reader.pid))
    one.begin()
    one.until(lambda: not is_alive(reader.pid or 0, start_ticks(reader.pid or 0)))
    assert {record.site for record in one.records("worker.1") if record.kind is Kind.CROSSING} == {
        "worker.1/rpc:store.read"}
    reader.join()


@seen
def test_signals_reach_a_process_that_is_watched(bench: Callable[..., Bench]) -> None:
    one = bench(kill("core.0", at="core.0/rpc:store.reset"))
    os.kill(one.pid, signal.SIGTERM)
    one.until(lambda: not is_alive(one.pid, one.ticks))
    assert not one.has_fired()


@seen
def test_a_process_that_has_gone_is_an_error() -> None:
    gone = multiprocessing.get_context("fork").Process(target=int)
    gone.start()
    pid = gone.pid or 0
    gone.join()
    with pytest.raises(OSError, match=str(pid)):
        Tripwire(pid, 4096, 8)


def test_where_nobody_may_trace_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "x86_64" in (tripwire.obstacle() or "")
