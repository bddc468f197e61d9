"""Nothing without a cause: what no fault, caller, lab or configuration explains is broken, promised or not."""

from __future__ import annotations

from faults.plan import Fate
from scenarios.guarantees.base import Envelope, Finding, Guarantee
from scenarios.history.history import History, Operation
from scenarios.law.causes import CAUSES
from scenarios.law.incidents import Incident, Sort, incidents
from scenarios.law.reach import REACH
from scenarios.law.theirs import THEIRS

#: What a starved machine may bring about: lateness, and what is given up for it.
_LATENESS = frozenset({Sort.FAILED, Sort.UTILITY, Sort.START, Sort.DEAD, Sort.TOLD, Sort.DEATH, Sort.WAIT,
                       Sort.OVERSTAY, Sort.KV_READER})


#: Of an engine that is not ours: what callers are told, and which of its processes end. What these keep of themselves
#: it has promised nobody; of what stays behind, and of callers that hear nothing, promises of its own speak.
_TOLD_BY_ALL = frozenset({Sort.DEATH, Sort.DEAD, Sort.START, Sort.FAILED, Sort.REFUSED,
                          Sort.TOLD, Sort.ABORTED, Sort.UTILITY})


def cause_of(history: History, incident: Incident) -> str | None:
    """What explains it, in words; None if nothing does."""
    if not history.play.is_ours and (why := _among_others(history, incident)) is not None:
        return why
    for cause in CAUSES:
        if incident.sort in cause.sorts and cause.holds(history, incident):
            return cause.name
    for receipt in history.faults.receipts:
        for row in REACH if history.play.is_ours else THEIRS:
            if row.explains(history, receipt, incident):
                return f"{row.name} ({receipt.id})"
    return None


def _among_others(history: History, incident: Incident) -> str | None:
    """What other engines do that ours does not: they abort at once what a core has that is asked to leave, and kill
    what has not left in time when they are closed."""
    if incident.sort in (Sort.DEATH, Sort.DEAD) and incident.at >= history.closing_at(history.engine_of(incident.node)):
        return "its engine is closed"
    if incident.sort is Sort.FAILED and incident.operation is not None and _is_odd(history, incident.operation):
        return "it was asked for with a value of another kind"
    asked = [r for r in history.faults.receipts if r.fate == Fate.TERMINATE and r.at <= incident.at
             and incident.operation is not None and history.asked_of(incident.operation).core == r.node]
    return f"its core is asked to leave ({asked[0].id})" if asked and incident.sort is Sort.ABORTED else None


def _is_odd(history: History, operation: Operation) -> bool:
    requests = history.play.workload.get("requests", ())
    return any(request.get("asked_params") is not None for place, request in enumerate(requests)
               if request.get("index", place) == operation.index)


def check_nothing_without_cause(history: History) -> Finding:
    finding = Finding(history)
    for incident in incidents(history):
        if incident.sort not in _TOLD_BY_ALL and not history.play.is_ours:
            continue
        cause = cause_of(history, incident)
        if cause is not None:
            finding.witness("{} ({}), because {}", incident.text, incident.node, cause, at=incident.at,
                            node=incident.node)
        elif incident.sort in _LATENESS and history.starved(history.bounds.detection_s):
            finding.unclear("{} ({}): {}, and the machine starved for {:.3f} s", incident.sort.value, incident.node,
                            incident.text, history.lab.longest_starvation_s, at=incident.at, node=incident.node)
        else:
            finding.broke("{} ({}): {}, and nothing explains it", incident.sort.value, incident.node, incident.text,
                          at=incident.at, node=incident.node)
    if not finding.broken and history.operations:
        finding.witness("{} requests, and nothing went wrong without a cause", len(history.operations))
    return finding


GUARANTEES = (
    Guarantee(
        id="nothing-without-cause", chapter="The law of every play", source="this project", is_law=True,
        check=check_nothing_without_cause,
        sentence="Each death, crash, failed, refused or timed-out request, lost connection and error of a play is "
                 "explained by a fault that fired and reaches so far, by what its callers asked, by the lab's own "
                 "acts, by its configuration or by a declared canary.",
        wrong="lets a process die, fails a request or loses a message although nothing has befallen it",
        witness="something went wrong and had its cause, or requests were served and nothing went wrong",
        envelope=Envelope(),
    ),
)
