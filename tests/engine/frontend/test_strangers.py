"""Strangers at every socket that an engine binds: real processes, sockets of the wrong kinds, words that are none."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from engine.config import DataParallelConfig, EngineConfig
from engine.frontend.client import EngineLauncher
from engine.frontend.llm import LLM
from engine.messages import SamplingParams
from scenarios.lab.settings import lab_config
from tests.engine.frontend.test_several import WORKLOAD, attached, served

KINDS = (zmq.DEALER, zmq.PUSH, zmq.XSUB, zmq.SUB, zmq.REQ, zmq.PULL, zmq.PAIR)
#: What takes how long is no part of it.
UNHURRIED = {"startup_s": 120.0, "handshake_s": 60.0, "collective_s": 8.0, "step_s": 20.0, "rpc_s": 20.0,
             "stall_s": 20.0, "request_s": 60.0, "output_gap_s": 30.0}
IN_STEP = {"data_parallel_size": 2, "tensor_parallel_size": 1,
           "data_parallel": DataParallelConfig(lockstep=True, coordinator=True, changed_s=0.02, unchanged_s=0.2)}


def words() -> Iterator[list[bytes]]:
    """What no part of an engine says."""
    dice, pack = random.Random(3), msgspec.msgpack.encode
    yield from ([b""], [b""] * 20, [b"\x01"], [b"\x00"], [b"\x01\x07\x00"], [b"\x00\x07\x00"], [b"\xc1"], [b"\x90"])
    yield from ([pack(one)] for one in (
        [], [7, 0, None], [-1, 0, 0], [0, -1], [0, 2 ** 63, 0], ["a", "b"], {"status": "HELLO"}, {"status": "READY"},
        [9, [], None, 0.0], 5, None, "x" * 300, [[[[[]]]]]))
    yield from ([bytes([kind]), pack([1, 2, 3])] for kind in range(6))
    yield from ([bytes([1, 0]), b"", dice.randbytes(dice.randint(1, 40))] for _ in range(20))
    yield from ([dice.randbytes(dice.choice((1, 3, 9, 200)))] for _ in range(40))
    yield [b"\x93" + b"\xff" * (1 << 20)]


def disturb(path: Path) -> int:
    """All kinds of sockets say all of these to whatever is bound in this directory. -> how many were said"""
    said, context = 0, zmq.Context()
    try:
        for file in sorted(path.rglob("*.ipc")):
            for kind in KINDS:
                with context.socket(kind) as stranger:
                    stranger.linger = 200
                    if kind in (zmq.DEALER, zmq.REQ):
                        stranger.identity = b"stranger"
                    if kind == zmq.SUB:
                        stranger.subscribe(b"")
                    stranger.connect(f"ipc://{file}")
                    if kind in (zmq.SUB, zmq.PULL):
                        stranger.poll(10)
                        continue
                    for frames in words():
                        try:
                            stranger.send_multipart(frames, zmq.NOBLOCK)
                        except zmq.ZMQError:  # nobody of that kind listens there
                            break
                        said += 1
                        if kind == zmq.REQ:
                            break
    finally:
        context.term()
    return said


@pytest.mark.parametrize("changes", [{"tensor_parallel_size": 1}, IN_STEP], ids=["one core", "cores in step"])
def test_strangers_at_all_sockets_of_an_engine_change_nothing(changes: dict) -> None:
    prompts = [request.prompt_token_ids for request in WORKLOAD.requests]
    params = [SamplingParams(**request.sampling_params) for request in WORKLOAD.requests]
    with LLM(config=lab_config(bounds=UNHURRIED, **changes)) as llm:
        files = Path(llm.client.life.files.path)
        for _ in range(2):
            assert disturb(files) > 100
            outputs = llm.generate(prompts, params)
            assert [output.token_ids for output in outputs] == [r.reference_token_ids for r in WORKLOAD.requests]
        assert not llm.dead_cores


@pytest.fixture
def shared() -> EngineConfig:
    return lab_config(tensor_parallel_size=1, bounds=UNHURRIED)


def test_strangers_at_all_sockets_that_clients_share_change_nothing(shared: EngineConfig, tmp_path: Path) -> None:
    async def both() -> None:
        llms = [attached(launcher, shared, index) for index in range(2)]
        assert await asyncio.to_thread(disturb, Path(launcher.life.files.path)) > 100
        assert await asyncio.gather(*map(served, llms)) == [[True] * 8] * 2
        for llm in llms:
            llm.shutdown()

    with EngineLauncher(shared, clients=2) as launcher:
        asyncio.run(both())
        assert not launcher.serve(0.05)
