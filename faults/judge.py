"""Decides what befalls each crossing of one process. Pure: it counts and never rolls dice.

Promises: the same crossings in the same order meet the same fates, in every world. A site that no fault
names costs one dictionary look-up. Of two faults that are due at one crossing the first in the plan wins;
the other one counts the crossing too and does not fire there.

    counting    every fault counts for itself: only crossings that come after its `after` fault fired,
                and only messages that have the values of its `match`
    firing      at its nth counted crossing and the `times - 1` counted crossings behind it
    lives       a site belongs to the highest life that its name mentions, 0 if it mentions none:
                `core.0@1->worker.1/rpc:receive` is judged in worker.1 of life 1
    until       `Until(site, nth)` is the nth crossing of that site since its process was born; it may
                already lie in the past, then nothing is held
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType, KVEventBatch
from engine.topology import Channel, Edge, Node
from faults.plan import Fate, Fault, Plan, operation_of, owner_of

_LIFE = re.compile(r"@(\d+)")


@lru_cache(maxsize=4096)
def bare(site: str) -> str:
    """The site as its process crosses it and as journals name it: without lives."""
    return _LIFE.sub("", site)


@lru_cache(maxsize=4096)
def home_of(site: str) -> tuple[str, int]:
    """(node without life, life): the process that crosses this site."""
    return bare(owner_of(site)), max((int(life) for life in _LIFE.findall(site)), default=0)


def homes_of(site: str) -> tuple[tuple[str, int], ...]:
    """As `home_of`; a cut on the wire is played by whichever end of its edge connects."""
    node, life = home_of(site)
    if operation_of(site) != "wire":
        return ((node, life),)
    edge = Edge.parse(bare(site).rpartition(":")[0])
    return (str(edge.source), life), (str(edge.target), life)


class _Count:
    """One fault and the crossings it has counted."""

    __slots__ = ("counted", "fault", "waits")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.counted = 0
        self.waits = fault.after is not None


class Judge:
    """The judge of one process life. Not locked: the fault layer's ports hold a lock around it."""

    def __init__(self, plan: Plan, node: str, life: int = 0) -> None:
        me = Node.parse(node)
        self.node, self.life = bare(node), max(life, me.life)
        self._counts: dict[str, int] = {}
        self._faults: dict[str, list[_Count]] = {}
        self._waiting: dict[str, list[_Count]] = {}
        for fault in plan.faults:
            if (self.node, self.life) not in homes_of(fault.site):
                continue
            count = _Count(fault)
            self._faults.setdefault(bare(fault.site), []).append(count)
            if count.waits:
                self._waiting.setdefault(fault.after or "", []).append(count)

    def crossing(self, site: str, decoded: Any = None) -> Fault | None:
        """Count one crossing. -> the fault that fires here, or None

        `decoded` is the message's decoded form (see `decoded_of`), or a callable that gives it; it is only
        called where a fault at this site has a `match`.
        """
        if "@" in site:
            site = bare(site)
        self._counts[site] = self._counts.get(site, 0) + 1
        candidates = self._faults.get(site)
        if candidates is None:
            return None
        fires: Fault | None = None
        for count in candidates:
            fault = count.fault
            if count.waits:
                continue
            if fault.match is not None:
                if callable(decoded):
                    decoded = decoded()
                if not matches(decoded, fault.match):
                    continue
            count.counted += 1
            if fires is None and fault.nth <= count.counted < fault.nth + fault.times:
                fires = fault
        if fires is not None:
            self.notice(fires.id)
        return fires

    def notice(self, fault_id: str) -> None:
        """A fault fired, here or in another process: those that come `after` it begin to count."""
        for count in self._waiting.pop(fault_id, ()):
            count.waits = False

    def awaited(self) -> tuple[str, ...]:
        """Faults whose firing this judge still has to be told of."""
        return tuple(self._waiting)

    def names(self, site: str) -> bool:
        """Whether any fault of this process names the site."""
        return bare(site) in self._faults

    def fates_at(self, site: str) -> frozenset[Fate]:
        return frozenset(count.fault.fate for count in self._faults.get(bare(site), ()))

    def sites(self) -> tuple[str, ...]:
        """The sites, without lives, at which a fault of this process may fire."""
        return tuple(self._faults)

    def count(self, site: str) -> int:
        """How often this process has crossed the site."""
        return self._counts.get(bare(site), 0)


def is_over(fault: Fault, fired_at: float, now: float, count_of: Callable[[str], int]) -> bool:
    """Whether what `fault` holds since `fired_at` may go. `count_of(site)`: crossings so far, as on the board."""
    if fault.until is None:
        return False
    if fault.until.site is not None:
        return count_of(fault.until.site) >= fault.until.nth
    return now - fired_at >= (fault.until.seconds or 0.0)


# -- what a match looks at ---------------------------------------------------------------------------------

_REQUEST_TYPES = {
    EngineCoreRequestType.ADD: "ADD",
    EngineCoreRequestType.ABORT: "ABORT",
    EngineCoreRequestType.START_DP_WAVE: "START_DP_WAVE",
    EngineCoreRequestType.UTILITY: "UTILITY",
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
        return {"type": name, "request": _decode_request(frames[1])}
    if name == "ABORT":
        return {"type": name, "request_ids": msgspec.msgpack.decode(frames[1])}
    if name == "UTILITY":
        client_index, call_id, method, args = msgspec.msgpack.decode(frames[1])
        return {"type": name, "client_index": client_index, "call_id": call_id, "method": method, "args": args}
    return {"type": name}


def _output(frames: Sequence[Any]) -> Any:
    first = bytes(frames[0])
    return {"type": first.decode()} if first == b"ENGINE_CORE_DEAD" else _decode_outputs(first)


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


_DECODERS: dict[Channel, Callable[[Sequence[Any]], Any]] = {
    Channel.REQUESTS: _request, Channel.OUTPUTS: _output, Channel.HANDSHAKE: _handshake, Channel.KV: _kv,
    Channel.REPLAY: _replay, Channel.RPC: _rpc, Channel.RESPONSE: _response,
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


# -- what corruption does ----------------------------------------------------------------------------------


def corrupted_bytes(data: Any, byte: int) -> bytes:
    """`data` with all bits of one byte flipped: the given offset (wrapping round), -1 for the middle."""
    changed = bytearray(data)
    if changed:
        changed[len(changed) // 2 if byte < 0 else byte % len(changed)] ^= 0xFF
    return bytes(changed)


def corrupted(frames: Sequence[Any], fault: Fault) -> list[Any]:
    """The message with one byte of its last frame that is not empty flipped."""
    return _change_last(frames, lambda frame: corrupted_bytes(frame, fault.byte))


def truncated(frames: Sequence[Any], fault: Fault) -> list[Any]:
    """The message whose last frame that is not empty ends before the fault's byte (-1: its middle)."""
    def cut(frame: Any) -> bytes:
        size = memoryview(frame).nbytes
        return bytes(frame)[: size // 2 if fault.byte < 0 else min(fault.byte, size - 1)]

    return _change_last(frames, cut)


def _change_last(frames: Sequence[Any], change: Callable[[Any], bytes]) -> list[Any]:
    changed = list(frames)
    for index in reversed(range(len(changed))):
        if memoryview(changed[index]).nbytes:
            changed[index] = change(changed[index])
            break
    return changed
