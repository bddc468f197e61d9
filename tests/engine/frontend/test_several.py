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
from scenarios.lab.settings import lab_config
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
