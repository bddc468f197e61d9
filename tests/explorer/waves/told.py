"""A counterexample as a table: who did what, and how the ranks and the coordinator stood after it.

    rank 0 gets a request, sent in wave 0                    0.0 runs   0.0 rests   board 0
    rank 0 executes a step, its requests end with it         0.1 in     0.0 rests   board 0
"""

from __future__ import annotations

from typing import Any, NamedTuple

_STRUCK = {"lost": "LOST", "twice": "AND IT WILL COME AGAIN", "misread": "MISREAD"}


class Counterexample(NamedTuple):
    case: str
    violation: str
    rows: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.case}: {self.violation}", *(f"{n:>3}  {row}" for n, row in enumerate(self.rows, 1))])


def told(explorer: Any, violation: str, path: list[tuple[int, Any]]) -> Counterexample:
    states = [state for state, _ in path[1:]] + [path[-1][0]]
    moves = [move for _, move in path]
    rows = [f"{does(move):<68}{stands(explorer, state)}" for move, state in zip(moves, states, strict=True) if move]
    return Counterexample(str(explorer.case), violation, tuple(rows))


def does(move: Any) -> str:
    what, *rest = move
    if what in _STRUCK:
        return f"{_STRUCK[what]}: {does(rest)}"
    if what in ("start", "report"):
        k, message = rest
        if what == "start":
            return f"rank {k} gets START of wave {message // 3}{', which leaves it out' * (message % 3 == 1)}"
        return f"the coordinator hears rank {k} {'end' if message & 1 else 'start'} wave {message >> 1}"
    if what == "notice":
        return f"the client hears that wave {rest[0] >> 1} {'runs' if rest[0] & 1 else 'rests'}"
    texts = {
        "leave": "rank {} takes its answer", "enter": "rank {} enters an all-reduce",
        "abort": "rank {} aborts a request", "add": "rank {} gets a request, sent in wave {}",
        "pause": "rank {} is told to pause", "resume": "rank {} is told to resume",
        "repeat": "rank {} repeats its report", "publish": "the coordinator publishes",
        "send": "the client sends rank {} a request, in wave {}",
        "tell": "the client tells of its first request, to rank {}",
        "first": "the coordinator hears of a first request, to rank {} in wave {}",
        "step": "rank {} executes a step{}",
    }
    if what == "step":
        rest = [rest[0], "" if rest[1] else ", its new requests go on"]
    return texts[what].format(*rest)


def stands(explorer: Any, state: int) -> str:
    cells = []
    for info in explorer.infos(state):
        waves = info.rank.waves
        how = "paused" if waves.paused else "runs" if waves.running else "rests"
        how = how if info.stage == "between" else info.stage
        cells.append(f"{waves.wave}.{waves.step} {how}{f' ({info.rank.fresh + info.rank.old})' * info.rank.unfinished}")
    board = explorer.boards.states[(state >> explorer.at_board) & 0xFFFF]
    return "".join(f"{cell:<14}" for cell in cells) + f"board {board.wave}{' runs' * board.running}"
