"""A client in a process of its own, whose requests never end; and how long its core keeps them when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from multiprocessing.connection import Connection

import msgspec

from engine.config import EngineConfig
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.attachment import Attachment
from scenarios.worlds.forking.fork_server import context, without_main
from tests.engine.deaths import CALLERS, ask_for_ever


def serve_callers(attachment: bytes, config: bytes, index: int, connection: Connection) -> None:
    """Says so when all of its requests have begun to be answered."""
    async def all_of_them() -> None:
        llm = AsyncLLM(msgspec.msgpack.decode(config, type=EngineConfig), client_index=index,
                       attachment=msgspec.msgpack.decode(attachment, type=Attachment))
        begun = [asyncio.Event() for _ in range(CALLERS)]
        tasks = [asyncio.create_task(ask_for_ever(llm, place, begun[place].set)) for place in range(CALLERS)]
        for each in begun:
            await each.wait()
        connection.send("all have begun")
        await asyncio.gather(*tasks)

    asyncio.run(all_of_them())


async def kill_client(beside: AsyncLLM, attachment: Attachment, index: int) -> float:
    """-> from the signal until `beside`, another client, is told by the core that nothing runs any more, in seconds."""
    connection, theirs = context().Pipe()
    with without_main():
        process = context().Process(target=serve_callers, args=(
            msgspec.msgpack.encode(attachment), msgspec.msgpack.encode(beside.config), index, theirs))
        process.start()
    theirs.close()
    try:
        assert await asyncio.to_thread(connection.poll, 60.0) and connection.recv() == "all have begun"
        looked_from = time.monotonic()
        while sum((await beside.call_utility("get_stats"))[:2]) < CALLERS:
            assert time.monotonic() < looked_from + 10.0
        killed_at = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        while any((await beside.call_utility("get_stats"))[:2]):
            assert time.monotonic() < killed_at + 10.0
        return time.monotonic() - killed_at
    finally:
        process.kill()
        process.join()
        connection.close()
