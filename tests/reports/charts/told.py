"""Journals of a pipeline by hand, in milliseconds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.topology import Topology, tensor_parallel
from faults.journal import JournalFile, Kind, Record
from faults.plan import Plan
from reports.charts.steps import Work
from scenarios.history.history import History
from scenarios.history.play import Lab, Play, ProcessEnd
from scenarios.history.run import Run

TWO, STAGES, TWO_OF_TWO = tensor_parallel(2), tensor_parallel(1, pp=2), tensor_parallel(2, pp=2)


class Told:
    """A journal by hand."""

    def __init__(self, node: str, thread: str = "main") -> None:
        self.node, self.thread = node, thread
        self.records: list[Record] = []
        self._crossed: Counter[str] = Counter()

    def at(self, ms: float, site: str, thread: str = "", **data: Any) -> Told:
        """A crossing where the site has an operation, else an observation."""
        kind = Kind.CROSSING if ":" in site else Kind.OBSERVATION
        self._crossed[site] += kind is Kind.CROSSING
        self.records.append(Record(len(self.records), ms / 1e3, thread or self.thread, kind, site, self._crossed[site],
                                   "", 0, data))
        return self

    def step(self, ms: float, number: int, call: int) -> Told:
        self.at(ms, f"core.0->{self.node}/rpc:receive", position=call)
        return self.at(ms, f"{self.node}/mark:executing", call=call, method="execute_model", step=number)

    def sample(self, ms: float, call: int) -> Told:
        self.at(ms, f"core.0->{self.node}/rpc:receive", position=call)
        return self.at(ms, f"{self.node}/mark:executing", call=call, method="sample_tokens")

    def hands(self, ms: float, number: int, what: str = "hidden_states", **data: Any) -> Told:
        return self.at(ms, f"{self.node}/pipe:send", what=what, step=number, **data)

    def takes(self, ms: float, number: int, what: str = "hidden_states", **data: Any) -> Told:
        return self.at(ms, f"{self.node}/pipe:receive", what=what, step=number, **data)

    def answers(self, ms: float, thread: str = "") -> Told:
        return self.at(ms, f"{self.node}->core.0/response:send", thread)

    def released(self, ms: float, site: str, nth: int) -> Told:
        self.records.append(Record(len(self.records), ms / 1e3, "main", Kind.RELEASE, "f1", nth, "", 0,
                                   {"site": site, "nth": nth}))
        return self


def core(*spans: tuple[float, float | None]) -> Told:
    """Steps from their schedule to their use, in milliseconds."""
    marks = [(began, "scheduled", step) for step, (began, _) in enumerate(spans)]
    marks += [(ended, "executed", step) for step, (_, ended) in enumerate(spans) if ended is not None]
    told = Told("core.0").at(0.0, "born")
    for ms, mark, step in sorted(marks):
        told.at(ms, f"core.0/mark:{mark}", step=step)
    return told


def run_of(topology: Topology, *told: Told, ended_ms: float = 100.0, processes: tuple[ProcessEnd, ...] = ()) -> Run:
    play = Play(scenario="s", title="", world="engine", topology=topology, workload={}, plan=Plan(),
                config=EngineConfig(model="tiny"), promises=())
    lab = Lab(began_at=0.0, ended_at=ended_ms / 1e3, processes=list(processes), leftovers=[])
    origin = Told("frontend.0").at(0.0, "born")
    return Run(Path("/runs/s"), play, lab,
               [JournalFile(one.node, 0, one.records, torn=False) for one in (origin, *told)], None)


def history(topology: Topology, *told: Told) -> History:
    return run_of(topology, *told).history


def spans(works: list[Work], node: str, lane: str) -> list[tuple[str, int | None, float, float]]:
    return [(work.what, work.step, round(1e3 * work.began, 6), round(1e3 * work.ended, 6))
            for work in works if (work.node, work.lane) == (node, lane)]
