"""A coordinator's start: every order in which ranks subscribe, one twice, and between them one that is none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from tests.explorer.waves.nodes import Code

FOREIGN = (-1, 99, 0xffff)


def explore_start(ranks: int, code: Code) -> tuple[int, str]:
    """-> how many orders there are, and what is wrong with the first that is not as promised"""
    orders = {order for twice in range(ranks) for order in permutations([*range(ranks), twice])}
    for order in sorted(orders):
        for place in range(len(order) + 1):
            for foreign in FOREIGN:
                if broken := _play(ranks, code, order, place, foreign):
                    return len(orders), broken
    return len(orders), ""


def _play(ranks: int, code: Code, order: Sequence[int], place: int, foreign: int) -> str:
    board = code.board.Board(ranks, changed_s=1.0, unchanged_s=1.0, settle_s=0.0, now=0.0)
    came: set[int] = set()
    for rank in (*order[:place], foreign, *order[place:]):
        said = [type(it).__name__ for it in board.on_subscription(rank)]
        if rank == foreign:
            wanted = ["Odd"]
        else:
            came.add(rank)
            wanted = ["Ready"] * (len(came) == ranks)
        if said != wanted:
            return f"subscriptions of {list(order)}, at {rank} it says {said}, not {wanted}"
    return ""
