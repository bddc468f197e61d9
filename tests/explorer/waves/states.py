"""What a state of the whole is made of, and what an event at one party makes of it.

A state is one integer: a number for each rank, the coordinator, each channel, and what may still happen.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.explorer.waves.crossings import Crossings
from tests.explorer.waves.nodes import (
    ASKED,
    BETWEEN,
    IN,
    OUT,
    Boards,
    Case,
    Channels,
    Clients,
    Code,
    Rank,
    Ranks,
)

BITS = 16
MASK = (1 << BITS) - 1
#: What may still happen, three bits each, in the part of a state behind the channels.
REQUEST, FAULT, REPEAT, ABORT = (1 << 3 * place for place in range(4))
LEFT = 7

Move = tuple[Any, ...]
SHIPPED = Code()


class Info(NamedTuple):
    """Of a rank's state what the search asks again and again."""

    rank: Rank
    stage: str
    wave: int
    phase: int
    steps: tuple[bool, ...]  # what may come of a step that it can take now: the requests end with it, or not
    due: bool
    abort: bool
    speaks: bool  # has a report that nobody may have heard
    dead_below: int  # a START of a wave below this can never change it


def alive(rank: Rank) -> bool:
    """Whether no START of its own wave can do anything for it any more."""
    return rank.waves.running and rank.waves.unheard is None


def dead_below(board: Any) -> int:
    """A report whose code is below this can never change the coordinator, though it may pass a START of it on."""
    return 2 * board.wave + board.running


class _Known(dict[int, Info]):
    """By the number of a rank's state."""

    def __init__(self, table: Ranks) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, number: int) -> Info:
        rank: Rank = self._table.states[number]
        waves, between = rank.waves, rank.stage == BETWEEN
        steps = ((True, False) if rank.works and rank.fresh else (True,)) if waves.may_step(rank.unfinished) else ()
        found = self[number] = Info(rank, rank.stage, waves.wave, rank.phase, steps if between else (),
                                    waves.due and between, rank.fresh > 0 and between, waves.unheard is not None,
                                    waves.wave + alive(rank))
        return found


class States:
    """A group of ranks, their coordinator and what lies between them, without any order of events."""

    def __init__(self, case: Case, code: Code = SHIPPED) -> None:
        self.case = case
        n = self.n = case.ranks
        shared = case.reduced and not case.client
        tables = [Ranks(0, case, code)]
        tables += [Ranks(1, case, code)] * (n - 1) if shared else [Ranks(k, case, code) for k in range(1, n)]
        self.ranks, self.boards = tables, Boards(case, code)
        self.clients, self.channels = Clients(case, code), Channels()
        self._alike = shared and n > 2
        self.crossed = Crossings(self)
        #: Where each part of a state begins.
        self.at_rank = [BITS * k for k in range(n)]
        self._known = [_Known(table) for table in tables]
        self._known_at = list(zip(self._known, self.at_rank, strict=True))
        self.at_board = BITS * n
        self.at_up = [BITS * (n + 1 + k) for k in range(n)]
        self.at_down = [BITS * (2 * n + 1 + k) for k in range(n)]
        self.at_left = BITS * (3 * n + 1)
        self.at_client = BITS * (3 * n + 2)
        self.at_to = [BITS * (3 * n + 3 + k) for k in range(n)]
        self.at_notice, self.at_first, self.at_untold = (BITS * (4 * n + 3 + place) for place in range(3))
        left = case.requests * REQUEST + case.faults * FAULT + case.repeats * REPEAT + case.aborts * ABORT
        self.start = left << self.at_left | self.boards.start << self.at_board
        for k in range(n):
            self.start |= tables[k].start << self.at_rank[k]

    # -- events

    def rank_event(self, state: int, k: int, *event: Any) -> tuple[int, str]:
        number = (state >> self.at_rank[k]) & MASK
        come = self.ranks[k].after(number, *event)
        if come.broken:
            return state, f"rank {k}: {come.broken}"
        after = state + ((come.state - number) << self.at_rank[k])
        if come.sends:
            self.crossed.reports(after, k, come.sends)
            for message in come.sends:
                if self.case.coordinated and not (self.case.reduced and self.is_dead(after, message)):
                    after = self.put(after, self.at_up[k], message)
        before, info = self._known[k][number], self._known[k][come.state]
        if event[0] == "start":
            self.crossed.rank(before, info, event)
        elif info.stage == IN and before.stage != IN:
            return self._meet(after)
        return self._canonical(after), self._apart(after) if info.wave != before.wave else ""

    def is_dead(self, state: int, report: int) -> bool:
        """Whether it can never change anybody again: START of its wave can change no rank, either."""
        if report >= dead_below(self.boards.states[(state >> self.at_board) & MASK]):
            return False
        return bool(report & 1) or all([report >> 1 < info.dead_below for info in self.infos(state)])

    def board_event(self, state: int, *event: Any) -> tuple[int, str]:
        number = (state >> self.at_board) & MASK
        come = self.boards.after(number, *event)
        if come.broken:
            return state, f"the coordinator: {come.broken}"
        after = state + ((come.state - number) << self.at_board)
        self.crossed.board(self.boards.states[number], event)
        for wave, exclude in come.starts:
            for k, info in enumerate(self.infos(state)):
                self.crossed.sent(info, wave)
                if self.case.reduced and wave < info.dead_below:
                    continue
                whom = 1 if k == exclude else 2 if exclude is not None and not self.case.reduced else 0
                after = self.put(after, self.at_down[k], 3 * wave + whom)
        if self.case.client:
            for notice in come.notices:
                after = self.put(after, self.at_notice, notice)
        return self._canonical(after), ""

    def _meet(self, state: int) -> tuple[int, str]:
        """Once all ranks are in the all-reduce, it has a sum."""
        infos = self.infos(state)
        if any([info.stage != IN for info in infos]):
            return self._canonical(state), ""
        positions = [info.rank.position for info in infos]
        if len(set(positions)) > 1:
            return state, f"ranks meet in one all-reduce at different (wave, step): {positions}"
        add = sum if self.case.protocol == "new" else max
        sums = tuple(add(column) for column in zip(*(info.rank.brought for info in infos), strict=True))
        wanted = ""
        if self.case.protocol == "new" and all(info.phase == ASKED for info in infos):
            wanted = "pause"
        elif not any(info.rank.works or info.phase == ASKED or info.rank.waves.step == 0 for info in infos):
            wanted = "rest"
        for k in range(self.n):
            number = (state >> self.at_rank[k]) & MASK
            state += (self.ranks[k].after(number, "join", sums, wanted).state - number) << self.at_rank[k]
        return self._left(state) if self.case.reduced else (state, "")

    def _left(self, state: int) -> tuple[int, str]:
        """All ranks take their answers, in any order."""
        while True:
            k = next((k for k, info in enumerate(self.infos(state)) if info.stage == OUT), None)
            if k is None:
                return self._canonical(state), ""
            state, broken = self.rank_event(state, k, "leave")
            if broken:
                return state, broken

    def _apart(self, state: int) -> str:
        infos = self.infos(state)
        newest = max(info.wave for info in infos)
        for k, info in enumerate(infos):
            if info.wave < newest - 1 or (info.wave < newest and info.stage != OUT):
                return f"rank {k} is in wave {info.wave}, another one in wave {newest} already"
        return ""

    # -- states

    def infos(self, state: int) -> list[Info]:
        return [known[(state >> at) & MASK] for known, at in self._known_at]

    def info(self, k: int, number: int) -> Info:
        return self._known[k][number]

    def put(self, state: int, at: int, message: int) -> int:
        number = (state >> at) & MASK
        return state + ((self.channels.after(number, message) - number) << at)

    def take(self, state: int, at: int) -> int:
        number = (state >> at) & MASK
        return state + ((self.channels.after(number) - number) << at)

    def _canonical(self, state: int) -> int:
        """Ranks above 0 in the order of their states: one of the states that differ by an exchange of them."""
        if not self._alike:
            return state
        parts = [((state >> self.at_rank[k]) & MASK, (state >> self.at_up[k]) & MASK,
                  (state >> self.at_down[k]) & MASK) for k in range(1, self.n)]
        ordered = sorted(parts)
        if parts != ordered:
            for k, (old, new) in enumerate(zip(parts, ordered, strict=True), 1):
                state += (new[0] - old[0]) << self.at_rank[k]
                state += (new[1] - old[1]) << self.at_up[k]
                state += (new[2] - old[2]) << self.at_down[k]
        return state
