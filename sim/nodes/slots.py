"""What the cache of a rank holds in the twin: for each slot a word that stands for a token and all before it.

A model that reads a slot of somebody else, one that was never written, or one that was overwritten says something
else: so does the stand-in, because the words that it finds are not those of its request.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, repeat

from engine.messages import CachedRequestData, NewRequestData

_NOTHING: list[int] = []


class Slots:
    """Of one rank. What is written into a block makes what stood behind it there worthless."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._blocks: dict[int, list[int]] = {}
        self._ends: dict[int, int] = {}  # the last word of each block that is full
        self.spoilt = 0  # how often something was written over

    def write(self, blocks: Sequence[int], start: int, words: Sequence[int]) -> None:
        """The words of the tokens from `start` on."""
        size, count, first = self.block_size, len(words), 0
        while first < count:
            index, offset = divmod(start + first, size)
            block = blocks[index]
            content = self._blocks.setdefault(block, [])
            have = len(content)
            if have == offset and count == 1:  # nearly always
                content.append(words[0])
                first = 1
            else:
                if have > offset:
                    self.spoilt += 1
                elif have < offset:
                    content += [0] * (offset - have)  # a hole: nobody wrote there
                last = first + size - offset
                content[offset:] = words[first:last]
                first = last
            if len(content) == size:
                self._ends[block] = content[-1]
            elif have == size:
                del self._ends[block]

    def write_next(self, request: Known) -> bool | None:
        """The word of the first token that has none, behind all others; as `write` and `hold`, at once.

        -> what `hold` says; None, with nothing done, where the block does not end where the words do
        """
        words, blocks, size = request.words, request.blocks, self.block_size
        count = len(words)
        full, offset = divmod(count, size)
        content = self._blocks.get(blocks[full], _NOTHING)
        if len(content) != offset or not (offset and count):
            return None
        word = hash((words[-1], request.tokens[count]))
        words.append(word)
        content.append(word)
        if offset + 1 == size:
            self._ends[blocks[full]] = word
        if request.held == self.spoilt:  # what was its own is still there
            return True
        if full and list(map(self._ends.get, blocks[:full])) != words[size - 1:count:size]:
            return False
        request.held = self.spoilt
        return True

    def hold(self, blocks: Sequence[int], words: Sequence[int]) -> bool:
        """Whether these blocks hold all these words, from the first token on. Each word stands for all before it."""
        size, last = self.block_size, len(words) - 1
        full, place = divmod(last, size)
        if full and list(map(self._ends.get, blocks[:full])) != words[size - 1:last:size]:
            return False
        content = self._blocks.get(blocks[full], ())
        return len(content) > place and content[place] == words[last]


class Known:
    """A request as a worker knows it: its tokens, its blocks, and what follows its prompt."""

    __slots__ = ("_follow", "blocks", "computed", "held", "is_as_recorded", "next_token", "tokens", "words")

    def __init__(self, new: NewRequestData, continuation: Sequence[int], last_token: int) -> None:
        self._follow = chain(continuation, repeat(last_token))
        self.next_token = next(self._follow)  # behind all that are known
        self.is_as_recorded = True  # what has been said behind its prompt
        self.tokens = list(new.token_ids[:new.num_prompt_tokens])
        self.words: list[int] = []
        self.held = -1  # when all of its words were found, counted as `Slots.spoilt` counts
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
        if token != self.next_token:
            self.is_as_recorded = False
        self.next_token = next(self._follow)
        self.tokens.append(token)

    def reads(self, start: int, words: Sequence[int]) -> list[int]:
        """What the stage before says of its tokens from `start` on, whatever they are. -> the words until then"""
        before = self.words_until(start)
        self.words = [*before, *words]
        return self.words

    def words_until(self, end: int) -> list[int]:
        """One for each of its first tokens."""
        words = self.words
        if words and len(words) + 1 == end:  # nearly always
            words.append(_word(words[-1], self.tokens[end - 1]))
            return words
        if len(words) < end:
            rest = self.tokens[len(words):end]
            words += list(accumulate(rest, _word, initial=words[-1] if words else 0))[1:]
        return words if len(words) == end else words[:end]


def _word(before: int, token: int) -> int:
    return hash((before, token))
