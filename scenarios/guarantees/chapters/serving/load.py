"""Promises about which of several cores gets a request: the one that is asked for, else one with less to do."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Any

from engine.messages import Outcome
from engine.topology import NodeKind
from scenarios.guarantees.base import Envelope, Finding, Guarantee
from scenarios.guarantees.chapters.serving.cores import CHAPTER, SOURCE, has_several
from scenarios.guarantees.readers.chooser import Chooser
from scenarios.history.history import EngineLife, History, Record
from scenarios.history.operations import Operation
from scenarios.history.play import Play
from scenarios.history.records import FOREVER

#: A core whose cache is fuller than that may be passed over for it.
_HALF = 0.5


def has_counts(play: Play) -> bool:
    """Whether a coordinator's counts reach a client that chooses by the score that counts both."""
    return play.config.data_parallel.score == "new" and any(
        len(client.engines) > 1 and play.topology.coordinators_of(client.engines) for client in play.topology.clients)


def check_burst_spreads(history: History) -> Finding:
    finding = Finding(history)
    groups: dict[tuple[EngineLife, ...], list[str]] = {}
    for client in history.of_kind(NodeKind.FRONTEND):
        groups.setdefault(history.engines_of(client), []).append(client)
    for cores, clients in groups.items():
        if len(cores) == 1:
            continue
        for burst in _bursts(history, clients):
            share = -(-len(burst) // len(cores))
            chosen = Counter(core for core, is_asked_for in burst if not is_asked_for)
            most, given = chosen.most_common(1)[0] if chosen else (0, 0)
            if given > share + len(clients):
                finding.broke("of a burst of {} requests to {} idle cores {} got {}", len(burst), len(cores),
                              f"core.{most}", given, node=clients[0])
            elif chosen.total() >= 2 * len(cores) * len(clients):
                finding.witness("of a burst of {} requests to {} idle cores none got more than {}", len(burst),
                                len(cores), given, node=clients[0])
    return finding


def _bursts(history: History, clients: list[str]) -> list[list[tuple[int, bool]]]:
    """Which cores (and whether they were asked for by rank) got what these clients asked before anything of it had
    ended, each time when nothing was open, and while all of the cores were there."""
    changes: list[tuple[int, tuple[int, bool] | None]] = []  # by number: who got a request, or None for an end
    for o in history.operations:
        if o.node in clients and o.accepted is not None:
            changes.append((o.accepted.number, (history.asked_of(o).engine, rank_of(o) is not None)))
            changes += [(end.number, None) for end in o.ends[:1]]
    dead = {record.number for node, record in history.observed("engine-dead") if node in clients}
    gone_at = min(goes_at(history, core) for core in history.engines_of(clients[0]))
    dead |= {o.accepted.number - 1 for o in history.operations
             if o.node in clients and o.accepted is not None and o.accepted.at >= gone_at}
    found: list[list[tuple[int, bool]]] = []
    still_open, begins = 0, True
    for number, core in sorted(changes, key=lambda change: change[0]):
        if any(told < number for told in dead):
            break
        if core is None:
            still_open, begins = still_open - 1, False
        else:
            if not still_open:
                found.append([])
                begins = True
            if begins:
                found[-1].append(core)
            still_open += 1
    return found


def goes_at(history: History, core: EngineLife) -> float:
    """From when on a client may know that this core is on its way out: it may hear so before the core has gone."""
    end = history.ends.get(core.core)
    said = history.by_node("dying").get(core.core, ())
    return min([record.at for record in said[:1]] + ([end.onset] if end is not None else []), default=FOREVER)


def rank_of(operation: Operation) -> Any:
    """The core that its caller asked for."""
    return None if operation.call is None else operation.call.data.get("rank")


def check_rank_as_asked(history: History) -> Finding:
    finding = Finding(history)
    asked: list[tuple[Operation, int]] = []
    for o in history.operations:
        cores = history.engines_of(o.node)
        rank = rank_of(o)
        if len(cores) == 1 or o.accepted is None or rank is None:
            continue
        got = history.asked_of(o)
        if rank not in range(len(cores)) or cores[rank] != got:
            finding.broke("request {!r} asked for rank {}, and {} got it", o.request, rank, got.core, at=o.began_at,
                          node=o.node)
        asked.append((o, rank))
    if len(asked) > 1 and len({rank for _, rank in asked}) == 1:
        finding.witness("{} requests asked for rank {}, and it got them", len(asked), asked[0][1], times=len(asked))
    return finding


def check_counts_used(history: History) -> Finding:
    finding = Finding(history)
    for client in history.of_kind(NodeKind.FRONTEND):
        cores = history.engines_of(client)
        if len(cores) > 1:
            _judge_choices(finding, client, cores)
    return finding


def _judge_choices(finding: Finding, client: str, cores: tuple[EngineLife, ...]) -> None:
    """Each choice beside what its client had been told by then, and what it had sent and was done with since."""
    history = finding.history
    view = _View(cores, history.coordinated(cores[0]), len(history.play.topology.clients_of(cores[0].engine)))
    for record, operation in _in_order(history, client):
        if operation is not None and record is operation.accepted:
            core = history.asked_of(operation)
            if rank_of(operation) is None and view.told:
                _judge_choice(finding, operation, core, view, record.at)
            view.since[core] += 1
            view.own[core] += 1
        elif operation is not None:
            view.own[history.asked_of(operation)] -= 1
            view.done[history.asked_of(operation)] += 1
        elif "counts" in record.data:
            view.hear(record)
        else:  # of whichever: that it cannot be reached, or has died
            view.shunned |= {core for core in cores if record.data.get("core", core.engine) == core.engine}


class _View:
    """What a client knows of its cores."""

    def __init__(self, cores: tuple[EngineLife, ...], counted: tuple[EngineLife, ...], clients: int) -> None:
        """`counted`: those that it is told of, in that order, others' cores among them."""
        self.cores, self.counted, self.clients = cores, counted, clients
        self.told: dict[EngineLife, int] = {}  # requests there, waiting and running
        self.full: set[EngineLife] = set()  # with more than half of the cache in use
        self.since: Counter[EngineLife] = Counter()  # sent there since it was told
        self.done: Counter[EngineLife] = Counter()  # done with since
        self.own: Counter[EngineLife] = Counter()  # in flight there
        self.shunned: set[EngineLife] = set()  # dead, or not to be reached once

    def hear(self, record: Record) -> None:
        of_all = dict(zip(self.counted, record.data["counts"], strict=True))
        counts = {core: of_all[core] for core in self.cores}
        self.told = {core: waiting + running for core, (waiting, running, _) in counts.items()}
        self.full = {core for core, (_, _, cache) in counts.items() if cache > _HALF}
        self.since, self.done = Counter(), Counter()

    def least(self, core: EngineLife) -> int:
        """So many requests there are at least, as far as it was told."""
        return self.told[core] - self.done[core]

    def most(self, core: EngineLife) -> int:
        """And no more than so many, if others send as much as it does."""
        return max(self.clients * self.own[core], self.told[core] + self.clients * self.since[core])


def _in_order(history: History, client: str) -> list[tuple[Record, Operation | None]]:
    """What it says that it was told, chose and was done with. Of an abort it may go before it has told the end."""
    found: list[tuple[Record, Operation | None]] = []
    for o in history.operations:
        if o.node == client and o.accepted is not None:
            done = o.ends[:1] or [record for record in (o.abort,) if record is not None]
            found += [(record, o) for record in (o.accepted, *done)]
    for name in ("view", "engine-dead", "unroutable"):
        found += [(record, None) for record in history.by_node(name).get(client, ())
                  if name != "view" or record.data["counts"] is not None]
    return sorted(found, key=lambda pair: pair[0].number)


def _judge_choice(finding: Finding, operation: Operation, chosen: EngineLife, view: _View,
                  chosen_at: float) -> None:
    at, node = operation.began_at, operation.node
    has = view.least(chosen)
    better = [core for core in view.cores if view.most(core) < has and core not in view.shunned | view.full
              and goes_at(finding.history, core) > chosen_at]
    if better:
        finding.broke("request {!r} went to {}, where {} others are, as its client was told, and {} has {} at most",
                      operation.request, chosen.core, has, better[0].core, view.most(better[0]), at=at, node=node)
    elif any(view.least(core) > view.most(chosen) and view.own[core] <= view.own[chosen] for core in view.cores):
        finding.witness("{} was told of requests of others, and sent its own where there were fewer", node, at=at,
                        node=node)


def check_chosen_in_turn(history: History) -> Finding:
    finding = Finding(history)
    for client in history.of_kind(NodeKind.FRONTEND):
        cores = history.engines_of(client)
        if len(cores) > 1:
            _follow_choices(finding, client, cores)
    return finding


def _follow_choices(finding: Finding, client: str, cores: tuple[EngineLife, ...]) -> None:
    """Each choice beside the one that follows from what its client was told, and from what it had sent by then."""
    history = finding.history
    options = history.play.config.data_parallel
    rules = Chooser(len(cores), history.client_index(client),
                    len(history.play.topology.clients_of(cores[0].engine)), options.score)
    counted = history.coordinated(cores[0])
    for _, record, operation in _by_effect(history, client):
        if operation is None and "counts" in record.data:
            of_all = dict(zip(counted, record.data["counts"], strict=True))
            rules.hears([tuple(of_all[core]) for core in cores])
        elif operation is None and record.site == "engine-dead":
            for place, core in enumerate(cores):
                if record.data.get("core", core.engine) == core.engine:
                    rules.cores[place].dead, rules.cores[place].own = True, 0
        elif operation is not None and record is operation.accepted:
            got, is_asked_for = cores.index(history.asked_of(operation)), rank_of(operation) is not None
            if not is_asked_for and _chose_otherwise(finding, rules, operation, got):
                return
            rules.sends(got, chosen=not is_asked_for)
        elif operation is not None:
            rules.ends(cores.index(history.asked_of(operation)), unsent=_is_unsent(record))


def _chose_otherwise(finding: Finding, rules: Chooser, operation: Operation, got: int) -> bool:
    history, node, at = finding.history, operation.node, operation.began_at
    cores = history.engines_of(node)
    gone = frozenset(place for place, core in enumerate(cores) if goes_at(history, core) <= at)
    meant = sorted(place for place in {rules.choice(), rules.choice(gone)} if place is not None)
    if got not in meant:
        finding.broke("request {!r} went to {}, and by what its client was told and has sent {} was to get it",
                      operation.request, cores[got].core, " or ".join(cores[place].core for place in meant) or "none",
                      at=at, node=node)
        return True
    if len({(known.own, known.told) for known in rules.cores}) > 1:
        finding.witness("{} chose {} of cores of which it knew different things", node, cores[got].core, at=at,
                        node=node)
    return False


def _by_effect(history: History, client: str) -> list[tuple[float, Record, Operation | None]]:
    """The same as `_in_order`, an end where it came about: a client tells of several when it has taken in them all."""
    came = sorted(record.number for edge in history.crossings if edge.endswith(f"->{client}/outputs:receive")
                  for record in history.crossings[edge])
    own = {name: {record.data["request"]: record.number for record in history.by_node(name).get(client, ())}
           for name in ("abort", "unroutable")}
    found: list[tuple[float, Record, Operation | None]] = []
    for record, operation in _in_order(history, client):
        number: float = record.number
        if operation is not None and record is not operation.accepted:
            place = bisect_right(came, record.number)
            if record is operation.abort:
                pass
            elif _is_unsent(record):
                number = own["unroutable"].get(operation.request, number)
            elif record.data["outcome"] == Outcome.ABORTED:
                number = own["abort"].get(operation.request, number)
            elif record.data["outcome"] == Outcome.FINISHED and place:
                number = came[place - 1]
            number += 0.5
        found.append((number, record, operation))
    return sorted(found, key=lambda one: one[0])


def _is_unsent(end: Record) -> bool:
    return bool(end.data.get("error") == "UnroutableError")


GUARANTEES = (
    Guarantee(
        id="dp-rank-as-asked", chapter=CHAPTER, source=SOURCE, check=check_rank_as_asked, applies=has_several,
        sentence="A request that asks for one of several cores by its rank is sent to that one, or refused.",
        wrong="chooses a core by what it has to do, whatever was asked for",
        witness="several requests asked for the same rank",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-burst-spreads", chapter=CHAPTER, source=SOURCE, check=check_burst_spreads, applies=has_several,
        sentence="Of a burst of requests to idle cores none gets more than its share and one for each client that "
                 "asks.",
        wrong="sends all of a burst to the same core",
        witness="twice as many requests as cores were asked for, by each client, before the first of them had ended",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-counts-used", chapter=CHAPTER, source=SOURCE, check=check_counts_used, applies=has_counts,
        sentence="A client sends no request to a core that has, by what the coordinator told it last, more requests "
                 "than another living one can have by the same counts and by what it has sent there.",
        wrong="counts what it has sent itself, and does not look at what others have sent",
        witness="others kept a core busy, and a client that had nothing there sent its request to another one",
        envelope=Envelope(),
    ),
    Guarantee(
        id="dp-chosen-in-turn", chapter=CHAPTER, source=SOURCE, check=check_chosen_in_turn, applies=has_several,
        sentence="A request that asks for no core goes to the one that has least to do, by what its client was told "
                 "last, and by what it has sent and was done with since; of equal ones to the next in turn.",
        wrong={
            "ends": "does not count that a request of its own has ended",
            "turn": "asks the first of equal ones again and again",
            "asked": "counts who asked for a core when that has ended, and not before",
        },
        witness="a client knew of its cores that they have different things to do",
        envelope=Envelope(),
    ),
)
