"""Every interleaving of a small ring, under three memory orders, with a crash after any store: the shipped code itself.

Promises
- What runs is `RingWriter.try_write` and `RingReader.try_read`, unchanged. To stop inside of them, an operation is run
  again from the answers it had, up to the first action that has none.
- Every schedule of loads and of stores becoming visible is covered, and every choice of at most `crashes` parties that
  stop for ever before one of their stores. What a dead party had stored still becomes visible.
- The first broken property ends the search, and its shortest schedule is handed back as a table.

    SC    stores are seen at once
    TSO   stores leave their process's buffer in order (x86)
    PSO   stores to different bytes leave in any order; loads stay in order
    WEAK  PSO, and a load may have been done early: it answers with any value that its byte has had since the party's
          last fence, as long as no byte goes back in time for one party

With `bell`, a writer that finds no room sleeps until the bell is rung, and a reader rings it as `message_queue` does:
only where `writer_may_wait`. A wake-up that gets lost is then a writer that waits for ever.

Properties
- A reader takes exactly the next message, whole, each time.
- No store of a message becomes visible before every reader, alive or dead, has read what stood in that chunk.
- Where nothing can move any more, each live reader has taken all that was published, and a live writer has published
  all or waits for a dead reader that holds the chunk. Without a crash everything was read.

What keeps it small
- Steps that nobody else can see (a store into the own buffer, a fence with an empty buffer, the end of an operation)
  are part of the step before them. `folded=False` takes each by itself, to check that.
- A crash counts only just before a store: until then a dead party is like one that is merely late.
- A party's next step is worked out once per state of that party, not once per state of the whole.
- A whole state is one integer: an index for the memory and one for each party.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from engine.ipc.ring import EMPTY, RingLayout, RingReader, RingWriter
from tests.explorer.table import Counterexample, Row, memory_text, store_text

WIDTH = 2  # bytes per message: two, so that a torn one is seen
BITS = 20  # of a party's index within a state
_MASK = (1 << BITS) - 1


class Case(NamedTuple):
    order: str  # SC, TSO, PSO or WEAK
    readers: int
    chunks: int
    messages: int
    crashes: int = 0
    bell: bool = False
    moves: int = 0  # every so manieth message may lie at another chunk's place

    def __str__(self) -> str:
        return (f"{self.order} {self.readers} readers x {self.chunks} chunks x {self.messages} messages, "
                f"{self.crashes} crashes{', bell' * self.bell}"
                f"{f', one in {self.moves} moves' * bool(self.moves)}")


class Local(NamedTuple):
    """All there is to know about one party."""

    count: int = 0  # messages published or taken, counted here
    memory: tuple[Any, ...] = ()  # what the ring's code remembers
    log: tuple[int | None, ...] = ()  # answers of the running operation: a load's byte, None for stores and fences
    buffer: tuple[tuple[int, int, int], ...] = ()  # (address, byte, message), oldest first
    dead: bool = False
    ticket: int | None = None  # of a writer that sleeps: the bell's value before it looked
    stale: tuple[tuple[int, tuple[int, ...]], ...] = ()  # WEAK: (address, values still to be seen, oldest first)


class Outcome(NamedTuple):
    """Where a step leads. `crashes`: the same step, and then dead before one of the stores that follow."""

    local: int
    delta: int
    crashes: tuple[int, ...]
    rows: tuple[tuple[str, int, int], ...]
    violation: str | None


class Next(NamedTuple):
    """What a party can do next, and what may leave its buffer.

    kind: `load`; `store` that is seen at once; `own` for what nobody else sees (not folded only); else `none`
    """

    kind: str
    address: int
    value: int | None  # of a store, or of a load that the own buffer answers
    message: int
    answers: dict[Any, Outcome]
    leaving: tuple[tuple[int, int, int, Outcome], ...]
    idle: bool  # between two operations, nothing buffered
    local: Local


class _Pending(BaseException):
    """The operation has reached an action without an answer."""

    def __init__(self, kind: str, address: int = 0, value: int = 0) -> None:
        self.action = (kind, address, value)


class _View:
    """A chunk that is loaded byte by byte, where and when it is looked at."""

    def __init__(self, memory: _Replay, start: int) -> None:
        self._memory, self._start = memory, start

    def __getitem__(self, index: int) -> int:
        return self._memory.load(self._start + index)


class _Replay:
    """A memory that answers from a log."""

    def __init__(self, log: tuple[int | None, ...], metadata_offset: int) -> None:
        self._log, self._next, self._data_end = log, 0, metadata_offset

    def _answer(self, kind: str, address: int = 0, value: int = 0) -> Any:
        if self._next == len(self._log):
            raise _Pending(kind, address, value)
        self._next += 1
        return self._log[self._next - 1]

    def load(self, address: int) -> int:
        return self._answer("load", address)

    def store(self, address: int, value: int) -> None:
        self._answer("store", address, value)

    def fence(self) -> None:
        self._answer("fence")

    def __getitem__(self, where: slice | int) -> Any:
        if isinstance(where, int):
            return self.load(where)
        if where.start < self._data_end:
            return _View(self, where.start)
        return bytes(self.load(address) for address in range(where.start, where.stop))

    def __setitem__(self, where: slice | int, value: Any) -> None:
        if isinstance(where, int):
            return self.store(where, value)
        for address, byte in zip(range(where.start, where.stop), value, strict=True):
            self.store(address, byte)


class _Party:
    """One end, as a table: what it does next in each of its states. Party 0 is the writer."""

    def __init__(self, index: int, case: Case, layout: RingLayout, make: Callable[..., Any], folded: bool) -> None:
        self.index, self.shift, self._folded = index, BITS * index, folded
        self.name = f"reader {index - 1}" if index else "writer"
        self._case, self._layout, self._make = case, layout, make
        self._names = ("_position",) if index else ("_position", "_places")
        self._ids: dict[Local, int] = {}
        self._aged: dict[tuple[int, int, int], int] = {}
        self._next: list[Next | None] = []
        self._locals: list[Local] = []
        self.start = self._settle(0, Local(memory=self._remembered(self._end(_Replay((), 0)))))

    def next(self, number: int) -> Next:
        found = self._next[number]
        if found is None:
            found = self._next[number] = self._work_out(number)
        return found

    def answer(self, number: int, following: Next, value: int, age: int | None = None) -> Outcome:
        """Where a load of `value`, or a store that is done, leads. `age`: its place in the byte's stale values."""
        local = following.local
        given = value if following.kind == "load" else None
        if local.stale and following.kind == "load":
            local = self._no_older(local, following.address, age)
        buffer = local.buffer
        if following.kind == "own" and following.value is not None:
            buffer = (*buffer, (following.address, following.value, local.count))
        outcome = self._settle(number, local._replace(log=(*local.log, given), buffer=buffer))
        following.answers[value if age is None else (value, age)] = outcome
        return outcome

    def stale_values(self, following: Next) -> tuple[int, ...]:
        """What a load may still see instead of what is there."""
        if not following.local.stale or following.value is not None:
            return ()
        return dict(following.local.stale).get(following.address, ())

    def age(self, number: int, address: int, value: int) -> int:
        """Another party's store has replaced `value`. -> what that adds to a state"""
        key = (number, address, value)
        if key not in self._aged:
            local, delta = self._locals[number], 0
            if self._runs(local) and self._loads(address):
                stale = dict(local.stale)
                stale[address] = (*stale.get(address, ()), value)
                delta = (self._number(local._replace(stale=tuple(sorted(stale.items())))) - number) << self.shift
            self._aged[key] = delta
        return self._aged[key]

    def _loads(self, address: int) -> bool:
        """Whether this party ever loads that byte and does not only write it itself."""
        if address < self._layout.metadata_offset or address >= self._layout.vllm_bytes:
            return (address < self._layout.metadata_offset) == bool(self.index)
        flag = (address - self._layout.metadata_offset) % self._layout.metadata_bytes
        return flag in (0, self.index) if self.index else flag > 0

    @staticmethod
    def _no_older(local: Local, address: int, age: int | None) -> Local:
        """After a load of that byte, or a store to it (age None: what is there now): time does not go back."""
        stale = dict(local.stale)
        if address in stale and age is None:
            del stale[address]
        elif address in stale:
            stale[address] = stale[address][age:]
        return local._replace(stale=tuple(sorted(stale.items())))

    def _number(self, local: Local) -> int:
        number = self._ids.get(local)
        if number is None:
            number = self._ids[local] = len(self._locals)
            assert number <= _MASK, "too many states of one party"
            self._locals.append(local)
            self._next.append(None)
        return number

    def _work_out(self, number: int) -> Next:
        local = self._locals[number]
        kind, address, value = self._action(local)[0] if self._runs(local) else ("none", 0, 0)
        leaving = []
        for at in self._may_leave(local.buffer):
            byte = local.buffer[at]
            outcome = self._settle(number, local._replace(buffer=local.buffer[:at] + local.buffer[at + 1:]))
            leaving.append((*byte, outcome))
        if kind == "load":
            own = [byte for at, byte, _ in local.buffer if at == address]
            value = own[-1] if own else None
        elif kind == "fence":
            kind, value = "none" if self._folded or local.buffer else "own", None
        elif kind == "store" and self._case.order != "SC":
            kind = "own"
        return Next(kind, address, value, local.count, {}, tuple(leaving), not local.log and not local.buffer, local)

    def _may_leave(self, buffer: tuple[tuple[int, int, int], ...]) -> list[int]:
        """Which entries of a store buffer may become visible next."""
        if self._case.order == "TSO":
            return [0] if buffer else []
        first: dict[int, int] = {}
        for at, (address, _, _) in enumerate(buffer):
            first.setdefault(address, at)
        return list(first.values())

    def _runs(self, local: Local) -> bool:
        return not local.dead and local.count < self._case.messages

    def _action(self, local: Local) -> tuple[tuple[str, int, int], Any, int]:
        """-> the next action of the running operation, or ("end", 0, 0), its result and what it remembers"""
        replay = _Replay(local.log, self._layout.metadata_offset)
        end = self._end(replay)
        for name, value in zip(self._names, local.memory, strict=True):
            setattr(end, name, value)
        try:
            result = (self._read if self.index else self._write)(local, replay, end)
        except _Pending as pending:
            return pending.action, None, ()
        return ("end", 0, 0), result, self._remembered(end)

    def _end(self, replay: _Replay) -> Any:
        return self._make(self._layout, replay, replay.fence, *((self.index - 1,) if self.index else ()))

    def _remembered(self, end: Any) -> tuple[Any, ...]:
        return tuple(getattr(end, name) for name in self._names)

    def _read(self, local: Local, replay: _Replay, end: Any) -> Any:
        result = end.try_read(lambda view: bytes(view[k] for k in range(WIDTH)))
        if self._case.bell and result is not EMPTY and end.writer_may_wait():
            replay.store(self._layout.writer_bell_offset, 1 + local.count * self._case.readers + self.index)
        return result

    def _write(self, local: Local, replay: _Replay, end: Any) -> bool:
        if self._case.bell:
            if replay.load(self._layout.writer_bell_offset) == local.ticket:
                return False  # still asleep
            if self._case.order == "WEAK":
                replay.fence()  # of `FutexDoorbell.seen`, where the machine may reorder loads
        if self._case.moves and (local.count + 1) % self._case.moves == 0:
            end.moves_from = WIDTH
        return end.try_write([bytes([local.count + 1]) * WIDTH])

    def _settle(self, number: int, local: Local) -> Outcome:
        """Go on until the next step is one that others can see."""
        rows: list[tuple[str, int, int]] = []
        crashes: list[int] = []
        while self._runs(local):
            (kind, address, value), result, memory = self._action(local)
            if kind == "end":
                done = result is not EMPTY and result is not False
                rows.append((("took" if self.index else "wrote") if done else "nothing", local.count + 1, 0))
                if self.index and done and result != bytes([local.count + 1]) * WIDTH:
                    rows[-1] = ("took wrong", local.count + 1, 0)
                    return Outcome(number, 0, (), tuple(rows), f"{self.name} took {result.hex(' ')} as message "
                                                               f"{local.count + 1}")
                asleep = self._case.bell and not self.index and not done
                local = Local(local.count + done, memory, (), local.buffer, False,
                              local.log[0] if asleep else None, local.stale)
                if asleep:
                    break  # the next step is a load, whoever sleeps
                continue
            if kind == "store":
                crashes.append(self._number(Local(local.count, (), (), local.buffer, True)))
                if self._case.order == "SC" or not self._folded:
                    break
                rows.append(("store", address, value))
                local = local._replace(buffer=(*local.buffer, (address, value, local.count)))
                if local.stale:
                    local = self._no_older(local, address, None)
            elif kind == "load" or local.buffer or not self._folded:
                break  # a load, or a fence that has to wait
            else:
                rows.append(("fence", 0, 0))
                local = local._replace(stale=())
            local = local._replace(log=(*local.log, None))
        found = self._number(local)
        return Outcome(found, (found - number) << self.shift,
                       tuple((crash - number) << self.shift for crash in crashes), tuple(rows), None)


class Explorer:
    """Searches one case. `writer` and `reader` make the ends; others than the shipped ones plant flaws."""

    def __init__(self, case: Case, *, writer: Callable[..., Any] = RingWriter,
                 reader: Callable[..., Any] = RingReader, folded: bool = True) -> None:
        self.case, self._folded = case, folded
        self.layout = RingLayout(case.readers, 8, case.chunks)
        self.finished = self.crashed_ends = 0
        self._seen: set[int] = set()
        self.seconds = 0.0
        self._parties = [_Party(index, case, self.layout, reader if index else writer, folded)
                         for index in range(1 + case.readers)]
        self._weak = case.order == "WEAK"
        self._memories = [bytes(self.layout.writer_bell_offset + 1 if case.bell else self.layout.vllm_bytes)]
        self._memory_ids = {self._memories[0]: 0}
        self._stored: dict[tuple[int, int, int], int] = {}
        self._memory_shift = BITS * len(self._parties)

    def explore(self, most: int = 100_000_000) -> Counterexample | None:
        """Search all states. -> the shortest way to a violation, or None. Raises RuntimeError beyond `most` states."""
        began = time.perf_counter()
        start = sum(party.start.local << party.shift for party in self._parties)
        seen, todo = {start}, deque([start])
        self._seen, violation = seen, None
        while todo and violation is None:
            following, violation = self._following(todo.popleft())
            for after in following:
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
            if len(seen) > most:
                raise RuntimeError(f"{self.case}: more than {most} states")
        self.seconds = time.perf_counter() - began
        return None if violation is None else self._shortest(start)

    @property
    def states(self) -> int:
        return len(self._seen)

    def between_operations(self) -> set[tuple[bytes, tuple[Local, ...]]]:
        """The states that were reached in which nobody is inside an operation and nothing is buffered."""
        return {(self._memories[state >> self._memory_shift], tuple(self._locals(state))) for state in self._seen
                if all(party.next((state >> party.shift) & _MASK).idle for party in self._parties)}

    def _following(self, state: int) -> tuple[list[int], str | None]:
        memory_id = state >> self._memory_shift
        memory = self._memories[memory_id]
        following: list[int] = []
        idle = True
        for party in self._parties:
            number = (state >> party.shift) & _MASK
            step = party._next[number] or party.next(number)
            idle = idle and step.idle
            if step.kind == "load":
                value = memory[step.address] if step.value is None else step.value
                outcomes = [step.answers.get(value) or party.answer(number, step, value)]
                if self._weak:
                    outcomes += self._early(party, number, step)
                for outcome in outcomes:
                    if outcome.violation:
                        return [], outcome.violation
                    following.append(state + outcome.delta)
                    if outcome.crashes:
                        self._crash(state, outcome, following)
            elif step.kind == "own":
                outcome = step.answers.get(0) or party.answer(number, step, 0)
                if outcome.violation:
                    return [], outcome.violation
                following.append(state + outcome.delta)
                if outcome.crashes:
                    self._crash(state, outcome, following)
            elif step.kind == "store":
                if not party.index and (violation := self._overwrites(state, step.message, step.address)):
                    return [], violation
                outcome = step.answers.get(0) or party.answer(number, step, 0)
                if outcome.violation:
                    return [], outcome.violation
                after = state + self._store(memory_id, step.address, step.value)
                following.append(after + outcome.delta)
                if outcome.crashes:
                    self._crash(after, outcome, following)
            for address, value, message, outcome in step.leaving:
                if not party.index and (violation := self._overwrites(state, message, address)):
                    return [], violation
                if outcome.violation:
                    return [], outcome.violation
                after = self._seen_by_all(state, party, address, value)
                following.append(after + outcome.delta)
                if outcome.crashes:
                    self._crash(after, outcome, following)
        return following, self._at_rest(state, memory) if idle else None

    def _crash(self, state: int, outcome: Outcome, following: list[int]) -> None:
        if self.case.crashes and sum(local.dead for local in self._locals(state)) < self.case.crashes:
            following += [state + delta for delta in outcome.crashes]

    @staticmethod
    def _early(party: _Party, number: int, step: Next) -> list[Outcome]:
        """Where a load leads that was done before the last stores of others to its byte."""
        return [step.answers.get((value, age)) or party.answer(number, step, value, age)
                for age, value in enumerate(party.stale_values(step))]

    def _seen_by_all(self, state: int, party: _Party, address: int, value: int) -> int:
        """-> the state after a store has left its buffer"""
        memory_id = state >> self._memory_shift
        after = state + self._store(memory_id, address, value)
        if self._weak and (old := self._memories[memory_id][address]) != value:
            after += sum(other.age((state >> other.shift) & _MASK, address, old) for other in self._parties
                         if other is not party)
        return after

    def _store(self, memory_id: int, address: int, value: int) -> int:
        """-> what a visible store adds to a state"""
        key = (memory_id, address, value)
        delta = self._stored.get(key)
        if delta is None:
            changed = bytearray(self._memories[memory_id])
            changed[address] = value
            after = bytes(changed)
            if after not in self._memory_ids:
                self._memory_ids[after] = len(self._memories)
                self._memories.append(after)
            delta = self._stored[key] = (self._memory_ids[after] - memory_id) << self._memory_shift
        return delta

    def _locals(self, state: int) -> list[Local]:
        return [party._locals[(state >> party.shift) & _MASK] for party in self._parties]

    def _overwrites(self, state: int, message: int, address: int) -> str | None:
        """Whether a store of this message (from 0) may not be seen yet."""
        old = message - self.case.chunks
        if self.case.moves and address < self.layout.metadata_offset:  # what stands there tells which message it is of
            old = self._memories[state >> self._memory_shift][address] - 1
            if old == message:
                return None
        if old < 0 or not self._folded or self.case.bell:  # there, a reader that has set its flag still has to return
            return None
        for party in self._parties[1:]:
            if party._locals[(state >> party.shift) & _MASK].count <= old:
                return f"message {message + 1} is written over message {old + 1}, which {party.name} has not read"
        return None

    def _at_rest(self, state: int, memory: bytes) -> str | None:
        """Judge a state from which nobody moves. -> what is wrong with it"""
        numbers = [(state >> party.shift) & _MASK for party in self._parties]
        if any(self._moves(party, number, memory) for party, number in zip(self._parties, numbers, strict=True)):
            return None
        writer, *readers = self._locals(state)
        crashed = sum(local.dead for local in (writer, *readers))
        self.finished += not crashed
        self.crashed_ends += bool(crashed)
        for reader, local in enumerate(readers):
            if local.count > writer.count:
                return f"reader {reader} took message {local.count}, which was never published"
            if not local.dead and local.count < writer.count:
                return f"reader {reader} waits for ever: it took {local.count} of {writer.count} messages"
        if not writer.dead and writer.count < self.case.messages and not any(
                local.dead and local.count <= writer.count - self.case.chunks for local in readers):
            return f"the writer waits for ever before message {writer.count + 1}, and nobody holds its chunk"
        return None

    def _moves(self, party: _Party, number: int, memory: bytes) -> bool:
        """Whether this party, alone, gets further than looking."""
        begin = number
        while (step := party.next(number)).kind == "load" or (step.kind == "own" and step.value is None):
            value = 0 if step.kind == "own" else memory[step.address] if step.value is None else step.value
            outcome = step.answers.get(value) or party.answer(number, step, value)
            number = outcome.local
            if outcome.violation:
                return True
            if not party._locals[number].log:
                return number != begin
        return step.kind != "none" or number != begin

    # -- the way to a violation

    def _shortest(self, start: int) -> Counterexample:
        came: dict[int, int] = {start: start}
        todo = deque([start])
        while True:
            state = todo.popleft()
            following, violation = self._following(state)
            if violation:
                break
            for after in following:
                if after not in came:
                    came[after] = state
                    todo.append(after)
        path = [state]
        while path[-1] != start:
            path.append(came[path[-1]])
        path.reverse()
        rows = [row for before, after in zip(path, path[1:], strict=False) for row in self._rows(before, after)]
        rows += self._last_rows(state, violation)
        return Counterexample(str(self.case), violation, tuple(rows))

    def _steps(self, state: int) -> Iterator[tuple[int, _Party, str, int, int, Outcome]]:
        """Each step that is possible: the state after it, who, what, where, which byte, and where it leads."""
        memory_id = state >> self._memory_shift
        for party in self._parties:
            number = (state >> party.shift) & _MASK
            step = party.next(number)
            if step.kind == "load":
                value = self._memories[memory_id][step.address] if step.value is None else step.value
                outcome = step.answers.get(value) or party.answer(number, step, value)
                yield state, party, "load", step.address, value, outcome
                for stale, early in zip(party.stale_values(step), self._early(party, number, step), strict=True):
                    yield state, party, "early", step.address, stale, early
            elif step.kind == "store":
                outcome = step.answers.get(0) or party.answer(number, step, 0)
                yield (state + self._store(memory_id, step.address, step.value), party, "store", step.address,
                       step.value, outcome)
            elif step.kind == "own":
                outcome = step.answers.get(0) or party.answer(number, step, 0)
                yield state, party, "fence" if step.value is None else "buffered", step.address, step.value, outcome
            for address, value, _, outcome in step.leaving:
                yield self._seen_by_all(state, party, address, value), party, "seen", address, value, outcome

    def _rows(self, before: int, after: int) -> list[Row]:
        for state, party, what, address, value, outcome in self._steps(before):
            if state + outcome.delta == after:
                return self._told(before, state, party, what, address, value, outcome.rows)
            for crash in outcome.crashes:
                if state + crash == after:
                    buffered = len(self._locals(after)[party.index].buffer)
                    stored = 0
                    rows = []
                    held = len(self._locals(before)[party.index].buffer) - (what == "seen")
                    for row in outcome.rows:
                        if row[0] == "store":
                            if held + stored == buffered:
                                break
                            stored += 1
                        rows.append(row)
                    return self._told(before, state, party, what, address, value, (*rows, ("dies", 0, 0)))
        raise AssertionError("no step leads there")

    def _last_rows(self, state: int, violation: str) -> list[Row]:
        for after, party, what, address, value, outcome in self._steps(state):
            if outcome.violation == violation or (what in ("store", "seen") and not party.index
                                                  and violation == self._overwrites(state, self._message(
                                                      state, party, what, address), address)):
                return self._told(state, after, party, what, address, value, outcome.rows)
        return []

    def _message(self, state: int, party: _Party, what: str, address: int) -> int:
        local = self._locals(state)[party.index]
        return local.count if what == "store" else next(m for a, _, m in local.buffer if a == address)

    def _told(self, before: int, after: int, party: _Party, what: str, address: int, value: int,
              rows: tuple[tuple[str, int, int], ...]) -> list[Row]:
        visible = memory_text(self._memories[after >> self._memory_shift], self.layout, WIDTH)
        verb = "read" if party.index else "write"
        message = self._locals(before)[party.index].count + 1
        told = []
        for kind, where, byte in ((what, address, value), *rows):
            text = store_text(kind, where, byte, party.index, self.layout, buffered=self.case.order != "SC")
            told.append(Row(party.name, f"{verb} {message}", text, visible))
            message += kind in ("took", "wrote")
        return told
