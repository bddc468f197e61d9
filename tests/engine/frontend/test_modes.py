"""Cores that several start, by the library's own classes: real processes."""

from __future__ import annotations

import multiprocessing
import socket
from multiprocessing.connection import Connection

import msgspec
import pytest

from engine.config import DataParallelConfig, EngineConfig
from engine.errors import ConfigError, RingtwinError
from engine.frontend.client import EngineLauncher
from engine.frontend.llm import LLM
from tests.engine.engine_lab import SIXTY_FOUR, config, wrong_answers

SPAWN = multiprocessing.get_context("spawn")
REQUESTS = SIXTY_FOUR[:12]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def part(rank: int, **options) -> EngineConfig:
    """Of whoever starts one of two cores, from this rank on."""
    return config(data_parallel_size=2, data_parallel_rank=rank, bounds={"collective_s": 10.0, "handshake_s": 60.0},
                  data_parallel=DataParallelConfig(size_local=1, rank_local=rank, sync_interval=4, **options))


def _serve_headless(encoded: bytes, connection: Connection) -> None:
    try:
        with EngineLauncher(msgspec.msgpack.decode(encoded, type=EngineConfig), clients=0) as launcher:
            connection.send("up")
            while not launcher.life.reason:
                launcher.serve(0.05)
            connection.send(launcher.life.reason)
    except RingtwinError as error:
        connection.send(f"{type(error).__name__}: {error}")


def _generate(encoded: bytes, connection: Connection) -> None:
    try:
        llm = LLM(config=msgspec.msgpack.decode(encoded, type=EngineConfig))
    except RingtwinError as error:
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(wrong_answers(llm, REQUESTS))
    connection.recv()
    llm.shutdown()


class Beside:
    """A process of its own that runs this with another part of the configuration."""

    def __init__(self, main, settings: EngineConfig) -> None:
        self.connection, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=main, args=(msgspec.msgpack.encode(settings), theirs))
        self.process.start()
        theirs.close()

    def __enter__(self) -> Beside:
        return self

    def says(self):
        assert self.connection.poll(60.0)
        return self.connection.recv()

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.process.join(20.0)
        gone = self.process.exitcode is not None
        self.process.kill()
        assert gone


def test_a_headless_core_serves_a_client_that_has_not_started_it_and_goes_with_it() -> None:
    where = f"tcp://127.0.0.1:{free_port()}"
    with Beside(_serve_headless, part(1, head_address=where)) as other:
        llm = LLM(config=part(0, head_address=where))
        assert wrong_answers(llm, REQUESTS) == [] and other.says() == "up"
        llm.shutdown()  # this process lives on: its word is what ends them
        assert "core.1" in other.says()


def test_two_clients_with_a_core_each_step_together() -> None:
    where = f"tcp://127.0.0.1:{free_port()}"
    options = {"head_address": where, "load_balancing": "external"}
    with Beside(_generate, part(1, **options)) as other:
        llm = LLM(config=part(0, **options))
        assert wrong_answers(llm, REQUESTS) == [] and other.says() == []
        other.connection.send("go")
        other.process.join(20.0)
        llm.shutdown()


def test_a_part_that_is_configured_otherwise_is_refused_by_name_on_both_sides() -> None:
    where = f"tcp://127.0.0.1:{free_port()}"
    options = {"head_address": where, "load_balancing": "external"}
    other = part(1, **options)
    other = msgspec.structs.replace(other, data_parallel=msgspec.structs.replace(other.data_parallel, sync_interval=9))
    with Beside(_generate, other) as second:
        with pytest.raises(RingtwinError, match="core.1 refuses: sync_interval is 9 here, and 4 of frontend.0"):
            LLM(config=part(0, **options))
        assert "sync_interval is 9 here, and 4 of frontend.0" in second.says()


@pytest.mark.parametrize("settings", [
    config(), part(0, head_address="ipc:///head"), part(1, head_address="ipc:///head", load_balancing="hybrid")])
def test_who_cannot_be_headless_is_told_so(settings: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="headless"):
        EngineLauncher(settings, clients=0)


@pytest.mark.parametrize(("options", "words"), [
    ({"load_balancing": "hybrid"}, "give its head_address"),
    ({"head_address": "nowhere"}, "head_address must be tcp://host:port"),
    ({"head_address": "ipc:///h", "master_address": "ipc:///m"}, "give no master_address"),
    ({"head_address": "ipc:///h", "size_local": 0}, "size_local must be 1 or more")])
def test_options_that_contradict_each_other_are_refused(options, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DataParallelConfig(**options)


@pytest.mark.parametrize(("rank", "size_local", "balancing", "words"), [
    (2, 1, "internal", "must be below data_parallel_size"), (1, 2, "internal", "there are 2 ranks"),
    (0, 2, "external", "each client has one core")])
def test_ranks_that_there_cannot_be_are_refused(rank: int, size_local: int, balancing: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineConfig(model="m", data_parallel_size=2, data_parallel_rank=rank, data_parallel=DataParallelConfig(
            head_address="ipc:///h", size_local=size_local, load_balancing=balancing))


@pytest.mark.parametrize(("size", "rank", "local"), [(3, 0, 2), (4, 1, 2)])
def test_of_hybrid_clients_none_has_fewer_cores(size: int, rank: int, local: int) -> None:
    with pytest.raises(ValueError, match="each client has as many cores as any other"):
        EngineConfig(model="m", data_parallel_size=size, data_parallel_rank=rank, data_parallel=DataParallelConfig(
            head_address="ipc:///h", size_local=local, load_balancing="hybrid"))
