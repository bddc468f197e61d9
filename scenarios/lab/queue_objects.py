"""What a play of the queue alone sends: objects of every shape that its framing knows, and what each must arrive as.

Promises: every object differs from all others, and `face` tells objects apart that differ in a type, in a byte, or in
which of their parts are one and the same.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

#: Buffers from here on travel beside the pickle: what `engine.ipc.framing` promises.
LARGE_BYTES = 64 << 10
_MIB = 1 << 20


class Sheet:
    """An object that hands its memory over as a buffer, as an array does."""

    def __init__(self, *rows: Any) -> None:
        self.rows = [bytearray(row) for row in rows]

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return _sheet, tuple(pickle.PickleBuffer(row) for row in self.rows)


def _sheet(*rows: Any) -> Sheet:
    """It keeps the memory that it is given, as an array does."""
    sheet = Sheet()
    sheet.rows = list(rows)
    return sheet


class Unreadable:
    """Pickles, and cannot be unpickled."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return _fails, self.parts


def _fails(*parts: Any) -> None:
    raise LookupError("what this stands for is not here")


class Sent(NamedTuple):
    """`beside`: how many buffers must travel beside its pickle. What is not `readable` is an error at its reader."""

    make: Callable[[], Any]
    beside: int = 0
    readable: bool = True


class Raw(NamedTuple):
    """Bytes of a chunk that somebody else has written: a message, or none."""

    chunk: bytes
    obj: Any = None
    readable: bool = False


def large(size: int = LARGE_BYTES, kind: Callable[[bytes], Any] = bytes) -> Any:
    """So many bytes, different from all others of this list."""
    return kind(size.to_bytes(4, "little") * (size // 4) + bytes(size % 4))


def _twice() -> list[Any]:
    one = large(LARGE_BYTES + 20)
    return [one, "twice", one]


def _shared() -> list[Any]:
    inner = [large(LARGE_BYTES + 24), 1]
    return [inner, inner]


def _holds_itself() -> list[Any]:
    holder: list[Any] = [large(LARGE_BYTES + 28)]
    holder.append(holder)
    return holder


def _keeps_small_lists() -> list[Any]:
    small = ["small"]
    return [small, small, large(LARGE_BYTES + 64)]


#: Small and large ones, in the order in which they are sent.
SHAPES: tuple[Sent, ...] = (
    Sent(lambda: 1), Sent(lambda: ("a tuple", None, {"k": [1, 2]})), Sent(lambda: b"a few bytes"),
    Sent(lambda: large(LARGE_BYTES - 1)), Sent(large, 1), Sent(lambda: large(LARGE_BYTES + 1), 1),
    Sent(lambda: bytearray(b"a few")), Sent(lambda: large(LARGE_BYTES - 2, bytearray)),
    Sent(lambda: large(LARGE_BYTES, bytearray), 1), Sent(lambda: large(LARGE_BYTES + 2, bytearray), 1),
    Sent(lambda: (1, large(LARGE_BYTES + 3)), 1), Sent(lambda: [large(LARGE_BYTES + 4), large(LARGE_BYTES + 5)], 2),
    Sent(lambda: {"a": large(LARGE_BYTES + 6), "b": 2}, 1),
    Sent(lambda: [[(large(LARGE_BYTES + 7),)]], 1), Sent(lambda: [[[[large(LARGE_BYTES + 8)]]]]),
    Sent(lambda: [*range(15), large(LARGE_BYTES + 9)], 1), Sent(lambda: [*range(16), large(LARGE_BYTES + 10)]),
    Sent(lambda: ["x", [*range(16), large(LARGE_BYTES + 11)], large(LARGE_BYTES + 12)], 1),
    Sent(lambda: [bytearray(large(LARGE_BYTES + 13)), large(LARGE_BYTES + 14)], 1),
    Sent(lambda: [large(LARGE_BYTES - 3), large(LARGE_BYTES + 15)], 1),
    Sent(_twice, 1), Sent(_shared, 1), Sent(_holds_itself), Sent(_keeps_small_lists, 1),
    Sent(lambda: Sheet(large(LARGE_BYTES + 16)), 1), Sent(lambda: Sheet(large(100), large(LARGE_BYTES + 17)), 1),
    Sent(lambda: Sheet(large(104))), Sent(lambda: Sheet(large(LARGE_BYTES)), 1),
    Sent(lambda: [Sheet(large(LARGE_BYTES + 18)), large(LARGE_BYTES + 19)], 2),
    Sent(lambda: (Sheet(large(LARGE_BYTES + 18)), "the same size again"), 1),
    Sent(lambda: Unreadable(1), 0, False), Sent(lambda: [Unreadable(2), large(LARGE_BYTES + 21)], 1, False),
    Sent(lambda: [large(LARGE_BYTES + 22), large(LARGE_BYTES + 23), large(LARGE_BYTES + 25)], 3),
    Sent(lambda: (2, large()), 1), Sent(lambda: Sheet(large(108), large()), 1),
    Sent(lambda: [large(LARGE_BYTES + 26), [[[large(LARGE_BYTES + 27)]]]], 1),
    *(Sent(partial(Sheet, b"let", b"go", bytes([number]) * LARGE_BYTES), 1) for number in range(5)),
    Sent(lambda: "behind them all"),
)


def _sized(*sizes: int) -> tuple[Sent, ...]:
    return tuple(Sent(partial(large, size), int(size >= LARGE_BYTES)) for size in sizes)


def _numbered(*sizes: int) -> tuple[Sent, ...]:
    return tuple(Sent(partial(tuple, (number, "x" * size))) for number, size in enumerate(sizes))


#: Small ones between some that may lie at another chunk's place.
LARGE = (*_sized(_MIB, 8, _MIB - 200, _MIB + 4, _MIB + 8, 12, _MIB + 12, _MIB + 16, _MIB + 20, 16),
         *(Sent(partial(Sheet, bytes([number]) * (_MIB + 24)), 1) for number in range(3)))
#: Those that fit into a small chunk, and those that do not.
SMALL = _numbered(1, 300, 2, 230, 231, 229, 232, 3, 400, 500, 4, 5, 6, 600, 7, 8, 301, 302, 303, 304, 9, 305, 306, 10,
                  307, 308, 309, 11, 12, 310, 13, 311, 14, 312, 15, 313, 16, 17, 18, 314, 315, 316, 317,
                  19, 20, 21, 22, 318, 319)


def _chunk(flag: int, *parts: bytes, count: int | None = None, rest: int = 0) -> bytes:
    """As docs/RING.md has it; `rest` bytes more than its last part has are said to be there."""
    sizes = [len(part) for part in parts]
    sizes[-1] += rest
    return bytes([flag]) + (len(parts) if count is None else count).to_bytes(2, "big") + b"".join(
        size.to_bytes(4, "big") + part for size, part in zip(sizes, parts, strict=True))


def _text(size: int) -> bytes:
    """Of a text that takes so many bytes when it is pickled."""
    return pickle.dumps("y" * (size - len(pickle.dumps("y" * 200, 5)) + 200), 5)


#: Of a ring whose chunks have 256 bytes: up to the last byte, and one beyond; bytes that are no message.
RAW = (Raw(_chunk(0, _text(249)), pickle.loads(_text(249)), True),
       Raw(_chunk(0, _text(240)), pickle.loads(_text(240)), True),
       Raw(_chunk(0, _text(249), rest=1)), Raw(_chunk(2, b"x")), Raw(_chunk(0, b"x", count=0)),
       Raw(_chunk(0, _text(50), b"y" * 187), pickle.loads(_text(50)), True),
       Raw(_chunk(0, _text(52), b"y" * 193), pickle.loads(_text(52)), True),
       Raw(_chunk(0, _text(51), b"y" * 194, rest=1)),
       Raw(_chunk(3, _text(60), b"y")), Raw(_chunk(0, _text(61), b"y", count=300)))
#: More parts than a byte can count.
MANY = Raw(_chunk(0, _text(70), *[b""] * 256), pickle.loads(_text(70)), True)
#: Fewer than a ring has chunks.
FEW = _numbered(1, 2)
#: Some that go beside a ring in parts.
STRANGE = (*SMALL[:12], *_sized(90_000, 8, 90_004))
#: Some that fill the buffers on the way to another host.
FAR = (*_numbered(1, 300, 2), *_sized(90_000, 90_004, 90_008, 90_012, 60_000), *_numbered(*range(4, 12)),
       *_sized(90_016, 90_020, 90_024, 90_028))


def is_kept(obj: Any) -> bool:
    """What a reader keeps of these: the memory of what it does not may be taken again."""
    return not isinstance(obj, Sheet) or len(obj.rows) != len(("let", "go", "of it"))


def face(obj: Any) -> str:
    """A digest of an object: of its types, its bytes, and of which parts are one and the same."""
    state, met = blake2b(digest_size=8), dict[int, int]()
    _look(obj, state, met, [])
    return state.hexdigest()


def _look(obj: Any, state: Any, met: dict[int, int], kept: list[Any]) -> None:
    def say(*words: Any) -> None:
        state.update(repr(words).encode())

    say(type(obj).__name__)
    shared = isinstance(obj, list | dict) or (isinstance(obj, bytes) and len(obj) >= LARGE_BYTES)
    if shared and id(obj) in met:
        say("as", met[id(obj)])
        return
    if shared:
        met[id(obj)] = len(met)
        kept.append(obj)
    if isinstance(obj, bytes | bytearray | memoryview):
        say(len(obj))
        state.update(obj)
    elif isinstance(obj, Sheet):
        for row in obj.rows:
            say(len(row))
            state.update(row)
    elif isinstance(obj, dict):
        for key, value in obj.items():
            say(key)
            _look(value, state, met, kept)
    elif isinstance(obj, list | tuple):
        say(len(obj))
        for item in obj:
            _look(item, state, met, kept)
    elif isinstance(obj, Unreadable):
        say(len(obj.parts), obj.parts[0])
    else:
        say(obj)
