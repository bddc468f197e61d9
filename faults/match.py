"""What a fault's `match` looks at: the decoded form of a message, and whether it has the wanted values. Pure.

Promise: frames that are not a message of their channel match nothing, whatever they are. What of a request or an
output lies in frames of its own is not looked at.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType, KVEventBatch
from engine.topology import Channel
from faults.told import SUBSCRIBE, subscriber_in, told_in_pipe

_REQUEST_TYPES = {
    EngineCoreRequestType.ADD: "ADD",
    EngineCoreRequestType.ABORT: "ABORT",
    EngineCoreRequestType.START_DP_WAVE: "START_DP_WAVE",
    EngineCoreRequestType.UTILITY: "UTILITY",
    EngineCoreRequestType.LEAVE: "LEAVE",
}
_decode_request = msgspec.msgpack.Decoder(EngineCoreRequest).decode
_decode_outputs = msgspec.msgpack.Decoder(EngineCoreOutputs).decode
_decode_batch = msgspec.msgpack.Decoder(KVEventBatch).decode


def decoded_of(channel: Channel, frames: Sequence[Any]) -> Any:
    """The form of a message that `match` looks at; None where the frames are not a message of the channel.

        requests    {"type": "ADD", "request": EngineCoreRequest} | {"type": "ABORT", "request_ids": [...]}
                    | {"type": "UTILITY", "client_index", "call_id", "method", "args"} | {"type": ...}
        outputs     EngineCoreOutputs, or {"type": "ENGINE_CORE_DEAD"}
        handshake   the map: {"status": "HELLO", ...} or {"addresses": ..., "parallel_config": ...}
        kv          {"topic", "seq", "batch": KVEventBatch}
        replay      {"seq"}
        rpc         {"call_id", "method", "args", "kwargs", "output_rank"}
        response    {"call_id", "status", "value"}
        wave        {"type": "READY"} | {"type": "START_DP_WAVE", "wave", "exclude"} | {"type": "SUBSCRIBE", "index"}
        report      EngineCoreOutputs
        birth       the word or recipe as a map: {"type": "ready", "rank", "response_handle"} | {"type": "failed", ...}
        stats       {"type": "NOTICE", "counts", "wave", "running"} | {"type": "SUBSCRIBE", "index"}
                    | {"type": "FIRST_REQUEST", "client", "rank", "wave"}

    Ring messages are pickles out of the process's own shared memory; frames from sockets never are.
    """
    try:
        return _DECODERS[channel](frames)
    except Exception:  # a pickle may raise anything; whatever it is, these bytes do not match
        return None


def _request(frames: Sequence[Any]) -> Any:
    kind = bytes(frames[0])
    name = _REQUEST_TYPES.get(kind, kind.hex())
    if name == "ADD":
        return {"type": name, "request": _decode_request(frames[1]) if len(frames) == 2 else msgspec.convert(
            _body(frames[1]), EngineCoreRequest)}
    if name == "ABORT":
        return {"type": name, "request_ids": msgspec.msgpack.decode(frames[1])}
    if name == "UTILITY":
        client_index, call_id, method, args = _body(frames[1])
        return {"type": name, "client_index": client_index, "call_id": call_id, "method": method, "args": args}
    return {"type": name}


def _output(frames: Sequence[Any]) -> Any:
    first = bytes(frames[0])
    if first == b"ENGINE_CORE_DEAD":
        return {"type": first.decode()}
    return _decode_outputs(first) if len(frames) == 1 else msgspec.convert(_body(first), EngineCoreOutputs)


def _body(frame: Any) -> Any:
    """What lies in frames of its own is an empty list here."""
    return msgspec.msgpack.decode(frame, ext_hook=lambda code, data: [])


def _handshake(frames: Sequence[Any]) -> Any:
    return msgspec.msgpack.decode(frames[-1])


def _kv(frames: Sequence[Any]) -> Any:
    topic, seq, payload = [bytes(frame) for frame in frames[-3:]]
    return {"topic": topic.decode(), "seq": int.from_bytes(seq, "big", signed=True), "batch": _decode_batch(payload)}


def _replay(frames: Sequence[Any]) -> Any:
    sequence = frames[-2] if len(frames) > 2 else frames[-1]  # an answer's topic, sequence, payload; a question's
    if len(sequence) != 8:
        return None
    return {"seq": int.from_bytes(bytes(sequence), "big", signed=True)}


def _rpc(parts: Sequence[Any]) -> Any:
    call_id, method, args, kwargs, output_rank = pickle.loads(parts[0], buffers=parts[1:])[:5]
    return {"call_id": call_id, "method": method, "args": args, "kwargs": kwargs, "output_rank": output_rank}


def _response(parts: Sequence[Any]) -> Any:
    call_id, status, value = pickle.loads(parts[0], buffers=parts[1:])[:3]
    return {"call_id": call_id, "status": status, "value": value}


def _wave(frames: Sequence[Any]) -> Any:
    first = bytes(frames[0])
    if first[:1] == SUBSCRIBE:
        return {"type": "SUBSCRIBE", "index": subscriber_in(first)}
    if first != EngineCoreRequestType.START_DP_WAVE:
        return {"type": first.decode()}
    wave, exclude = msgspec.msgpack.decode(frames[1])
    return {"type": "START_DP_WAVE", "wave": wave, "exclude": exclude}


def _stats(frames: Sequence[Any]) -> Any:
    first = bytes(frames[0])
    if first[:1] == SUBSCRIBE:
        return {"type": "SUBSCRIBE", "index": subscriber_in(first)}
    one, two, three = msgspec.msgpack.decode(first)
    if isinstance(three, bool):
        return {"type": "NOTICE", "counts": one, "wave": two, "running": three}
    return {"type": "FIRST_REQUEST", "client": one, "rank": two, "wave": three}


def _birth(frames: Sequence[Any]) -> Any:
    return msgspec.msgpack.decode(told_in_pipe(frames[0]))


_DECODERS: dict[Channel, Callable[[Sequence[Any]], Any]] = {
    Channel.REQUESTS: _request, Channel.OUTPUTS: _output, Channel.HANDSHAKE: _handshake, Channel.KV: _kv,
    Channel.REPLAY: _replay, Channel.RPC: _rpc, Channel.RESPONSE: _response,
    Channel.WAVE: _wave, Channel.STATS: _stats, Channel.REPORT: _output,
    Channel.BIRTH: _birth,
}


def matches(decoded: Any, wanted: dict[str, Any]) -> bool:
    """Whether a decoded message has every wanted value.

    Keys are dotted paths through maps, structs and lists (`request.sampling_params.max_tokens`,
    `outputs.0.request_id`); a name applied to a list looks at each element (`outputs.request_id`). A wanted
    string that ends in `*` is a prefix: internal request ids have a random tail.
    """
    return decoded is not None and all(_has(decoded, path.split("."), value) for path, value in wanted.items())


def _has(found: Any, path: Sequence[str], wanted: Any) -> bool:
    if not path:
        if isinstance(found, (list, tuple)) and not isinstance(wanted, (list, tuple)):
            return any(_has(item, path, wanted) for item in found)
        if isinstance(wanted, str):
            name = str(found)
            return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted
        if isinstance(wanted, (list, tuple)):
            return isinstance(found, (list, tuple)) and list(found) == list(wanted)
        return bool(found == wanted)
    head, rest = path[0], path[1:]
    if isinstance(found, (list, tuple)):
        if head.isdigit():
            return int(head) < len(found) and _has(found[int(head)], rest, wanted)
        return any(_has(item, path, wanted) for item in found)
    if isinstance(found, dict):
        return head in found and _has(found[head], rest, wanted)
    return isinstance(found, msgspec.Struct) and hasattr(found, head) and _has(getattr(found, head), rest, wanted)
