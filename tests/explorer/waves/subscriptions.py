"""A coordinator's start: every order in which ranks subscribe, one of them twice, with bytes between that are none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from tests.explorer.waves.nodes import Code, subscription

FOREIGN = (b"", b"\x00", b"\x01", b"\x01\xff\xff", b"\x02\x00\x00", b"\x01\x00\x00\x00", b"READY")


def explore_start(ranks: int, code: Code) -> tuple[int, str]:
    """-> how many orders there are, and what is wrong with the first that is not as promised"""
    orders = {order for twice in range(ranks) for order in permutations([*range(ranks), twice])}
    for order in sorted(orders):
        for place in range(len(order) + 1):
            for foreign in FOREIGN:
                if broken := _play(ranks, code, order, place, foreign):
                    return len(orders), broken
    return len(orders), ""


def _play(ranks: int, code: Code, order: Sequence[int], place: int, foreign: bytes) -> str:
    board = code.board.Board(ranks, changed_s=1.0, unchanged_s=1.0, settle_s=0.0, now=0.0)
    frames = [subscription(rank) for rank in order]
    frames.insert(place, foreign)
    came: set[bytes] = set()
    for frame in frames:
        said = [type(it).__name__ for it in board.on_subscription(frame)]
        if frame == foreign:
            wanted = ["Odd"]
        else:
            came.add(frame)
            wanted = ["Ready"] * (len(came) == ranks)
        if said != wanted:
            return f"subscriptions of {list(order)}, at {frame.hex(' ')!r} it says {said}, not {wanted}"
    return ""
