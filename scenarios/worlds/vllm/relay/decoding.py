"""What vLLM's messages say, read from their bytes by themselves: the form that a fault's `match` looks at. Pure.

Promises: nothing is unpickled, and nothing of vLLM's is run. What cannot be decoded is None, and matches nothing.
Names are vLLM's, so a path is the same as for our engine where both call a thing the same; what a message leaves out
because it is as usual is filled in. What lies in frames of its own, or pickled, is told by its size alone.

    requests    {"type": "ADD", "request": {...}} | {"type": "ABORT", "request_ids": [...]}
                | {"type": "UTILITY", "client_index", "call_id", "method", "args"} | {"type": "START_DP_WAVE", ...}
                of a core {"type": "READY", "max_model_len", "num_gpu_blocks", ...}
    outputs     {"engine_index", "outputs": [{"request_id", "new_token_ids", ...}], "scheduler_stats", ...}, of which
                `utility_output` is {"call_id", "failure", "failure_message", "result"}; or {"type": "ENGINE_CORE_DEAD"}
    handshake   the map: {"status": "HELLO" | "READY", ...} or {"addresses": {...}, "parallel_config": {...}}
    wave        {"type": "SUBSCRIBE" | "CANCEL" | "READY"} | {"type": "START_DP_WAVE", "wave", "exclude"}
    stats       {"type": "NOTICE", "counts", "wave", "running"} | {"type": "SUBSCRIBE" | "CANCEL"}
                | {"type": "SCALE_ELASTIC_EP", "engines"}
    report      as outputs
    kv          {"topic", "seq", "batch": {"ts", "events", "data_parallel_rank"}} | {"type": "SUBSCRIBE", "topic"}
    replay      {"seq"}, of an answer also "topic", "end", and "batch" where it has one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from engine.topology import Channel

Decoded = dict[str, Any]

# By their place in the array; a value is what a field is when the array ends before it.
_REQUEST: Decoded = dict.fromkeys((
    "request_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params", "arrival_time",
    "lora_request", "cache_salt", "data_parallel_rank", "prompt_embeds", "prompt_is_token_ids", "client_index",
    "current_wave", "priority", "trace_headers", "resumable", "external_req_id", "reasoning_ended",
    "reasoning_parser_kwargs", "abort_immediately", "session_id", "kv_hints",
)) | {"client_index": 0, "current_wave": 0, "priority": 0, "resumable": False, "abort_immediately": False}
_OUTPUTS: Decoded = {
    "engine_index": 0, "outputs": [], "scheduler_stats": None, "timestamp": 0.0, "utility_output": None,
    "finished_requests": None, "wave_complete": None, "start_wave": None, "weight_version": None,
}
_OUTPUT: Decoded = dict.fromkeys((
    "request_id", "new_token_ids", "new_logprobs", "new_prompt_logprobs_tensors", "pooling_output", "finish_reason",
    "stop_reason", "events", "kv_transfer_params", "ec_transfer_params", "trace_headers", "prefill_stats",
    "routed_experts", "num_nans_in_logits", "mm_cache_miss_hashes", "new_sampling_mask", "spec_decode_metrics",
    "prompt_token_id_logprobs", "error",
)) | {"num_nans_in_logits": 0}
_UTILITY: Decoded = dict.fromkeys(("call_id", "failure_message", "result"))
_BATCH: Decoded = dict.fromkeys(("ts", "events", "data_parallel_rank"))
#: A map leaves out what is as usual: of sampling parameters what a plan may ask for.
_SAMPLING: Decoded = {
    "n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": None, "max_tokens": 16, "min_tokens": 0,
    "ignore_eos": False, "stop": None, "stop_token_ids": None, "skip_special_tokens": True,
}
_PICKLES = (1, 2)
_ADD, _ABORT, _START, _UTILITY_CALL = b"\x00", b"\x01", b"\x02", b"\x03"
_SUBSCRIPTIONS = {b"\x01": "SUBSCRIBE", b"\x00": "CANCEL"}
_END = (-1).to_bytes(8, "big", signed=True)


def decoded_of(channel: Channel, frames: Sequence[Any]) -> Decoded | None:
    """The form of a message; None where the frames are not one of the channel. `frames`: as they travel."""
    try:
        return _DECODERS[channel](frames)
    except Exception:  # bytes may be wrong in any way; whatever it is, these do not match
        return None


def told_of(channel: Channel, frames: Sequence[Any]) -> Decoded:
    """What of a message is on record: `says`, its kind, and of a request `about`, the id that its caller gave it. Empty
    where that cannot be read.

        requests: ADD, ABORT, UTILITY, of a core READY; outputs: outputs, answer (of a call), ENGINE_CORE_DEAD;
        handshake: HELLO, INIT, READY
    """
    found = decoded_of(channel, frames)
    if found is None:
        return {}
    if channel is Channel.HANDSHAKE:
        return {"says": found.get("status", "INIT")}
    if channel is Channel.OUTPUTS:
        return {"says": found.get("type") or ("outputs" if found["utility_output"] is None else "answer")}
    if found.get("type") == "ADD":
        request = found["request"]
        return {"says": "ADD", "about": request["external_req_id"] or request["request_id"]}
    return {"says": found["type"]} if "type" in found else {}


def engine_in(frames: Sequence[Any]) -> int | None:
    """The index of the core that says it in its outputs or reports."""
    found = decoded_of(Channel.OUTPUTS, frames)
    index = None if found is None else found.get("engine_index")
    return index if isinstance(index, int) else None


def readdressed(frames: Sequence[Any], addresses: dict[str, str]) -> list[Any] | None:
    """The handshake message that hands out addresses, with others in their place; None for any other message."""
    found = decoded_of(Channel.HANDSHAKE, frames)
    if found is None or not isinstance(found.get("addresses"), dict):
        return None
    told = {name: [addresses.get(one, one) for one in value] if isinstance(value, list) else addresses.get(value, value)
            for name, value in found["addresses"].items()}
    return [*frames[:-1], msgspec.msgpack.encode({**found, "addresses": told})]


def _ext(code: int, data: memoryview) -> Decoded:
    return {"pickled" if code in _PICKLES else "bytes": len(data)}


def _body(frame: Any) -> Any:
    return msgspec.msgpack.decode(frame, ext_hook=_ext)


def _named(names: Decoded, found: Any) -> Decoded:
    """A struct, which travels as an array or a map. Raises ValueError for anything else."""
    if isinstance(found, dict):
        return names | found
    if not isinstance(found, list):
        raise ValueError(f"no struct: {found!r}")
    return names | dict(zip(names, found, strict=False))


def _request(frames: Sequence[Any]) -> Decoded:
    if len(frames) == 1:
        return {"type": "READY", **_map(frames[0])}
    kind = bytes(frames[0])
    if kind == _ADD:
        request = _named(_REQUEST, _body(frames[1]))
        if not isinstance(request["request_id"], str):
            raise ValueError("a request without an id")
        if isinstance(request["sampling_params"], dict):
            request["sampling_params"] = _SAMPLING | request["sampling_params"]
        return {"type": "ADD", "request": request}
    if kind == _ABORT:
        return {"type": "ABORT", "request_ids": list(_body(frames[1]))}
    if kind == _UTILITY_CALL:
        client_index, call_id, method, args = _body(frames[1])
        return {"type": "UTILITY", "client_index": client_index, "call_id": call_id, "method": method, "args": args}
    if kind == _START:
        return _start(frames)
    return {"type": kind.hex()}


def _start(frames: Sequence[Any]) -> Decoded:
    wave, exclude = _body(frames[1])
    return {"type": "START_DP_WAVE", "wave": wave, "exclude": exclude}


def _outputs(frames: Sequence[Any]) -> Decoded:
    if bytes(frames[0]) == b"ENGINE_CORE_DEAD":
        return {"type": "ENGINE_CORE_DEAD"}
    found = _named(_OUTPUTS, _body(frames[0]))
    found["outputs"] = [_named(_OUTPUT, one) for one in found["outputs"]]
    if found["utility_output"] is not None:
        answer = _named(_UTILITY, found["utility_output"])
        if isinstance(answer["result"], list) and len(answer["result"]) == 2:
            answer["result"] = answer["result"][1]  # before it stands of which types it is
        found["utility_output"] = {**answer, "failure": answer["failure_message"]}
    return found


def _map(frame: Any) -> Decoded:
    found = _body(frame)
    if not isinstance(found, dict):
        raise ValueError(f"no map: {found!r}")
    return found


def _handshake(frames: Sequence[Any]) -> Decoded:
    return _map(frames[-1])


def _subscription(frames: Sequence[Any]) -> Decoded | None:
    first = bytes(frames[0])
    if len(frames) != 1 or first[:1] not in _SUBSCRIPTIONS:
        return None
    return {"type": _SUBSCRIPTIONS[first[:1]], "topic": first[1:].decode()}


def _wave(frames: Sequence[Any]) -> Decoded | None:
    if bytes(frames[0]) == b"READY":
        return {"type": "READY"}
    if bytes(frames[0]) == _START and len(frames) == 2:
        return _start(frames)
    return _subscription(frames)


def _stats(frames: Sequence[Any]) -> Decoded | None:
    if (asked := _subscription(frames)) is not None:
        return asked
    found = _body(frames[0])
    if len(found) == 2 and found[0] == "SCALE_ELASTIC_EP":
        return {"type": "SCALE_ELASTIC_EP", "engines": found[1]}
    counts, wave, running = found
    return {"type": "NOTICE", "counts": counts, "wave": wave, "running": running}


def _kv(frames: Sequence[Any]) -> Decoded | None:
    if len(frames) != 3:
        return _subscription(frames)
    return {"topic": bytes(frames[0]).decode(), "seq": _seq(frames[1]), "batch": _named(_BATCH, _body(frames[2]))}


def _replay(frames: Sequence[Any]) -> Decoded:
    if len(frames) < 4:  # a question: an empty frame, and where to begin
        return {"seq": _seq(frames[-1])}
    topic, sequence, payload = (bytes(frame) for frame in frames[-3:])
    found: Decoded = {"topic": topic.decode(), "seq": _seq(sequence), "end": sequence == _END}
    return found if found["end"] else {**found, "batch": _named(_BATCH, _body(payload))}


def _seq(frame: Any) -> int:
    if len(frame) != 8:
        raise ValueError(f"a number of {len(frame)} bytes")
    return int.from_bytes(bytes(frame), "big", signed=True)


_DECODERS: dict[Channel, Callable[[Sequence[Any]], Decoded | None]] = {
    Channel.REQUESTS: _request, Channel.OUTPUTS: _outputs, Channel.HANDSHAKE: _handshake, Channel.WAVE: _wave,
    Channel.STATS: _stats, Channel.REPORT: _outputs, Channel.KV: _kv, Channel.REPLAY: _replay,
}
