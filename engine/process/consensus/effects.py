"""What a loop may ask of a group of processes that decide together: to meet, to add up, to leave."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.effects import Effect, Identity

#: How the members' values become one answer, each by itself.
Op = Literal["sum", "max"]


class Member(msgspec.Struct, frozen=True):
    """One of a group, as the others know it.

    `word`: the shared word in which it says where it is, that of its heartbeat; "" and no `process`: on another host.
    A word belongs to one group at a time.
    """

    name: str
    process: Identity | None = None
    word: str = ""


class Across(msgspec.Struct, frozen=True):
    """The ranks of one place in engines that step together, by engine: in each forward they meet at `where`."""

    place: int  # among `names`
    names: tuple[str, ...]
    where: str


class Card(msgspec.Struct, frozen=True):
    """How one of a group introduces itself to others that nobody has told it of."""

    member: Member
    rank: int
    agrees: dict[str, int | str]  # what must be equal on all of them
    path: str = ""  # a fresh directory of its own


class Introduce(Effect):
    """Say who one is to those who come to `where`, `tcp://host:port` or `ipc:///path`, and hear who they are.

    -> the cards of all `size`, by rank. Raises CollectiveError, as all that have come by then do: it names who did not
    come by the deadline, who came as the same rank, and who differs in what must be equal.
    """

    card: Card
    size: int
    where: str
    deadline: float


class JoinGroup(Effect):
    """Meet the others of a group at `where`, a fresh `file:///path`, or `tcp://host:port`. -> None

    It is the member of place `rank`. With tcp the first one binds that port, or one of the next where it is taken.
    Raises CollectiveError where they do not all come by the deadline: it names who did not, or died.
    """

    group: str
    rank: int
    members: tuple[Member, ...]
    where: str
    deadline: float


class Reduce(Effect):
    """Bring values to the group's next all-reduce. -> the sums, or the largest, over all members; equal on each

    Raises CollectiveError, and names who did not enter by the deadline, died, gave up, or entered something else: the
    first three end the group. Raises QueueCancelledError when the process is cancelled.
    """

    group: str
    values: list[int]
    op: Op
    deadline: float


class LeaveGroup(Effect):
    """Let go of a group; whoever still waits in it is told. -> None"""

    group: str
