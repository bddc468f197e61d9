"""A counterexample as a table: who did what, to which store, and what everybody could see after it.

    who       in        does                                        seen by all: written | readers : data
    writer    write 3   store reset (written:0 = 0) into its buffer  1|1:0101  1|0:0202
    writer    write 3   store reset (written:0 = 0) becomes visible  0|1:0101  1|0:0202
"""

from __future__ import annotations

from typing import NamedTuple

from engine.ipc.ring import RingLayout


class Row(NamedTuple):
    who: str
    operation: str
    does: str
    visible: str


class Counterexample(NamedTuple):
    case: str
    violation: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        head = Row("who", "in", "does", "seen by all: written | readers : data, per chunk")
        lines = [head, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(3)]
        table = []
        for number, line in enumerate(lines):
            cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
            table.append("  ".join([f"{number or '':>3}", *cells, line.visible]))
        return "\n".join([f"{self.case}: {self.violation}", *table])


def store_of(address: int, value: int, party: int, layout: RingLayout) -> str:
    """The store's name as plans use it: reset, data, readers, written or read."""
    kind = layout.store_name(address).partition(":")[0]
    if kind == "bell":
        return "bell"
    if kind == "written":
        return "written" if value else "reset"
    return "data" if kind == "data" else "read" if party else "readers"


def store_text(kind: str, address: int, value: int, party: int, layout: RingLayout, *, buffered: bool) -> str:
    if kind in ("took", "wrote"):
        return f"{'took' if party else 'published'} message {address}"
    if kind == "took wrong":
        return f"TOOK THIS AS MESSAGE {address}"
    if kind == "nothing":
        return "nothing to take, returns" if party else "no room, returns"
    if kind in ("fence", "dies"):
        return {"fence": "fence", "dies": "DIES"}[kind]
    where = layout.store_name(address)
    if where == "data":
        chunk, at = divmod(address, layout.max_chunk_bytes)
        where = f"data:{chunk}[{at}]"
    if kind in ("load", "early"):
        return f"load {where} -> {value}" + " (done early)" * (kind == "early")
    name = f"store {store_of(address, value, party, layout)} ({where} = {value})"
    return f"{name} becomes visible" if kind == "seen" else f"{name} into its buffer" if buffered else name


def memory_text(memory: bytes, layout: RingLayout, width: int) -> str:
    chunks = []
    for chunk in range(layout.max_chunks):
        flags = memory[layout.written_offset(chunk):layout.written_offset(chunk + 1)]
        data = memory[layout.data_offset(chunk):layout.data_offset(chunk) + width]
        chunks.append(f"{flags[0]}|{''.join(map(str, flags[1:]))}:{data.hex()}")
    return "  ".join(chunks)
