"""Promises about a queue that is played alone (`Options.queue`), as its users see it: they know objects by faces."""

from __future__ import annotations

import re
import struct

from engine.errors import PeerDeadError
from engine.topology import Channel
from scenarios.guarantees.base import DAMAGE, LOSSES, MEMORY, ROUNDING_S, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.rings.queue_counts import check_queue_counts
from scenarios.guarantees.chapters.rings.ring import CHAPTER
from scenarios.guarantees.chapters.rings.ring_waits import PROMPT_S
from scenarios.history.history import FOREVER, Fate, History, Record
from scenarios.history.play import Play
from scenarios.history.receipts import STALL_FATES

#: What each part of a segment takes, in docs/RING.md.
LINE_BYTES, ENTRY_BYTES, EPOCH_BYTES = 64, 16, 8
#: From here on, by the same page, a message takes the place of one that all have read.
MOVED_BYTES = 1 << 20
_ENTRY = struct.Struct("<IIQ")

_LOST = Where(LOSSES | DAMAGE, sites="*/overflow:*", why="the plan itself loses the payload")
_CHANGED = Where(DAMAGE | {Fate.CUT}, sites="*/overflow:*", why="the plan itself changes payloads, or loses many")
#: How a wait ends that is broken off, and whether it was by a death.
_ENDED = {"peer-dead": True, "cancelled": False}
#: A payload that was overtaken counts as lost after so long.
GAP_S = 5.0


def is_of_a_queue(play: Play) -> bool:
    return bool(play.options.queue)


class _Put:
    """One object as its writer put it in. `certain`: it must arrive; `barred`: it must not."""

    def __init__(self, record: Record, outcome: Record | None) -> None:
        what = None if outcome is None else outcome.site
        self.face, self.data, self.at = record.data["face"], record.data, record.at
        self.readable = record.data["readable"]
        self.certain = what == "queue-put-at"
        self.barred = what == "queue-not-put"
        self.position = outcome.data["position"] if outcome is not None and self.certain else None


_OUTCOMES = frozenset({"queue-put-at", "queue-not-put", "queue-interrupted"})


def _puts(history: History) -> list[_Put]:
    found = []
    for node, records in history.by_node("queue-put").items():
        mine = history.records(node)
        for record in records:
            after = mine[record.number + 1:]
            outcome = next((later for later in after if later.site in _OUTCOMES or later.site == record.site), None)
            found.append(_Put(record, outcome if outcome is not None and outcome.site in _OUTCOMES else None))
    return found


def check_queue_hands_over(history: History) -> Finding:
    finding, puts = Finding(history), _puts(history)
    for put in puts:
        if put.data["beside"] != put.data["wanted"]:
            finding.broke("{} buffers of an object travelled beside its pickle, and it has {} large ones",
                          put.data["beside"], put.data["wanted"], at=put.at)
    _judge_positions(finding, puts)
    _judge_ways(finding, puts)
    _judge_published(finding, puts)
    _judge_deaths(finding)
    readers = history.by_node("queue-got")
    for node in [node for node in history.nodes if node in readers or node in history.by_node("queue-kept")]:
        _judge_reader(finding, node, puts, readers.get(node, []))
    for node, records in history.by_node("queue-kept").items():
        if records[-1].data["faces"] != records[-1].data["now"]:
            finding.broke("objects that {} kept have changed", node, at=records[-1].at, node=node)
    if not history.faults.receipts:
        refusals = [] if history.play.options.queue.startswith("slow") else history.observed("queue-not-put")
        for node, record in (*history.observed("queue-failed"), *refusals):
            finding.broke("{} failed though nothing had befallen anybody: {}", node, record.data["error"],
                          at=record.at, node=node)
    for node, record in history.observed("queue-not-put"):
        if "Timeout" in record.data["error"] and "was not sent" not in record.data["error"]:
            finding.broke("{} is not told what became of it: {}", node, record.data["error"], at=record.at, node=node)
    return finding


def _judge_positions(finding: Finding, puts: list[_Put]) -> None:
    """Each object has the number that follows; one that was interrupted may have taken one."""
    number, spare = 0, 0
    for put in puts:
        if put.position is None and not put.certain:
            spare += not put.barred
            continue
        if put.position is None or not number <= put.position <= number + spare:
            return finding.broke("an object was put at {} where {} was next", put.position, number, at=put.at)
        number, spare = put.position + 1, 0


def _judge_ways(finding: Finding, puts: list[_Put]) -> None:
    """What reaches a chunk's size goes beside the ring, by vLLM's count: of buffers, their lengths and their number."""
    size = finding.history.play.config.ring.max_chunk_bytes
    for flow in finding.history.flows(Channel.RPC):
        sends = finding.history.sends_by_position(flow)
        for put in puts:
            sent = sends.get(put.position, [None])[-1] if put.position is not None else None
            if sent is None or "raw" in put.data:
                continue
            counted = sent.data["bytes"] + 4 * (1 + put.data["beside"]) + 2
            if sent.data["overflow"] != (counted >= size):
                finding.broke("a message of {} bytes went {} a ring with chunks of {}", counted,
                              "beside" if sent.data["overflow"] else "into", size, at=sent.at)
                return


def _judge_reader(finding: Finding, node: str, puts: list[_Put], got: list[Record]) -> None:
    """What it got is what was put, each once and in order; an error stands for what could not be read."""
    places = {put.face: place for place, put in enumerate(puts)}
    last, errors = -1, 0
    broken_off = list(finding.history.by_node("queue-interrupted").get(node, ()))
    for record in got:
        if record.data.get("error"):
            errors += 1
            continue
        while broken_off and broken_off[0].number < record.number:  # it may have had an object in its hands
            broken_off.pop(0)
            errors += 1
        place = places.get(record.data["face"])
        if place is None:
            finding.broke("{} got an object that nobody had put in", node, at=record.at, node=node)
            return
        if place <= last:
            finding.broke("{} got an object twice, or out of its order", node, at=record.at, node=node)
            return
        if not _is_passed_over(finding, node, puts[last + 1:place], errors, record.at):
            return
        if puts[place].barred or not puts[place].readable:
            finding.broke("{} got an object that was not put in, or cannot be read", node, at=record.at, node=node)
        if beside := puts[place].data["beside"]:
            finding.witness("{} got an object with {} buffers beside its pickle", node, beside, at=record.at, node=node)
        last, errors = place, 0
    history = finding.history
    if node in history.by_node("bye") and not history.faults.receipts:
        _is_passed_over(finding, node, puts[last + 1:], errors + len(broken_off), history.ended_at)
    _judge_lost_payload(finding, node, puts, got)


def _judge_published(finding: Finding, puts: list[_Put]) -> None:
    """What stands in the ring when its writer dies, before it has rung for it, is still handed out to who reads on."""
    history = finding.history
    struck = [receipt.node for receipt in history.faults.receipts]
    last = puts[-1] if puts else None
    if last is None or last.certain or last.barred or not last.readable or "far" in history.play.options.queue or len(
            struck) != 1:
        return
    for flow in history.flows(Channel.RPC):
        rung = len(history.crossings.get(f"{flow.source}/{Channel.RPC.value}:doorbell", ()))
        reads_on = all(flow.target in history.by_node(name) for name in ("queue-ready", "bye"))
        # What is too large for the ring goes by a socket, and with its writer.
        beside = any(send.data.get("overflow") for send in list(flow.sends)[len(flow.receives):])
        if beside or struck[0] != flow.source or history.ends.at(flow.source) == FOREVER or not reads_on or rung <= sum(
                put.certain for put in puts):
            continue
        got = history.by_node("queue-got").get(flow.target, ())
        if last.face not in [record.data["face"] for record in got]:
            finding.broke("{} was not handed the last object, which stood in the ring when its writer died",
                          flow.target, at=last.at, node=flow.target)


def _judge_deaths(finding: Finding) -> None:
    """Whose wait a death has ended says so of that wait, and of no other one."""
    history = finding.history
    for node, failed in history.observed("queue-failed"):
        wait = history.records(node)[failed.number - 1]
        outcome = wait.data["outcome"] if wait.site == "queue-wait" else ""
        if outcome in _ENDED and _ENDED[outcome] != failed.data["error"].startswith(PeerDeadError.__name__):
            finding.broke("a wait of {} ended {}, by {}", node, outcome, failed.data["error"], at=wait.at, node=node)


def _judge_lost_payload(finding: Finding, node: str, puts: list[_Put], got: list[Record]) -> None:
    """One that the plan lost and that was overtaken is told of when it has had the time to come after all."""
    history = finding.history
    site = f"core.0->{node}/overflow"
    hit = next((hit for hit in history.faults.hit(Fate.DROP, channel="overflow") if hit.node == node), None)
    behind = [record for record in history.receives(site) if hit is not None and record.nth > hit.nth
              and history.faults.met(record) in (None, *STALL_FATES)]  # which came, and overtook it
    had = {record.data["face"] for record in got}
    if hit is None or not behind or all(put.face in had for put in puts if put.certain and put.readable):
        return
    told = next((record.at for record in got if record.data.get("error") and record.at > hit.at), None)
    if told is None:
        if node in history.by_node("bye"):
            finding.broke("{} was never told of a payload that was lost", node, at=hit.at, node=node)
        return
    since = behind[0].at
    if told - since < GAP_S - ROUNDING_S:
        finding.broke("{} gave a payload up after {} s, which may have come", node, told - since, at=told, node=node)
    else:
        finding.took("telling {} of a payload that was lost", node, bound=GAP_S + history.bounds.rpc_s, node=node,
                     measured=told - since - history.faults.frozen_s(node, since, told), at=told)


def _is_passed_over(finding: Finding, node: str, missing: list[_Put], errors: int, at: float) -> bool:
    lost = sum(put.certain for put in missing)
    unreadable = sum(not put.readable for put in missing)
    if lost > errors:
        finding.broke("{} did not get {} objects that were put in", node, lost - errors, at=at, node=node)
    elif errors > unreadable and not (finding.history.faults.receipts
                                      or node in finding.history.by_node("queue-interrupted")):
        finding.broke("{} could not read {} objects, of which {} cannot be read", node, errors, unreadable, at=at,
                      node=node)
    else:
        if unreadable:
            finding.witness("{} was told of {} unreadable objects, and read on", node, unreadable, at=at, node=node)
        return True
    return False


# -- how the ends find each other -------------------------------------------------------------------------------------


def check_queue_ends_meet(history: History) -> Finding:
    finding = Finding(history)
    for node, record in history.observed("queue-asked"):
        if record.data["answer"] != record.data["wanted"]:
            finding.broke("{} asked for {} and was answered {}, not {}", node, record.data["words"],
                          record.data["answer"], record.data["wanted"], at=record.at, node=node)
    for node, record in history.observed("queue-late"):
        _judge_late(finding, node, record)
    for node, record in history.observed("queue-ready"):
        _judge_ready(finding, node, record)
    if not history.faults.receipts:
        for _, record in history.observed("queue-memory"):
            _judge_memory(finding, record)
    return finding


def _came_at(history: History) -> dict[int, float]:
    return {record.data["rank"]: record.at for _, record in history.observed("queue-came")}


def _judge_late(finding: Finding, node: str, said: Record) -> None:
    """Who waits in vain is told at its deadline, and a writer of whom it waits for."""
    history, data, came = finding.history, said.data, _came_at(finding.history)
    late_s = data["ended"] - data["deadline"]
    if late_s < -ROUNDING_S:
        return finding.broke("a wait for the other ends ended before its deadline", at=said.at, node=node)
    if not finding.took("ending a wait for the other ends at its deadline", bound=_patience(history), node=node,
                        at=said.at, measured=late_s - _frozen(history, data["deadline"], data["ended"])):
        return
    named = re.search(r"(\d+) of (\d+) readers did not come, ranks \[(.*)\]", data["error"])
    if named is not None and not history.faults.receipts:
        told, everybody = {int(rank) for rank in named[3].split(", ") if rank}, set(range(int(named[2])))
        known = {rank for rank, at in came.items() if at < said.at - _patience(history)}
        late = everybody - (set() if _of_strangers(history) else known)
        missing = {rank for rank in everybody if came.get(rank, FOREVER) > said.at}
        if not missing <= told <= late or int(named[1]) != len(told):
            return finding.broke("{} said {} had not come, not {}", node, named[3], sorted(late), at=said.at, node=node)
    if node.startswith("core.") and named is None:
        return finding.broke("{} does not say who did not come: {}", node, data["error"], at=said.at, node=node)
    finding.witness("{} was told at its deadline that others were missing", node, at=said.at, node=node)


def _judge_ready(finding: Finding, node: str, said: Record) -> None:
    """All are there when a writer is ready, and soon when all are there; a reader is when its writer is."""
    history, came = finding.history, _came_at(finding.history)
    late_s = said.at - said.data["deadline"] - _frozen(history, said.data["deadline"], said.at)
    finding.took("being ready by a deadline", bound=min(_patience(history), history.bounds.detection_s), node=node,
                 at=said.at, measured=late_s)
    if node.startswith("core."):
        last = max((came.get(rank, FOREVER) for rank in range(said.data["readers"])), default=0.0)
        if last > said.at:
            return finding.broke("{} was ready before all of its readers had come", node, at=said.at, node=node)
        since = max([last, *(record.at for record in history.by_node("queue-late").get(node, ()))])
    else:
        writer = [record.at for other, record in history.observed("queue-ready") if other.startswith("core.")] \
            if history.simulated else [max(came.values(), default=FOREVER)]  # a writer says so when it has told them
        if not writer or min(writer) > said.at:
            if history.ends.at("core.0") > said.at:
                finding.broke("{} was ready before its writer", node, at=said.at, node=node)
            return
        mine = [record.at for name in ("queue-came", "queue-late") for record in history.by_node(name).get(node, ())]
        since = max(min(writer), *mine)
    finding.took("knowing that all ends are there", bound=_patience(history), node=node, at=said.at,
                 measured=said.at - since - _frozen(history, since, said.at))


def _patience(history: History) -> float:
    calm = history.simulated and not history.faults.receipts
    return PROMPT_S if calm else history.bounds.rpc_s + history.bounds.detection_s


def _frozen(history: History, since: float, until: float) -> float:
    return sum((history.faults.frozen_s(node, since, until) for node in history.nodes), 0.0)


def _layout(history: History) -> dict[str, int]:
    """Where everything is, from the beginning of the segment; `flags` of how many readers, `end` of all."""
    ring = history.play.config.ring
    readers = len(history.play.topology.engines[0].workers) - ("far" in history.play.options.queue)
    flags = ring.max_chunks * ring.max_chunk_bytes
    bells = _aligned(flags + ring.max_chunks * (1 + readers))
    presence = bells + 2 * LINE_BYTES
    return {"readers": readers, "chunks": ring.max_chunks, "flags": flags, "presence": presence,
            "end": _aligned(presence + ENTRY_BYTES * (1 + readers) + EPOCH_BYTES)}


def _of_strangers(history: History) -> bool:
    return history.play.options.queue == "strangers"


def _aligned(offset: int) -> int:
    return -(-offset // LINE_BYTES) * LINE_BYTES


def _judge_memory(finding: Finding, said: Record) -> None:
    """When all have read all: each chunk that was used is flagged by its writer and all readers, no other one is."""
    history, layout = finding.history, _layout(finding.history)
    tail, width = bytes.fromhex(said.data["tail"]), 1 + layout["readers"]
    if said.data["bytes"] != layout["end"]:
        return finding.broke("it has {} bytes, and its layout {}", said.data["bytes"], layout["end"], at=said.at)
    count = 1 + max((record.data["position"] or 0 for _, record in history.observed("queue-put-at")), default=-1)
    flags = [tail[chunk * width:(chunk + 1) * width] for chunk in range(layout["chunks"])]
    for chunk, one in enumerate(flags):
        abandoned = history.observed("queue-interrupted") and chunk == count % layout["chunks"]
        if not abandoned and (bool(one[0]) != (chunk < count) or one[1:] != bytes([chunk < count] * (width - 1))):
            return finding.broke("chunk {} has the flags {} after {} messages, which all have read", chunk, list(one),
                                 count, at=said.at)
    places = [chunk if one[0] == 1 else one[0] - 2 for chunk, one in enumerate(flags) if one[0]]
    if len(set(places)) < len(places) or any(not 0 <= place < layout["chunks"] for place in places):
        finding.broke("messages lie at the places {}: some at the same one, or at none", places, at=said.at)
    large = sum(MOVED_BYTES <= put.data["chunk"] < history.play.config.ring.max_chunk_bytes
                for _, put in history.observed("queue-put"))
    if history.simulated and large > 1 and not _of_strangers(history) and places == sorted(places):
        finding.broke("{} large messages lie at places of their own, and none where another one was read", large,
                      at=said.at)
    _judge_presence(finding, said, tail[layout["presence"] - layout["flags"]:], layout["readers"])


def _judge_presence(finding: Finding, said: Record, entries: bytes, readers: int) -> None:
    """Each end says which process it is; a stranger says nothing."""
    pids = {process.node: process.pid for process in finding.history.lab.processes}
    for place, name in enumerate(["core.0", *(f"worker.{rank}" for rank in range(readers))]):
        entry = _ENTRY.unpack_from(entries, place * ENTRY_BYTES)
        strange, left = place and _of_strangers(finding.history), name in finding.history.by_node("queue-left")
        wanted = (0, int(left)) if strange or left else (pids[name], 0)
        if entry[:2] != wanted:
            finding.broke("{} is said to be process {}, and is {}", name, entry, wanted[0], at=said.at)


GUARANTEES: tuple[Guarantee, ...] = (
    Guarantee(
        id="queue-hands-over", chapter=CHAPTER, source="this project", applies=is_of_a_queue,
        check=check_queue_hands_over,
        sentence="Every reader of a queue gets each object that was put in, once, in order, equal to what it was, and "
                 "what it keeps stays so; what cannot be read is one error, and the queue goes on behind it. Large "
                 "buffers travel beside the pickle.",
        wrong="lets a reader's object lie in a buffer that the next message is received into",
        witness="an object came with buffers beside its pickle, or one that cannot be read was told of",
        envelope=Envelope(outside=(MEMORY, _CHANGED)),
    ),
    Guarantee(
        id="queue-counts", chapter=CHAPTER, source="this project", applies=is_of_a_queue, check=check_queue_counts,
        sentence="An end of a queue counts its messages, bytes and waits as they were, and its check finds what is "
                 "wrong in the ring and nothing else.",
        wrong="counts a wait twice, or takes damaged flags for whole ones",
        witness="an end had waited and counted it, or saw damage that was done to its ring",
        envelope=Envelope(outside=(MEMORY, _LOST)),
    ),
    Guarantee(
        id="queue-ends-meet", chapter=CHAPTER, source="this project", applies=is_of_a_queue,
        check=check_queue_ends_meet,
        sentence="The ends of a queue find each other: a handle leads a rank to its own place or refuses it, the "
                 "memory is laid out as documented, no end is ready before all are there, and who waits for the others "
                 "in vain is told at its deadline who is missing.",
        wrong="counts subscriptions of readers that have gone again, or lets a rank in that nobody gave a place",
        witness="an end had waited in vain, and was told in time who was missing",
        envelope=Envelope(outside=(MEMORY,)),
    ),
)
