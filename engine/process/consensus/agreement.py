"""Who of a group has entered what, whom the others wait for, and what comes of the values that all brought (pure).

Promises
- Whoever waits ends its wait with a name: of who died, of who gave up, or at the deadline of who is furthest behind
  and, where nobody is, of who has entered and stands still. Those that wait themselves are never named.
- Whoever leaves a turn without its answer ends it for all others; the group is broken from then on.
- Members that enter different things are all told what each of them entered.

A turn is one collective of the group, numbered from 1: the meeting is the first one. What a member says of itself lies
in its shared word, behind its heartbeat, and is written by it alone:

    bytes 16-24     group << 48 | turn << 1 | whether it is inside; 0: it never came. A group is known by where it meets
    bytes 24-32     when it last said that it waits inside, in ns; 0: it does not; `_GAVE_UP`: it never will again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

import msgspec

from engine.errors import CollectiveError

#: So often whoever waits says so, and looks what the others say.
LOOK_S = 0.01
#: Who has not said for so long that it waits stands still.
SILENT_S = 0.1
#: A member that died inside may have brought its part all the same, and one whose connection is closed may have died.
GRACE_S = 0.03
#: Values of one turn at most: what is sent has one size, whatever the members enter.
MOST_VALUES = 8

_WORD = slice(16, 32)
_GAVE_UP = 1 << 63
_GROUP_BITS = 48
_TURN = (1 << _GROUP_BITS) - 1
_OPS: Mapping[str, Any] = {"meeting": max, "sum": sum, "max": max}
_HEAD = 4
FRAME_WORDS = _HEAD + MOST_VALUES


class Told(msgspec.Struct, frozen=True):
    """What a member says of itself."""

    turn: int = 0
    inside: bool = False
    waited_at: float | None = None  # when it last said that it waits
    gave_up: bool = False
    group: int = 0

    def has_answer(self, turn: int) -> bool:
        """Whether it came out of that turn: then all that the others need of it is on its way."""
        return self.turn > turn or (self.turn == turn and not self.inside)

    def waits(self, now: float) -> bool:
        return self.inside and self.waited_at is not None and self.waited_at > now - SILENT_S


def told_in(memory: Any) -> Told:
    """By the 64 bytes of its heartbeat."""
    where, at = memoryview(memory).cast("B")[_WORD].cast("Q")
    gave_up = at == _GAVE_UP
    return Told((where & _TURN) >> 1, bool(where & 1), None if gave_up or not at else at / 1e9, gave_up,
                where >> _GROUP_BITS)


def frame(turn: int, op: str, values: Sequence[int], size: int) -> list[int]:
    """What a member of a group of `size` brings to a turn."""
    assert len(values) <= MOST_VALUES, f"{len(values)} values, and there is room for {MOST_VALUES}"
    return [turn, list(_OPS).index(op), len(values), size, *values, *[0] * (MOST_VALUES - len(values))]


def agreed(title: str, names: Sequence[str], frames: Sequence[Sequence[int]]) -> list[int]:
    """What comes of them, in the order of the members. Raises CollectiveError where they are not of one kind."""
    heads = [tuple(one[:_HEAD]) for one in frames]
    if len(set(heads)) > 1:
        raise CollectiveError(f"{title}: the members do not agree: " + ", ".join(
            f"{name} enters {_entered(*head)}" for name, head in zip(names, heads, strict=True)))
    _, op, count, _ = heads[0]
    columns = zip(*(one[_HEAD:_HEAD + count] for one in frames), strict=True)
    return [list(_OPS.values())[op](column) for column in columns]


def _entered(turn: int, op: int, count: int, size: int) -> str:
    return f"turn {turn} of {size}, {list(_OPS)[op]} of {count} value{'' if count == 1 else 's'}"


class Seat:
    """The member of place `rank`, and what it knows of the others by what they say.

    `memories`: of each member the bytes of its shared word; None where that is on another host.
    """

    def __init__(self, group: str, where: str, rank: int, names: Sequence[str], memories: Sequence[Any]) -> None:
        self.rank, self.names, self.turn = rank, tuple(names), 0
        self._group = group
        self._memories = list(memories)
        mine = self._memories[rank]
        self._word: Any = memoryview(bytearray(16)).cast("Q") if mine is None else memoryview(
            mine).cast("B")[_WORD].cast("Q")
        self._tag = crc32(where.encode()) & 0xFFFF
        self._word[1] = 0
        self._at(0)
        self._entered_at = 0.0
        self._op = self._failure = ""

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def title(self) -> str:
        return f"{self._op}, turn {self.turn} of {self._group}"

    # -- what it says

    def enter(self, op: str, now: float) -> None:
        """Raises CollectiveError where it has given up before."""
        if self._failure:
            raise CollectiveError(f"group {self._group} is broken: {self._failure}")
        self.turn += 1
        self._op, self._entered_at = op, now
        self._word[1] = _ns(now)
        self._at(self.turn << 1 | 1)

    def waits(self, now: float) -> None:
        """It still does; who is stopped does not say so."""
        self._word[1] = _ns(now)

    def come_out(self) -> None:
        self._at(self.turn << 1)
        self._word[1] = 0

    def give_up(self, why: object) -> None:
        """Wherever it is, it goes no further."""
        self._failure = self._failure or str(why) or type(why).__name__
        self._word[1] = _GAVE_UP

    def close(self) -> None:
        """Look at nobody any more; safe to call twice."""
        self.give_up("it was left")
        self._word = memoryview(bytearray(16)).cast("Q")
        self._memories.clear()

    def _at(self, turn: int) -> None:
        self._word[0] = self._tag << _GROUP_BITS | turn

    # -- what the others say

    def trouble(self, now: float, deadline: float, dead: Mapping[int, float], broken: bool = False,
                ) -> CollectiveError | None:
        """Why its turn will have no answer, if that is known.

        `dead`: since when it knows of whom that they died. `broken`: what one of them brought can come no more.
        """
        told = self._told()
        quitters = [rank for rank, one in told.items() if one.gave_up and not one.has_answer(self.turn)]
        gone = [rank for rank in sorted(dead) if rank not in quitters]  # who gave up may go
        if lost := [rank for rank in gone if rank in told and told[rank].turn < self.turn]:
            return self._error(f"{self._names(lost)} died before it entered", lost)
        ends_now = broken or quitters or now >= deadline
        if lost := [rank for rank in gone if ends_now or now >= dead[rank] + GRACE_S]:
            return self._error(f"{self._names(lost)} died in it", lost)
        if quitters:
            ranks, guilty = self._guilty(told, now)
            return self._error(f"{guilty + ', and ' if guilty else ''}{self._names(quitters)} gave up",
                               [*ranks, *quitters], follows=not guilty)
        if now >= deadline:
            ranks, guilty = self._guilty(told, now)
            guilty = guilty or "all that say where they are wait in it, and it has no answer"
            return self._error(f"{guilty} within {max(0.0, deadline - self._entered_at):.3g} s", ranks)
        return None

    def broke(self, reason: object) -> CollectiveError:
        return self._error(str(reason))

    def _told(self) -> dict[int, Told]:
        """Who still says where it was in another group has not come to this one."""
        found = {rank: told_in(memory) for rank, memory in enumerate(self._memories)
                 if memory is not None and rank != self.rank}
        return {rank: told if told.group == self._tag else Told() for rank, told in found.items()}

    def _guilty(self, told: Mapping[int, Told], now: float) -> tuple[list[int], str]:
        """Who keeps the others waiting, and how; "": nobody does."""
        going = {rank: one for rank, one in told.items() if not one.gave_up}
        behind = {rank: one.turn for rank, one in going.items() if one.turn < self.turn}
        if behind:
            least = min(behind.values())
            late = [rank for rank, turn in behind.items() if turn == least]
            return late, f"{self._names(late)} did not enter"
        silent = [rank for rank, one in going.items()
                  if one.turn == self.turn and one.inside and not one.waits(now)]
        return silent, f"{self._names(silent)} entered and stands still, no answer" if silent else ""

    def _names(self, ranks: Iterable[int]) -> str:
        return " and ".join(self.names[rank] for rank in ranks)

    def _error(self, reason: str, ranks: Iterable[int] = (), *, follows: bool = False) -> CollectiveError:
        return CollectiveError(f"{self.title}: {reason}", [self.names[rank] for rank in ranks], follows=follows)


def _ns(now: float) -> int:
    return int(now * 1e9)
