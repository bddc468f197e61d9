"""Evidence as it lies in the page: HTML, deflated and in base64, which a browser unpacks when it is opened.

Most of a page are drawings that nobody opens; packed they take a sixth. What a verdict is, and where, is never packed.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping

import msgspec

#: No header and no sum: what `DecompressionStream("deflate-raw")` reads.
_RAW = -15


def packed(text: str) -> str:
    """The same text always gives the same packet."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, _RAW)
    return base64.b64encode(deflate.compress(text.encode()) + deflate.flush()).decode()


def unpacked(packet: str) -> str:
    return zlib.decompress(base64.b64decode(packet), _RAW).decode()


def block(packets: Mapping[str, str]) -> str:
    """JSON that a script element can hold: its names are ids of ours, and base64 has no angle bracket."""
    return msgspec.json.encode(packets).decode()
