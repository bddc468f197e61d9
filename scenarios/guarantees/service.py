"""The rules of service, played by hand: what each step may hold, by what was asked before it (pure).

Promises
- It knows what is documented and nothing of how the engine does it: plain lists, and tokens where that has hashes.
- The first step that is not as it must be raises `Wrong`, in words: what comes after it rests on it.

The rules
    first come, first served; who was preempted comes before whoever has not run yet, the last preempted first
    or, where tokens in flight are promised, with those too, unless they bring it to a length that ends it
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

from scenarios.guarantees.guests import Blocks, Guest, Limits, Work, Wrong
from scenarios.history.steps import Asked, Came, Known, Step


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
        self._came = self._served = 0

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
        guest.blocks, guest.stored, guest.computed, guest.promised = [], [], 0, 0
        guest.stay += 1

    # -- a step

    def serve(self, step: Step) -> None:
        """Raises Wrong."""
        idle = not self.unserved
        self.unserved = 0
        known, came = {entry[0]: entry for entry in step.known}, {entry.request: entry for entry in step.came}
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
        self._served += 1

    def _those_who_run(self, step: Step, known: dict[str, Known]) -> int:
        """-> what is left of the budget"""
        size, longest, running = self.limits.block_size, self.limits.blocks * self.limits.block_size, self.running
        budget, place = self.limits.tokens, 0
        while budget and place < len(running):
            guest = running[place]
            until = len(guest.tokens) + guest.promised
            if until == guest.computed or (guest.promised and (
                    self._served < guest.next_step or self._may_end(guest, until))):
                place += 1  # its next token is in flight
                continue
            most = self._at_once(budget)
            if until - guest.computed > most:
                until = guest.computed + most
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

    def _may_end(self, guest: Guest, tokens: int) -> bool:
        """Whether so many tokens, the last of which are promised, are its end whatever they are."""
        limits, asked = self.limits, guest.asked
        return (asked.most is not None and tokens >= len(asked.prompt) + asked.most) or (
            limits.longest is not None and tokens >= limits.longest) or tokens > limits.blocks * limits.block_size

    def _at_once(self, budget: int) -> int:
        """How many tokens of one request a step may compute."""
        most = self.limits.at_once
        return most if most and most < budget else budget

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
            revived = self._unused_for(found, entry)
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

    def _unused_for(self, found: list[int], entry: Came | None) -> int:
        """How many of the found ones nobody holds: by the blocks that were chosen, where several hold the same.

        Who was left out may have been meant to take an unused one, wherever there is one.
        """
        unused, found_in = self.blocks.unused, self.blocks.found_in
        if entry is None:
            return sum(any(block in unused for block in found_in[number]) for number in found)
        return sum(block in unused for block in entry.blocks[:len(found)])

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
        samples = guest.computed == len(guest.tokens) + guest.promised
        if samples and self.limits.promises:
            guest.promised += 1
            guest.next_step = self._served + self.limits.stages
        guest.told = len(guest.tokens) + guest.promised
        self._in_step.append((guest, guest.stay, guest.computed, samples))

    def uses(self) -> None:
        """The oldest step in flight was executed: what it computed can be found, and who got a last token is over."""
        size, reuses = self.limits.block_size, self.limits.reuses
        for guest, stay, computed, samples in self.in_flight.popleft():
            if guest.stay != stay:
                continue  # it has gone, or given way, since
            if reuses and (len(guest.stored) + 1) * size <= computed:
                self._can_be_found(guest, computed)
            if samples:
                guest.promised -= self.limits.promises
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
