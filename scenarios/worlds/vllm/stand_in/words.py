"""Tokens without a model (pure): what follows a prompt, and what a rank finds in its cache.

A word stands for a token and all before it. A rank keeps one word for each slot of its cache, reached through the block
tables that it is given, and answers by the last word: whoever reads a slot that is stale, foreign or blank says another
token than the lab expects.
"""

from __future__ import annotations

from collections.abc import Sequence

#: No token that ends a request, or pads one, is ever said.
SPECIAL_TOKENS = 3
_MASK = (1 << 64) - 1
_PRIME, _SEED = 0x9E3779B97F4A7C15, 0x51ED270B


def word(before: int, token: int) -> int:
    """64 bits, the same in every process."""
    mixed = ((before ^ (token + _SEED)) * _PRIME) & _MASK
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

    def read(self, blocks: Sequence[int], place: int) -> int:
        """The word of the token at that place. 0 where the table does not reach so far."""
        index = place // self._size
        return self._words.get(blocks[index] * self._size + place % self._size, 0) if index < len(blocks) else 0
