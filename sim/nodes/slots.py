"""What the cache of a rank holds in the twin: for each slot a word that stands for a token and all before it.

A model that reads a slot of somebody else, one that was never written, or one that was overwritten says something
else: so does the stand-in, because the words that it finds are not those of its request.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from engine.messages import CachedRequestData, NewRequestData


class Slots:
    """Of one rank. What is written into a block makes what stood behind it there worthless."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._blocks: dict[int, list[int]] = {}

    def write(self, blocks: Sequence[int], start: int, words: Sequence[int]) -> None:
        """The words of the tokens from `start` on."""
        size, first = self.block_size, 0
        while first < len(words):
            index, offset = divmod(start + first, size)
            last = first + size - offset
            content = self._blocks.setdefault(blocks[index], [])
            if len(content) < offset:
                content += [0] * (offset - len(content))  # a hole: nobody wrote there
            content[offset:] = words[first:last]
            first = last

    def hold(self, blocks: Sequence[int], words: Sequence[int]) -> bool:
        """Whether these blocks hold all these words, from the first token on."""
        size, found, last = self.block_size, self._blocks, len(words) - 1
        for index in range(last // size):
            content = found.get(blocks[index], [])
            if len(content) < size or content[-1] != words[(index + 1) * size - 1]:
                return False
        content, place = found.get(blocks[last // size], []), last % size
        return len(content) > place and content[place] == words[last]


class Known:
    """A request as a worker knows it: its tokens, its blocks, and what follows its prompt."""

    __slots__ = ("blocks", "computed", "continuation", "is_as_recorded", "last_token", "num_prompt_tokens", "tokens",
                 "words")

    def __init__(self, new: NewRequestData, continuation: Sequence[int], last_token: int) -> None:
        self.continuation = continuation
        self.last_token = last_token
        self.num_prompt_tokens = new.num_prompt_tokens
        self.is_as_recorded = True  # what has been said behind its prompt
        self.tokens = list(new.token_ids[:new.num_prompt_tokens])
        self.words: list[int] = []
        self.blocks = list(new.block_ids)
        self.computed = new.num_computed_tokens
        for token in new.token_ids[new.num_prompt_tokens:]:
            self.says(token)

    def goes_on(self, cached: CachedRequestData) -> None:
        self.blocks += cached.new_block_ids
        self.computed = cached.num_computed_tokens
        for token in cached.new_token_ids:
            self.says(token)

    def says(self, token: int) -> None:
        """One more token is known of it."""
        self.is_as_recorded &= token == self.next_token
        self.tokens.append(token)

    def reads(self, start: int, words: Sequence[int]) -> list[int]:
        """What the stage before says of its tokens from `start` on, whatever they are. -> the words until then"""
        before = self.words_until(start)
        self.words = [*before, *words]
        return self.words

    @property
    def next_token(self) -> int:
        place = len(self.tokens) - self.num_prompt_tokens
        return self.continuation[place] if place < len(self.continuation) else self.last_token

    def words_until(self, end: int) -> list[int]:
        """One for each of its first tokens."""
        words = self.words
        if len(words) < end:
            rest = self.tokens[len(words):end]
            words += list(accumulate(rest, _word, initial=words[-1] if words else 0))[1:]
        return words if len(words) == end else words[:end]


def _word(before: int, token: int) -> int:
    return hash((before, token))
