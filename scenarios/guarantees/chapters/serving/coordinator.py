"""Promises about a coordinator: whom it waits for at the start, and who hears of its end."""

from __future__ import annotations

from engine.topology import Mark, NodeKind, mark_site
from scenarios.guarantees.base import Envelope, Finding, Guarantee
from scenarios.guarantees.chapters.serving.cores import CHAPTER
from scenarios.history.history import FOREVER, History, Receipt, Record
from scenarios.history.names import base, life_of, of_life
from scenarios.history.play import Play
from scenarios.history.receipts import STALL_FATES

SOURCE = "vLLM V1 data-parallel coordinator"
#: The inbox by which cores subscribe.
_WAVES = "waves"


def has_coordinator(play: Play) -> bool:
    return bool(play.topology.coordinators)


def check_start_needs_all(history: History) -> Finding:
    finding = Finding(history)
    for hub in history.of_kind(NodeKind.COORDINATOR):
        engines = history.engines_of(hub)
        subscribed = [(record.data["index"], record) for record in history.by_node("subscribed").get(hub, ())
                      if record.data["inbox"] == _WAVES]
        for said in history.by_node("all-subscribed").get(hub, ())[:1]:
            seen = {index for index, record in subscribed if record.number < said.number}
            if missing := [engine.core for engine in engines if engine.engine not in seen]:
                finding.broke("{} said that all have subscribed, and {} had not", hub, " and ".join(missing),
                              at=said.at, node=hub)
        for engine in engines:
            _judge_ready(finding, hub, engine.core)
    return finding


def _judge_ready(finding: Finding, hub: str, core: str) -> None:
    """A core that is ready has heard that all are heard."""
    history = finding.history
    ready = history.crossings.get(mark_site(core, Mark.READY))
    if not ready:
        return
    edge = f"{hub}->{core}/wave"
    heard = [record for record in history.receives(edge) if record.data.get("ready") and not record.data.get("fault")]
    if not heard or heard[0].number > ready[0].number:
        finding.broke("{} was ready before it had heard that all have subscribed", core, at=ready[0].at, node=core)
    elif any(_is_of_a_subscription(receipt) and receipt.at < ready[0].at for receipt in history.faults.receipts):
        finding.witness("a subscription came late, twice or not at all, and {} was ready when all had come", core,
                        at=ready[0].at, node=core)


def _is_of_a_subscription(receipt: Receipt) -> bool:
    return "->coordinator." in receipt.site and receipt.site.endswith("/wave:receive")


def check_coordinator_death_is_told(history: History) -> Finding:
    finding = Finding(history)
    bounds = history.bounds
    for hub in history.of_kind(NodeKind.COORDINATOR):
        since, how = _when_gone(history, hub)
        for client in history.of_kind(NodeKind.FRONTEND):
            start = next((one for one in history.startups if one.node == client), None)
            if since == FOREVER or life_of(client) != life_of(hub) or start is None or not start.ready_at < since or \
                    not set(history.engines_of(client)) & set(history.engines_of(hub)):
                continue
            told = _told_of(history, client, base(hub))
            end = min(history.ends.at(client), history.closes_at(client), history.ended_at)
            until = end if told is None else told.at
            late = until - since - history.faults.frozen_s(client, since, until)
            if told is None and late <= bounds.detection_s:
                continue  # nobody was there any more to tell
            if not finding.took("word of the end of {} ({}) at {}", hub, how, client, bound=bounds.detection_s,
                                measured=late, at=until, node=client):
                continue
            if any(o.node == client and not (o.ends and o.ends[0].at < since) for o in history.operations):
                finding.witness("{} ended ({}) with requests under way or to come, and {} said so", hub, how, client,
                                at=until, node=client)
    return finding


def _told_of(history: History, client: str, hub: str) -> Record | None:
    """When that client spoke of its end first."""
    found = [record for name in ("coordinator-dead", "engine-dead") for record in history.by_node(name).get(client, ())
             if hub in str(record.data.get("reason", ""))]
    return min(found, key=lambda record: record.number, default=None)


def _when_gone(history: History, hub: str) -> tuple[float, str]:
    """When it was gone, or had stood still for as long as it may; and how."""
    death = next((death for death in history.ends.deaths if death.node == hub), None)
    if death is not None and (death.planned or death.at < history.closes_at(hub)):
        return death.at, death.how
    stalls = [receipt.at for receipt in history.faults.receipts if of_life(base(receipt.node), life_of(hub)) == hub
              and receipt.fate in STALL_FATES and receipt.lasted_s > history.bounds.stall_s]
    return (min(stalls) + history.bounds.stall_s, "it stood still") if stalls else (FOREVER, "")


GUARANTEES = (
    Guarantee(
        id="dp-start-needs-all", chapter=CHAPTER, source=SOURCE, check=check_start_needs_all, applies=has_coordinator,
        sentence="No core is ready before its coordinator has seen the subscriptions of all cores, each by its own.",
        wrong={"count": "counts subscriptions, and does not look whose they are",
               "waits": "is ready before it has heard that all have subscribed"},
        witness="a subscription was late, doubled or lost, and all cores became ready",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-coordinator-death-is-told", chapter=CHAPTER, source=SOURCE, check=check_coordinator_death_is_told,
        applies=has_coordinator,
        sentence="When the coordinator dies, or makes no progress for longer than its bound, every client says so by "
                 "its name.",
        wrong="watches its cores alone",
        witness="the coordinator was gone while requests were under way or to come",
        envelope=Envelope(),
    ),
)
