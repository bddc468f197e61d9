"""Promises about cores that step together, one of which does not come."""

from __future__ import annotations

from engine.topology import NodeKind
from scenarios.guarantees.base import Envelope, Finding, Guarantee
from scenarios.guarantees.readers.group.lockstep import Group, Rank, groups, is_lockstep, is_offline
from scenarios.history.history import FOREVER, EngineLife, History, Record
from scenarios.history.names import base
from scenarios.history.operations import Absence

CHAPTER, SOURCE = "Data parallelism", "vLLM V1 data-parallel engine core; what an operator has to be told"

#: In the twin, where a turn takes no time but its own.
_AT_ONCE_S = 0.005


def check_missing_is_named(history: History) -> Finding:
    finding = Finding(history)
    for group in groups(history):
        for rank in group.ranks:
            _judge(finding, group, rank)
            _judge_prompt(finding, group, rank)
            _judge_open(finding, rank)
    return finding


def _judge(finding: Finding, group: Group, rank: Rank) -> None:
    """What it says of those that did not come, each time that it left without an answer."""
    history, bounds = finding.history, finding.history.bounds
    for failed in history.by_node("consensus-failed").get(rank.core, ()):
        turns = [record for record in rank.all_reduces if record.number < failed.number]
        if not turns:
            continue
        absent = {base(other.core): since for other in group.ranks if other is not rank
                  if (since := _absent_since(history, other, len(turns), failed.at)) < FOREVER}
        blamed = failed.data["blamed"]
        title = f"{turns[-1].data['operation']}, turn {len(turns) + 1} of {turns[-1].data['group']}: "
        if not failed.data["reason"].startswith((title, "group ")):
            finding.broke("{} left {}by {}", rank.core, title, failed.data["reason"], at=failed.at, node=rank.core)
            return
        _judge_words(finding, group, rank, failed, len(turns))
        said = failed.data["reason"].partition(": ")[2]
        if unsaid := [name for name in blamed if name not in said]:
            finding.broke("{} left an all-reduce because of {}, and said only {!r}", rank.core, " and ".join(unsaid),
                          said, at=failed.at, node=rank.core)
        if innocent := [name for name in blamed if name not in absent]:
            finding.broke("{} left an all-reduce because of {}, which waited in it itself", rank.core,
                          " and ".join(innocent), at=failed.at, node=rank.core)
        elif absent and not blamed:
            finding.broke("{} left an all-reduce and named nobody; {} did not come", rank.core,
                          " and ".join(sorted(absent)), at=failed.at, node=rank.core)
        elif absent:
            knows_at = turns[-1].at + max(0.0, min(since - turns[-1].at for since in absent.values()))
            knows_at = min(knows_at, turns[-1].at + bounds.collective_s)
            if finding.took("leaving an all-reduce in which {} waited for {}", rank.core, " and ".join(blamed),
                            bound=bounds.detection_s, at=failed.at, node=rank.core, measured=failed.at - knows_at):
                finding.witness("{} waited in vain, and named {}", rank.core, " and ".join(blamed), at=failed.at,
                                node=rank.core)


#: How it may say that others did not come: whether these had entered, whether these had died, and gave up.
_WAYS = {" died before it entered": (False, True, None), " died in it": (True, True, None),
         " did not enter": (False, None, False), " gave up": (None, None, True)}


def _judge_words(finding: Finding, group: Group, rank: Rank, failed: Record, turns: int) -> None:
    """What it says of those that it names is so.

    Of real processes connections end first: another one knows of an end before who waits for the process; and who gives
    up has told the others before it writes down that it did. Who enters has written that down before it tells them, and
    may have been struck in between.
    """
    history = finding.history
    slack = history.slack_s
    seen_by = failed.at + slack
    for part in failed.data["reason"].partition(": ")[2].partition(" within ")[0].split(", and "):
        way = next((way for way in _WAYS if part.endswith(way)), None)
        for other in group.ranks if way else ():
            if base(other.core) not in part.removesuffix(way or "").split(" and "):
                continue
            entered, died, gave_up = _WAYS[way or ""]
            if _is_struck_as_it_comes(history, other, turns, failed.at):
                entered = None
            came_by, left_by = failed.at - (0.0 if entered else slack), failed.at + (slack if gave_up else -slack)
            has_died = history.ends.at(other.core) <= seen_by
            left_at = _gave_up_at(history, other.core) if gave_up else _gives_up_at(history, other.core)
            has_left = any(at <= left_by for at in left_at) or (
                bool(gave_up and slack) and has_died)  # before it had written that down
            is_so = (_came(history, other, came_by) >= turns, has_died, has_left)
            if any(said not in (None, so) for said, so in zip((entered, died, gave_up), is_so, strict=True)):
                finding.broke("{} said that {}, which was not so", rank.core, part, at=failed.at, node=rank.core)


def _gave_up_at(history: History, core: str) -> list[float]:
    """When it goes no further, which it may tell the others at once."""
    return [record.at for name in ("dying", "consensus-failed") for record in history.by_node(name).get(core, ())]


def _gives_up_at(history: History, core: str) -> list[float]:
    """By when it has told them: behind whatever holds it up on its way there."""
    return [max([at, *(stall.until for stall in history.faults.stalls
                       if stall.node == core and at <= stall.at <= at + history.bounds.detection_s)])
            for at in _gave_up_at(history, core)]


def _came(history: History, rank: Rank, until: float) -> int:
    """To so many all-reduces by then."""
    return sum(at < until for at in history.faults.through_at(rank.core, rank.all_reduces))


def _is_struck_as_it_comes(history: History, rank: Rank, turns: int, until: float) -> bool:
    """Whether it died, or is stopped until then, so close to its entry that nobody knows whether it told of that."""
    slack = history.slack_s
    struck_at = [history.ends.at(rank.core), *(stall.at for stall in history.faults.stalls
                                               if stall.node == rank.core and stall.until > until - slack)]
    return bool(slack) and any(abs(at - entered.at) < slack for entered in rank.all_reduces[turns - 1:turns]
                               for at in struck_at)


def _judge_prompt(finding: Finding, group: Group, rank: Rank) -> None:
    """Who waits for one that has died before it came leaves at once: in the twin, where its own end is not as fast."""
    history = finding.history
    answers = sorted(record.at for record in (*rank.sums, *history.by_node("consensus-failed").get(rank.core, ()),
                                              *history.by_node("dying").get(rank.core, ())))
    for place, entered in enumerate(rank.all_reduces if history.simulated else ()):
        until = next((at for at in answers if at >= entered.at), history.ends.at(rank.core))
        for other in group.ranks:
            died_at = history.ends.at(other.core)
            late = min(until, history.ended_at) - max(died_at, entered.at)
            if other is not rank and _came(history, other, FOREVER) <= place and died_at < until:
                finding.took("leaving an all-reduce to which {} could not come any more, in {},", other.core, rank.core,
                             bound=_AT_ONCE_S, at=until, node=rank.core, measured=late - history.faults.frozen_s(
                                 rank.core, max(died_at, entered.at), until))


def _absent_since(history: History, other: Rank, turns: int, at: float) -> float:
    """From when on it could be known that this one brings nothing to that turn; infinite where it was there."""
    node = other.core
    gone_at = min([history.ends.at(node), *_gives_up_at(history, node)])
    if gone_at <= at + history.slack_s:  # it may have died as it gave up
        return min(gone_at, at)
    patience = history.bounds.collective_s
    stopped = [stall.at + patience for stall in history.faults.stalls  # what is long over explains nothing
               if stall.node == node and stall.at <= at and stall.until > at - history.bounds.detection_s]
    there = [record.at for record in other.all_reduces][turns - 1:turns]
    if stopped or not there or there[0] > at - history.bounds.detection_s:
        return min([at, *stopped])
    return FOREVER


def _judge_open(finding: Finding, rank: Rank) -> None:
    """Nobody waits for ever."""
    history, bounds = finding.history, finding.history.bounds
    over = len(rank.sums) + len(history.by_node("consensus-failed").get(rank.core, ()))
    for entered in rank.all_reduces[over:over + 1]:
        until = min(history.ended_at, history.ends.at(rank.core), history.closing_at(rank.engine))
        stopped = any(stall.node == rank.core and stall.until > entered.at for stall in history.faults.stalls)
        dying = history.by_node("dying").get(rank.core, ())
        if not stopped and not dying and until > entered.at + bounds.collective_s + bounds.detection_s:
            finding.took("waiting in an all-reduce for others that did not come, in {},", rank.core,
                         bound=bounds.collective_s + bounds.detection_s, measured=until - entered.at, at=until,
                         node=rank.core)


def check_offline_ends(history: History) -> Finding:
    finding = Finding(history)
    waves: dict[tuple[int, int], list[Absence]] = {}
    for absence in history.absences:
        waves.setdefault((absence.engine.life, absence.wave), []).append(absence)
    for absences in waves.values():
        _judge_vain(finding, absences)
    return finding


def _judge_vain(finding: Finding, absences: list[Absence]) -> None:
    """What clients were told of a wave to which some did not come, whose own clients had asked nothing."""
    history, bounds, since = finding.history, finding.history.bounds, absences[0].since
    bound = bounds.collective_s + bounds.detection_s
    missed = [base(place) for one in absences for place in Rank(history, one.engine).places]
    told: list[tuple[Record, str, EngineLife]] = []
    for engine in absences[0].others:
        for client in history.of_kind(NodeKind.FRONTEND):
            if engine not in history.engines_of(client):
                continue
            heard = history.heard_of("engine-dead", engine, client)
            until = heard[0][1].at if heard else since + bound
            struck = any(receipt.at <= until and engine in history.joined(history.engine_of(receipt.node))
                         for receipt in history.faults.receipts)
            if struck or history.group_closing_at(engine) <= until or history.ends.at(client) <= until:
                continue
            if not heard:
                finding.hangs("a wave of {} without {}", engine.core, " and ".join(missed), bound=bound, since=since,
                              node=client)
            elif finding.took("telling {} that a wave of {} has no end", client, engine.core, bound=bound, at=until,
                              measured=until - since, node=client):
                told.append((heard[0][1], client, engine))
    for first, client, engine in sorted(told, key=lambda one: one[0].at)[:1]:  # later ones may tell of this one
        if any(name in first.data["reason"] for name in missed):
            finding.witness("{} was told that {} misses {}", client, engine.core, " and ".join(missed), at=first.at,
                            node=client)
        else:
            finding.broke("{} waited for {}, and its client was told {!r}", engine.core, " and ".join(missed),
                          first.data["reason"], at=first.at, node=client)


GUARANTEES = (
    Guarantee(
        id="dp-missing-is-named", chapter=CHAPTER, source=SOURCE, check=check_missing_is_named, applies=is_lockstep,
        sentence="Who waits in vain for another core in an all-reduce leaves it within its bound, by the name of one "
                 "that did not come, and never of one that waits itself.",
        wrong={"bound": "waits for others as long as they take", "named": "names all others, those that wait too"},
        witness="a core waited for another one that did not come, and named it",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-offline-ends", chapter=CHAPTER, source=SOURCE, check=check_offline_ends, applies=is_offline,
        sentence="A wave to which a rank does not come, since nobody wakes it and its client asks nothing, ends for "
                 "the clients of all others within the bound of a collective; the first one is told who is missed.",
        wrong="waits for it as long as a step may take, and says that its own worker is late",
        witness="a rank was asked nothing in a wave of others, and their clients were told of it",
        envelope=Envelope(),
    ),
)
