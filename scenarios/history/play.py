"""What was asked of a world, and what its lab saw from outside. Plain values, saved beside the journals."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.topology import Topology
from faults.plan import Plan
from scenarios.history.verdicts import Verdict

#: Plays did not always record whether their time was virtual. Of those that do not say so, this world's was.
_ONCE_VIRTUAL = "sim"


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """What was played: enough to play it again."""

    scenario: str  # the test function's name, with its parameters
    title: str  # its sentence
    world: str  # its name in scenarios/worlds/registry.py
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
    virtual_time: bool | None = None  # whether its world keeps its own time, which no machine can starve

    @property
    def simulated(self) -> bool:
        return self.world == _ONCE_VIRTUAL if self.virtual_time is None else self.virtual_time

    @property
    def declared(self) -> dict[str, Verdict]:
        """What the scenario declared, by guarantee: HELD where promised, the canary's verdict where it says so."""
        return {guarantee: Verdict.HELD for guarantee in self.promises} | self.expected


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
    restarts: list[dict[str, Any]] = []  # {"life": 1, "ready": bool, "served": bool, "removed": [...], "error": str}
    failure: str | None = None  # the harness itself failed: exit code 3
