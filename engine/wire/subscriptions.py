"""What subscribers tell a publisher by XSUB and XPUB, and who says it (pure).

    01 topic     a subscription     sent by an XSUB's owner, by a SUB itself, and by both again on a new connection
    00 topic     its end            the same; an XPUB makes one itself when the last subscriber of a topic is gone
    others       a word of the subscriber's owner to the publisher's

Promises: reading a message never raises, whatever its bytes are. An XPUB, and a PULL that several connect to, cannot
tell which of their peers a message came from: so it says so itself, a subscription by its topic, a word by the first
number in it. To be known, a subscriber subscribes to everything and then to its own name (`subscriptions_of`): who
hears the name knows that the other has arrived, also on a new connection; and the end of that topic names who is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.ports import SocketSpec
from engine.wire.wiring import IDENTITY_BYTES, identity_of

SUBSCRIBE, UNSUBSCRIBE = b"\x01", b"\x00"
#: libzmq's own high-water mark, for each end of a socket that nobody has given another one.
USUAL_HWM = 1000
_ABOUT_TOPICS = (SUBSCRIBE, UNSUBSCRIBE)
#: msgpack: arrays of 1 to 15 fields; unsigned numbers above 127, by the bytes that they have.
_SHORTEST_ARRAY, _LONGEST_ARRAY = 0x91, 0x9f
_UNSIGNED = {0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8}


def topics_of(spec: SocketSpec) -> tuple[bytes, ...]:
    """What a SUB subscribes to, in the order in which its publisher hears of it."""
    return tuple(sorted({topic for topic in (spec.topic, *spec.more_topics) if topic is not None}))


def topic_in(frames: Sequence[Any]) -> tuple[bool, bytes] | None:
    """(whether it subscribes, topic) of a message to a publisher; None: it is a word of its owner."""
    head = bytes(frames[0]) if len(frames) == 1 else b""
    return (head[:1] == SUBSCRIBE, head[1:]) if head[:1] in _ABOUT_TOPICS else None


def check_upward(frames: Sequence[Any]) -> None:
    """Raises ValueError for several frames of which one begins as a subscription does: libzmq takes that one out."""
    if len(frames) > 1 and any(bytes(memoryview(frame)[:1]) in _ABOUT_TOPICS for frame in frames):
        raise ValueError("of a message with several frames to a publisher none may begin with 00 or 01")


# -- who sent it -------------------------------------------------------------------------------------------------


def subscriptions_of(index: int) -> tuple[bytes, bytes]:
    """What subscriber `index` sends, in this order: that it wants everything, and its name."""
    return SUBSCRIBE, SUBSCRIBE + identity_of(index)


def subscriber_of(frames: Sequence[Any]) -> int | None:
    """`SocketSpec.sender_of` of an XPUB and its XSUBs. The end of a subscription is nobody's: see `leaver_of`."""
    found = topic_in(frames)
    return first_number_of(frames) if found is None else _named(found[1]) if found[0] else None


def leaver_of(frames: Sequence[Any]) -> int | None:
    """Who is gone, where a message is the end of a subscription to a name."""
    found = topic_in(frames)
    return None if found is None or found[0] else _named(found[1])


def first_number_of(frames: Sequence[Any]) -> int | None:
    """`SocketSpec.sender_of` where a message is a msgpack array, of 15 fields at most, that begins with its sender."""
    head = bytes(memoryview(frames[0])[:10]) if frames else b""
    if len(head) < 2 or not _SHORTEST_ARRAY <= head[0] <= _LONGEST_ARRAY:
        return None
    first = head[1]
    if first < 0x80:
        return first
    number = head[2:2 + _UNSIGNED.get(first, 0)]
    return int.from_bytes(number, "big") if number and len(number) == _UNSIGNED[first] else None


def _named(topic: bytes) -> int | None:
    return int.from_bytes(topic, "little") if len(topic) == IDENTITY_BYTES else None
