"""Which request a message between a client and its core was about, by the client's own record of what it sent."""

from __future__ import annotations

from engine.topology import Channel
from scenarios.history.history import History, Receipt, Record

#: Said by a client right before it sends: what the message is about.
_SUBJECTS = ("accepted", "abort")
#: What all of those that step together have to do, each of them as soon as it is told.
_STEERS = frozenset({"pause_scheduler", "resume_scheduler", "run_steps"})


def carried(history: History, receipt: Receipt) -> str | None:
    """The caller's id of the request that the struck message was about; None: of no request, or of none that is known.

    A fault at the receiving end strikes the message that is next on its edge, so the sender's records tell.
    """
    found = _sent(history, receipt)
    return None if found is None else _subject(history, *found)


def is_a_call(history: History, receipt: Receipt) -> bool:
    """Whether the struck message was a call, by what its client said last before it sent it on this edge."""
    found = _sent(history, receipt)
    if found is None:
        return False
    node, sent = found
    said = ""
    for record in history.records(node):
        if record.number >= sent.number:
            break
        if record.site == "ask" or record.site in _SUBJECTS:
            said = record.site
        elif record.site == sent.site:
            said = ""
    return said == "ask"


def _sent(history: History, receipt: Receipt) -> tuple[str, Record] | None:
    """Who sent what was struck, and the record of that."""
    edge = history.site_in(receipt.told_by, receipt.site).rpartition(":")[0]
    flow = next((flow for flow in history.flows(Channel.REQUESTS) if flow.name == edge), None)
    sent = None if flow is None else next((send for send, receive in flow.pairs if receive.nth == receipt.nth), None)
    return None if flow is None or sent is None else (flow.source, sent)


def _subject(history: History, node: str, sent: Record) -> str | None:
    subject = None
    for record in history.records(node):
        if record.number >= sent.number:
            break
        if record.site in _SUBJECTS:
            subject = record.data.get("request")
        elif record.site.endswith(f"/{Channel.REQUESTS.value}:send"):
            subject = None
    return subject


def is_amid_a_call(history: History, receipt: Receipt) -> bool:
    """Whether a client was struck as it sent a call that steers a group, and some of it had been sent that already."""
    told: set[str] = set()
    steers = False
    for record in history.records(receipt.node):
        if (record.site, record.nth) == (receipt.site, receipt.nth):
            return bool(told - {receipt.site})
        if record.site == "ask" or record.site in _SUBJECTS:
            steers, told = record.data.get("method") in _STEERS, set()
        elif steers and record.site.endswith(f"/{Channel.REQUESTS.value}:send"):
            told.add(record.site)
    return False
