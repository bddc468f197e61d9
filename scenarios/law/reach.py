"""How far a fault reaches: the table of what each fate, at each place, may bring about, whom it may touch and how long.

An incident that no row explains has no cause. So a row is as narrow as the engine lets it be: the death of a worker
explains that its engine ends and that every caller of that engine is told so; it does not explain that one of its
requests times out, nor that anything happens to another engine, nor anything that began before it.

    row      fates, places  ->  sorts of incidents, whom, until when
    whom     a question about the fault and the incident: `of_its_engine`, `of_its_message`, ...
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import NamedTuple

from engine.topology import Channel, NodeKind
from faults.plan import MESSAGE_FATES, Fate
from scenarios.history.history import EngineLife, History, Receipt, kind_of
from scenarios.history.names import base
from scenarios.history.receipts import DEATH_FATES, STALL_FATES, STOPPED_PART
from scenarios.law.carried import asks_twice, carried, is_a_call, is_amid_a_call
from scenarios.law.incidents import LAB, Incident, Sort

Whom = Callable[[History, Receipt, Incident], bool]
LOST_FATES = frozenset({Fate.DROP, Fate.CORRUPT, Fate.TRUNCATE, Fate.OMIT, Fate.SWAP, Fate.DELAY})
#: A standstill of so much of a time-out may have run it out.
_MOST = 0.5


class Reach(NamedTuple):
    """One row. `nodes`: of whom the fault befalls; `sites`: where; both patterns of fnmatch."""

    name: str
    fates: frozenset[Fate]
    sites: str
    nodes: str
    sorts: frozenset[Sort]
    whom: Whom
    why: str

    def explains(self, history: History, receipt: Receipt, incident: Incident) -> bool:
        return (incident.sort in self.sorts and receipt.fate in self.fates and fnmatchcase(receipt.node, self.nodes)
                and fnmatchcase(receipt.site, self.sites) and incident.at >= receipt.at
                and not _outlives(receipt, incident) and not _is_of_another_client(history, receipt, incident)
                and self.whom(history, receipt, incident))


def _outlives(receipt: Receipt, incident: Incident) -> bool:
    """A client tells its callers of the end of its engine, and goes on, and so does a launcher: their own end is by
    what befell them."""
    return (incident.sort is Sort.DEATH and kind_of(incident.node) in (NodeKind.FRONTEND, NodeKind.LAUNCHER)
            and receipt.node != incident.node)


def _is_of_another_client(history: History, receipt: Receipt, incident: Incident) -> bool:
    """What befalls one of several clients, or what it is told, is nothing to the others, nor to their engines."""
    if history.is_attached(receipt.node):
        about_it = incident.sort is Sort.STRANGE and kind_of(incident.node) == NodeKind.CORE
        return incident.node != receipt.node and not about_it
    if receipt.fate not in MESSAGE_FATES | {Fate.CUT} or not history.is_attached(incident.node):
        return False
    site = receipt.site.replace("->", "/")
    return "frontend." in site and base(incident.node) not in site.split(":")[0].split("/")


# -- whom -----------------------------------------------------------------------------------------------------


def of_itself(history: History, receipt: Receipt, incident: Incident) -> bool:
    return incident.node == receipt.node


def of_its_name(history: History, receipt: Receipt, incident: Incident) -> bool:
    """The same process, in any of its lives."""
    return base(incident.node) == base(receipt.node)


def of_the_lab(history: History, receipt: Receipt, incident: Incident) -> bool:
    """What the lab finds when all is over."""
    return incident.node == LAB


def of_its_engine(history: History, receipt: Receipt, incident: Incident) -> bool:
    """The engine's processes and its clients, in the life that was struck; who follows it, in any."""
    if incident.node == LAB:
        return False
    for mine in history.engines_of(receipt.node):
        for its in _concerned(history, incident):
            if mine == its or (kind_of(incident.node) == NodeKind.SUBSCRIBER and mine.engine == its.engine):
                return True
    return False


def of_its_group(history: History, receipt: Receipt, incident: Incident) -> bool:
    """The same of all engines that step together with the one that was struck: none of them goes on without it."""
    if incident.node == LAB:
        return False
    struck = {other for mine in history.engines_of(receipt.node) for other in history.joined(mine)}
    if not _had_started(history, receipt):  # those of one coordinator are ready together
        struck |= {other for mine in tuple(struck) for other in history.coordinated(mine)}
    if kind_of(incident.node) == NodeKind.SUBSCRIBER:
        return not {other.engine for other in struck}.isdisjoint(one.engine for one in _concerned(history, incident))
    return not struck.isdisjoint(_concerned(history, incident))


def _had_started(history: History, receipt: Receipt) -> bool:
    return any(start.ready_at <= receipt.at for start in history.startups
               if history.is_of(start.node, history.engine_of(receipt.node)))


def of_a_coordinator(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Itself, who tells of its end, a start, and all that step together: whoever does not, goes on without it."""
    if incident.node == receipt.node or (incident.record is not None and incident.record.site == "coordinator-dead"):
        return True
    steps = any(history.in_step(mine) for mine in history.engines_of(receipt.node))
    needed = steps or incident.sort is Sort.START or not _had_started(history, receipt)
    return needed and of_its_engine(history, receipt, incident)


def of_whom_it_is_head(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Clients of other cores that its coordinator told of those."""
    said = incident.record is not None and incident.record.site == "coordinator-dead"
    heads = {history.greeted_by(mine)[0] for mine in history.engines_of(incident.node)} if said else set()
    return receipt.node in heads


def of_a_coordinator_if_long(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Whoever is not woken is missed by the others."""
    patience = min(history.bounds.stall_s, history.bounds.collective_s)
    return receipt.may_end_the_engine(patience) and of_a_coordinator(history, receipt, incident)


def of_what_is_advice(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Whoever got what it cannot read, of what nothing may rest on."""
    return incident.node == receipt.node and any(
        receipt.site.endswith(f"/{channel.value}:receive") for channel in (Channel.WAVE, Channel.STATS, Channel.REPORT))


def _concerned(history: History, incident: Incident) -> tuple[EngineLife, ...]:
    """The engines that an incident is about: of several that a client has the one that was asked, or that it names."""
    engines = history.engines_of(incident.node)
    if len(engines) == 1:
        return engines
    if incident.operation is not None and not (incident.sort in _LOSS and _awaits_a_call(history, incident)):
        return (history.asked_of(incident.operation),)
    named = incident.record.data.get("core") if incident.record is not None else None
    return tuple(engine for engine in engines if named in (None, engine.engine))


def _awaits_a_call(history: History, incident: Incident) -> bool:
    """Whether its caller has a call open, or one that failed: all cores are asked, and wait for what it asks next."""
    answers = {record.data["ticket"]: record for record in history.by_node("utility").get(incident.node, ())
               if "ticket" in record.data}
    asks = [record for record in history.by_node("ask").get(incident.node, ()) if record.at <= incident.at]
    return any(answer is None or answer.at >= incident.at or answer.data["failure"]
               for answer in (answers.get(ask.data.get("ticket")) for ask in asks))


def of_its_group_before_it_is_told(history: History, receipt: Receipt, incident: Incident) -> bool:
    """A request that found no connection, within the time that noticing a death may take."""
    return (incident.operation is not None and incident.operation.error == "UnroutableError"
            and incident.at <= receipt.at + history.bounds.detection_s and of_its_group(history, receipt, incident))


def of_its_engine_by_name(history: History, receipt: Receipt, incident: Incident) -> bool:
    """A request that the engine itself ended."""
    return (incident.operation is not None and incident.operation.error == "RequestError"
            and of_its_engine(history, receipt, incident))


def of_its_engine_if_long(history: History, receipt: Receipt, incident: Incident) -> bool:
    """A standstill ends an engine only where it outlasts the shortest patience of those who wait for it."""
    bounds = history.bounds
    patience = min(bounds.stall_s, bounds.step_s, bounds.rpc_s)
    together_s = sum(other.lasted_s for other in history.faults.receipts  # one standstill right behind another one
                     if other.node == receipt.node and other.fate in STALL_FATES and other.at <= incident.at)
    return (receipt.may_end_the_engine(patience) or together_s >= patience * STOPPED_PART) and of_its_group(
        history, receipt, incident)


def of_who_is_owed_it(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Whoever waits for a payload is missed where that takes long. What nothing comes behind is never let go."""
    bounds = history.bounds
    patience = min(bounds.stall_s, bounds.step_s, bounds.rpc_s)
    return receipt.lasted_s >= patience * STOPPED_PART and of_its_group(history, receipt, incident)


def of_its_start_if_long(history: History, receipt: Receipt, incident: Incident) -> bool:
    """A start gives up whoever has not come so far by its bounds. What was ready before is none."""
    apart = any(history.is_apart(mine) for mine in history.engines_of(receipt.node))
    concerned = of_its_group if apart else of_its_engine
    if not concerned(history, receipt, incident) or receipt.lasted_s < history.bounds.handshake_s * _MOST:
        return False
    return not _had_started(history, receipt)


def of_its_callers_while_it_lasts(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Requests that were open during a standstill of at least most of their own time-out."""
    operation = incident.operation
    if not of_its_engine(history, receipt, incident) or receipt.lasted_s < history.bounds.request_s * _MOST:
        return False
    return operation is None or operation.began_at <= receipt.over_at


def of_its_message(history: History, receipt: Receipt, incident: Incident) -> bool:
    """The request that the message was about; all that are not over yet, if it was about none (a pause, a resume)."""
    if not of_its_engine(history, receipt, incident) or (
            incident.sort in _LOSS and receipt.comes_within(history.bounds.request_s * _MOST)
            and not asks_twice(history, receipt, incident.record)):
        return False
    if incident.sort is Sort.STRANGE and is_a_call(history, receipt):
        return False  # of a request nothing strange comes to pass by it
    subject = carried(history, receipt)
    return subject is None or incident.operation is None or incident.operation.request == subject


def of_a_call_of_its_group(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Calls are put to all of a group, and what some of them ask all have to do."""
    return (carried(history, receipt) is None and of_its_group(history, receipt, incident)
            and any(history.in_step(mine) for mine in history.engines_of(receipt.node)))


def of_a_call_that_is_held(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Some of a group were told what all have to do, and waited for the others until they missed them."""
    patience = min(history.bounds.stall_s, history.bounds.collective_s) * _MOST
    return (receipt.lasted_s >= patience and incident.at >= receipt.at + patience
            and any(history.in_step(mine) for mine in history.engines_of(receipt.node))
            and is_amid_a_call(history, receipt) and of_its_group(history, receipt, incident))


def of_what_its_engine_still_holds(history: History, receipt: Receipt, incident: Incident) -> bool:
    """A request that was refused when the core held as many as it may, one of them because its abort was lost."""
    subject, limit = carried(history, receipt), history.play.config.limits.max_requests
    aborted = any(o.request == subject and o.abort is not None and o.abort.at <= receipt.at for o in history.operations)
    if not aborted or not of_its_engine(history, receipt, incident):
        return False
    before = [record.data["action"] for record in history.by_node("request").get(
        _concerned(history, incident)[0].core, ()) if record.at <= incident.at]
    return before.count("add") - before.count("abort") >= limit


def of_requests_then_open(history: History, receipt: Receipt, incident: Incident) -> bool:
    """A message of outputs is about all requests that were open when it was struck."""
    operation = incident.operation
    if incident.sort in _LOSS and receipt.comes_within(history.bounds.output_gap_s):
        return False
    return of_its_engine(history, receipt, incident) and (operation is None or operation.began_at <= receipt.at)


def of_its_engine_before_it_heals(history: History, receipt: Receipt, incident: Incident) -> bool:
    """What came to the engine before its ends were connected again."""
    operation, healed_at = incident.operation, receipt.over_at + history.bounds.detection_s
    return of_its_engine(history, receipt, incident) and (operation is None or operation.began_at <= healed_at)


def of_its_start(history: History, receipt: Receipt, incident: Incident) -> bool:
    return not _had_started(history, receipt) and of_its_group(history, receipt, incident)


def of_itself_while_it_lasts(history: History, receipt: Receipt, incident: Incident) -> bool:
    return incident.node == receipt.node and incident.at <= receipt.over_at


def of_who_is_not_woken(history: History, receipt: Receipt, incident: Incident) -> bool:
    """Those that step together miss whom their coordinator cannot reach; of others only a start waits for it."""
    bounds = history.bounds
    steps = any(history.in_step(mine) for mine in history.engines_of(receipt.node))
    patience = min(bounds.stall_s, bounds.collective_s) if steps else bounds.handshake_s
    return (receipt.lasted_s >= patience * _MOST and (steps or not _had_started(history, receipt))
            and of_its_group(history, receipt, incident))


# -- the table ------------------------------------------------------------------------------------------------

#: What the end of an engine brings about.
_END = frozenset({Sort.DEATH, Sort.DEAD, Sort.TOLD, Sort.START, Sort.UTILITY, Sort.UNSENT, Sort.RPC, Sort.WAIT,
                  Sort.ORPHAN, Sort.THREAD, Sort.KV_SENDER, Sort.KV_READER})
#: What a caller sees of a message that does not come.
_LOSS = frozenset({Sort.FAILED, Sort.UTILITY})
_AS_ONE = "an engine lives and dies as one, and all its callers are told"

REACH: tuple[Reach, ...] = (
    Reach("the core dies", DEATH_FATES, "*", "core.*", _END, of_its_group, _AS_ONE),
    Reach("a worker dies", DEATH_FATES, "*", "worker.*", _END, of_its_group, _AS_ONE),
    Reach("nothing can be sent to a core that is gone", DEATH_FATES, "*", "*", frozenset({Sort.FAILED}),
          of_its_group_before_it_is_told, "its connection may end before its death is noticed"),
    Reach("the core drains", frozenset({Fate.TERMINATE}), "*", "core.*",
          frozenset({Sort.REFUSED, Sort.STRANGE}), of_its_engine,
          "a core that is asked to leave takes nothing more in"),
    Reach("the core gives up what it drains", frozenset({Fate.TERMINATE}), "*", "core.*", frozenset({Sort.FAILED}),
          of_its_engine_by_name, "what still runs at the deadline is ended, and says so"),
    Reach("a coordinator dies", DEATH_FATES, "*", "coordinator.*", _END, of_a_coordinator,
          "nobody wakes those who step together any more"),
    Reach("a launcher dies", DEATH_FATES, "*", "launcher.*", _END, of_its_group, "it takes along what it owns"),
    Reach("a launcher has its cores drain", DEATH_FATES, "*", "launcher.*", frozenset({Sort.REFUSED, Sort.STRANGE}),
          of_its_engine, "a core that is asked to leave takes nothing more in"),
    Reach("a launcher dies before it has cleaned up", DEATH_FATES, "*", "launcher.*", frozenset({Sort.LEFTOVER}),
          of_the_lab, "the next start on this host removes what it left"),
    Reach("a client dies", DEATH_FATES, "*", "frontend.*", _END | {Sort.STRANGE, Sort.KEPT}, of_its_group,
          "a client takes its engine with it, and asks on its way out that what is open be freed"),
    Reach("the head dies", DEATH_FATES, "*", "frontend.*", frozenset({Sort.DEAD}), of_whom_it_is_head,
          "it takes the coordinator along, which other clients are told of"),
    Reach("a client dies before it has cleaned up", DEATH_FATES, "*", "frontend.*", frozenset({Sort.LEFTOVER}),
          of_the_lab, "the next start on this host removes what it left"),
    Reach("a subscriber dies", DEATH_FATES, "*", "subscriber.*",
          frozenset({Sort.DEATH, Sort.THREAD, Sort.KV_READER}), of_its_name,
          "its next life begins without a memory"),

    Reach("the core stands still", STALL_FATES, "*", "core.*", _END, of_its_engine_if_long,
          "who waits for the core gives it up at its bound"),
    Reach("a worker stands still", STALL_FATES, "*", "worker.*", _END, of_its_engine_if_long,
          "who waits for a worker gives the engine up at its bound"),
    Reach("a coordinator stands still", STALL_FATES, "*", "coordinator.*", _END, of_a_coordinator_if_long,
          "nobody wakes those who step together any more"),
    Reach("a worker that stood still is behind", STALL_FATES, "*", "worker.*", frozenset({Sort.KEPT}), of_itself,
          "it leaves without having done what it was told last"),
    Reach("requests wait for who stands still", STALL_FATES, "*", "*", _LOSS, of_its_callers_while_it_lasts,
          "a request that hears nothing for its time-out fails"),
    Reach("a client stands still", STALL_FATES, "*", "frontend.*",
          frozenset({Sort.START, Sort.DEATH, Sort.DEAD, Sort.ORPHAN, Sort.UNSENT}), of_its_start_if_long,
          "a start that is not gone on with is over at its bound, and who has given it up reads no answer"),
    Reach("a launcher stands still", STALL_FATES, "*", "launcher.*",
          frozenset({Sort.START, Sort.DEATH, Sort.DEAD, Sort.ORPHAN, Sort.UNSENT}), of_its_start_if_long,
          "a start that is not gone on with is over at its bound, and who has given it up reads no answer"),
    Reach("a subscriber stands still", STALL_FATES, "*", "subscriber.*", frozenset({Sort.KV_READER}), of_its_name,
          "what finds no room in its queue is lost to it"),
    Reach("a publisher stands still", STALL_FATES, "*", "core.*", frozenset({Sort.KV_READER}), of_its_engine,
          "a question that is not answered leaves a subscriber unverified"),

    Reach("a message to the core is hit", MESSAGE_FATES, "frontend.*/requests:receive", "*",
          _LOSS | {Sort.BAD_FRAME, Sort.STRANGE, Sort.UNSENT}, of_its_message, "it is about one request or call"),
    Reach("a call to one of those that step together is hit", MESSAGE_FATES, "frontend.*/requests:receive", "core.*",
          _END, of_a_call_of_its_group, "the others do what was asked, and wait for it"),
    Reach("a call to those that step together is held", STALL_FATES, "frontend.*/requests:send", "frontend.*", _END,
          of_a_call_that_is_held, "some of them do what was asked, and wait for the others"),
    Reach("an abort is lost", LOST_FATES, "frontend.*/requests:receive", "*", frozenset({Sort.REFUSED}),
          of_what_its_engine_still_holds, "the core counts whom its client has forgotten"),
    Reach("a message to the client is hit", MESSAGE_FATES, "*/outputs:receive", "*", _LOSS | {Sort.BAD_FRAME},
          of_requests_then_open, "it may hold tokens of every open request"),
    Reach("a message of the start is hit", MESSAGE_FATES - {Fate.DELAY}, "*/handshake:*", "*", _END | {Sort.BAD_FRAME},
          of_its_group, "the start ends by its bound"),
    Reach("a message of the start is late", frozenset({Fate.DELAY}), "*/handshake:*", "*", _END,
          of_its_start_if_long, "the start ends by its bound"),
    Reach("a word at birth is lost", LOST_FATES - {Fate.DELAY} | {Fate.REORDER}, "*/birth:receive", "*", _END,
          of_its_start, "a start that misses a word, or cannot read it, ends and names whose it is"),
    Reach("a word at birth is late", frozenset({Fate.DELAY}), "*/birth:receive", "*", _END, of_its_start_if_long,
          "a start that misses a word ends at its bound"),
    Reach("who the workers are is lost", LOST_FATES | {Fate.REORDER}, "core.*->*/birth:receive", "*",
          frozenset({Sort.LEFTOVER}), of_the_lab,
          "a worker that stands still, and whose core is gone, is ended by nobody"),
    Reach("a word at birth cannot be read", frozenset({Fate.CORRUPT, Fate.TRUNCATE}), "*/birth:receive", "*",
          frozenset({Sort.BAD_FRAME}), of_itself, "what cannot be read is told of"),
    Reach("the core's announcement is hit", MESSAGE_FATES - {Fate.DELAY}, "core.*->frontend.*/requests:receive", "*",
          _END | {Sort.BAD_FRAME}, of_its_group, "the client does not know where to send"),
    Reach("the core's announcement is late", frozenset({Fate.DELAY}), "core.*->frontend.*/requests:receive", "*", _END,
          of_its_start_if_long, "the client waits for it by its bound"),
    Reach("a word of a coordinator, or to it, is hit", frozenset({Fate.CORRUPT, Fate.TRUNCATE}), "*", "*",
          frozenset({Sort.BAD_FRAME}), of_what_is_advice, "what cannot be read is dropped"),
    Reach("an event or an answer is hit", MESSAGE_FATES, "*/kv:*", "*", frozenset({Sort.KV_READER, Sort.BAD_FRAME}),
          of_its_engine, "a subscriber asks for what it missed"),
    Reach("an event is changed", frozenset({Fate.CORRUPT}), "core.*->subscriber.*:receive", "*",
          frozenset({Sort.MISTOLD}), of_its_engine, "no checksum guards it"),
    Reach("a question or its answer is hit", MESSAGE_FATES, "*/replay:*", "*",
          frozenset({Sort.KV_READER, Sort.KV_SENDER, Sort.BAD_FRAME}), of_its_engine,
          "a subscriber asks for what it missed"),
    Reach("a payload beside the ring is hit", MESSAGE_FATES - {Fate.DELAY, Fate.REORDER, Fate.DUPLICATE},
          "*/overflow:*", "*", _END | {Sort.BAD_FRAME}, of_its_group, "a step that a rank cannot read ends the engine"),
    Reach("a payload beside the ring is late", frozenset({Fate.DELAY, Fate.REORDER}), "*/overflow:*", "*", _END,
          of_who_is_owed_it, "who is owed it waits for it"),

    Reach("a connection between client and core is cut", frozenset({Fate.CUT}), "*/requests:wire", "*",
          _LOSS | {Sort.UNSENT, Sort.BAD_FRAME}, of_its_engine_before_it_heals,
          "what was on its way is lost, and nothing is sent"),
    Reach("the core's announcement is cut", frozenset({Fate.CUT}), "core.*->frontend.*/requests:wire", "*", _END,
          of_its_start, "the client does not know where to send"),
    Reach("a connection of outputs is cut", frozenset({Fate.CUT}), "*/outputs:wire", "*", _LOSS | {Sort.BAD_FRAME},
          of_its_engine_before_it_heals, "what was on its way is lost"),
    Reach("a connection of outputs stays cut", frozenset({Fate.CUT}), "*/outputs:wire", "*", frozenset({Sort.DEATH}),
          of_itself_while_it_lasts, "who leaves waits in vain for its last words to go, and is ended at a bound"),
    Reach("a coordinator's connection to a core is cut", frozenset({Fate.CUT}), "*/wave:wire", "*", _END,
          of_who_is_not_woken, "nobody wakes that one, and those who step with it wait"),
    Reach("a core's connection to its coordinator is cut", frozenset({Fate.CUT}), "*/report:wire", "*", _END,
          of_who_is_not_woken, "nobody is woken by that one"),
    Reach("the connection of the start is cut", frozenset({Fate.CUT}), "*/handshake:wire", "*", _END, of_its_group,
          "the start ends by its bound"),
    Reach("a pipe of birth is cut", frozenset({Fate.CUT}), "*/birth:wire", "*", _END, of_its_start,
          "who reads that nobody is at the other end goes, and the start with it"),
    Reach("a pipe of birth is cut by one who leaves", frozenset({Fate.CUT}), "*/birth:wire", "*",
          frozenset({Sort.ORPHAN}), of_itself, "it takes its parent for gone"),
    Reach("a connection of events is cut", frozenset({Fate.CUT}), "*/kv:wire", "*", frozenset({Sort.KV_READER}),
          of_its_engine, "what was on its way is lost"),
    Reach("a connection of questions is cut", frozenset({Fate.CUT}), "*/replay:wire", "*",
          frozenset({Sort.KV_READER, Sort.KV_SENDER}), of_its_engine, "what was on its way is lost"),
    Reach("a connection beside the ring is cut", frozenset({Fate.CUT}), "*/overflow:wire", "*", _END, of_its_group,
          "a step that a rank cannot read ends the engine"),

    Reach("shared memory is written over", frozenset({Fate.CORRUPT}), "*:store.*", "*",
          _END | _LOSS | {Sort.BAD_FRAME, Sort.STRANGE}, of_its_engine, "no checksum guards it"),
)
