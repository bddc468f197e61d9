"""Which request a message between a client and its core was about, by the client's own record of what it sent."""

from __future__ import annotations

from scenarios.history.history import History, Receipt, Record
from scenarios.history.names import life_of, site_of_life

#: Said by a client right before it sends: what the message is about.
_SUBJECTS = ("accepted", "abort")


def carried(history: History, receipt: Receipt) -> str | None:
    """The caller's id of the request that the struck message was about; None: of no request, or of none that is known.

    A fault at the receiving end strikes the message that is next on its edge, so the sender's records tell.
    """
    place, _, _ = receipt.site.rpartition(":")
    life = life_of(receipt.told_by)
    sends = history.sends(site_of_life(f"{place}:send", life).rpartition(":")[0])
    struck = next((r for r in history.receives(site_of_life(f"{place}:receive", life).rpartition(":")[0])
                   if r.nth == receipt.nth), None)
    if struck is None:
        return None
    sent = next((send for send in sends if (send.digest, send.occurrence) == (struck.digest, struck.occurrence)), None)
    if sent is None:
        return None
    return _subject(history, place.partition("->")[0], sent, life)


def _subject(history: History, name: str, sent: Record, life: int) -> str | None:
    node = name if not life or "@" in name else f"{name}@{life}"
    subject = None
    for record in history.records(node):
        if record.number >= sent.number:
            break
        if record.site in _SUBJECTS:
            subject = record.data.get("request")
        elif record.site == sent.site:
            subject = None
    return subject
