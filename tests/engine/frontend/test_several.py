"""Engines that a launcher owns, and clients that attach to them: real processes."""

import asyncio

import msgspec
import pytest
import zmq

from engine.config import EngineConfig, SocketConfig
from engine.errors import ConfigError, EngineDeadError, StartupError
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.attachment import Attachment
from engine.frontend.client import EngineLauncher
from engine.frontend.llm import LLM
from scenarios.lab.settings import MODEL, lab_config
from scenarios.workloads import recorded

WORKLOAD = recorded("eight-mixed")


@pytest.fixture
def config() -> EngineConfig:
    return lab_config(tensor_parallel_size=1)


async def served(llm: AsyncLLM) -> list[bool]:
    """Whether each request gets what it should, all asked for at once."""
    async def one(request) -> bool:
        last = None
        async for output in llm.generate(request.prompt_token_ids, request.params, f"r{request.index}"):
            last = output
        return last.token_ids == request.reference_token_ids

    return await asyncio.gather(*map(one, WORKLOAD.requests))


def attached(launcher: EngineLauncher, config: EngineConfig, index: int) -> AsyncLLM:
    as_carried = msgspec.msgpack.decode(msgspec.msgpack.encode(launcher.attachment), type=Attachment)
    return AsyncLLM(config, attachment=as_carried, client_index=index)


def test_two_clients_at_once_get_what_they_ask_for(config):
    async def both() -> None:
        llms = [attached(launcher, config, index) for index in range(2)]
        answers = await asyncio.gather(*map(served, llms))
        assert answers == [[True] * 8] * 2
        for llm in llms:
            llm.shutdown()

    with EngineLauncher(config, clients=2) as launcher:
        asyncio.run(both())
        assert not launcher.serve(0.05)


def test_a_client_that_leaves_can_come_back_under_its_index(config):
    async def once(index: int) -> None:
        llm = attached(launcher, config, index)
        assert await served(llm) == [True] * 8
        llm.shutdown()

    with EngineLauncher(config, clients=2) as launcher:
        for index in (1, 0, 1, 1):
            asyncio.run(once(index))


def test_the_end_of_the_engines_is_told_to_who_is_attached_and_to_who_comes_then(config):
    async def alone() -> None:
        llm = attached(launcher, config, 0)
        launcher.shutdown()
        with pytest.raises(EngineDeadError, match=r"core\.0"):
            await served(llm)
        llm.shutdown()

    launcher = EngineLauncher(config, clients=2)
    asyncio.run(alone())
    with pytest.raises(StartupError, match="gone"):
        attached(launcher, config, 1)


def test_a_client_that_is_none_of_theirs_is_refused_by_name(config):
    with EngineLauncher(config, clients=2) as launcher, pytest.raises(
            ConfigError, match="client 5 attaches to engines that were started for the clients 0, 1"):
        attached(launcher, config, 5)


def test_a_client_with_another_parallel_configuration_is_told_the_difference(config):
    other = msgspec.structs.replace(config, data_parallel_size=2)
    with EngineLauncher(config, clients=2) as launcher, pytest.raises(
            ConfigError, match="data_parallel_size is 2 here, and the running engines were started with 1"):
        attached(launcher, other, 0)


def test_clients_bind_the_ports_that_were_kept_for_them_and_bind_them_again(config):
    """Over tcp: the cores were told of these before any client was there."""
    over_tcp = msgspec.structs.replace(config, sockets=SocketConfig(transport="tcp", io_threads=2))

    async def once(index: int) -> None:
        llm = attached(launcher, over_tcp, index)
        assert await served(llm) == [True] * 8
        llm.shutdown()

    with EngineLauncher(over_tcp, clients=2) as launcher:
        kept = [address for client in launcher.attachment.clients
                for address in (client.requests, *client.outputs.values())]
        assert launcher.ports._context.get(zmq.IO_THREADS) == 2
        assert len(set(kept)) == 4 and all(address.startswith("tcp://127.0.0.1:") for address in kept)
        for index in (1, 0, 1):
            asyncio.run(once(index))


def test_engines_at_an_address_that_is_none_of_this_host_are_refused_by_name(config):
    elsewhere = msgspec.structs.replace(config, sockets=SocketConfig(transport="tcp", host="2001:db8::1"))
    with pytest.raises(ConfigError, match=r"tcp://\[2001:db8::1\]:\* is no address of this host"):
        EngineLauncher(elsewhere)


@pytest.mark.parametrize(("options", "said"), [
    ({"lockstep": True}, "coordinator is True here, and the running engines were started with False"),
    ({"coordinator": True}, "coordinator is True here")])
def test_a_client_that_believes_in_other_waves_is_told_the_difference(config, options, said):
    two = msgspec.structs.replace(config, data_parallel_size=2, bounds=msgspec.structs.replace(
        config.bounds, collective_s=0.8))
    other = msgspec.structs.replace(two, data_parallel=msgspec.structs.replace(two.data_parallel, **options))
    with EngineLauncher(two, clients=2) as launcher, pytest.raises(ConfigError, match=said):
        attached(launcher, other, 0)


@pytest.mark.parametrize(("clients", "said"), [
    (0, "headless cores have a head that starts rank 0"), (-1, r"1 client or more, or headless \(0\), got clients=-1"),
    ("2", "got clients='2'")])
def test_engines_without_a_client_are_refused_before_any_is_started(config, clients, said):
    with pytest.raises(ConfigError, match=said):
        EngineLauncher(config, clients=clients)


@pytest.mark.parametrize("index", [-1, "0"])
def test_an_index_that_no_client_can_have_is_refused_by_name(config, index):
    with pytest.raises(ConfigError, match=f"client_index counts from 0, got {index!r}"):
        AsyncLLM(config, client_index=index)


def test_a_contradiction_is_told_before_engines_of_several_clients_are_started(config):
    with pytest.raises(ConfigError, match=r"collective_s is 5, and has to lie below bounds\.step_s \(1\)"):
        EngineLauncher(msgspec.structs.replace(config, data_parallel_size=2, data_parallel=msgspec.structs.replace(
            config.data_parallel, lockstep=True)), clients=2)


@pytest.mark.parametrize("options", [{"data_parallel_lockstep": True}, {"data_parallel_coordinator": True},
                                      {"data_parallel": {"lockstep": True, "wave_protocol": "old"}}],
                         ids=["in step", "coordinated", "old"])
def test_a_program_asks_for_several_cores_by_flat_names(options):
    with LLM(model=str(MODEL), data_parallel_size=2, device="cpu", skip_tokenizer_init=True, num_gpu_blocks_override=64,
             **options) as llm:
        assert llm.config.has_coordinator and llm.config.is_lockstep == ("data_parallel_coordinator" not in options)
        answers = llm.generate([request.prompt_token_ids for request in WORKLOAD.requests],
                               [request.params for request in WORKLOAD.requests])
    assert [answer.token_ids for answer in answers] == [request.reference_token_ids for request in WORKLOAD.requests]
