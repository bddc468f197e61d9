"""What each step asked of the workers, as the rank that answers read it, and what the core was asked in between.

    step     what was to be computed        written by who reads it
    asked    a request, by its workload      who asked
    events   requests that came and left, and the step they were before     the core's own order
"""

from __future__ import annotations

from typing import Any, NamedTuple

from faults.journal import Record
from scenarios.history.history import History
from scenarios.history.names import EngineLife
from scenarios.history.operations import Operation


class Came(NamedTuple):
    """A request that the workers see for the first time, or again."""

    request: str
    tokens: list[int]
    prompt: int  # so many of them are its prompt
    blocks: list[int]
    computed: int


#: A request that they know: its id, its new tokens and blocks, and how many of its tokens are computed.
Known = list[Any]


class Step(NamedTuple):
    """`number`: of the core's record that it was called by, by which what was asked is before or behind it."""

    number: int
    record: Record
    came: list[Came]
    known: list[Known]
    scheduled: dict[str, int]
    finished: list[str]
    preempted: list[str]


class Asked(NamedTuple):
    """A request by its workload: `request` is its id inside, `answers` how many tokens it will get."""

    request: str
    prompt: list[int]
    reference: list[int]
    answers: int
    priority: int = 0
    most: int | None = None  # tokens that it may get at most

    def answer(self, place: int) -> int:
        return self.reference[place]


def steps_of(history: History, engine: EngineLife) -> list[Step]:
    """All that were read, in order, up to the first whose call the core's journal does not have."""
    answers = engine.worker(history.grid_of(engine.core).output_rank)
    records = next((history.by_node("step")[node] for node in (answers, engine.core)
                    if node in history.by_node("step")), [])
    called = {record.data["call"]: record.number for record in history.by_node("rpc-call").get(engine.core, ())}
    found = []
    for record in records:
        number = called.get(record.data.get("call"))
        if number is None:
            break
        found.append(_step(number, record, record.data))
    return found


def _step(number: int, record: Record, data: dict[str, Any]) -> Step:
    return Step(
        number, record, list(map(Came._make, data["new"])), data["cached"], data["scheduled"], data["finished"],
        data["preempted"])


def asked_of(history: History, engine: EngineLife) -> dict[str, Asked]:
    """Every request of that engine's callers whose answer is known, by its id inside."""
    recorded = {request.get("index", place): request
                for place, request in enumerate(history.play.workload.get("requests", ()))}
    return {operation.internal: _asked(operation, operation.internal, recorded[operation.index])
            for operation in history.operations
            if operation.internal is not None and operation.index in recorded
            and recorded[operation.index].get("reference_token_ids") is not None
            and not (recorded[operation.index].get("sampling_params") or {}).get("temperature")
            and history.is_asked_of(operation, engine)}


def _asked(operation: Operation, internal: str, recorded: dict[str, Any]) -> Asked:
    reference = recorded["reference_token_ids"]
    return Asked(internal, recorded["prompt_token_ids"], reference, len(reference), recorded.get("priority", 0),
                 (recorded.get("sampling_params") or {}).get("max_tokens"))
