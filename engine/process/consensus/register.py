"""Who has come to meet the others of a group, as the one of them keeps it that listens (pure).

Promises
- Nobody is told anything before either all have come, or it is known why they never will: then all are told the same.
- What they must agree in is compared before anybody is let in: it is named with its values, and with who has them.
- Two that come as the same rank are both named, and both refused.
- Who goes away again before all have come is forgotten, and may come back.
"""

from __future__ import annotations

import msgspec

from engine.process.consensus.effects import Card


class Register:
    """Of a group of `size` that meets at `where`."""

    def __init__(self, size: int, where: str) -> None:
        self._size, self._where = size, where
        self._cards: dict[int, Card] = {}
        self.refusal = ""  # why they will never meet, once that is known

    def come(self, card: Card) -> None:
        """Somebody introduces itself."""
        if not 0 <= card.rank < self._size:
            self._refuse(f"{card.member.name} came as rank {card.rank}, of {self._size}")
            return
        known = self._cards.setdefault(card.rank, card)
        if known.member != card.member:
            self._refuse(f"{_who(known)} and {_who(card)} both came as rank {card.rank}")
            return
        for other in self._cards.values():
            for name in sorted({*other.agrees, *card.agrees}):
                theirs, mine = other.agrees.get(name), card.agrees.get(name)
                if theirs != mine:
                    self._refuse(f"{name} is {theirs!r} of {other.member.name} and {mine!r} of {card.member.name}")
                    return

    def leave(self, card: Card) -> None:
        """Before it was answered."""
        if self._cards.get(card.rank) == card:
            del self._cards[card.rank]

    def give_up(self, after_s: float) -> None:
        """Nobody is waited for any longer."""
        missing = [rank for rank in range(self._size) if rank not in self._cards]
        if missing:
            self._refuse(f"{ranks_named(missing)} of {self._size} did not come within {after_s:.3g} s")

    @property
    def cards(self) -> tuple[Card, ...] | None:
        """Of all, by rank, once all have come."""
        if self.refusal or len(self._cards) < self._size:
            return None
        return tuple(self._cards[rank] for rank in range(self._size))

    def _refuse(self, reason: str) -> None:
        self.refusal = self.refusal or f"the ranks that meet at {self._where} cannot step together: {reason}"


def ranks_named(ranks: list[int]) -> str:
    """As they call themselves where numbers of cores are those of ranks, too."""
    return " and ".join(f"core.{rank} (rank {rank})" for rank in ranks)


def _who(card: Card) -> str:
    process = card.member.process
    return card.member.name if process is None else f"{card.member.name} (pid {process.pid})"


class Answer(msgspec.Struct, frozen=True):
    """What all are told."""

    cards: tuple[Card, ...] = ()
    refusal: str = ""
