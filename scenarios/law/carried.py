"""Which request a message between a client and its core was about, by the client's own record of what it sent."""

from __future__ import annotations

from engine.topology import Channel, Mark, mark_site
from faults.plan import Fate
from scenarios.history.history import History, Receipt, Record

#: Said by a client right before it sends: what the message is about.
_SUBJECTS = ("accepted", "abort")
#: What all of those that step together have to do, each of them as soon as it is told.
_STEERS = frozenset({"pause_scheduler", "resume_scheduler", "run_steps"})


def carried(history: History, receipt: Receipt) -> str | None:
    """The caller's id of the request that the struck message was about; None: of no request, or of none that is known.

    A fault at the receiving end strikes the message that is next on its edge, so the sender's records tell.
    """
    said = _said(history, receipt)
    return None if said is None or said.site not in _SUBJECTS else said.data.get("request")


def is_a_call(history: History, receipt: Receipt) -> bool:
    """Whether the struck message was a call."""
    said = _said(history, receipt)
    return said is not None and said.site not in _SUBJECTS


def asks_twice(history: History, receipt: Receipt, answer: Record | None) -> bool:
    """Whether the struck message asks for steps that are being run already: the same call, once more. Its client takes
    the answer that comes first, and may ask for more while the first ones are being run.
    """
    said = _said(history, receipt)
    if receipt.fate != Fate.DUPLICATE or said is None or answer is None or not (
            said.data.get("method") == answer.data.get("method") == "run_steps"):
        return False
    begun = history.crossings.get(mark_site(receipt.node, Mark.STEP), ())
    since = sum(receipt.at <= step.at < answer.at for step in begun)
    return said.data["ticket"] == answer.data.get("ticket") or (
        said.data["ticket"] < answer.data.get("ticket", 0) and since <= said.data["args"][0])


def _said(history: History, receipt: Receipt) -> Record | None:
    """What its client said of the struck message before it sent it. A call goes to several cores, once to each."""
    edge = history.site_in(receipt.told_by, receipt.site).rpartition(":")[0]
    flow = history.flow(edge, Channel.REQUESTS)
    sent = None if flow is None else next((send for send, receive in flow.pairs if receive.nth == receipt.nth), None)
    if flow is None or sent is None:
        return None
    said: Record | None = None
    for record in history.records(flow.source):
        if record.number >= sent.number:
            break
        if record.site == "ask" or record.site in _SUBJECTS:
            said = record
        elif said is not None and record.site.endswith(f"/{Channel.REQUESTS.value}:send") and (
                said.site in _SUBJECTS or record.site == sent.site):
            said = None
    return said


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
