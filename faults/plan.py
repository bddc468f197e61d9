"""What shall go wrong: frozen data, JSON on disk.

A plan is a list of faults. Each names a site, the crossing (`nth`, from 1) at which it fires, and a fate.
There is no dice and no wall clock in a plan: the judge only counts.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from engine.topology import RING_CHANNELS, Channel, Edge, Mark, Node, NodeKind, Topology, at, is_site, mark_site


class Fate(StrEnum):
    """What befalls one crossing."""

    PASS = "pass"
    DROP = "drop"  # the message or doorbell never arrives
    DELAY = "delay"  # held until `until`
    DUPLICATE = "duplicate"  # arrives twice
    REORDER = "reorder"  # arrives after the next message of its edge
    CORRUPT = "corrupt"  # bytes are changed
    TRUNCATE = "truncate"  # bytes are cut off
    OMIT = "omit"  # its last frame is gone
    SWAP = "swap"  # its last two frames have changed places
    KILL = "kill"  # SIGKILL
    STALL = "stall"  # SIGSTOP, all threads, until `until`
    RAISE = "raise"  # an exception inside the process
    EXIT = "exit"  # sys.exit
    TERMINATE = "terminate"  # SIGTERM
    HANG = "hang"  # this thread never returns, or not before `until`
    CUT = "cut"  # the connection is closed on the wire; refused until `until`, if given


#: Which fates make sense at which operation of a site.
PROCESS_FATES = frozenset({Fate.KILL, Fate.STALL, Fate.RAISE, Fate.EXIT, Fate.TERMINATE, Fate.HANG})
MESSAGE_FATES = frozenset({
    Fate.DROP, Fate.DELAY, Fate.DUPLICATE, Fate.REORDER, Fate.CORRUPT, Fate.TRUNCATE, Fate.OMIT, Fate.SWAP,
})
#: They befall messages that may have frames of their own beside a body. SWAP counts those only that have two frames.
FRAME_FATES = frozenset({Fate.OMIT, Fate.SWAP})
_HAVE_FRAMES = ((NodeKind.FRONTEND, Channel.REQUESTS), (NodeKind.CORE, Channel.OUTPUTS))
FATES_AT = {
    "send": PROCESS_FATES,
    "receive": PROCESS_FATES | MESSAGE_FATES,
    "wire": frozenset({Fate.CUT}),
    "doorbell": PROCESS_FATES | {Fate.DROP},
    "store": PROCESS_FATES | {Fate.CORRUPT},
    "enter": PROCESS_FATES,
    "mark": PROCESS_FATES,
}
#: They hold something back until they are over.
HOLDING_FATES = frozenset({Fate.DELAY, Fate.STALL, Fate.HANG, Fate.CUT})


#: A pipe between a process and whoever started it.
BIRTH_WIRE = f"/{Channel.BIRTH.value}:wire"


class PlanError(ValueError):
    """The plan cannot be played. The message names what and where."""


class Until(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a delay, stall, hang or cut ends: at a crossing of another site, or after `seconds`.

    `seconds` is virtual time in the twin and measured from the moment the fault fired in a real process;
    use it only where the length is the point (a time-out that must pass), never to order two things.
    """

    site: str | None = None
    nth: int = 1
    seconds: float | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    site: str
    fate: Fate
    nth: int = 1
    times: int = 1  # this many crossings in a row, from the nth
    victim: str | None = None  # KILL, STALL, TERMINATE: another node than the one that crosses
    until: Until | None = None
    after: str | None = None  # counts crossings only once this fault has fired
    match: dict[str, Any] | None = None  # counts only messages whose decoded form has these values
    byte: int = -1  # CORRUPT, TRUNCATE: offset in the last frame; -1: its middle. CUT: bytes of the message that pass
    #: CUT: neither end is told. The connection carries nothing any more, either way, and is closed at `until`, if any.
    silent: bool = False
    text: str = "planted by the plan"  # RAISE: the exception's text
    code: int = 1  # EXIT: the exit code


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    faults: tuple[Fault, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.faults)

    def check(self, topology: Topology) -> None:
        """Raises PlanError for the first thing that could not be played on this topology."""
        seen: set[str] = set()
        names = {str(node) for node in topology.nodes}
        for fault in self.faults:
            where = f"fault {fault.id!r}"
            if fault.id in seen:
                raise PlanError(f"{where}: the id is used twice")
            seen.add(fault.id)
            _check_site(topology, fault.site, where)
            if fault.nth < 1 or fault.times < 1:
                raise PlanError(f"{where}: nth and times count from 1, got nth={fault.nth}, times={fault.times}")
            operation, allowed = operation_of(fault.site), allowed_at(fault.site)
            if fault.fate not in allowed:
                raise PlanError(f"{where}: fate {fault.fate.value!r} cannot befall a {operation} at {fault.site!r}; "
                                f"possible: {', '.join(sorted(allowed))}")
            if fault.victim is not None:
                if fault.victim not in names:
                    raise PlanError(f"{where}: unknown node {fault.victim!r}; nodes: {', '.join(sorted(names))}")
                if fault.fate not in (Fate.KILL, Fate.STALL, Fate.TERMINATE):
                    raise PlanError(f"{where}: only kill, stall and terminate may hit another node")
            if fault.silent and fault.fate is not Fate.CUT:
                raise PlanError(f"{where}: only a cut is silent")
            if fault.until is not None:
                if (fault.until.site is None) == (fault.until.seconds is None):
                    raise PlanError(f"{where}: 'until' needs either a site or seconds")
                if fault.until.site is not None:
                    _check_site(topology, fault.until.site, where + ", until")
                    if fault.until.nth < 1:
                        raise PlanError(f"{where}, until: nth counts from 1, got {fault.until.nth}")
            elif fault.fate is Fate.DELAY:
                raise PlanError(f"{where}: a delay needs 'until'")
            if fault.site.endswith(BIRTH_WIRE) and (fault.silent or fault.until is not None):
                raise PlanError(f"{where}: a pipe that is cut stays so, and both ends know")
            if fault.after is not None and fault.after not in {f.id for f in self.faults}:
                raise PlanError(f"{where}: waits for fault {fault.after!r}, which the plan does not have")


def operation_of(site: str) -> str:
    """'send', 'receive', 'store', 'doorbell', 'mark', 'enter' or 'wire'."""
    place, _, operation = site.rpartition(":")
    if place.endswith("/mark"):
        return "mark"
    return operation.split(".")[0]


def _check_site(topology: Topology, site: str, where: str) -> None:
    if not is_site(topology, site):
        raise PlanError(f"{where}: unknown site {site!r}; 'ringtwin list sites' shows them all")


def plan_from_json(data: bytes | str, origin: str = "plan") -> Plan:
    """Raises PlanError naming what is wrong and where."""
    try:
        return msgspec.json.decode(data, type=Plan)
    except msgspec.DecodeError as error:
        raise PlanError(f"{origin}: {error}") from None


def load_plan(path: Path) -> Plan:
    try:
        return plan_from_json(path.read_bytes(), str(path))
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from None


def plan_to_json(plan: Plan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2)


# -- how a scenario writes faults: each helper is one Fault, ids are given by `plan(...)` --------------------


def _site(place: str | Edge, operation: str) -> str:
    return str(place) if ":" in str(place) else at(place, operation)


def until(place: str | Edge | None = None, nth: int = 1, *, seconds: float | None = None) -> Until:
    return Until(None if place is None else _site(place, "receive"), nth, seconds)


def kill(node: str, *, at: str, nth: int = 1) -> Fault:
    return _process(Fate.KILL, node, at, nth)


def stall(node: str, *, at: str, nth: int = 1, until: Until | None = None) -> Fault:
    return _process(Fate.STALL, node, at, nth, until=until)


def terminate(node: str, *, at: str, nth: int = 1) -> Fault:
    return _process(Fate.TERMINATE, node, at, nth)


def hang(node: str, *, at: str, nth: int = 1, until: Until | None = None) -> Fault:
    return _process(Fate.HANG, node, at, nth, until=until)


def raises(node: str, *, at: str, nth: int = 1, text: str = "planted by the plan") -> Fault:
    return _process(Fate.RAISE, node, at, nth, text=text)


def exits(node: str, *, at: str, nth: int = 1, code: int = 1) -> Fault:
    return _process(Fate.EXIT, node, at, nth, code=code)


def drop(edge: str, *, nth: int = 1, times: int = 1, match: dict[str, Any] | None = None) -> Fault:
    return Fault(id="", site=_site(edge, "receive"), fate=Fate.DROP, nth=nth, times=times, match=match)


def delay(edge: str, *, until: Until, nth: int = 1, times: int = 1, match: dict[str, Any] | None = None) -> Fault:
    return Fault(id="", site=_site(edge, "receive"), fate=Fate.DELAY, nth=nth, times=times, until=until, match=match)


def duplicate(edge: str, *, nth: int = 1, match: dict[str, Any] | None = None) -> Fault:
    return Fault(id="", site=_site(edge, "receive"), fate=Fate.DUPLICATE, nth=nth, match=match)


def reorder(edge: str, *, nth: int = 1, match: dict[str, Any] | None = None) -> Fault:
    return Fault(id="", site=_site(edge, "receive"), fate=Fate.REORDER, nth=nth, match=match)


def corrupt(edge: str, *, nth: int = 1, byte: int = -1, match: dict[str, Any] | None = None) -> Fault:
    return Fault(id="", site=_site(edge, "receive"), fate=Fate.CORRUPT, nth=nth, byte=byte, match=match)


def truncate(edge: str, *, nth: int = 1, byte: int = -1, match: dict[str, Any] | None = None) -> Fault:
    return Fault(id="", site=_site(edge, "receive"), fate=Fate.TRUNCATE, nth=nth, byte=byte, match=match)


def omit(edge: str, *, nth: int = 1, match: dict[str, Any] | None = None) -> Fault:
    return Fault(id="", site=_site(edge, "receive"), fate=Fate.OMIT, nth=nth, match=match)


def swap(edge: str, *, nth: int = 1, match: dict[str, Any] | None = None) -> Fault:
    return Fault(id="", site=_site(edge, "receive"), fate=Fate.SWAP, nth=nth, match=match)


def cut(edge: str, *, nth: int = 1, until: Until | None = None, silent: bool = False) -> Fault:
    return Fault(id="", site=_site(edge, "wire"), fate=Fate.CUT, nth=nth, until=until, silent=silent)


def behind(fault: str, one: Fault) -> Fault:
    """The same; its crossings count only once that fault has fired."""
    return msgspec.structs.replace(one, after=fault)


def marked(node: str | Node, mark: Mark) -> str:
    return mark_site(node, mark)


def plan(*faults: Fault) -> Plan:
    """A plan whose faults are called f1, f2, ... unless they were named."""
    return Plan(tuple(
        fault if fault.id else msgspec.structs.replace(fault, id=f"f{number}")
        for number, fault in enumerate(faults, 1)
    ))


def _process(fate: Fate, node: str, site: str, nth: int, **rest: Any) -> Fault:
    return Fault(id="", site=site, fate=fate, nth=nth, victim=None if owner_of(site) == node else node, **rest)


def allowed_at(site: str) -> frozenset[Fate]:
    """What may befall a crossing of this site. What comes by a ring, or from another stage, is no message but shared
    bytes: what befalls it is a process's fate, or a store's.
    """
    place, _, operation = site.rpartition(":")
    if operation_of(site) != "receive":
        return FATES_AT[operation_of(site)]
    if "->" not in place or (edge := Edge.parse(place)).channel in RING_CHANNELS:
        return PROCESS_FATES
    has_frames = (edge.source.kind, edge.channel) in _HAVE_FRAMES
    return FATES_AT["receive"] if has_frames else FATES_AT["receive"] - FRAME_FATES


def owner_of(site: str) -> str:
    """The node that crosses a site: the sender of a send, the receiver of a receive, the owner of the rest."""
    place, _, operation = site.rpartition(":")
    if "->" in place:
        edge = Edge.parse(place)
        return str(edge.target if operation == "receive" else edge.source)
    return place.partition("/")[0]


# -- plans of older engines ---------------------------------------------------------------------------------

#: What a start calls: how many blocks a rank has room for, and that it allocates them.
CALLS_OF_A_START = 2
_RING = re.compile(r"(/rpc:|worker\.(\d+\.)?0(->core\.\d+)?/response:|/response\.0:)")


def to_two_phases(plan: Plan, calls: int = CALLS_OF_A_START) -> Plan:
    """A plan that was written when a step was one call, for steps that are two, execute and sample: at the same steps.

    The rule: at the sites that every call crosses (the broadcast ring, the answers of the rank that answers, the mark
    before a call is executed) the first `calls` crossings are those of the start and stay; crossing n behind them was
    the call of one step, and is now the first of its two: crossing calls + 2 * (n - calls) - 1. It holds as long as
    steps are all that is called.
    """
    faults = []
    for fault in plan.faults:
        fault = msgspec.structs.replace(fault, nth=_moved(fault.site, fault.nth, calls))
        if fault.until is not None and fault.until.site is not None:
            until = msgspec.structs.replace(fault.until, nth=_moved(fault.until.site, fault.until.nth, calls))
            fault = msgspec.structs.replace(fault, until=until)
        faults.append(fault)
    return Plan(tuple(faults))


def _moved(site: str, nth: int, calls: int) -> int:
    is_of_calls = site.endswith(mark_site("", Mark.EXECUTING)) or _RING.search(site) is not None
    return calls + 2 * (nth - calls) - 1 if is_of_calls and nth > calls else nth
