"""What a core puts on record of the step that it fails by, held against its marks and what the answering rank read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from engine.topology import Mark, mark_site
from scenarios.history.history import Fate, History, Record
from scenarios.history.steps import Step, steps_of

#: So many requests of each kind are named.
_MOST = 64
#: The error of a rank in a call of a step. One in a call that was over says so.
_IN_ITS_CALL = re.compile(r"RpcError: worker\.[\d.]+ failed in (execute_model|sample_tokens)\b")


def misdescribed(history: History) -> Iterator[tuple[str, str]]:
    """(core, what is not so)"""
    for core, records in history.by_node("step-failed").items():
        for record in records:
            found = (*_in_its_place(history, core, record), *_as_it_was_read(history, core, record)) \
                if record.data and "stats" in record.data else ("nothing of its books",)
            for text in found:
                yield core, f"of the step that it fails by it says {text}"


def _before(history: History, core: str, mark: Mark, record: Record) -> list[Record]:
    return [passed for passed in history.crossings.get(mark_site(core, mark), ()) if passed.number < record.number]


def _in_its_place(history: History, core: str, record: Record) -> Iterator[str]:
    """Which step it is, of those in flight."""
    data = record.data
    scheduled, used = (_before(history, core, mark, record) for mark in (Mark.SCHEDULED, Mark.EXECUTED))
    told = data["stats"]["in_flight"]
    raised = sum(passed.data.get("fate") == Fate.RAISE for passed in used[-1:])  # where it had it in its hand
    if told != len(scheduled) - len(used) + raised:
        yield f"that {told} steps are in flight, of {len(scheduled)} that were scheduled {len(used)} were used"
    in_flight = [passed.data["step"] for passed in scheduled if passed.data.get("fate") != Fate.RAISE][len(used):]
    step = data["step"]
    if step is None:
        if in_flight or used:
            yield "none, and it had made some"
        return
    behind = [number for number in in_flight if number != step]
    if data["behind"] != behind:
        yield f"that {data['behind']} were in flight beside it, {behind} were"
    due = _due(history, core, record, in_flight)
    if due is not None and step != due:
        yield f"that it is step {step}, and it is step {due}"


def _due(history: History, core: str, record: Record, in_flight: list[int]) -> int | None:
    """The step whose call has failed, or whose answer it waited for in vain; None where neither is on record."""
    if _IN_ITS_CALL.match(record.data["error"]):
        failed = [told.data["call"] for told in history.by_node("rpc-failed").get(core, ())
                  if told.number < record.number]
        executes = [call.data["call"] for call in history.by_node("rpc-call").get(core, ())
                    if call.data["method"] == "execute_model"]
        return sum(call <= min(failed) for call in executes) - 1 if failed else None
    waits = [wait for wait in history.by_node("queue-wait").get(core, ()) if wait.number < record.number]
    if waits and waits[-1].data["ring"] == "response" and waits[-1].data["outcome"] != "ok" and in_flight:
        return in_flight[0]
    return None


def _as_it_was_read(history: History, core: str, record: Record) -> Iterator[str]:
    """What it asked for."""
    data = record.data
    read = next((step for step in steps_of(history, history.engine_of(core))
                 if step.record.data["step"] == data["step"]), None)
    if read is not None:
        for name, wanted in _asked_for(read).items():
            if data[name] != wanted:
                yield f"{name} {data[name]}, and {wanted} were read"


def _asked_for(step: Step) -> dict[str, Any]:
    new = [[one.request, len(one.tokens), one.prompt, len(one.blocks), one.computed] for one in step.came[:_MOST]]
    cached = [[request, len(tokens), len(blocks), computed]
              for request, tokens, blocks, computed in step.known[:_MOST]]
    named = {entry[0] for entry in (*new, *cached)}
    return {"new": new, "cached": cached, "left_out": len(step.scheduled) - len(named),
            "scheduled": {name: count for name, count in step.scheduled.items() if name in named},
            "finished": len(step.finished), "preempted": len(step.preempted)}
