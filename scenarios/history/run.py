"""Everything one play left on disk, and how it is read back.

    <run>/play.json            Play: what was asked
    <run>/journals/*.journal   one per process life (faults.journal)
    <run>/lab.json             Lab: what the lab itself saw from outside
    <run>/verdicts.json        Judgement: made from the three above, offline, as often as one likes

A run directory that was cut off is an error that says what is missing, never a verdict.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.errors import RingtwinError
from engine.topology import Topology, tensor_parallel
from faults.journal import JournalFile, read_journal
from faults.plan import Plan


class RunError(RingtwinError):
    """The directory is not a whole run. The message names the file."""


class Verdict(StrEnum):
    HELD = "HELD"
    BROKEN = "BROKEN"
    UNTESTED = "UNTESTED"  # it could not have failed here: no witness
    OUTSIDE = "OUTSIDE"  # a fault outside the guarantee's envelope fired
    UNKNOWN = "UNKNOWN"  # a planned fault did not fire, or the machine starved: the run says nothing


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """What was played: enough to play it again."""

    scenario: str  # the test function's name, with its parameters
    title: str  # its sentence
    world: str  # "sim" or "engine"
    topology: Topology
    workload: dict[str, Any]  # the recorded workload, whole: prompts, phases, reference tokens
    plan: Plan
    config: EngineConfig
    promises: tuple[str, ...]  # guarantees that must be HELD
    expected: dict[str, Verdict] = {}  # canaries: declared verdicts that differ from HELD
    options: dict[str, Any] = {}  # what else the world was asked for (restart, neighbour, client, ...)
    seed: int = 0
    choice: int = 0  # which of several allowed outcomes the twin played
    versions: dict[str, str] = {}


class ProcessEnd(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the play as the lab saw it from outside."""

    node: str
    life: int
    pid: int
    started_at: float
    ended_at: float | None  # None: still there when the lab stopped looking
    exitcode: int | None = None
    killed_by_lab: bool = False  # the lab had to: the process outlived its bound


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a subscriber observed, as in a journal."""

    at: float
    what: str  # kv-batch, kv-gap, kv-mirror, ...
    data: dict[str, Any]


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What the lab saw of an engine beside the first one."""

    engine: int
    served: bool  # also after the first one's play
    touched: list[str]  # what it had when it was ready, and had no more


class RankStream(msgspec.Struct, frozen=True, kw_only=True):
    """The KV events of another data-parallel rank on the same host, and what its own subscriber had of them."""

    rank: int
    published: int  # batches, numbered from 0
    lost: list[int] = []  # of them, at its own queue
    cache: list[Any] = []  # the hashes in its cache when it was idle last
    cache_next: int | None = None  # the next batch's number at that moment
    said: list[Said] = []  # by its subscriber, in order


class Lab(msgspec.Struct, frozen=True, kw_only=True):
    """What no process of the engine could have said about itself."""

    began_at: float
    ended_at: float
    processes: list[ProcessEnd]
    leftovers: list[str]  # processes, segments, socket files, temporary files after the bound, as text
    leftovers_checked_at: float | None = None
    longest_starvation_s: float = 0.0  # the heartbeat process's longest gap beyond its period
    guard_expired: bool = False  # the play was ended by the lab's guard: a hang, or a starved machine
    neighbour: dict[str, Any] = {}  # second engine on the host: {"alive": bool, "served": bool, "touched": [...]}
    other_rank: RankStream | None = None  # the neighbour's KV events, where it is another rank of the same endpoint
    beside: list[Beside] = []  # engines beside the first
    restarts: list[dict[str, Any]] = []  # {"life": 1, "ready": bool, "served": bool, "removed": [...], "error": str}
    failure: str | None = None  # the harness itself failed: exit code 3


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One reason for a verdict: a sentence, where it stands, and bound against measured if it is a time."""

    text: str
    at: float | None = None
    node: str | None = None
    bound: float | None = None
    measured: float | None = None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One guarantee on one run."""

    guarantee: str
    verdict: Verdict
    expected: Verdict | None  # HELD where promised, the declared one for a canary, None elsewhere
    witnesses: int
    evidence: list[Evidence]  # of the breaks if BROKEN, else of the witnesses (a few)
    bound: float | None = None  # the tightest bound that was checked, seconds
    measured: float | None = None  # the longest time measured against it

    @property
    def as_declared(self) -> bool:
        if self.expected is None:
            return self.verdict is not Verdict.BROKEN
        return self.verdict is self.expected


def combined(cells: list[Cell]) -> Cell:
    """One guarantee over the allowed outcomes of one play: broken in any is broken, held in any is witnessed.

    Then UNKNOWN, OUTSIDE and UNTESTED, in this order: what was not seen in some outcome may be seen in another.
    """
    order = (Verdict.BROKEN, Verdict.HELD, Verdict.UNKNOWN, Verdict.OUTSIDE, Verdict.UNTESTED)
    return min(cells, key=lambda cell: order.index(cell.verdict))


class FaultReceipt(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    fired: bool
    at: float | None = None
    node: str | None = None
    released_at: float | None = None
    detected_at: float | None = None  # when a caller was told, where the fault is a death or a stall


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    cells: list[Cell]
    faults: list[FaultReceipt]
    ended: str  # how the engine ended: "clean", "clean error", "isolated request", "hang", "crash"
    seconds: float


class Run:
    """A run directory, read lazily."""

    def __init__(self, path: Path, play: Play, lab: Lab, journals: list[JournalFile],
                 judgement: Judgement | None) -> None:
        self.path = path
        self.play = play
        self.lab = lab
        self.journals = journals
        self.judgement = judgement

    @property
    def name(self) -> str:
        return f"{self.play.scenario}-{self.play.world}"


def _read(path: Path, kind: type) -> Any:
    try:
        if kind is Play:
            return msgspec.convert(_of_today(msgspec.json.decode(path.read_bytes())), Play)
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise RunError(f"{path}: missing, so this is not a whole run; play it again") from None
    except msgspec.DecodeError as error:
        raise RunError(f"{path}: cut off or damaged ({error}); play it again") from None


def _of_today(play: Any) -> Any:
    """A play that was recorded before engines were values had one engine, told by its size alone."""
    topology = play.get("topology") if isinstance(play, dict) else None
    if not isinstance(topology, dict) or "engines" in topology:
        return play
    engine = tensor_parallel(topology.get("tp", 2), subscribers=topology.get("subscribers", 0))
    return {**play, "topology": msgspec.to_builtins(engine)}


def load_run(path: Path) -> Run:
    """Raises RunError where the directory is not a whole run."""
    play, lab = _read(path / "play.json", Play), _read(path / "lab.json", Lab)
    files = sorted((path / "journals").glob("*.journal"))
    if not files:
        raise RunError(f"{path / 'journals'}: holds no journal, so this is not a whole run; play it again")
    verdicts = path / "verdicts.json"
    judgement = _read(verdicts, Judgement) if verdicts.exists() else None
    return Run(path, play, lab, [read_journal(file) for file in files], judgement)


def save(path: Path, value: msgspec.Struct) -> None:
    """Write whole or not at all."""
    temporary = path.with_suffix(path.suffix + ".part")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1))
    temporary.replace(path)
