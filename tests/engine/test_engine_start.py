"""A start ends in an engine that serves or in an error that says why, in time, and then nothing is left."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import pytest

from engine.core.life import CoreLife
from engine.effects import Now
from engine.errors import ConfigError, RingtwinError, StartupError
from engine.executor.multiproc import MultiprocExecutor
from engine.executor.uniproc import UniProcExecutor
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.llm import LLM
from engine.process.runtime_dir import RuntimeDir
from engine.worker.parallel.distributed import choose_device
from engine.worker.worker import Worker
from scenarios.lab.settings import MODEL
from tests.engine.engine_lab import (
    BOUNDS,
    PROMPT,
    Owned,
    config,
    core_of,
    descendants,
    engine_processes,
    is_alive,
    until,
    wrong_answers,
)


@pytest.fixture
def engines(monkeypatch):
    """What each engine of this test owns, also of one that did not start."""
    owned: list[Owned] = []
    create = RuntimeDir.create

    def recorded(base=None):
        runtime = create(base)
        owned.append(Owned(runtime.engine_id, str(runtime.path)))
        return runtime

    monkeypatch.setattr(RuntimeDir, "create", recorded)
    return owned


def fails_to_start(settings, error: type[RingtwinError], match: str, engines: list[Owned]) -> float:
    """-> seconds until the error."""
    before = set(descendants())
    began = time.monotonic()
    with pytest.raises(error, match=match):
        LLM(config=settings)
    took_s = time.monotonic() - began
    left = [identity for identity in descendants() if identity not in before and is_alive(identity)]
    assert left == [], "processes remain"
    assert [owned.left() for owned in engines] == [[]] * len(engines)
    return took_s


@pytest.mark.parametrize(("change", "reason"), [
    ({"model": "/nonexistent"}, "nonexistent"),
    ({"tp": 3}, "3"),
    ({"tp": 0}, "0"),
    ({"scheduler": {"max_model_len": 100_000}}, "100000"),
])
def test_what_can_be_known_before_is_a_config_error_before_any_process_exists(change, reason, engines) -> None:
    took_s = fails_to_start(config(**change), ConfigError, reason, engines)
    assert engines == []
    assert took_s < 1.0


def broken_model(folder, change) -> str:
    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    weights = folder / "model.safetensors"
    change(weights)
    return str(folder)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("change", [
    pytest.param(lambda path: path.write_bytes(b"\xff" * 100), id="no safetensors"),
    pytest.param(lambda path: os.truncate(path, path.stat().st_size // 2), id="cut in half"),
    pytest.param(lambda path: path.write_bytes(b""), id="empty"),
])
def test_weights_that_cannot_be_read_are_named(tp: int, change, tmp_path, engines) -> None:
    settings = config(tp, model=broken_model(tmp_path, change))
    fails_to_start(settings, RingtwinError, "safetensors", engines)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_raises_while_loading_is_named_with_its_reason(rank: int, monkeypatch, engines) -> None:
    def load(self):
        if self.rank == rank:
            raise RuntimeError("no such device")

    monkeypatch.setattr(Worker, "load_model", load)
    fails_to_start(config(2), StartupError, rf"worker.{rank} could not start: .*no such device", engines)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_is_killed_while_loading_is_named(rank: int, monkeypatch, engines) -> None:
    load = Worker.load_model

    def killed(self):
        if self.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        load(self)

    monkeypatch.setattr(Worker, "load_model", killed)
    fails_to_start(config(2), StartupError, rf"worker.{rank} died while starting \(exit code -9\)", engines)


def test_a_worker_that_is_killed_while_the_cache_is_made_ends_the_start(monkeypatch, engines) -> None:
    def killed(self, num_blocks):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Worker, "initialize_cache", killed)
    fails_to_start(config(2), StartupError, r"worker\.[01].* died", engines)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("when", ["_start", "connect", "_start_output"])
def test_a_core_that_is_killed_while_starting_is_known_at_once(tp: int, when: str, monkeypatch, engines) -> None:
    of = CoreLife if when != "connect" else MultiprocExecutor if tp > 1 else UniProcExecutor
    step = getattr(of, when)

    def killed(self, *args):
        if when != "_start":
            yield from step(self, *args)
        os.kill(os.getpid(), signal.SIGKILL)
        yield

    monkeypatch.setattr(of, when, killed)
    took_s = fails_to_start(config(tp), StartupError, r"core.0 died while starting \(exit code -9\)", engines)
    assert took_s < BOUNDS.handshake_s


def test_a_core_that_is_told_to_stop_while_starting_says_so(monkeypatch, engines) -> None:
    def stopped(self, across):
        os.kill(os.getpid(), signal.SIGTERM)
        yield Now()  # where the signal is heard
        pytest.fail("the core went on")

    monkeypatch.setattr(UniProcExecutor, "connect", stopped)
    fails_to_start(config(1), StartupError, "SIGTERM", engines)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_load_that_hangs_ends_at_the_start_bound(tp: int, monkeypatch, engines) -> None:
    bounds = msgspec.structs.replace(BOUNDS, startup_s=0.5, terminate_s=0.5, orphan_s=0.5)

    def hang(self):
        threading.Event().wait()

    monkeypatch.setattr(Worker, "load_model", hang)
    took_s = fails_to_start(config(tp, bounds=bounds), StartupError, "in time", engines)
    assert took_s < 0.5 + 4 * bounds.terminate_s


def test_a_core_that_never_says_hello_ends_at_the_handshake_bound(monkeypatch, engines) -> None:
    bounds = msgspec.structs.replace(BOUNDS, handshake_s=0.3, terminate_s=0.3)

    def hang(self):
        threading.Event().wait()

    monkeypatch.setattr(CoreLife, "_start", hang)
    fails_to_start(config(1, bounds=bounds), StartupError, "HELLO", engines)


def test_an_interrupt_while_starting_leaves_nothing(monkeypatch, engines) -> None:
    def hang(self):
        os.kill(os.getppid(), signal.SIGINT)
        threading.Event().wait()

    monkeypatch.setattr(Worker, "load_model", hang)
    bounds = msgspec.structs.replace(BOUNDS, terminate_s=0.5)
    with pytest.raises(KeyboardInterrupt):
        LLM(config=config(1, bounds=bounds))
    assert [owned.left() for owned in engines] == [[]]


def test_after_a_failed_start_the_next_one_serves(monkeypatch, engines) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "load_model", lambda self: 1 / 0)
        fails_to_start(config(2), StartupError, "division by zero", engines)
    with LLM(config=config(2)) as llm:
        assert len(llm.generate([PROMPT])[0].token_ids) == 16


def test_a_runtime_directory_that_cannot_be_made_is_a_config_error(engines) -> None:
    with tempfile.NamedTemporaryFile() as file:  # short: in a deep place the engine would take another one
        fails_to_start(config(runtime_dir=file.name), ConfigError, "runtime_dir", engines)


def test_a_directory_too_deep_for_socket_paths_is_replaced_by_a_short_one(tmp_path, engines) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    with LLM(config=config(2, runtime_dir=str(deep))) as llm:
        assert len(llm.client.life.files.path) < 60
        assert len(llm.generate([PROMPT])[0].token_ids) == 16
    assert engines[0].left() == []


def test_a_program_with_more_than_1024_open_files_is_served() -> None:
    """Descriptors from 1024 on are beyond what select can wait for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this machine allows fewer than 2048 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        with LLM(config=config(2)) as llm:
            assert wrong_answers(llm, client_requests()) == []
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def client_requests():
    from tests.engine.engine_lab import SIXTY_FOUR

    return SIXTY_FOUR[:4]


# -- after the end


def own_state() -> dict[str, object]:
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "ringtwin-" in line]
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
            "children": descendants(), "maps": maps}


@pytest.mark.parametrize("tp", [1, 2])
def test_two_engines_later_this_process_is_as_it_was(tp: int, engines) -> None:
    """No descriptor, thread, mapping, child or zombie stays. The first engine warms up what is opened once for all."""
    def cycle() -> None:
        with LLM(config=config(tp)) as llm:
            llm.generate([PROMPT])

    cycle()
    before = own_state()
    cycle()
    cycle()
    assert own_state() == before
    assert [owned.left() for owned in engines] == [[]] * 3


def test_a_killed_engine_leaves_this_process_as_it_was_too() -> None:
    def cycle() -> None:
        with LLM(config=config(2)) as llm:
            core = core_of(llm)
            os.kill(core[0], signal.SIGKILL)
            until(lambda: not is_alive(core))

    cycle()
    before = own_state()
    cycle()
    cycle()
    assert own_state() == before


@pytest.mark.parametrize("use", [LLM, AsyncLLM])
def test_an_engine_that_is_dropped_without_a_shutdown_ends(use, engines) -> None:
    """Neither the collector hangs on its sockets, nor does the engine serve nobody until the program's end."""
    llm = use(config=config(2))
    processes = engine_processes(llm)
    del llm
    gc.collect()
    assert not any(map(is_alive, processes))
    assert engines[0].left() == []


def test_shutdown_twice_and_every_call_afterwards_are_harmless() -> None:
    llm = LLM(config=config(1))
    llm.shutdown()
    llm.shutdown()
    for call in (llm.check_health, lambda: llm.generate([PROMPT]), lambda: llm.call_utility("ping")):
        with pytest.raises(RingtwinError, match="shut down"):
            call()


@pytest.mark.parametrize(("wanted", "gpus", "device"), [
    ("cpu", 4, "cpu"), ("auto", 0, "cpu"), ("auto", 1, "cuda:0"), ("auto", 2, "cuda:1"), ("cuda", 4, "cuda:3"),
])
def test_ranks_get_a_gpu_each_or_share_where_they_may(wanted: str, gpus: int, device: str, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert choose_device(wanted, 3, 4) == device


@pytest.mark.parametrize(("before", "gpus", "devices"), [
    (0, 4, "cuda:0 cuda:1"), (1, 4, "cuda:2 cuda:3"), (2, 4, "cuda:0 cuda:1"), (1, 3, "cuda:2 cuda:0"),
    (3, 8, "cuda:6 cuda:7"), (1, 0, "cpu cpu")])
def test_the_gpus_of_an_engine_come_behind_those_of_the_engines_before_it(
        before: int, gpus: int, devices: str, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert " ".join(choose_device("auto", rank, 2, before) for rank in range(2)) == devices


@pytest.mark.parametrize("gpus", [0, 1, 3])
def test_gpus_that_were_asked_for_by_name_and_are_too_few_are_a_config_error(gpus: int, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    with pytest.raises(ConfigError, match="cuda"):
        choose_device("cuda", 0, 4)
