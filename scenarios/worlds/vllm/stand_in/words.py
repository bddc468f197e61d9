"""Tokens without a model (pure): what follows a prompt, and what a rank finds in its cache.

A word stands for a token and all before it. A rank keeps one word for each slot of its cache, reached through the block
tables that it is given, and answers by all of them: whoever reads a slot that is stale, foreign or blank says another
token than the lab expects.
"""

from __future__ import annotations

from collections.abc import Sequence

#: No token that ends a request, or pads one, is ever said.
SPECIAL_TOKENS = 3
MASK = (1 << 64) - 1
_PRIME, _SEED = 0x9E3779B97F4A7C15, 0x51ED270B


def word(before: int, token: int) -> int:
    """64 bits, the same in every process."""
    mixed = ((before ^ (token + _SEED)) * _PRIME) & MASK
    return mixed ^ (mixed >> 29)


def words(tokens: Sequence[int], before: int = 0) -> list[int]:
    """One for each token."""
    found = []
    for token in tokens:
        before = word(before, token)
        found.append(before)
    return found


def next_token(last: int, vocabulary: int) -> int:
    """What is said behind this word. `vocabulary`: how many tokens there are."""
    return SPECIAL_TOKENS + last % (vocabulary - SPECIAL_TOKENS)


def continuation(prompt: Sequence[int], count: int, vocabulary: int) -> list[int]:
    """The `count` tokens that follow a prompt."""
    last, said = words(prompt)[-1], []
    for _ in range(count):
        said.append(next_token(last, vocabulary))
        last = word(last, said[-1])
    return said


class Slots:
    """The cache of one rank: a word a slot. Where nobody has written is 0."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._words: dict[int, int] = {}

    def write(self, blocks: Sequence[int], start: int, content: Sequence[int]) -> None:
        for place, one in enumerate(content, start):
            self._words[blocks[place // self._size] * self._size + place % self._size] = one

    def read(self, blocks: Sequence[int], count: int) -> list[int]:
        """The words of the first tokens. 0 where the table does not reach so far."""
        size, found = self._size, self._words
        return [found.get(blocks[place // size] * size + place % size, 0) if place // size < len(blocks) else 0
                for place in range(count)]
