"""The rules of service, played by hand: what each step may hold, by what was asked before it (pure).

Promises
- It knows what is documented and nothing of how the engine does it: plain lists, and tokens where that has hashes.
- The first step that is not as it must be raises `Wrong`, in words: what comes after it rests on it.

The rules
    first come, first served; who was preempted comes before whoever has not run yet, the last preempted first
    a step's results are known when the core has used them, and not to the steps that it has scheduled before
    or by priority, the lowest first; who came first among equals, whether it has run or not
    running requests first, in that order, each with all it still has to compute, up to the threshold for one request
        and the budget for all
    where blocks run out the last of the running gives way, and then nobody new comes in
    who comes in finds the longest beginning that others have left; at least its last token is computed
    a block is taken that holds nothing, else the one whose content went unused for longest, a chain's end first
    what can never fit ends; workers are told of each end that they do not know of, once, in the next step
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from scenarios.history.steps import Asked, Came, Known, Step


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

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.name = asked.request
        self.tokens = list(asked.prompt)
        self.longest = len(asked.prompt) + asked.answers
        self.told = 0  # so many of its tokens the workers know
        self.computed = 0
        self.blocks: list[int] = []
        self.stored: list[int] = []  # the numbers of its full blocks
        self.cached: int | None = None  # so many tokens it found when it first came in
        self.turn = 0, 0  # by priority, then by when it came
        self.stay = 0  # how often it has let go of its blocks

    def __str__(self) -> str:
        return repr(self.name)


class Work(NamedTuple):
    """What a step computes for a request: up to which token, and whether that is its last one."""

    guest: Guest
    stay: int
    computed: int
    samples: bool


class Service:
    """One life of one engine, step by step. `running` and `waiting` are in the order in which they are served."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.blocks = Blocks(limits.blocks)
        self.running: list[Guest] = []
        self.waiting: list[Guest] = []
        self.guests: dict[str, Guest] = {}  # all that ever came in, the last of its id
        self.found = 0  # how often somebody came in behind a beginning that others had left
        self.unserved = 0  # who can never be served, and has still to be told
        self._untold: list[str] = []  # ended, and the workers do not know
        self._preempted: list[str] = []  # gave way, and the workers do not know
        self._in_step: list[Work] = []
        self.in_flight: deque[list[Work]] = deque()  # the steps whose results are not used yet
        self._came = 0

    @property
    def has_ends_to_tell(self) -> bool:
        """To workers or to callers."""
        return bool(self._untold or self._preempted or self.unserved)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self.has_ends_to_tell)

    # -- between two steps

    def comes(self, asked: Asked) -> None:
        guest = self.guests[asked.request] = Guest(asked)
        self._came += 1
        guest.turn = asked.priority, self._came
        if not self.limits.can_serve(asked.prompt):
            self.unserved += 1
        else:
            self._takes_its_place(guest, self.waiting, len(self.waiting))

    def _takes_its_place(self, guest: Guest, among: list[Guest], otherwise: int) -> None:
        place = otherwise
        if self.limits.by_priority:
            place = next((n for n, other in enumerate(among) if other.turn > guest.turn), len(among))
        among.insert(place, guest)

    def leaves(self, request: str) -> None:
        """Its caller wants it no more."""
        guest = self.guests.get(request)
        if guest in self.waiting:
            self.waiting.remove(guest)
        elif guest in self.running:
            self.running.remove(guest)
            self._ends(guest)

    def reset(self) -> None:
        self.blocks.forget_all()

    def all_give_way(self) -> None:
        while self.running:
            self._gives_way()

    def _gives_way(self) -> Guest:
        """The youngest lets go of its blocks, and is the next to come in."""
        youngest = self.running.pop()
        self._let_go(youngest)
        self._preempted.append(youngest.name)
        self._takes_its_place(youngest, self.waiting, 0)
        return youngest

    def _ends(self, guest: Guest) -> None:
        self._let_go(guest)
        self._untold.append(guest.name)

    def _let_go(self, guest: Guest) -> None:
        self.blocks.release(guest.blocks)
        guest.blocks, guest.stored, guest.computed = [], [], 0
        guest.stay += 1

    # -- a step

    def serve(self, step: Step) -> None:
        """Raises Wrong."""
        idle = not self.unserved
        self.unserved = 0
        known, came = {entry.request: entry for entry in step.known}, {entry.request: entry for entry in step.came}
        self._in_step = []
        before = len(self._preempted)
        budget = self._those_who_run(step, known)
        if len(self._preempted) == before:
            idle = self._those_who_wait(step, came, budget) and idle
        for request in (*known, *came):
            raise Wrong(f"{request!r} is in a step in which it has no place")
        if len(step.scheduled) != len(self._in_step):  # who is in it has been looked up
            raise Wrong(f"tokens are counted for {sorted(step.scheduled)}")
        if step.finished or self._untold:
            _must_be_told("ended", step.finished, self._untold)
        if step.preempted or self._preempted:
            _must_be_told("given way", step.preempted, self._preempted)
        if idle and not (step.scheduled or step.finished or step.preempted):
            raise Wrong("there was nothing to do in it")
        self._untold, self._preempted = [], []
        self.in_flight.append(self._in_step)

    def _those_who_run(self, step: Step, known: dict[str, Known]) -> int:
        """-> what is left of the budget"""
        size, longest, running = self.limits.block_size, self.limits.blocks * self.limits.block_size, self.running
        budget, place = self.limits.tokens, 0
        while budget and place < len(running):
            guest = running[place]
            until = len(guest.tokens)
            most = self._at_once(budget)
            if until - guest.computed > most:
                until = guest.computed + most
            elif until == guest.computed:  # its next token is in flight
                place += 1
                continue
            if until > longest:
                del running[place]
                self._ends(guest)
                continue
            needed = -(-until // size) - len(guest.blocks)
            while needed and needed > self.blocks.free:
                if self._gives_way() is guest:
                    return budget
            entry = known.pop(guest.name, None)
            if entry is None:
                raise Wrong(f"{guest} runs, could go on and was left out")
            self._goes_on(guest, entry, needed)
            budget -= until - guest.computed
            self._computes(guest, step, until - guest.computed)
            place += 1
        return budget

    def _at_once(self, budget: int) -> int:
        """How many tokens of one request a step may compute."""
        return min(budget, self.limits.at_once or budget)

    def _goes_on(self, guest: Guest, entry: Known, needed: int) -> None:
        _, tokens, blocks, computed = entry
        if tokens != guest.tokens[guest.told:]:
            raise Wrong(f"the workers get {tokens} as the new tokens of {guest}, which are {guest.tokens[guest.told:]}")
        if computed != guest.computed:
            raise Wrong(f"{guest} goes on at token {computed}, it is computed up to {guest.computed}")
        if len(blocks) != needed:
            raise Wrong(f"{guest} gets {len(blocks)} more blocks and needs {needed}")
        if blocks:
            self._takes(guest, blocks)

    def _those_who_wait(self, step: Step, came: dict[str, Came], budget: int) -> bool:
        """-> whether nobody had to be sent away"""
        limits, size, all_fit = self.limits, self.limits.block_size, True
        while budget and self.waiting and len(self.running) < limits.requests:
            guest = self.waiting[0]
            if len(guest.tokens) > limits.blocks * size:
                del self.waiting[0]
                all_fit = False
                continue
            found = self._findable(guest)
            count = min(len(guest.tokens) - len(found) * size, self._at_once(budget))
            needed = -(-(len(found) * size + count) // size) - len(found)
            entry = came.get(guest.name)
            revived = self._unused_for(found, [] if entry is None else entry.blocks)
            if needed > self.blocks.free - revived:
                break
            if entry is None:
                raise Wrong(f"{guest} is next, could run and was left waiting")
            del self.waiting[0], came[guest.name]
            self._takes_its_place(guest, self.running, len(self.running))
            self._comes_in(guest, entry, found, needed)
            self._computes(guest, step, count)
            budget -= count
        return all_fit

    def _findable(self, guest: Guest) -> list[int]:
        """The numbers of the longest beginning that can be found, short of its last token."""
        size, found = self.limits.block_size, list[int]()
        for begin in range(0, len(guest.tokens) - size, size) if self.limits.reuses else ():
            number = self.blocks.number(found[-1] if found else 0, guest.tokens[begin:begin + size])
            if number not in self.blocks.found_in:
                break
            found.append(number)
        return found

    def _unused_for(self, found: list[int], blocks: list[int]) -> int:
        """How many of the found ones nobody holds: by the blocks that were chosen, where several hold the same."""
        chosen = blocks if len(blocks) >= len(found) else [min(self.blocks.found_in[number]) for number in found]
        return sum(block in self.blocks.unused for block in chosen[:len(found)])

    def _comes_in(self, guest: Guest, entry: Came, found: list[int], needed: int) -> None:
        if entry.tokens != guest.tokens or entry.prompt != len(guest.asked.prompt):
            raise Wrong(f"{guest} comes in with other tokens than were asked and answered so far")
        if entry.computed != len(found) * self.limits.block_size:
            raise Wrong(f"{guest} comes in with {entry.computed} tokens as computed, others have left "
                        f"{len(found) * self.limits.block_size} of them")
        if len(entry.blocks) != len(found) + needed:
            raise Wrong(f"{guest} comes in with {len(entry.blocks)} blocks and needs {len(found) + needed}")
        for block, number in zip(entry.blocks, found, strict=False):
            if self.blocks.content.get(block) != number:
                raise Wrong(f"{guest} takes block {block} for a part of its beginning, which is not in it")
            self.blocks.hold(block)
        guest.blocks, guest.stored = list(entry.blocks[:len(found)]), found
        guest.computed = entry.computed
        self.found += bool(found)
        guest.cached = entry.computed if guest.cached is None else guest.cached
        self._takes(guest, entry.blocks[len(found):])

    def _takes(self, guest: Guest, blocks: list[int]) -> None:
        for block in blocks:
            self.blocks.take(block)
        guest.blocks += blocks

    def _computes(self, guest: Guest, step: Step, count: int) -> None:
        counted = step.scheduled.get(guest.name)
        if counted != count:
            raise Wrong(f"{counted} tokens of {guest} are computed, {count} should be")
        guest.computed += count
        guest.told = len(guest.tokens)
        self._in_step.append(Work(guest, guest.stay, guest.computed, guest.computed == len(guest.tokens)))

    def uses(self) -> None:
        """The oldest step in flight was executed: what it computed can be found, and who got a last token is over."""
        size, reuses = self.limits.block_size, self.limits.reuses
        for guest, stay, computed, samples in self.in_flight.popleft():
            if guest.stay != stay:
                continue  # it has gone, or given way, since
            if reuses and (len(guest.stored) + 1) * size <= computed:
                self._can_be_found(guest, computed)
            if samples:
                have = len(guest.tokens)
                guest.tokens.append(guest.asked.answer(have - len(guest.asked.prompt)))
                if have + 1 == guest.longest:
                    self.running.remove(guest)
                    self._ends(guest)

    def _can_be_found(self, guest: Guest, computed: int) -> None:
        size = self.limits.block_size
        while (len(guest.stored) + 1) * size <= computed:
            begin = len(guest.stored) * size
            number = self.blocks.number(guest.stored[-1] if guest.stored else 0, guest.tokens[begin:begin + size])
            self.blocks.store(guest.blocks[len(guest.stored)], number)
            guest.stored.append(number)


def _must_be_told(what: str, told: list[str], wanted: list[str]) -> None:
    if sorted(told) != sorted(wanted):
        raise Wrong(f"the workers are told that {sorted(told)} have {what}, and these have: {sorted(wanted)}")
