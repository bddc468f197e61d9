"""What a fate means for whoever crosses: what is put on record, and what is then done to a thread or a process. Pure.

Promises
- A crossing is on record before anything follows from it: first the crossing, with its fate, then the fault's receipt;
  then the fault counts as fired. Only then it is carried out.
- A fault whose victim is not there befalls nobody, and nobody records it.
- A process fate is met as steps, in one order for every world. Whoever holds a thread, or is stopped at its own
  crossing, is released on record at that crossing; one that another's crossing stopped tells it afterwards (`resumed`).

    raise, exit    an exception out of the crossing
    hang           Hold -> Release
    stall          Strike -> Release, if it is the crossing process itself
    kill           Strike: nothing follows where it is the process itself
    terminate      Strike

A plan may name the process that crosses as the victim: that is the process itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from faults.journal import Kind
from faults.plan import Fate, Fault
from faults.sites import home_of, victim_of


class Hold(msgspec.Struct, frozen=True):
    """The thread that crossed does nothing until the fault is over."""

    fault: Fault


class Strike(msgspec.Struct, frozen=True):
    """KILL, STALL or TERMINATE a process. `victim` (node, life), None: the one that crosses, here and now."""

    fault: Fault
    victim: tuple[str, int] | None


class Release(msgspec.Struct, frozen=True):
    """On record: what the fault held at this crossing was let go."""

    fault: Fault
    site: str
    nth: int


Step = Hold | Strike | Release


class CrossingLog(Protocol):
    """One process's journal, and who is told that a fault fired."""

    def record(self, kind: Kind, site: str, nth: int, digest: str, occurrence: int,
               data: dict[str, Any] | None) -> None: ...

    def fired(self, fault: Fault) -> None: ...


def befalling(fault: Fault | None, is_there: Callable[[Fault], bool]) -> Fault | None:
    """The fault, if its victim is there. `is_there` is asked only of faults with a victim of their own."""
    return None if fault is not None and fault.victim is not None and not is_there(fault) else fault


def note(recorder: CrossingLog, me: str, site: str, nth: int, fault: Fault | None, *, digest: str = "",
         occurrence: int = 0, data: dict[str, Any] | None = None) -> None:
    """Put one crossing of `me` (a node without life) on record, and the fault that befalls it."""
    if fault is None:
        recorder.record(Kind.CROSSING, site, nth, digest, occurrence, data)
        return
    recorder.record(Kind.CROSSING, site, nth, digest, occurrence,
                    {**(data or {}), "fate": fault.fate.value, "fault": fault.id})
    recorder.record(Kind.RECEIPT, fault.id, nth, "", 0, {
        "site": site, "nth": nth, "fate": fault.fate.value, "victim": fault.victim or me})
    recorder.fired(fault)


def released(site: str, nth: int) -> dict[str, Any]:
    """The data of a RELEASE at a crossing."""
    return {"site": site, "nth": nth}


def resumed(at: float) -> dict[str, Any]:
    """The data of a RELEASE by a process that another one's crossing had stopped."""
    return {"at": at}


def steps(fault: Fault, site: str, nth: int) -> Iterator[Step]:
    """How a process fate is met, once it is on record. Raises RuntimeError for `raise`, SystemExit for `exit`.

    Ask for the next step when the one before is done. Of a process that is struck dead nobody asks any more.
    """
    if fault.fate is Fate.RAISE:
        raise RuntimeError(fault.text)
    if fault.fate is Fate.EXIT:
        raise SystemExit(fault.code)
    if fault.fate is Fate.HANG:
        yield Hold(fault)
        yield Release(fault, site, nth)
    elif (struck := victim_of(fault)) != home_of(fault.site):
        yield Strike(fault, struck)
    else:
        yield Strike(fault, None)
        if fault.fate is Fate.STALL:
            yield Release(fault, site, nth)
