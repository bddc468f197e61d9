"""Every interleaving of a small data-parallel group: its ranks' waves, their coordinator's board, one client's view.

Promises
- What runs are the shipped `Waves`, `Board` and `Balance`. Added are channels that keep their order, one for each rank
  to the coordinator and one back, and with `client` those of a front end.
- Covered is every order in which requests arrive at any rank, steps are taken, requests end after their first or second
  step or are aborted before, all-reduces are entered and left, messages arrive, are lost or come twice, or are
  taken for later ones, all ranks are told to pause and to resume, a rank's report is repeated, and the coordinator
  publishes.
- The first broken property ends the search, and a shortest way to it is handed back, move by move.

Properties
- All ranks bring the same wave and step to each all-reduce, so they have executed as much as each other.
- No wave falls. Waves of ranks differ by one at most, and who is behind has the wave's last answer before it.
- An all-reduce at which nobody had anything to do is a wave's last, and one rank reports the wave's end.
- Paused, nobody executes anything until all have resumed.
- Where nothing can move any more, nobody waits in an all-reduce and no request is left, unless all are paused. What
  only a repeated message can move has to move by that: `_heals`.

What keeps it small
- A request's channel is left out: to arrive later is to be sent later. Its number may be any that a front end could
  know by then; with `client` the front end is there, and what it believes.
- A party is worked out once per state of it (`nodes.py`). A whole state is one integer: a number for each part.
- `reduced`: where a move commutes with all that others can do, and its party can do nothing else, no other order is
  looked at. Those are a rank's leaving of an all-reduce, which is part of the last one's entering (its messages go
  behind what is on the way already), and the arrival of a message that can never change its receiver again, now or
  later, since waves only grow and end before they rest; that such a message changes nothing is looked up for each
  state in the end (`revived`). And ranks above 0 are alike: states that differ by an exchange of them are one. Nor is
  told apart whether a START leaves out somebody else or nobody.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

from tests.explorer.waves.nodes import BETWEEN, OUT, PAUSED, RESUMED, UNASKED, Case, Code
from tests.explorer.waves.states import (
    ABORT,
    FAULT,
    LEFT,
    MASK,
    REPEAT,
    REQUEST,
    SHIPPED,
    Move,
    States,
    alive,
    dead_below,
)
from tests.explorer.waves.told import Counterexample, told


class Explorer(States):
    def __init__(self, case: Case, code: Code = SHIPPED) -> None:
        super().__init__(case, code)
        self.states = 0
        self.crossings: Counter[str] = Counter()
        self.ends = 0  # states in which nothing is left to happen
        self.seconds = 0.0
        self._healed: dict[int, bool] = {}

    # -- the search

    def explore(self, most: int = 200_000_000) -> Counterexample | None:
        """Raises RuntimeError where there are more than `most` states."""
        began = time.perf_counter()
        seen = {self.start}
        todo = deque([self.start])
        try:
            while todo:
                state = todo.popleft()
                moves, broken = self.following(state)
                if broken:
                    return self._shortest()
                for _, after, _ in moves:
                    if after not in seen:
                        seen.add(after)
                        todo.append(after)
                if len(seen) > most:
                    raise RuntimeError(f"more than {most} states: {self.case}")
            if broken := self.case.reduced and self.revived():
                return Counterexample(str(self.case), broken, ())
        finally:
            self.states, self.seconds = len(seen), time.perf_counter() - began
            self.crossings = self.crossed.counts
        return None

    def terminal(self) -> set[int]:
        """All states in which nothing is left to happen, by a search of their own."""
        seen, todo, ends = {self.start}, [self.start], set()
        while todo:
            state = todo.pop()
            moves, _ = self.following(state)
            if not moves:
                ends.add(state)
            for _, after, _ in moves:
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        return ends

    def following(self, state: int) -> tuple[list[tuple[Move, int, str]], str]:
        """-> the moves that are possible, with where they lead, and what is broken by one of them or by having none."""
        if self.case.reduced and (first := self._first_alone(state)) is not None:
            return [first], first[2]
        system, others = self.moves(state)
        for _, _, broken in system:
            if broken:
                return system, broken
        for _, _, broken in others:
            if broken:
                return others, broken
        if not system:
            if self.stuck(state) and not self._heals(state):
                return others, self.stuck(state)
            self.ends += not others
        return system + others, ""

    def revived(self) -> str:
        """What `reduced` rests on: whether a message that is taken for dead changes a party in any state it was in."""
        for table in self.ranks:
            for number, rank in enumerate(table.states):
                for start in range(3 * rank.waves.wave + 3 * alive(rank) if rank.stage == BETWEEN else 0):
                    come = table.after(number, "start", start)
                    if come.state != number or come.broken:
                        return f"START of wave {start // 3} changes rank {table.index} in wave {rank.waves.wave}"
        for number, board in enumerate(self.boards.states):
            for said in range(dead_below(board)):
                passes = not said & 1 and said >> 1 < board.wave
                if any(self.boards.after(number, "report", k, said) != (number, ((said >> 1, k),) * passes, (), "")
                       for k in range(self.n)):
                    return f"what wave {said >> 1} was told of changes the coordinator in wave {board.wave}"
        return ""

    def stuck(self, state: int) -> str:
        """Where nothing moves: what is wrong with that."""
        infos = self.infos(state)
        for k, info in enumerate(infos):
            if info.stage != BETWEEN:
                return f"rank {k} waits for ever in the all-reduce of step {info.rank.waves.step} of wave {info.wave}"
        for k, info in enumerate(infos):
            if info.rank.unfinished and not all(info.phase == PAUSED for info in infos):
                return f"rank {k} has a request that it never executes"
        return ""

    def _heals(self, state: int) -> bool:
        """Whether all gets well when each timer has gone off, as it does some time, and nothing else goes wrong."""
        if state not in self._healed:
            at = state
            for _ in range(3):
                for k, info in enumerate(self.infos(at)):
                    if info.speaks:
                        at = self.rank_event(at, k, "repeat")[0]
                at = self.board_event(at, "publish")[0]
                while True:
                    system, _ = self.moves(at)
                    if not system:
                        break
                    at = system[0][1]
                if not self.stuck(at):
                    break
            self._healed[state] = not self.stuck(at)
        return self._healed[state]

    # -- moves

    def moves(self, state: int) -> tuple[list[tuple[Move, int, str]], list[tuple[Move, int, str]]]:
        """-> what the parties do by themselves, and what only happens if somebody or something likes."""
        case, left = self.case, (state >> self.at_left) & MASK
        system: list[tuple[Move, int, str]] = []
        others: list[tuple[Move, int, str]] = []
        fault = left // FAULT & LEFT and -(FAULT << self.at_left)
        again = left // REPEAT & LEFT and -(REPEAT << self.at_left)
        request = left // REQUEST & LEFT and -(REQUEST << self.at_left)
        infos = self.infos(state)
        asked = any(info.phase != UNASKED for info in infos)
        resumed = any(info.phase == RESUMED for info in infos)
        paused = any(info.phase == PAUSED for info in infos)

        def put(kind: list[tuple[Move, int, str]], *move: Any, come: tuple[int, str]) -> None:
            kind.append((move, *come))

        for k, info in enumerate(infos):
            if info.stage == OUT:
                put(system, "leave", k, come=self.rank_event(state, k, "leave"))
            elif info.stage == BETWEEN:
                if info.due:
                    put(system, "enter", k, come=self.rank_event(state, k, "enter"))
                for finish in info.steps:
                    after, broken = self.rank_event(state, k, "step", finish)
                    if paused and (case.protocol == "new" or info.phase == PAUSED):
                        broken = f"rank {k} executes a step, and not all have resumed"
                    put(system, "step", k, finish, come=(after, broken))
                if (down := (state >> self.at_down[k]) & MASK):
                    start = self.channels.states[down][0]
                    self._arrives(state, fault, (system, others), ("start", k, start), self.at_down[k],
                                  lambda at, k=k, start=start: self.rank_event(at, k, "start", start))
                if case.client and (to := (state >> self.at_to[k]) & MASK):
                    sent = self.channels.states[to][0]
                    after = self.rank_event(self.take(state, self.at_to[k]), k, "add", sent >> 1)
                    self.crossed.request(info, sent)
                    put(system, "add", k, sent >> 1, come=after)
                elif not case.client and request:
                    for wave in self._numbers(state, k):
                        put(others, "add", k, wave, come=self.rank_event(state + request, k, "add", wave))
                if info.abort and left // ABORT & LEFT:
                    put(others, "abort", k, come=self.rank_event(state - (ABORT << self.at_left), k, "abort"))
                if case.pauses and info.phase == UNASKED:
                    put(system if asked else others, "pause", k, come=self.rank_event(state, k, "pause"))
                if info.phase == PAUSED:
                    put(system if resumed else others, "resume", k, come=self.rank_event(state, k, "resume"))
            if again and info.speaks:
                put(others, "repeat", k, come=self.rank_event(state + again, k, "repeat"))
            if (up := (state >> self.at_up[k]) & MASK):
                said = self.channels.states[up][0]
                self._arrives(state, fault, (system, others), ("report", k, said), self.at_up[k],
                              lambda at, k=k, said=said: self.board_event(at, "report", k, said))
                if fault and case.misread:
                    for later in (said + 2, said + 4):
                        put(others, "misread", "report", k, later, come=self.board_event(
                            self.take(state, self.at_up[k]) + fault, "report", k, later))
        if again and (case.client or self.boards.states[(state >> self.at_board) & MASK].running):
            put(others, "publish", come=self.board_event(state + again, "publish"))
        if case.client:
            self._client(state, fault, request, system, others)
        return system, others

    def _arrives(self, state: int, fault: int, kinds: Any, move: Move, at: int, event: Any) -> None:
        """The first message of a channel arrives; or it is lost, or stays to come again."""
        system, others = kinds
        taken = self.take(state, at)
        system.append((move, *event(taken)))
        if fault:
            self.crossed.lost(state, move)
            others.append((("lost", *move), taken + fault, ""))
            others.append((("twice", *move), *event(state + fault)))

    def _client(self, state: int, fault: int, request: int, system: Any, others: Any) -> None:
        """A front end sends a request in one task, and tells the coordinator of it in another, as both believe then."""
        client = (state >> self.at_client) & MASK
        view = self.clients.states[client]
        if request:
            for k in range(self.n):
                after = self.put(state + request, self.at_to[k], 2 * view.wave + view.running)
                if self.case.protocol == "old" and not view.running:
                    after = self.put(after, self.at_untold, k)
                others.append((("send", k, view.wave), after, ""))
        if (untold := (state >> self.at_untold) & MASK):
            k = self.channels.states[untold][0]
            come = self.clients.after(client, "first", k)
            after = self.take(state, self.at_untold) + ((come.state - client) << self.at_client)
            if come.first is not None:
                after = self.put(after, self.at_first, self.n * come.first[1] + come.first[0])
            system.append((("tell", k), after, ""))
        if (notice := (state >> self.at_notice) & MASK):
            said = self.channels.states[notice][0]
            come = self.clients.after(client, "notice", said)
            self._arrives(state, fault, (system, others), ("notice", said), self.at_notice,
                          lambda at: (at + ((come.state - client) << self.at_client), ""))
        if (first := (state >> self.at_first) & MASK):
            wave, k = divmod(self.channels.states[first][0], self.n)
            self._arrives(state, fault, (system, others), ("first", k, wave), self.at_first,
                          lambda at: self.board_event(at, "first", k, wave))

    def _numbers(self, state: int, k: int) -> list[int]:
        """Waves that a request may have been sent in; those that make no difference to the rank are left out."""
        known = self.boards.states[(state >> self.at_board) & MASK].wave
        number, table = (state >> self.at_rank[k]) & MASK, self.ranks[k]
        ways = {table.after(number, "add", wave): wave for wave in range(known + 1)}
        return list(ways.values())

    def _first_alone(self, state: int) -> tuple[Move, int, str] | None:
        """A move that commutes with all others and is all that its party can do."""
        infos = self.infos(state)
        messages = self.channels.states
        for k, info in enumerate(infos):
            if (down := (state >> self.at_down[k]) & MASK):
                start = messages[down][0]
                if start < 3 * info.dead_below:
                    return ("start", k, start), self.take(state, self.at_down[k]), ""
            if (up := (state >> self.at_up[k]) & MASK):
                said = messages[up][0]
                if self.is_dead(state, said):
                    return ("report", k, said), self.take(state, self.at_up[k]), ""
        return None

    # -- the way to a violation

    def _shortest(self) -> Counterexample:
        came: dict[int, tuple[int, Move]] = {}
        todo = deque([self.start])
        while True:
            state = todo.popleft()
            moves, broken = self.following(state)
            if broken:
                break
            for move, after, _ in moves:
                if after not in came and after != self.start:
                    came[after] = state, move
                    todo.append(after)
        last = next((move for move, _, why in moves if why), None)
        path = [(state, last)]
        while path[-1][0] != self.start:
            path.append(came[path[-1][0]])
        return told(self, broken, path[::-1])
