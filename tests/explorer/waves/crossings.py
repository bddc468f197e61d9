"""Which of two things that cross has come first: the known crossings of messages, each counted where it is reached.

    A  a start of the next wave reaches the coordinator before the end of this one
    B  a START of the next wave is sent to a rank that has not left this one's last all-reduce
    C  two ranks start one wave at once
    D  a START arrives when its wave is over
    E  a request arrives at a rank at rest with the number of a wave that is over
    F  a START arrives at the rank that asked for it, which is left out
    G  a request arrives at a rank at rest whose client believes that the group runs
    H  a START arrives at a rank that is paused
    I  a START is lost to a rank at rest
"""

from __future__ import annotations

from collections import Counter
from typing import Any

ALL = "ABCDEFGHI"
#: What needs a message that is lost, a pause, a front end.
FAULT, PAUSE, CLIENT = "I", "H", "EG"


class Crossings:
    def __init__(self, explorer: Any) -> None:
        self._explorer = explorer
        self.counts: Counter[str] = Counter()

    def rank(self, before: Any, after: Any, event: tuple[Any, ...]) -> None:
        if event[0] != "start":
            return
        wave, excluded = event[1] // 3, event[1] % 3 == 1
        self.counts["D"] += wave < before.wave
        self.counts["F"] += excluded and wave == before.wave and after.rank.waves.running
        self.counts["H"] += bool(wave >= before.wave and before.rank.waves.paused)

    def reports(self, state: int, k: int, sends: tuple[int, ...]) -> None:
        explorer = self._explorer
        for message in sends:
            if message & 1:
                continue
            for other in range(explorer.n):
                if other != k and message in explorer.channels.states[(state >> explorer.at_up[other]) & 0xFFFF]:
                    self.counts["C"] += 1

    def board(self, board: Any, event: tuple[Any, ...]) -> None:
        if event[0] == "report" and not event[2] & 1:
            self.counts["A"] += event[2] >> 1 > board.wave

    def sent(self, info: Any, wave: int) -> None:
        self.counts["B"] += info.stage == "out" and wave > info.wave

    def request(self, info: Any, sent: int) -> None:
        if not info.rank.waves.running and not info.rank.waves.holds:
            self.counts["E"] += sent >> 1 < info.wave
            self.counts["G"] += sent & 1

    def lost(self, state: int, move: tuple[Any, ...]) -> None:
        if move[0] == "start":
            _, k, start = move
            explorer = self._explorer
            rank = explorer.info(k, (state >> explorer.at_rank[k]) & 0xFFFF).rank.waves
            self.counts["I"] += start % 3 != 1 and start // 3 >= rank.wave and not rank.running
