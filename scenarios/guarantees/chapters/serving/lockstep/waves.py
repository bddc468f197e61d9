"""Promises about cores that step together: what they do in turn, and when they run and rest."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from engine.topology import Channel, Mark, NodeKind
from faults.journal import Record
from scenarios.guarantees.base import DEATHS, MESSAGE, STALLS, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.serving.cores import CHAPTER
from scenarios.guarantees.readers.group.lockstep import FORWARD, Group, Rank, groups, is_lockstep, is_offline, is_woken
from scenarios.history.history import FOREVER, Fate, History
from scenarios.law.carried import carried

SOURCE = "vLLM V1 data-parallel engine core"
_DONE, _PAUSED = Mark.WAVE_DONE.value, Mark.PAUSED.value


# -- what they do in turn


def check_collectives_equal(history: History) -> Finding:
    finding = Finding(history)
    doubled = history.faults.hit(Fate.DUPLICATE, channel=Channel.REQUESTS.value)
    if any(carried(history, hit) is None for hit in doubled):
        return finding  # one rank may have been asked for more steps than another one
    for group in groups(history):
        _judge_turns(finding, group)
        for rank in group.ranks:
            _judge_own(finding, rank)
        for place in range(len(group.ranks[0].places)):
            _judge_places(finding, group, "forward", {rank.places[place]: rank.forwards(place)
                                                      for rank in group.ranks})
        _judge_places(finding, group, "all-reduce", {rank.core: rank.sums for rank in group.ranks})
        _judge_answers(finding, group)
        forwards = [[turn.dummy for turn in rank.turns if turn.kind == FORWARD] for rank in group.ranks]
        mixed = sum(len(set(dummies)) > 1 for dummies in zip(*forwards, strict=False))
        if mixed:
            finding.witness("{} forwards were dummy ones of some ranks of {} and had tokens of others", mixed,
                            group.title, times=mixed)
    return finding


def _judge_turns(finding: Finding, group: Group) -> None:
    longest = max(group.ranks, key=lambda rank: len(rank.turns))
    for rank in group.ranks:
        for place, (mine, theirs) in enumerate(zip(rank.turns, longest.turns, strict=False)):
            if mine.kind != theirs.kind:
                finding.broke("{} came to {} in its turn {}, and {} to {}", rank.core, mine.kind, place, longest.core,
                              theirs.kind, at=mine.record.at, node=rank.core)
                return


def _judge_own(finding: Finding, rank: Rank) -> None:
    """Who comes to an all-reduce has had executed what came before it, but for what may be in flight."""
    in_flight = finding.history.play.config.batch_queue_size - 1
    entered = [[record.at for record in rank.forwards(place)] for place in range(len(rank.places))]
    forwards = 0
    for turn in rank.turns:
        if turn.kind == FORWARD:
            forwards += 1
            continue
        for node, times in zip(rank.places, entered, strict=True):
            executed = bisect_right(times, turn.record.at)
            if executed + in_flight < forwards:
                finding.broke("{} came to an all-reduce behind {} forwards, and {} had executed {}", rank.core,
                              forwards, node, executed, at=turn.record.at, node=node)
                return


def _judge_places(finding: Finding, group: Group, what: str, came: dict[str, list[Record]]) -> None:
    longest = max(came, key=lambda node: len(came[node]))
    for node, records in came.items():
        for count, (mine, theirs) in enumerate(zip(records, came[longest], strict=False)):
            if _where(mine) != _where(theirs):
                finding.broke("{} of {} was at wave {}, step {} in {}, and at wave {}, step {} in {}", what, count,
                              *_where(mine), node, *_where(theirs), longest, at=mine.at, node=node)
                return


def _where(record: Record) -> tuple[int, int]:
    return record.data["wave"], record.data["step"]


def _judge_answers(finding: Finding, group: Group) -> None:
    adds_up = finding.history.play.config.data_parallel.wave_protocol == "new"
    for sums in zip(*(rank.sums for rank in group.ranks), strict=False):
        votes = [record.data["votes"] for record in sums]
        wanted = [sum(column) if adds_up else max(column) for column in zip(*votes, strict=True)]
        for rank, record in zip(group.ranks, sums, strict=True):
            if record.data["answer"] != wanted:
                finding.broke("{} took {} for what all ranks have left to do, and that was {}", rank.core,
                              record.data["answer"], wanted, at=record.at, node=rank.core)
                return


# -- the number of a wave

#: Why a coordinator says START in a wave that is its core's, and may seem over to itself: it was asked to.
_PASSED_ON = "start-wave"


def check_wave_monotone(history: History) -> Finding:
    finding = Finding(history)
    for group in groups(history):
        for rank in group.ranks:
            _judge_waves(finding, rank)
            for place, node in enumerate(rank.places):
                _judge_falls(finding, node, rank.forwards(place))
        said = [record for name in ("start", "notice") for record in history.by_node(name).get(group.hub, ())
                if name == "notice" or record.data["cause"] != _PASSED_ON]
        _judge_falls(finding, group.hub, sorted(said, key=lambda record: record.number))
    return finding


def _judge_falls(finding: Finding, node: str, records: list[Record]) -> None:
    for before, after in zip(records, records[1:], strict=False):
        if after.data["wave"] < before.data["wave"]:
            finding.broke("{} was in wave {}, and in wave {} after it", node, before.data["wave"],
                          after.data["wave"], at=after.at, node=node)
            return


def _judge_waves(finding: Finding, rank: Rank) -> None:
    wave = 0
    for name, record in rank.told():
        data = record.data
        if name == "request":
            continue  # with what its client believes
        now = data.get("at" if name == "start-heard" else "wave", wave) + (name == _DONE)
        if name == "start-heard" and data["wave"] < wave:
            if data["runs"]:
                finding.broke("{} runs by START of wave {}, and was in wave {}", rank.core, data["wave"], wave,
                              at=record.at, node=rank.core)
            else:
                finding.witness("START of wave {} came to {} in wave {}", data["wave"], rank.core, wave, at=record.at,
                                node=rank.core)
        if now < wave:
            finding.broke("{} was in wave {}, and in wave {} after it", rank.core, wave, now, at=record.at,
                          node=rank.core)
            return
        wave = now


# -- who is woken


class _Arrival(NamedTuple):
    """A request that came to a rank at rest, before that wave."""

    rank: Rank
    record: Record
    wave: int


def check_work_wakes_all(history: History) -> Finding:
    finding = Finding(history)
    for group in groups(history):
        for arrival in _arrivals(group):
            for rank in group.ranks:
                _judge_woken(finding, group, arrival, rank)
    return finding


def _arrivals(group: Group) -> Iterator[_Arrival]:
    for rank in group.ranks:
        rests, paused, wave = True, False, 0
        for name, record in rank.told():
            data = record.data
            if name == "consensus":
                rests, paused = not data["running"], False
            elif name == _DONE:
                wave = data["wave"] + 1
            elif name == _PAUSED:
                paused = True
            elif name == "start-heard":
                wave, rests = max(wave, data["at"]), rests and not data["runs"]
            elif name == FORWARD:
                rests = False
            elif name == "request" and data["action"] == "add":
                if rests and not paused:
                    yield _Arrival(rank, record, wave)
                rests = False


def _judge_woken(finding: Finding, group: Group, arrival: _Arrival, rank: Rank) -> None:
    history, since = finding.history, arrival.record.at
    bound = history.bounds.step_s + history.bounds.detection_s
    first = next((record for record in rank.forwards() if record.data["wave"] >= arrival.wave), None)
    if first is not None:
        took = first.at - since - history.faults.frozen_s(rank.core, since, first.at, *group.nodes)
        kept = finding.took("{} executed nothing of wave {}, for which {} had a request: that", rank.core,
                            arrival.wave, arrival.rank.core, bound=bound, measured=took, at=first.at, node=rank.core)
        if kept and any(record.data["runs"] and record.data["at"] == arrival.wave
                        for name, record in rank.told() if name == "start-heard"):
            finding.witness("{} executed {:.4f} s after a request had come to {} at rest", rank.core, took,
                            arrival.rank.core, at=first.at, node=rank.core)
        return
    if any(receipt.fate in DEATHS and receipt.at <= since + bound for receipt in history.faults.receipts):
        return
    told = [found for each in group.ranks if (found := history.told_at(each.engine, since)) is not None]
    if told and min(told)[0] < history.group_closing_at(rank.engine):
        finding.broke("{} had a request at rest, and {} executed nothing until their client was told of a death",
                      arrival.rank.core, rank.core, at=min(told)[0], node=rank.core)
    elif history.closing_at(rank.engine) > since + bound:
        finding.hangs("that {} executes what {} had a request for", rank.core, arrival.rank.core, bound=bound,
                      since=since, node=rank.core)


# -- when they rest


class _Quiet(NamedTuple):
    """From the end of the last request of all ranks to the next one."""

    since: float
    until: float


def check_quiet_when_idle(history: History) -> Finding:
    finding = Finding(history)
    options = history.play.config.data_parallel
    most = options.sync_interval + history.play.config.batch_queue_size - 1
    for group in groups(history):
        for quiet in _quiets(group):
            if any(_asked_to_pause(rank, quiet) for rank in group.ranks):
                continue
            for rank in group.ranks:
                dummies = [turn.record for turn in rank.turns
                           if turn.dummy and quiet.since < turn.record.at < quiet.until]
                if len(dummies) > most:
                    finding.broke("{} executed {} dummy batches behind the end of the last request of all ranks, and "
                                  "all-reduces are {} steps apart", rank.core, len(dummies), options.sync_interval,
                                  at=dummies[most].at, node=rank.core)
                    return finding
                for wave, at in _dummies_alone(rank):
                    if quiet.since <= at <= quiet.until:
                        finding.witness("wave {} ended, in which {} had executed dummy batches only", wave, rank.core,
                                        at=at, node=rank.core)
                if some := _dummies_behind(rank, quiet) if not group.hub else 0:
                    finding.witness("{} had executed {} dummy batches behind its own last request", rank.core, some,
                                    at=quiet.since, node=rank.core)
        for rank in group.ranks if is_offline(history.play) and not history.faults.receipts else ():
            _judge_client(finding, rank)
    return finding


def _judge_client(finding: Finding, rank: Rank) -> None:
    """Its own one hears from it that all rest."""
    history = finding.history
    for client in history.of_kind(NodeKind.FRONTEND):
        for closing in history.by_node("closing").get(client, ()) if rank.engine in history.engines_of(client) else ():
            rested = [record.at for record in history.by_node("wave-complete").get(rank.core, ())
                      if record.at <= closing.at - history.bounds.detection_s]
            asked = [operation.began_at for operation in history.operations if operation.node == client]
            if rested and closing.data.get("unfinished") and max(asked, default=0.0) < rested[-1]:
                finding.broke("{} has told {} that a wave was over, which asked nothing since, and believed it at work",
                              rank.core, client, at=closing.at, node=client)


def _dummies_behind(rank: Rank, quiet: _Quiet) -> int:
    """How many it had executed for others alone, before all rested."""
    freed = [record.at for name, record in rank.told() if name == "freed" and record.at <= quiet.since]
    return sum(turn.dummy and freed[-1] < turn.record.at < quiet.since for turn in rank.turns) if freed else 0


def _quiets(group: Group) -> Iterator[_Quiet]:
    changes = []  # of all ranks by time; a request that comes while another one ends comes first
    for rank in group.ranks:
        for name, record in rank.told():
            if name == "request" and record.data["action"] == "add":
                changes.append((record.at, 0, record.data["request"]))
            elif name == "freed":
                changes.append((record.at, 1, record.data["request"]))
    living: set[str] = set()
    since: float | None = None
    for at, ended, request in sorted(changes):
        if not ended:
            if since is not None:
                yield _Quiet(since, at)
            living.add(request)
            since = None
        else:
            living.discard(request)
            since = at if not living else None
    if since is not None:
        yield _Quiet(since, FOREVER)


def _asked_to_pause(rank: Rank, quiet: _Quiet) -> bool:
    """Whether it asks so in what it enters then, or next: who is to pause executes until all ranks agree to."""
    for record in rank.sums:
        if record.at >= quiet.since and record.data["votes"][1:] not in ([], [0]):
            return True
        if record.at >= quiet.until:
            return False
    return False


def _dummies_alone(rank: Rank) -> Iterator[tuple[int, float]]:
    """(wave, when it ended) of waves in which it had dummy batches, and nothing else."""
    dummies = works = 0
    marks = {record.number: record for record in rank.passed(Mark.WAVE_DONE)}
    turns = {turn.record.number: turn for turn in rank.turns if turn.kind == FORWARD}
    for number in sorted({*marks, *turns}):
        if number in turns:
            dummies, works = dummies + turns[number].dummy, works + (not turns[number].dummy)
        else:
            if dummies and not works:
                yield marks[number].data["wave"], marks[number].at
            dummies = works = 0


# -- when they are told to


def judge_rest(finding: Finding) -> None:
    """From the moment when a rank rests to the one when all have been told to go on, it executes nothing."""
    for group in groups(finding.history):
        for rank in group.ranks:
            forwards = [(record, place) for place in range(len(rank.places)) for record in rank.forwards(place)]
            for paused in rank.passed(Mark.PAUSED):
                over_at = _all_go_on_at(group, sum(entry.number < paused.number for entry in rank.all_reduces))
                for record, place in forwards:
                    if paused.at < record.at < over_at:
                        finding.broke("{} executed a forward {:.4f} s after {} had come to rest with all ranks",
                                      rank.places[place], record.at - paused.at, rank.core, at=record.at,
                                      node=rank.places[place])
                        return
                asked = [record for name, record in rank.told() if paused.at < record.at < over_at
                         and (name == "start-heard" or (name == "request" and record.data["action"] == "add"))]
                if asked:
                    finding.witness("{} requests and STARTs came to {} while all ranks rested", len(asked), rank.core,
                                    at=asked[0].at, node=rank.core)


def _all_go_on_at(group: Group, turn: int) -> float:
    """When the last of them entered that all-reduce, which is the next one of them all."""
    return max(rank.all_reduces[turn].at if turn < len(rank.all_reduces) else FOREVER for rank in group.ranks)


GUARANTEES = (
    Guarantee(
        id="dp-collectives-equal", chapter=CHAPTER, source=SOURCE, check=check_collectives_equal, applies=is_lockstep,
        sentence="Cores that step together execute as many forwards between two all-reduces, dummy ones where they "
                 "have no work; each one's n-th forward and n-th all-reduce are of the same wave and step, and all "
                 "take the same answer for what is left to do.",
        wrong={"dummies": "leaves a forward out where it has no work",
               "steps": "lets a rank add up what is left to do at steps of its own",
               "answer": "takes what it has to do itself for what all have to do"},
        witness="a dummy batch of one rank was a forward with tokens of another one",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-wave-monotone", chapter=CHAPTER, source=SOURCE, check=check_wave_monotone, applies=is_lockstep,
        sentence="No process's wave falls, and START of a wave that is over starts nothing.",
        wrong={"falls": "takes over the number of whatever START it hears",
               "starts": "runs by any START, whichever wave it is of"},
        witness="a START came to a rank in a later wave than its own",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-work-wakes-all", chapter=CHAPTER, source=SOURCE, check=check_work_wakes_all, applies=is_woken,
        sentence="When a request comes to a rank of a group at rest, every rank executes a forward within a step's "
                 "bound and the detection bound, also where START was lost, unless a process of theirs has died.",
        wrong={"start": "tells no other rank that one has work",
               "repeat": "says START once, whether it is heard or not"},
        witness="a rank without a request of its own was woken by one that came to another",
        envelope=Envelope(outside=(
            Where(STALLS, passing=False, why="who stands still for good executes nothing: see stall-is-told"),
            *(Where(frozenset({Fate.CUT}), sites=f"*/{channel.value}:wire", passing=False,
                    why="whom nothing reaches is missed by the others: the group ends, by name")
              for channel in (Channel.WAVE, Channel.REPORT)),
            Where(MESSAGE, sites=f"*/{Channel.REQUESTS.value}:*", why="a call to pause may reach one rank alone"))),
    ),
    Guarantee(
        id="dp-quiet-when-idle", chapter=CHAPTER, source=SOURCE, check=check_quiet_when_idle, applies=is_lockstep,
        sentence="When the last request of all ranks has ended, no rank executes more dummy batches than there are "
                 "from one all-reduce to the next; offline each client knows by then that all rest.",
        wrong={"sum": "goes on whatever all ranks have left to do",
               "interval": "asks more seldom than configured whether anything is left to do",
               "offline": "leaves its own client in the belief that its group is at work"},
        witness="a wave ended in which a rank had executed dummy batches only, or, where nobody wakes it, some behind "
                "its own last request",
        envelope=Envelope(),
    ),
)
