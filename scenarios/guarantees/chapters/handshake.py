"""The promise about how a core and its frontend meet, before any work is sent."""

from __future__ import annotations

from typing import Any

from engine.topology import Channel, NodeKind
from scenarios.guarantees.base import DAMAGE, DEATHS, ROUNDING_S, STALLS, Envelope, Finding, Guarantee, Where, timer_s
from scenarios.guarantees.chapters.delivery import CHAPTER, SOURCE
from scenarios.history.history import FOREVER, EngineLife, Fate, History, Record, kind_of
from scenarios.history.names import base
from scenarios.history.operations import Startup

#: What a core sends before there is work for it: an empty frame, HELLO, READY.
_GREETINGS = 3
#: Which of them HELLO is, behind the empty frame.
_HELLO = 2


def check_handshake_order(history: History) -> Finding:
    finding = Finding(history)
    for startup in history.startups:
        engines, node = history.engines_of(startup.node), startup.node
        _judge_first_work(finding, node)
        for engine in engines:
            _judge_queues(finding, engine)
            if startup.ready and startup.end is not None and (
                    kind_of(node) == NodeKind.FRONTEND or node in history.greeted_by(engine)):  # who knows of it
                _judge_agreement(finding, node, startup.end, engine)
        for engine in dict.fromkeys((*engines, *history.greeters(node))):
            _judge_sayings(finding, engine.core, node)
            if node in history.greeted_by(engine):
                _judge_damage(finding, engine.core, startup)
        hits = [r for r in history.faults.at("/handshake:") if not set(history.engines_of(r.node)).isdisjoint(engines)]
        if startup.end is None:
            if history.ends.at(node) == FOREVER or node in history.by_node("bye"):
                finding.hangs("the handshake of {}", node, bound=history.bounds.startup_s, since=startup.began.at,
                              node=node)
            continue
        if not finding.took("the handshake of {}", node, at=startup.end.at, node=node,
                            bound=timer_s(history.bounds, history.bounds.startup_s),
                            measured=startup.end.at - startup.began.at):
            continue
        for engine in history.greeters(node):
            _judge_hello(finding, startup, engine.core)
        if not startup.ready and not startup.end.data.get("error"):
            finding.broke("start-up failed without a named error", at=startup.end.at, node=node)
        elif not startup.ready and _is_of_nobody(history, node, startup.end.data):
            finding.broke("start-up of {} failed ({}), and who of several did it was not named", node,
                          startup.end.data.get("reason"), at=startup.end.at, node=node)
        elif hits:
            finding.witness("a handshake message met {} and start-up ended: {}", hits[0].fate,
                            "ready" if startup.ready else startup.end.data["error"], at=startup.end.at, node=node)
    return finding


def _is_of_nobody(history: History, node: str, told: dict[str, Any]) -> bool:
    """Of one core that a client has alone its words are enough; of several it is said which."""
    reason, mine = str(told.get("reason", "")), history.engines_of(node)
    if not history.play.says_why or told.get("error") != "StartupError":
        return False
    if len(mine) > 1:
        return not any(f"{kind.value}." in reason for kind in (NodeKind.CORE, NodeKind.COORDINATOR))
    return reason.startswith(f"{base(mine[0].core)}: ") and not (
        history.play.topology.launchers or history.coordinated(mine[0]))


def _judge_sayings(finding: Finding, core: str, frontend: str) -> None:
    """Each side says what it has to say once, and the core begins with the empty frame that announces it later, too."""
    history = finding.history
    if history.faults.at(f"/{Channel.HANDSHAKE.value}:"):
        return
    greetings, announced = (history.sends(f"{core}->{frontend}/{channel.value}")
                            for channel in (Channel.HANDSHAKE, Channel.REQUESTS))
    answers = history.sends(f"{frontend}->{core}/{Channel.HANDSHAKE.value}")
    again = sum(record.data["client"] == history.client_index(frontend)
                for record in history.by_node("client-cut").get(core, ())) if not history.has_begun(
                    frontend, history.engine_of(core)) else 0
    posing = sum(one.channel is Channel.HANDSHAKE and one.poses_as(core) for one in history.play.options.intruders)
    for who, said, most in ((core, greetings, _GREETINGS), (core, announced, 1 + again),
                            (frontend, answers, 1 + posing)):
        if len(said) > most:
            finding.broke("{} said {} times what it has to say {} times when it starts", who, len(said), most,
                          at=said[most].at, node=who)
    if announced and greetings and announced[0].digest != greetings[0].digest:
        finding.broke("{} did not begin with an empty frame", core, at=greetings[0].at, node=core)


def _judge_damage(finding: Finding, core: str, startup: Startup) -> None:
    """What is cut short cannot be read, nor can what is changed and makes a start fail; who should read it says so."""
    history, frontend = finding.history, startup.node
    failed = startup.end is not None and not startup.ready and len(history.faults.receipts) == 1
    for receipt in history.faults.hit(*DAMAGE, channel=Channel.HANDSHAKE.value):
        if receipt.fate == Fate.CORRUPT and not (failed and receipt.node == frontend):
            continue  # other bytes may be another greeting
        if receipt.node not in (core, frontend) or (receipt.node == frontend and receipt.nth == 1):
            continue  # nothing can be cut off the empty frame
        if receipt.fate == Fate.CORRUPT and startup.end is not None and _says_what_it_read(
                startup.end, receipt.site.partition("->")[0]):
            continue  # it could be read, and says something else
        if not any(record.at >= receipt.at for record in history.by_node("bad-frame").get(receipt.node, ())):
            finding.broke("{} was sent a greeting that met {}, and did not say that it cannot be read",
                          receipt.node, receipt.fate, at=receipt.at, node=receipt.node)


def _says_what_it_read(failed: Record, core: str) -> bool:
    """What is missing in it, and not that nothing came by then; or that the core is elsewhere."""
    reason = str(failed.data.get("reason", ""))
    return f"{core} greets as" in reason or (f"{core} did not say" in reason and "in time" not in reason)


def _judge_hello(finding: Finding, startup: Startup, core: str) -> None:
    """A core that has not said HELLO by its bound is not waited for; one that has may take its time."""
    history, node, began, end = finding.history, startup.node, startup.began.at, startup.end
    assert end is not None
    heard = [record for record in history.receives(f"{core}->{node}/{Channel.HANDSHAKE.value}")
             if _comes(history, record) or (record.nth == 1 and history.faults.met(record) in DAMAGE)  # it is empty
             or (history.faults.met(record) == Fate.CORRUPT and not _is_unread(history, node, record))]
    bounds = history.bounds
    _judge_answer(finding, node, core, end)
    others_first = history.greeted_by(history.engine_of(core))[0] != node
    patience_s = bounds.handshake_s * (2 if others_first else 1)
    # What it says first may be lost, and it has said HELLO all the same.
    hello = next((record for record in heard if record.nth == _HELLO), heard[1] if len(heard) > 1 else None)
    if hello is None or hello.at > began + patience_s:
        if end.at - began > timer_s(bounds, patience_s):
            finding.took("the wait of {} for HELLO", node, at=end.at, node=node,
                         measured=end.at - began - history.faults.frozen_s(node, began, end.at),
                         bound=timer_s(bounds, patience_s))
    elif not startup.ready and "in time" in end.data["reason"] and base(core) in end.data["reason"] and \
            not end.data["reason"].startswith(f"{base(core)}: ") and end.at - began < bounds.startup_s - ROUNDING_S:
        finding.broke("{} gave {} up after {:.3f} s, and it may take {:g} s to start", node, core, end.at - began,
                      bounds.startup_s, at=end.at, node=node)


def _is_unread(history: History, node: str, received: Record) -> bool:
    """Whether it said of what was changed that it cannot be read: other bytes may be another greeting. What comes
    behind is said of the next one.
    """
    until = next((record.number for record in history.receives(received.site.removesuffix(":receive"))
                  if record.number > received.number), FOREVER)
    return any(received.number < record.number < until for record in history.by_node("bad-frame").get(node, ()))


def _comes(history: History, received: Record) -> bool:
    """Whether it is read as it was sent, perhaps later, perhaps twice: its reader may stand still."""
    fate = history.faults.met(received)
    return fate is None or fate in STALLS | {Fate.DUPLICATE} or (received.site, received.nth) in history.delivered_at


def _judge_answer(finding: Finding, frontend: str, core: str, end: Record) -> None:
    """A core whose HELLO is not answered gives up at its bound, and so does the start: when its frontend reads that."""
    history, channel = finding.history, Channel.HANDSHAKE.value
    said = history.sends(f"{core}->{frontend}/{channel}")
    answered = any(_comes(history, record) for record in history.receives(f"{frontend}->{core}/{channel}"))
    bound = timer_s(history.bounds, history.bounds.handshake_s)
    if len(said) > 1 and not answered and end.at - said[1].at > bound:
        faults, since, due = history.faults, said[1].at, said[1].at + history.bounds.handshake_s
        frozen_s = faults.frozen_s(core, since, due) + faults.frozen_s(core, due, end.at, frontend)
        finding.took("giving up the start, in which {} had no answer to its HELLO,", core, at=end.at, node=frontend,
                     bound=bound, measured=end.at - since - frozen_s)


def _judge_first_work(finding: Finding, frontend: str) -> None:
    history = finding.history
    _judge_first_request(finding, frontend)
    for flow in history.flows(Channel.REQUESTS):
        if flow.source != frontend or not flow.sends:
            continue
        first = flow.sends[0]
        if not history.before_closing(frontend, first):
            continue  # what is said then is to let the core go
        back = f"{flow.target}->{frontend}"
        heard = sum(r.number < first.number for r in history.receives(f"{back}/handshake"))
        announced = any(r.number < first.number for r in history.receives(f"{back}/requests"))
        most = _to_be_heard(history, flow.target, frontend)
        if heard < most and not history.is_attached(frontend):
            finding.broke("work was sent to {} after {} of its {} handshake messages", flow.target, heard, most,
                          at=first.at, node=frontend)
        if not announced:
            finding.broke("work was sent to {} before it announced itself on the input socket", flow.target,
                          at=first.at, node=frontend)


def _judge_first_request(finding: Finding, frontend: str) -> None:
    """A request is taken in when all handshake messages of the core were read, also one that cannot be sent."""
    history = finding.history
    first = next(iter(history.by_node("accepted").get(frontend, ())), None)
    if first is None or history.is_attached(frontend):
        return
    for engine in history.engines_of(frontend):
        heard = sum(r.number < first.number for r in history.receives(f"{engine.core}->{frontend}/handshake"))
        most = _to_be_heard(history, engine.core, frontend)
        if heard < most:
            finding.broke("request {!r} was taken in after {} of the {} handshake messages of {}",
                          first.data["request"], heard, most, engine.core, at=first.at, node=frontend)


def _to_be_heard(history: History, core: str, frontend: str) -> int:
    """Of a core's handshake messages: whoever goes by its name and has greeted says READY in its place, too."""
    posing = any(one.channel is Channel.HANDSHAKE and one.poses_as(core) and history.meets(frontend, one)
                 and len(one.messages) > 1 for one in history.play.options.intruders)
    return _GREETINGS - posing


def _judge_queues(finding: Finding, engine: EngineLife) -> None:
    """Who calls, and who executes a call, has heard of each other end of its rings that all are there."""
    history, core = finding.history, engine.core
    called = history.by_node("rpc-call").get(core, ())
    for rank in range(history.ranks_of(core)):
        worker = engine.worker(rank)
        if worker not in history.by_node("born") or not history.play.says_why:
            continue  # it is the core itself, or an engine of old, whose answers had no such word
        for node, other, work in ((core, worker, called), (worker, core, history.executed.get(worker, ()))):
            heard = history.receives(f"{other}->{node}/{Channel.OVERFLOW.value}")
            if work and not (heard and heard[0].number < work[0].number):
                finding.broke("{} was at work before it had heard that {}'s ring is complete", node, other,
                              at=work[0].at, node=node)


def _ranks_of(history: History, frontend: str) -> int:
    """Its own, or all that they belong to."""
    engine = history.engine_of(frontend)
    if not history.is_apart(engine):
        return len(history.engines_of(frontend))
    return next(len(one.engines) for one in history.play.topology.deployments
                if any(member.index == engine.engine for member in one.engines))


def _judge_agreement(finding: Finding, frontend: str, ready: Record, engine: EngineLife) -> None:
    if engine.core not in finding.history.by_node("ready"):
        finding.broke("{} was ready and {} never said so", frontend, engine.core, at=ready.at, node=frontend)
    grid = finding.history.grid_of(engine.core)
    played = {"tensor_parallel_size": grid.tp, "pipeline_parallel_size": grid.pp,
              "data_parallel_size": _ranks_of(finding.history, frontend)}
    config = finding.history.play.config
    lately = {"coordinator": bool(finding.history.coordinated(engine)), "lockstep": finding.history.in_step(engine),
              "wave_protocol": config.data_parallel.wave_protocol}
    if frontend == finding.history.owner(finding.history.engines[-1]):
        lately |= {name: value for name, value in finding.history.play.options.differs.items() if name in lately}
    told = ready.data.get("parallel_config")
    several = kind_of(frontend) == NodeKind.FRONTEND and len(finding.history.engines_of(frontend)) > 1
    # Engines did not always have stages, nor say how several of them belong together.
    told_of = {name: value for name, value in (told or {}).items() if name in played or name in lately}
    if {"pipeline_parallel_size": 1, **lately, **told_of} != {**played, **lately}:
        finding.broke("{} says {}, started was {}", frontend, told, played, at=ready.at, node=frontend)
    for node, records in finding.history.by_node("ready").items():
        if kind_of(node) != "core" or not finding.history.is_of(node, engine):
            continue
        blocks = ready.data.get("blocks", {}).get(base(node), None if several else ready.data.get("num_gpu_blocks"))
        for name, ours in (("num_gpu_blocks", blocks), ("parallel_config", told)):
            theirs = records[0].data.get(name)
            if isinstance(theirs, dict) and isinstance(ours, dict):  # where they meet, the head's cores alone know
                theirs = {key: value for key, value in theirs.items() if key in ours}
            if ours != theirs:
                finding.broke("frontend and core disagree about {}: {} and {}", name, ours, records[0].data.get(name),
                              at=ready.at, node=frontend)
        finding.witness("frontend and core agree on {} blocks", blocks, at=ready.at, node=frontend)


GUARANTEES = (
    Guarantee(
        id="handshake-order", chapter=CHAPTER, source=SOURCE, check=check_handshake_order,
        sentence="No work is sent before READY, and no call before all ends of the workers' rings are there; a peer "
                 "that never answers, or never announces itself on the input socket, ends in a named error within the "
                 "start-up bound; both sides agree on the number of blocks and on the parallel configuration.",
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
