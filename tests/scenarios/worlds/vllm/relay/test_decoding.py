"""What vLLM's messages say, by their bytes alone; nothing is unpickled, and what cannot be read is None."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.topology import Channel
from faults.match import matches
from scenarios.worlds.vllm.environment import VARIABLE
from scenarios.worlds.vllm.relay.decoding import decoded_of, engine_in, readdressed, told_of

pack = msgspec.msgpack.encode


class _Bomb:
    def __reduce__(self) -> Any:
        return os._exit, (7,)


FORMS: list[tuple[Channel, list[bytes], dict[str, Any]]] = [
    (Channel.REQUESTS, [b"\x00", pack(["a-1", [5, 6], None, {"max_tokens": 4}])],
     {"type": "ADD", "request.request_id": "a*", "request.sampling_params.max_tokens": 4}),
    (Channel.REQUESTS, [b"\x01", pack(["a-1", "b-2"])], {"type": "ABORT", "request_ids": "b-2"}),
    (Channel.REQUESTS, [b"\x03", pack([0, 9, "reset_prefix_cache", []])], {"type": "UTILITY", "method": "reset_*"}),
    (Channel.REQUESTS, [b"\x02", pack([3, 1])], {"type": "START_DP_WAVE", "wave": 3, "exclude": 1}),
    (Channel.REQUESTS, [pack({"max_model_len": 40})], {"type": "READY", "max_model_len": 40}),
    (Channel.OUTPUTS, [b"ENGINE_CORE_DEAD"], {"type": "ENGINE_CORE_DEAD"}),
    (Channel.OUTPUTS, [pack([1, [["a-1", [7, 8]]]])],
     {"engine_index": 1, "outputs.request_id": "a-1", "outputs.0.new_token_ids": [7, 8]}),
    (Channel.REPORT, [pack({"engine_index": 1, "wave_complete": 4})], {"wave_complete": 4}),
    (Channel.HANDSHAKE, [b"", pack({"status": "HELLO", "local": True})], {"status": "HELLO", "local": True}),
    (Channel.WAVE, [b"READY"], {"type": "READY"}),
    (Channel.WAVE, [b"\x01"], {"type": "SUBSCRIBE"}),
    (Channel.STATS, [pack([[[0, 1, 0.0]], 2, True])], {"type": "NOTICE", "wave": 2, "running": True}),
    (Channel.KV, [b"kv", (3).to_bytes(8, "big"), pack([1.0, [], 0])], {"topic": "kv", "seq": 3}),
    (Channel.REPLAY, [b"", (5).to_bytes(8, "big")], {"seq": 5}),
    (Channel.REPLAY, [b"", b"kv", (-1).to_bytes(8, "big", signed=True), b""], {"end": True}),
]


@pytest.mark.parametrize(("channel", "frames", "wanted"), FORMS, ids=lambda value: str(value)[:40])
def test_a_message_has_the_form_that_a_plan_matches(channel: Channel, frames: list[bytes], wanted: Any) -> None:
    assert matches(decoded_of(channel, frames), wanted)


@given(st.sampled_from(sorted({channel for channel, _, _ in FORMS})), st.lists(st.binary(max_size=60), max_size=4))
def test_whatever_bytes_come_none_is_raised(channel: Channel, frames: list[bytes]) -> None:
    found = decoded_of(channel, frames)
    assert found is None or isinstance(found, dict)


def test_a_pickle_is_told_by_its_size_and_not_opened() -> None:
    bomb = pickle.dumps(_Bomb())
    frames = [b"\x03", pack([0, 1, "collective_rpc", [msgspec.msgpack.Ext(1, bomb)]])]
    found = decoded_of(Channel.REQUESTS, frames)
    assert found is not None and found["args"] == [{"pickled": len(bomb)}]


def test_addresses_are_exchanged_in_the_message_that_hands_them_out() -> None:
    told = [b"", pack({"addresses": {"inputs": ["ipc://a"], "outputs": ["ipc://b"], "coordinator_input": None},
                       "parallel_config": {"x": 1}})]
    changed = readdressed(told, {"ipc://a": "ipc://relay"})
    assert changed is not None and changed[0] == b""
    assert msgspec.msgpack.decode(changed[1]) == {
        "addresses": {"inputs": ["ipc://relay"], "outputs": ["ipc://b"], "coordinator_input": None},
        "parallel_config": {"x": 1}}
    assert readdressed([b"", pack({"status": "HELLO"})], {}) is None


def test_whose_outputs_they_are() -> None:
    assert engine_in([pack([3, []])]) == 3
    assert engine_in([b"ENGINE_CORE_DEAD"]) is None


@pytest.mark.parametrize(("channel", "frames", "told"), [
    (Channel.REQUESTS, [b"\x00", pack({"request_id": "a-1-x", "external_req_id": "a-1"})],
     {"says": "ADD", "about": "a-1"}),
    (Channel.REQUESTS, [b"\x00", pack(["a-1"])], {"says": "ADD", "about": "a-1"}),
    (Channel.REQUESTS, [b"\x01", pack(["a-1", "b-2"])], {"says": "ABORT"}),
    (Channel.REQUESTS, [b"\x03", pack([0, 9, "reset_prefix_cache", []])], {"says": "UTILITY"}),
    (Channel.REQUESTS, [pack({"max_model_len": 40})], {"says": "READY"}),
    (Channel.OUTPUTS, [b"ENGINE_CORE_DEAD"], {"says": "ENGINE_CORE_DEAD"}),
    (Channel.OUTPUTS, [pack([1, [["a-1", [7, 8]]]])], {"says": "outputs"}),
    (Channel.OUTPUTS, [pack({"utility_output": [9, None, [None, 3]]})], {"says": "answer"}),
    (Channel.HANDSHAKE, [b"", pack({"status": "HELLO"})], {"says": "HELLO"}),
    (Channel.HANDSHAKE, [b"", pack({"addresses": {}})], {"says": "INIT"}),
    (Channel.OUTPUTS, [b"\xc1"], {}),
])
def test_what_of_a_message_is_on_record(channel: Channel, frames: list[bytes], told: dict[str, str]) -> None:
    assert told_of(channel, frames) == told


ENCODES = """
import json, sys
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.serial_utils import MsgpackEncoder
from vllm import SamplingParams
encode = MsgpackEncoder().encode
request = EngineCoreRequest(request_id="r-1", prompt_token_ids=[5, 6, 7], mm_features=None, pooling_params=None,
    sampling_params=SamplingParams(max_tokens=9), arrival_time=1.0, lora_request=None, cache_salt=None,
    data_parallel_rank=None)
outputs = EngineCoreOutputs(engine_index=2, outputs=[EngineCoreOutput(request_id="r-1", new_token_ids=[8])])
print(json.dumps([[bytes(b).hex() for b in encode(one)] for one in (request, outputs)]))
"""


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter")
def test_what_vllm_itself_encodes_is_read() -> None:
    told = subprocess.run([os.environ[VARIABLE], "-c", ENCODES], capture_output=True, text=True, check=True)
    request, outputs = ([bytes.fromhex(one) for one in frames] for frames in json.loads(told.stdout.splitlines()[-1]))
    assert matches(decoded_of(Channel.REQUESTS, [b"\x00", *request]), {
        "request.request_id": "r-1", "request.prompt_token_ids": [5, 6, 7], "request.sampling_params.max_tokens": 9})
    assert matches(decoded_of(Channel.OUTPUTS, outputs), {
        "engine_index": 2, "outputs.request_id": "r-1", "outputs.new_token_ids": [8]})
