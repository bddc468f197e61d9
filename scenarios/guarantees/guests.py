"""Whom an engine serves, and the blocks that they hold, as the rules of service have them (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scenarios.history.steps import Asked


class Wrong(Exception):
    """A step, or what the core says beside it, breaks a rule."""


class NotFree(Wrong):
    """A block has two owners, or does not exist."""


class Limits(NamedTuple):
    """Of one engine. `longest`: what a prompt must stay below, None where only the model says so."""

    tokens: int
    requests: int
    blocks: int
    block_size: int
    longest: int | None
    reuses: bool
    by_priority: bool = False
    at_once: int = 0  # tokens of one request in a step; 0: any number
    promises: bool = False  # a request goes on before its token in flight is known,
    stages: int = 1  # so many steps behind the one that it was promised in

    def can_serve(self, prompt: list[int]) -> bool:
        """Whether a request that asks this can ever come in."""
        return 0 < len(prompt) <= self.blocks * self.block_size and (self.longest is None or len(prompt) < self.longest)


class Blocks:
    """Who holds which block, what can be found in it, and what goes unused."""

    def __init__(self, count: int) -> None:
        self.holders = [0] * count
        self.blank = set(range(count))  # free, and nothing in them
        self.unused: dict[int, None] = {}  # free, and something can be found in them; unused for longest first
        self.content: dict[int, int] = {}  # block -> the number of the tokens in it and before it
        self.found_in: dict[int, set[int]] = {}
        self.changed = False  # what can be found, since somebody asked
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}

    @property
    def free(self) -> int:
        return len(self.blank) + len(self.unused)

    def number(self, parent: int, tokens: Iterable[int]) -> int:
        """Of these tokens behind that parent; the same for the same."""
        return self._numbers.setdefault((parent, tuple(tokens)), len(self._numbers) + 1)

    def hold(self, block: int) -> None:
        self.unused.pop(block, None)
        self.holders[block] += 1

    def take(self, block: int) -> None:
        """A block is handed out for something else."""
        if not 0 <= block < len(self.holders):
            raise NotFree(f"block {block} does not exist")
        if self.holders[block]:
            raise NotFree(f"block {block} was handed out while somebody held it")
        if block in self.unused:
            if self.blank:
                raise Wrong(f"block {block} was taken, whose content could be found, although others hold nothing")
            oldest = next(iter(self.unused))
            if block != oldest:
                raise Wrong(f"block {block} was taken, although block {oldest} has gone unused for longer")
            del self.unused[block]
            self._forget(block)
        self.blank.discard(block)
        self.holders[block] = 1

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                if block in self.content:
                    self.unused[block] = None
                else:
                    self.blank.add(block)

    def store(self, block: int, number: int) -> None:
        self.content[block] = number
        self.changed |= number not in self.found_in
        self.found_in.setdefault(number, set()).add(block)

    def forget_all(self) -> None:
        for block in list(self.content):
            self._forget(block)
        self.blank |= set(self.unused)
        self.unused.clear()
        self.changed = True

    def has_changed(self) -> bool:
        changed, self.changed = self.changed, False
        return changed

    def _forget(self, block: int) -> None:
        number = self.content.pop(block)
        self.found_in[number].discard(block)
        if not self.found_in[number]:
            del self.found_in[number]
            self.changed = True


class Guest:
    """A request that is being served."""

    __slots__ = ("asked", "blocks", "cached", "computed", "longest", "name", "next_step", "promised", "stay", "stored",
                 "told", "tokens", "turn")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.name = asked.request
        self.tokens = list(asked.prompt)
        self.longest = len(asked.prompt) + asked.answers
        self.promised = 0  # tokens that steps in flight bring it, and that steps behind them compute
        self.next_step = 0  # the first that may compute with a token that is promised to it
        self.told = 0  # so many of its tokens the workers know
        self.computed = 0
        self.blocks: list[int] = []
        self.stored: list[int] = []  # the numbers of its full blocks
        self.cached: int | None = None  # so many tokens it found when it first came in
        self.turn = 0, 0  # by priority, then by when it came
        self.stay = 0  # how often it has let go of its blocks

    def __str__(self) -> str:
        return repr(self.name)


#: What a step computes for a request: who, in which of its stays, up to which token, and whether that is its last one.
Work = tuple[Guest, int, int, bool]
