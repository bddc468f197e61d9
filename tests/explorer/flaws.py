"""Small changes to the ring's code, each with what must become of it under the explorer.

A flaw is a text that stands in engine/ipc/ring.py exactly once and what it is replaced by; the changed source is run
as a module of its own. So a flaw is a flaw of the shipped code, and one that no longer fits is an error.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, NamedTuple

from engine.ipc import ring
from tests.explorer.ring import Case, Explorer
from tests.explorer.table import Counterexample

RESET = "        memory[written] = 0\n"
DATA = ("        if size <= GATHER_BYTES:\n"
        '            memory[offset:offset + size] = parts[0] if len(parts) == 1 else b"".join(parts)\n'
        "        else:\n            for part in parts:\n                memory[offset:offset + len(part)] = part\n"
        "                offset += len(part)\n")
READERS = "        memory[readers] = self._unread\n"
WRITTEN = ("        memory[written] = place\n        self._places = places\n"
           "        self._position = position + 1\n")
FENCE = "        self._fence()\n"
#: From the reset to the end of a write, as it is shipped.
WRITE = RESET + FENCE + DATA + READERS + FENCE + WRITTEN + FENCE

_FULL = "        if flags[0] and 0 in flags:\n            return False\n"
_FIRST_LOOK_OVER = "        self._fence()  # our own flag first, `written` second\n"
_OWN = "        if memory[own]:\n            return EMPTY\n" + _FIRST_LOOK_OVER
_WRITTEN_FLAG = "        place = memory[written]\n        if not place:\n            return EMPTY\n"
_TAKE = "        try:\n            taken = take("
_MOVES_ON = "        self._position += 1\n"
_READ_FLAG = "        self._memory[own] = 1\n" + _MOVES_ON
_FREE = "        self._fence()  # all loads of the data are over\n" + _READ_FLAG
_FREED = _FREE + "        self._fence()  # seen before any doorbell\n"
_READ_BY_ALL = "            if 0 not in flags:\n"
_EXCHANGE = "places[chunk], places[other] = self._at(chunk, places[other][0]), self._at(other, places[chunk][0])\n"
_TAKEN = "places[chunk] = self._at(chunk, places[other][0])\n"
_WHOSE = "memory[data if place == 1 else self._moved(place)]"


class Flaw(NamedTuple):
    name: str
    old: str
    new: str
    case: Case  # a small one in which it shows
    says: str  # part of the violation
    culprit: str  # the store that is seen too early, or at all; "" where a store is missing
    missing: str  # the store that the culprit has overtaken, or that is never made


def flawed(old: str, new: str) -> tuple[type, type]:
    """-> RingWriter and RingReader with one change. Raises ValueError where the text does not stand exactly once."""
    source = inspect.getsource(ring)
    if (count := source.count(old)) != 1:
        raise ValueError(f"the text to change stands {count} times in ring.py, not once:\n{old}")
    module: Any = ModuleType("flawed_ring")
    exec(compile(source.replace(old, new), "flawed_ring", "exec", dont_inherit=True), module.__dict__)
    # Both worlds must agree on what "nothing" is.
    module.EMPTY = ring.EMPTY
    return module.RingWriter, module.RingReader


def hunt(old: str, new: str, case: Case) -> Counterexample | None:
    writer, reader = flawed(old, new)
    return Explorer(case, writer=writer, reader=reader).explore()


PSO = Case("PSO", 1, 2, 4)
SC = Case("SC", 1, 2, 4)
WEAK = Case("WEAK", 1, 2, 4)
BELL = Case("TSO", 1, 2, 4, bell=True)
MOVES = Case("SC", 1, 2, 4, moves=1)

_MAY_WAIT = "        return self._max_chunks == 1 or (memory[written] != 0 and memory[own] == 0)\n"
_ASLEEP = "waits for ever before message"

FLAWS = (
    Flaw("no fence after the reset", RESET + FENCE, RESET, PSO, "took 01 01 as message 3", "readers", "reset"),
    Flaw("no fence before the flag", READERS + FENCE, READERS, PSO, "took 00 00 as message 1", "written", "data"),
    Flaw("data and written are swapped (flag before data)", WRITE,
         RESET + FENCE + WRITTEN + READERS + FENCE + DATA + FENCE, SC, "took 00 00 as message 1", "written", "data"),
    Flaw("reset and readers are swapped", WRITE, READERS + FENCE + DATA + RESET + FENCE + WRITTEN + FENCE, SC,
         "took 01 01 as message 3", "readers", "reset"),
    Flaw("readers and written are swapped", WRITE, RESET + FENCE + DATA + WRITTEN + FENCE + READERS + FENCE, SC,
         "took 01 01 as message 3", "written", "readers"),
    Flaw("reset and written are swapped", WRITE, WRITTEN + FENCE + DATA + READERS + FENCE + RESET + FENCE, SC,
         "took 00 00 as message 1", "written", "data"),
    Flaw("the flag is never reset", WRITE, FENCE + DATA + READERS + FENCE + WRITTEN + FENCE, Case("SC", 1, 2, 4, 1),
         "never published", "readers", "reset"),
    Flaw("the readers' flags are not reset", READERS + FENCE, FENCE, SC, "waits for ever", "", "readers"),
    Flaw("the writer skips a slot that is not free", _FULL,
         _FULL.replace("return False", "self._position += 1\n            return False"), SC, "took 04 04 as message 3",
         "written", ""),
    Flaw("the writer does not look whether there is room", _FULL, "", SC, "message 3 is written over message 1",
         "reset", "read"),
    Flaw("the writer waits for readers of a chunk that is free", _FULL, _FULL.replace("flags[0] and ", ""), SC,
         "the writer waits for ever before message 1", "", "reset"),
    Flaw("the writer waits for the first reader only", _FULL, _FULL.replace("0 in flags", "not any(flags[1:])"),
         Case("SC", 2, 2, 4), "message 3 is written over message 1", "reset", ""),
    Flaw("a reader skips a slot that is not ready", _WRITTEN_FLAG,
         _WRITTEN_FLAG.replace("return EMPTY", "self._position += 1\n            return EMPTY"), SC,
         "took 02 02 as message 1", "written", ""),
    Flaw("a reader looks at written before its own flag", _OWN + _WRITTEN_FLAG,
         _WRITTEN_FLAG + "        self._fence()\n" + _OWN, PSO, "took 01 01 as message 3", "readers", "data"),
    Flaw("a reader does not look at its own flag", _OWN, "", SC, "took 01 01 as message 3", "read", ""),
    Flaw("a reader sets its flag before it has taken the message", _TAKE, "        memory[own] = 1\n" + _TAKE,
         SC, "message 3 is written over message 1", "read", ""),
    Flaw("a reader does not set its flag", _FREE, _MOVES_ON, SC, "took 01 01 as message 3", "", "read"),
    Flaw("no fence between a reader's two looks", _FIRST_LOOK_OVER, "", WEAK, "took 01 01 as message 3", "readers", ""),
    Flaw("no fence before the data", "        self._fence()  # `written` first, data second\n", "", WEAK,
         "took 01 00 as message 1", "written", ""),
    Flaw("no fence after the flag", WRITTEN + FENCE, WRITTEN, BELL, _ASLEEP, "", "bell"),
    Flaw("no fence after a reader's flag", _FREED, _FREE, BELL, _ASLEEP, "", "bell"),
    Flaw("a reader never rings for room", _MAY_WAIT, "        return False\n", BELL, _ASLEEP, "", "bell"),
    Flaw("a reader of a single chunk rings as with several", _MAY_WAIT,
         _MAY_WAIT.replace("self._max_chunks == 1 or ", ""), Case("SC", 1, 1, 3, bell=True), _ASLEEP, "", "bell"),
    Flaw("a reader looks at the wrong chunk before it rings", "(self._position - 2)", "(self._position - 1)", BELL,
         _ASLEEP, "", "bell"),
    Flaw("a place is taken that somebody still reads", _READ_BY_ALL, "            if flags[0]:\n", MOVES,
         "message 2 is written over message 1", "data", "read"),
    Flaw("a place is taken that the first reader has read", _READ_BY_ALL, "            if flags[1]:\n",
         MOVES._replace(readers=2), "message 2 is written over message 1", "data", ""),
    Flaw("a place is taken and none is given for it", _EXCHANGE, _TAKEN, MOVES._replace(moves=2),
         "message 3 is written over message 2", "data", ""),
    Flaw("the flag does not say whose place it is", "        memory[written] = place\n",
         "        memory[written] = 1\n", MOVES, "took 00 00 as message 2", "", ""),
    Flaw("a reader does not look whose place it is", _WHOSE, "memory[data]", MOVES, "took 00 00 as message 2", "", ""),
)

#: Changes after which everything is still right where loads stay in order and nobody sleeps, with the reason.
HARMLESS = {
    "data and readers are swapped: both lie between the same two fences":
        (WRITE, RESET + FENCE + READERS + DATA + FENCE + WRITTEN + FENCE),
    "reset and data are swapped: with all flags set nobody looks at the data":
        (WRITE, DATA + RESET + FENCE + READERS + FENCE + WRITTEN + FENCE),
    "no fence before the reset: it orders loads before stores":
        ("        self._fence()  # the readers' last loads of the old message are over\n", ""),
    "no fence after the flag: it is for the doorbell": (WRITTEN + FENCE, WRITTEN),
    "no fence between a reader's two looks: it orders loads":
        (_FIRST_LOOK_OVER, ""),
    "no fence before the data: it orders loads": ("        self._fence()  # `written` first, data second\n", ""),
    "no fence before a reader's flag: it orders loads before a store": (_FREE, _READ_FLAG),
    "no fence after a reader's flag: it is for the doorbell": (_FREED, _FREE),
}
