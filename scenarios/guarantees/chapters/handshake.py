"""The promise about how a core and its frontend meet, before any work is sent."""

from __future__ import annotations

from engine.topology import Channel
from scenarios.guarantees.base import DEATHS, Envelope, Finding, Guarantee, Where, timer_s
from scenarios.guarantees.chapters.delivery import CHAPTER, SOURCE
from scenarios.history.history import FOREVER, EngineLife, Fate, History, Record, kind_of

#: What a core sends before there is work for it: an empty frame, HELLO, READY.
_GREETINGS = 3


def check_handshake_order(history: History) -> Finding:
    finding = Finding(history)
    for startup in history.startups:
        engine, node = history.engine_of(startup.node), startup.node
        _judge_first_work(finding, node)
        if startup.ready and startup.end is not None:
            _judge_agreement(finding, node, startup.end, engine)
        hits = [r for r in history.faults.at("/handshake:") if history.engine_of(r.node) == engine or r.node == node]
        if startup.end is None:
            if history.ends.at(node) == FOREVER or node in history.by_node("bye"):
                finding.hangs("the handshake of {}", node, bound=history.bounds.startup_s, since=startup.began.at,
                              node=node)
            continue
        if not finding.took("the handshake of {}", node, at=startup.end.at, node=node,
                            bound=timer_s(history.bounds, history.bounds.startup_s),
                            measured=startup.end.at - startup.began.at):
            continue
        if not startup.ready and not startup.end.data.get("error"):
            finding.broke("start-up failed without a named error", at=startup.end.at, node=node)
        elif hits:
            finding.witness("a handshake message met {} and start-up ended: {}", hits[0].fate,
                            "ready" if startup.ready else startup.end.data["error"], at=startup.end.at, node=node)
    return finding


def _judge_first_work(finding: Finding, frontend: str) -> None:
    history = finding.history
    _judge_first_request(finding, frontend)
    for flow in history.flows(Channel.REQUESTS):
        if flow.source != frontend or not flow.sends:
            continue
        first = flow.sends[0]
        back = f"{flow.target}->{frontend}"
        heard = sum(r.number < first.number for r in history.receives(f"{back}/handshake"))
        announced = any(r.number < first.number for r in history.receives(f"{back}/requests"))
        if heard < _GREETINGS:
            finding.broke("work was sent to {} after {} of its {} handshake messages", flow.target, heard, _GREETINGS,
                          at=first.at, node=frontend)
        if not announced:
            finding.broke("work was sent to {} before it announced itself on the input socket", flow.target,
                          at=first.at, node=frontend)


def _judge_first_request(finding: Finding, frontend: str) -> None:
    """A request is taken in when all handshake messages of the core were read, also one that cannot be sent."""
    history = finding.history
    first = next(iter(history.by_node("accepted").get(frontend, ())), None)
    if first is None:
        return
    engine = history.engine_of(frontend)
    heard = sum(r.number < first.number for r in history.receives(f"{engine.core}->{frontend}/handshake"))
    if heard < _GREETINGS:
        finding.broke("request {!r} was taken in after {} of the {} handshake messages of {}", first.data["request"],
                      heard, _GREETINGS, engine.core, at=first.at, node=frontend)


def _judge_agreement(finding: Finding, frontend: str, ready: Record, engine: EngineLife) -> None:
    if engine.core not in finding.history.by_node("ready"):
        finding.broke("{} was ready and {} never said so", frontend, engine.core, at=ready.at, node=frontend)
    played = {"tensor_parallel_size": finding.history.play.topology.engine(engine.engine).tp, "data_parallel_size": 1}
    if ready.data.get("parallel_config") != played:
        finding.broke("{} says {}, started was {}", frontend, ready.data.get("parallel_config"), played, at=ready.at,
                      node=frontend)
    for node, records in finding.history.by_node("ready").items():
        if kind_of(node) != "core" or finding.history.engine_of(node) != engine:
            continue
        for name in ("num_gpu_blocks", "parallel_config"):
            ours, theirs = ready.data.get(name), records[0].data.get(name)
            if ours != theirs:
                finding.broke("frontend and core disagree about {}: {} and {}", name, ours, theirs,
                              at=ready.at, node=frontend)
        finding.witness("frontend and core agree on {} blocks", ready.data.get("num_gpu_blocks"), at=ready.at,
                        node=frontend)


GUARANTEES = (
    Guarantee(
        id="handshake-order", chapter=CHAPTER, source=SOURCE, check=check_handshake_order,
        sentence="No work is sent before READY; a peer that never answers, or never announces itself on the input "
                 "socket, ends in a named error within the start-up bound; both sides agree on the number of blocks "
                 "and on the parallel configuration.",
        wrong={
            "order": "takes HELLO for READY and sends its work",
            "bound": "waits for READY for ever",
            "agreement": "does not know what the core has measured",
        },
        witness="both sides told the same number of blocks, or a start-up ended in spite of a lost or late handshake "
                "message",
        envelope=Envelope(outside=(
            Where(DEATHS | {Fate.STALL, Fate.HANG}, nodes="frontend.*", why="the caller itself"),
        )),
    ),
)
