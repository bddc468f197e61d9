"""The parties of the search, each as a table: what becomes of it by each event in each of its states.

A party's state is what its shipped object remembers and what the search adds to it. The object is run once for each
state and event; the states of the whole are made of the numbers of its parties' states.
"""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any, NamedTuple

from engine.coordinator import board, waves
from engine.frontend import balance


class Case(NamedTuple):
    """What is searched. `repeats`: how often publications, or a rank's repeated report, come while others are busy."""

    ranks: int = 2
    requests: int = 3
    pauses: int = 0
    faults: int = 0  # messages that are lost or come twice
    misread: bool = False  # or, of ranks' reports, are taken for those of a later wave
    repeats: int = 0
    aborts: int = 0
    protocol: str = "new"
    repair: bool = True
    interval: int = 2
    client: bool = False  # with a front end and its channels; else a request has any number a front end could know
    reduced: bool = False
    coordinated: bool = True

    def __str__(self) -> str:
        flags = [name for name in ("misread", "client", "reduced") if getattr(self, name)]
        flags += [f"no {name}" for name in ("repair", "coordinated") if not getattr(self, name)]
        counts = [f"{getattr(self, name)} {name}" for name in ("ranks", "requests", "pauses", "faults", "repeats",
                                                               "aborts") if getattr(self, name)]
        return ", ".join([self.protocol, *counts, *flags])


class Code(NamedTuple):
    """The files that are driven: the shipped ones, or one with a flaw."""

    waves: ModuleType = waves
    board: ModuleType = board
    balance: ModuleType = balance


class Broken(Exception):
    """A promise is broken by what a party did."""


#: Where a rank stands: between two steps, in an all-reduce, or about to take its answer.
BETWEEN, IN, OUT = "between", "in", "out"
#: How far a pause has come at a rank.
UNASKED, ASKED, PAUSED, RESUMED = range(4)


class Rank(NamedTuple):
    waves: Any
    fresh: int = 0  # requests that were not executed yet
    old: int = 0  # requests that were executed once and have another step to go
    stage: str = BETWEEN
    brought: tuple[int, ...] = ()  # IN: votes
    sums: tuple[int, ...] = ()  # OUT
    wanted: str = ""  # OUT: what has to come of it, "rest" or "pause"
    phase: int = UNASKED

    @property
    def unfinished(self) -> bool:
        return self.fresh + self.old > 0

    @property
    def position(self) -> tuple[int, int]:
        return self.waves.wave, self.waves.step

    @property
    def works(self) -> bool:
        """Whether it has work that nobody holds back."""
        return self.unfinished and not self.waves.holds


class After(NamedTuple):
    """What an event leads to. `sends`: a rank's reports, by `report`."""

    state: int
    sends: tuple[int, ...] = ()
    broken: str = ""


#: Messages as small numbers: twice the wave, and one more for the second meaning. A START is three times its wave, and
#: one more for the rank that is left out, two more where it is another one.
def report(message: Any) -> int:
    return 2 * message.wave + (type(message).__name__ == "WaveComplete")


class Table:
    """States of one kind of party, numbered, with their events."""

    def __init__(self) -> None:
        self.states: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._after: dict[tuple[Any, ...], Any] = {}

    def number(self, state: Any) -> int:
        key = self.key(state)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.states)
            self.states.append(state)
        return found

    def after(self, number: int, *event: Any) -> Any:
        key = (number, *event)
        found = self._after.get(key)
        if found is None:
            found = self._after[key] = self.work_out(self.states[number], *event)
        return found

    def key(self, state: Any) -> Any:
        raise NotImplementedError

    def work_out(self, state: Any, *event: Any) -> Any:
        raise NotImplementedError


class Ranks(Table):
    """All ranks that behave alike: rank 0, or any other one."""

    def __init__(self, index: int, case: Case, code: Code) -> None:
        super().__init__()
        self.index, self._case = index, case
        self.start = self.number(Rank(code.waves.Waves(
            index, case.ranks, interval=case.interval, protocol=case.protocol, coordinated=case.coordinated,
            repair=case.repair)))

    def key(self, rank: Rank) -> Any:
        return (*vars(rank.waves).values(), *rank[1:])

    def work_out(self, rank: Rank, what: str, *arguments: Any) -> After:
        own = copy.copy(rank.waves)
        sends: list[Any] = []
        try:
            after = getattr(self, f"_{what}")(rank._replace(waves=own), own, sends, *arguments)
            self._check(rank, after)
        except Broken as broken:
            return After(self.number(rank), (), str(broken))
        self._fold(own)
        return After(self.number(after), tuple(map(report, sends)))

    def _fold(self, own: Any) -> None:
        """Steps far behind the first all-reduces differ by their place in the interval alone."""
        while own.step > 2 * self._case.interval:
            own.step -= self._case.interval

    def _check(self, before: Rank, after: Rank) -> None:
        if after.waves.wave < before.waves.wave:
            raise Broken(f"its wave falls from {before.waves.wave} to {after.waves.wave}")
        if after.waves.wave == before.waves.wave and before.waves.running and not after.waves.running:
            raise Broken(f"it rests, and its wave {after.waves.wave} is not over")

    # -- events

    def _add(self, rank: Rank, own: Any, sends: list[Any], wave: int) -> Rank:
        sends += own.on_request(wave)
        return rank._replace(fresh=rank.fresh + 1)

    def _abort(self, rank: Rank, own: Any, sends: list[Any]) -> Rank:
        return rank._replace(fresh=rank.fresh - 1)

    def _start(self, rank: Rank, own: Any, sends: list[Any], start: int) -> Rank:
        own.on_start(start // 3, (None, self.index, self.index ^ 1)[start % 3])
        return rank

    def _pause(self, rank: Rank, own: Any, sends: list[Any]) -> Rank:
        return rank._replace(phase=PAUSED if own.pause() else ASKED)

    def _resume(self, rank: Rank, own: Any, sends: list[Any]) -> Rank:
        sends += own.resume(rank.unfinished)
        return rank._replace(phase=RESUMED)

    def _repeat(self, rank: Rank, own: Any, sends: list[Any]) -> Rank:
        sends.append(own.unheard)
        return rank

    def _step(self, rank: Rank, own: Any, sends: list[Any], finish: bool) -> Rank:
        if rank.works:
            rank = rank._replace(fresh=0, old=0 if finish else rank.fresh)
        own.stepped()
        return self._enter(rank, own, sends) if own.due else rank

    def _enter(self, rank: Rank, own: Any, sends: list[Any]) -> Rank:
        return rank._replace(stage=IN, brought=tuple(own.votes(rank.unfinished)))

    def _join(self, rank: Rank, own: Any, sends: list[Any], sums: tuple[int, ...], wanted: str) -> Rank:
        return rank._replace(stage=OUT, brought=(), sums=sums, wanted=wanted)

    def _leave(self, rank: Rank, own: Any, sends: list[Any]) -> Rank:
        wave = own.wave
        sends += own.on_answer(list(rank.sums))
        if own.running and rank.wanted == "rest":
            raise Broken("it goes on though nothing is left to do")
        if not own.paused and rank.wanted == "pause":
            raise Broken("it goes on though all are to pause")
        ends = [message.wave for message in sends if type(message).__name__ == "WaveComplete"]
        told = [wave] if own.wave > wave and (self.index == 0 or not self._case.coordinated) else []
        if ends != told:
            raise Broken(f"of {told or 'no wave'} it is to report the end, and it reports {ends or 'none'}")
        if own.paused and rank.phase == ASKED:
            rank = rank._replace(phase=PAUSED)
        return rank._replace(stage=BETWEEN, sums=(), wanted="")


class AfterBoard(NamedTuple):
    state: int
    starts: tuple[tuple[int, int | None], ...] = ()  # wave, who is excluded
    notices: tuple[int, ...] = ()
    broken: str = ""


class Boards(Table):
    def __init__(self, case: Case, code: Code) -> None:
        super().__init__()
        made = code.board.Board(case.ranks, changed_s=1.0, unchanged_s=1.0, settle_s=0.0, now=0.0,
                                protocol=case.protocol, repair=case.repair)
        for rank in range(case.ranks):
            made.on_subscription(rank)
        self.start = self.number(made)

    def key(self, made: Any) -> Any:
        return tuple(tuple(value) if isinstance(value, list | set) else value for value in vars(made).values())

    def work_out(self, before: Any, what: str, *arguments: int) -> AfterBoard:
        made = copy.copy(before)
        if what == "report":
            rank, message = arguments
            said = (made.on_wave_complete if message & 1 else made.on_start_wave)(rank, message >> 1)
        elif what == "first":
            said = made.on_first_request(*arguments)
        else:
            said = made.publish(0.0)
        if made.wave < before.wave:
            return AfterBoard(self.number(before), broken=f"its wave falls from {before.wave} to {made.wave}")
        if made.wave == before.wave and before.running and not made.running:
            return AfterBoard(self.number(before), broken=f"wave {made.wave} rests, and it is not over")
        starts = tuple((it.wave, it.exclude) for it in said if type(it).__name__ == "Start")
        notices = tuple(2 * it.wave + it.running for it in said if type(it).__name__ == "Notice")
        return AfterBoard(self.number(made), starts, notices)


class AfterClient(NamedTuple):
    state: int
    first: tuple[int, int] | None = None


class Clients(Table):
    """The one front end. Which rank a request goes to is left open, so its counts are of no matter here."""

    def __init__(self, case: Case, code: Code) -> None:
        super().__init__()
        self.start = self.number(code.balance.Balance(case.ranks))

    def key(self, made: Any) -> Any:
        return made.wave, made.running

    def work_out(self, before: Any, what: str, argument: int) -> AfterClient:
        made = copy.copy(before)
        if what == "notice":
            made.on_notice(None, argument >> 1, bool(argument & 1))
            return AfterClient(self.number(made))
        first = made.first_request(argument)
        return AfterClient(self.number(made), first)


class Channels(Table):
    """What is on the way on one edge, in order. All edges share one table."""

    def __init__(self) -> None:
        super().__init__()
        self.start = self.number(())

    def key(self, messages: tuple[int, ...]) -> Any:
        return messages

    def work_out(self, messages: tuple[int, ...], *put: int) -> int:
        """With a message: it is put at the end. Without: the first one is taken."""
        return self.number(messages + put if put else messages[1:])
