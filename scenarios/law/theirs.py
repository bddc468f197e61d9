"""How far a fault at a message reaches in an engine that is not ours: for vLLM this table stands in place of our rows
about requests, outputs and the handshake; all other rows of `REACH` are the same.

vLLM watches processes and numbers no message. So nobody is told of one that is lost, late, overtaken or cut off by the
end of its connection, nor of a request that its core cannot read: who waits for it waits, and no row explains anything
that a caller is told. What one that comes twice, is changed or cannot be read brings about is told at once.
"""

from __future__ import annotations

from engine.messages import Outcome
from engine.topology import Channel, NodeKind
from faults.plan import MESSAGE_FATES, Fate
from scenarios.history.history import History, Receipt, kind_of
from scenarios.law.incidents import Incident, Sort
from scenarios.law.reach import REACH, Reach, of_its_group, of_its_start

_STEERING = tuple(f"/{channel.value}:" for channel in (Channel.REQUESTS, Channel.OUTPUTS, Channel.HANDSHAKE))
_UNREADABLE = frozenset({Fate.CORRUPT, Fate.TRUNCATE, Fate.OMIT, Fate.SWAP})
_TWICE_OR_CHANGED = frozenset({Fate.DUPLICATE, Fate.CORRUPT})
_LOST = frozenset({Fate.DROP, Fate.DELAY, Fate.REORDER, Fate.CUT})


def says(history: History, receipt: Receipt) -> str | None:
    """The kind of the message that was struck; None where it is not on record."""
    return _crossing(history, receipt).get("says")


def _crossing(history: History, receipt: Receipt) -> dict[str, str]:
    crossed = history.crossings.get(history.site_in(receipt.told_by, receipt.site), ())
    return next((record.data for record in crossed if record.nth == receipt.nth), {})


def _is_told_at_once(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Within the time in which a death is told; or somebody was told in that time, and this is what comes of it."""
    until = receipt.at + history.bounds.detection_s
    return incident.at <= until or any(
        receipt.at <= operation.over_at <= until and operation.outcome in (Outcome.ENGINE_DEAD, Outcome.FAILED)
        for operation in history.operations) or any(
        receipt.at <= record.at <= until and not record.data.get("healthy", True)
        for node, record in history.observed("health"))


def _was_open(receipt: Receipt, incident: Incident) -> bool:
    return incident.operation is None or incident.operation.began_at <= receipt.at


def of_its_client(history: History, receipt: Receipt, incident: Incident) -> bool:
    """The client that the message is of or for, at once, and of its requests those that are open then; it says from
    then on that its engine is dead.
    """
    is_its = kind_of(incident.node) == NodeKind.FRONTEND and incident.node in (
        receipt.node, history.owner(history.engine_of(receipt.node)))
    open_then = incident.sort is Sort.TOLD or _was_open(receipt, incident)
    return is_its and open_then and _is_told_at_once(history, receipt, incident)


def of_a_client_that_gets_an_answer_twice(history: History, receipt: Receipt, incident: Incident) -> bool:
    """By the message of a call, or by that of its answer."""
    return says(history, receipt) in ("UTILITY", "answer") and of_its_client(history, receipt, incident)


def of_the_group_of_who_gets_a_request_twice(history: History, receipt: Receipt, incident: Incident) -> bool:
    return (says(history, receipt) == "ADD" and of_its_group(history, receipt, incident)
            and _is_told_at_once(history, receipt, incident))


def of_the_request_that_is_changed(history: History, receipt: Receipt, incident: Incident) -> bool:
    about = _crossing(history, receipt).get("about")
    return (about is not None and incident.operation is not None and incident.operation.internal == about
            and of_its_group(history, receipt, incident))


def of_the_group_of_a_request_that_is_changed(history: History, receipt: Receipt, incident: Incident) -> bool:
    """As long as the request has no end."""
    about = _crossing(history, receipt).get("about")
    end = next((operation.over_at for operation in history.operations if operation.internal == about), receipt.at)
    return (about is not None and incident.at <= end + history.bounds.detection_s
            and of_its_group(history, receipt, incident))


def of_the_call_that_is_changed(history: History, receipt: Receipt, incident: Incident) -> bool:
    return says(history, receipt) == "UTILITY" and of_its_group(history, receipt, incident)


def of_a_call_of_those_in_step(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Some of them do what was asked, and wait for the others."""
    return (says(history, receipt) == "UTILITY" and of_its_group(history, receipt, incident)
            and any(history.in_step(mine) for mine in history.engines_of(receipt.node)))


def of_requests_then_open(history: History, receipt: Receipt, incident: Incident) -> bool:
    return incident.operation is not None and _was_open(receipt, incident) and of_its_client(history, receipt, incident)


def of_a_start_by_its_bound(history: History, receipt: Receipt, incident: Incident) -> bool:
    return incident.at <= receipt.at + history.bounds.startup_s and of_its_start(history, receipt, incident)


def of_who_reads_it(history: History, receipt: Receipt, incident: Incident) -> bool:
    return incident.node == receipt.node and incident.at <= receipt.at + history.bounds.detection_s


def of_a_start_that_is_greeted_twice(history: History, receipt: Receipt, incident: Incident) -> bool:
    return says(history, receipt) == "HELLO" and of_a_start_by_its_bound(history, receipt, incident)


def of_a_start_that_has_timed_out(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Its time-outs are seconds: what ends at once ends by something else. What comes soon all the same is missed by
    nobody."""
    soonest_s = history.bounds.detection_s
    is_missed = receipt.fate != Fate.DELAY or receipt.lasted_s > soonest_s
    return is_missed and incident.at > receipt.at + soonest_s and of_a_start_by_its_bound(history, receipt, incident)


def _is_of_others(row: Reach) -> bool:
    """Whether one of our rows speaks of messages of which engines that are not ours have their own."""
    return row.fates <= MESSAGE_FATES | {Fate.CUT} and any(channel in row.sites for channel in _STEERING)


#: What a client says from when on its engine is dead to it.
_DEAD = frozenset({Sort.DEAD, Sort.TOLD, Sort.UTILITY})
_ENDS = _DEAD | {Sort.DEATH}
_START = frozenset({Sort.START, Sort.DEATH})

#: Of vLLM 0.33.0.
OF_MESSAGES: tuple[Reach, ...] = (
    Reach("a request comes twice", frozenset({Fate.DUPLICATE}), "frontend.*/requests:receive", "core.*", _ENDS,
          of_the_group_of_who_gets_a_request_twice, "a core that gets an id again that is in use ends by it"),
    Reach("a call comes twice", _TWICE_OR_CHANGED, "frontend.*/requests:receive", "core.*", _DEAD | {Sort.FAILED},
          of_a_client_that_gets_an_answer_twice, "a client that gets an answer to no call of its ends all it serves"),
    Reach("an answer comes twice", frozenset({Fate.DUPLICATE}), "*/outputs:receive", "frontend.*",
          _DEAD | {Sort.FAILED}, of_a_client_that_gets_an_answer_twice,
          "a client that gets an answer to no call of its ends all it serves"),
    Reach("a request is changed", frozenset({Fate.CORRUPT}), "frontend.*/requests:receive", "core.*",
          frozenset({Sort.FAILED, Sort.REFUSED}), of_the_request_that_is_changed, "it may ask for what is refused"),
    Reach("a request that is changed cannot be served", frozenset({Fate.CORRUPT}), "frontend.*/requests:receive",
          "core.*", _ENDS, of_the_group_of_a_request_that_is_changed, "a core may end by what it asks for"),
    Reach("a call is changed", frozenset({Fate.CORRUPT}), "frontend.*/requests:receive", "core.*",
          frozenset({Sort.UTILITY}), of_the_call_that_is_changed, "it may ask for what no core can do"),
    Reach("a call to one of those in step is hit", MESSAGE_FATES, "frontend.*/requests:receive", "core.*", _ENDS,
          of_a_call_of_those_in_step, "the others do what was asked, and wait for it"),
    Reach("a message to the client cannot be read", _UNREADABLE, "*/outputs:receive", "frontend.*",
          _DEAD | {Sort.FAILED}, of_its_client, "a client that cannot read one reads no more, and fails what it has"),
    Reach("what a request is told is changed", frozenset({Fate.CORRUPT}), "*/outputs:receive", "frontend.*",
          frozenset({Sort.ABORTED, Sort.REFUSED}), of_requests_then_open, "it may say how the request has ended"),
    Reach("a word of the start cannot be read", _UNREADABLE, "*/handshake:receive", "*", _START,
          of_a_start_by_its_bound, "who cannot read one gives the start up"),
    Reach("a core's announcement cannot be read", _UNREADABLE, "core.*->frontend.*/requests:receive", "*", _START,
          of_a_start_by_its_bound, "who cannot read one gives the start up"),
    Reach("a core greets twice", frozenset({Fate.DUPLICATE}), "*/handshake:receive", "*", _START,
          of_a_start_that_is_greeted_twice, "a client that has greeted a core expects no greeting of it"),
    Reach("a word of the start is lost or late", _LOST, "*/handshake:*", "*", _START, of_a_start_that_has_timed_out,
          "the start is over by its time-out"),
    Reach("a core's announcement is lost or late", _LOST, "core.*->frontend.*/requests:*", "*", _START,
          of_a_start_that_has_timed_out, "the start is over by its time-out"),
)

#: What a coordinator hears; what it tells is advice, or waited for by nobody who says so.
OF_COORDINATORS: tuple[Reach, ...] = (
    Reach("a core's subscription is lost or late", _LOST, "core.*->coordinator.*/wave:*", "*", _START,
          of_a_start_that_has_timed_out, "the start is over by its time-out"),
    Reach("a report cannot be read", _UNREADABLE, "core.*->coordinator.*/report:receive", "coordinator.*",
          frozenset({Sort.DEATH}), of_who_reads_it, "a coordinator that cannot read one ends by it"),
)

#: In place of `REACH`.
THEIRS: tuple[Reach, ...] = (*(row for row in REACH if not _is_of_others(row)), *OF_MESSAGES, *OF_COORDINATORS)
