"""Every interleaving of a small ring, under any of three memory orders, with the engine's own ring code.

A step of a process is one load of a byte, one store of a byte into its store buffer, or one fence; a step of the
machine is one byte leaving a store buffer. To stop inside `try_write` or `try_read`, the operation is run again
from the answers it had, up to the first action that has none.

    SC    stores are seen at once
    TSO   stores leave their process's buffer in order (x86)
    PSO   stores to different bytes leave in any order (weak machines)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine.ipc.ring import EMPTY, RingLayout, RingReader, RingWriter

WIDTH = 2  # bytes per message: two, so that a torn one is seen


class Party(NamedTuple):
    position: int
    log: tuple[int | None, ...]  # answers of the running operation: the byte of a load, None for stores and fences
    buffer: tuple[tuple[int, int], ...]  # (address, byte), oldest first


class State(NamedTuple):
    memory: bytes
    parties: tuple[Party, ...]  # the writer, then the readers


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
    def __init__(self, log: tuple[int | None, ...], metadata_offset: int) -> None:
        self._log, self._next, self._data_end = log, 0, metadata_offset

    def _answer(self, kind: str, address: int = 0, value: int = 0) -> Any:
        if self._next == len(self._log):
            raise _Pending(kind, address, value)
        self._next += 1
        return self._log[self._next - 1]

    def load(self, address: int) -> int:
        return self._answer("load", address)

    def fence(self) -> None:
        self._answer("fence")

    def __getitem__(self, where: slice) -> Any:
        if where.start < self._data_end:
            return _View(self, where.start)
        return bytes(self.load(address) for address in range(where.start, where.stop))

    def __setitem__(self, where: slice, value: bytes) -> None:
        for address, byte in zip(range(where.start, where.stop), value, strict=True):
            self._answer("store", address, byte)


class Explorer:
    """`writer` and `reader` make the ends; subclasses of the real ones plant flaws."""

    def __init__(self, order: str, n_reader: int, chunks: int, messages: int, *,
                 writer: Callable[..., RingWriter] = RingWriter,
                 reader: Callable[..., RingReader] = RingReader) -> None:
        self.order, self.n_reader, self.messages = order, n_reader, messages
        self.layout = RingLayout(n_reader, 8, chunks)
        self._make_writer, self._make_reader = writer, reader
        self.states = 0
        self.finished = 0

    def explore(self, most: int = 2_000_000) -> str | None:
        """-> the first violation, as a sentence, or None when all states are fine."""
        start = State(bytes(self.layout.vllm_bytes), (Party(0, (), ()),) * (1 + self.n_reader))
        seen, todo = {start}, [start]
        while todo:
            state = todo.pop()
            following, violation = self._steps(state)
            if violation:
                self.states = len(seen)
                return violation
            if all(p.position == self.messages and not p.log for p in state.parties):
                self.finished += 1
            for after in following:
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
            assert len(seen) <= most, "too many states: choose a smaller ring"
        self.states = len(seen)
        return None

    def _steps(self, state: State) -> tuple[list[State], str | None]:
        following = []
        for index, party in enumerate(state.parties):
            for at in self._leaving(party.buffer):
                address, byte = party.buffer[at]
                memory = bytearray(state.memory)
                memory[address] = byte
                buffer = party.buffer[:at] + party.buffer[at + 1:]
                following.append(_with(State(bytes(memory), state.parties), index, party._replace(buffer=buffer)))
            if party.position == self.messages:
                continue
            after, violation = self._step(state, index, party)
            if violation:
                return [], violation
            if after is not None:
                following.append(after)
        return following, None

    def _leaving(self, buffer: tuple[tuple[int, int], ...]) -> list[int]:
        """Which entries of a store buffer may become visible next."""
        if self.order == "TSO":
            return [0] if buffer else []
        first: dict[int, int] = {}
        for at, (address, _) in enumerate(buffer):
            first.setdefault(address, at)
        return list(first.values())

    def _step(self, state: State, index: int, party: Party) -> tuple[State | None, str | None]:
        replay = _Replay(party.log, self.layout.metadata_offset)
        end = (self._make_reader(self.layout, replay, replay.fence, index - 1) if index
               else self._make_writer(self.layout, replay, replay.fence))
        end._position = party.position
        try:
            if index:
                taken = end.try_read(lambda view: bytes(view[k] for k in range(WIDTH)))
            else:
                taken = end.try_write([bytes([party.position + 1]) * WIDTH])
        except _Pending as pending:
            return self._act(state, index, party, *pending.action), None
        if index and taken is not EMPTY and taken != bytes([party.position + 1]) * WIDTH:
            return None, f"reader {index - 1} took {list(taken)} as message {party.position + 1}"
        return _with(state, index, party._replace(position=end.position, log=())), None

    def _act(self, state: State, index: int, party: Party, kind: str, address: int, value: int) -> State | None:
        if kind == "fence":
            return None if party.buffer else _with(state, index, party._replace(log=(*party.log, None)))
        if kind == "load":
            own = [byte for at, byte in party.buffer if at == address]
            seen = own[-1] if own else state.memory[address]
            return _with(state, index, party._replace(log=(*party.log, seen)))
        if self.order == "SC":
            memory = bytearray(state.memory)
            memory[address] = value
            return _with(State(bytes(memory), state.parties), index, party._replace(log=(*party.log, None)))
        return _with(state, index, party._replace(log=(*party.log, None), buffer=(*party.buffer, (address, value))))


def _with(state: State, index: int, party: Party) -> State:
    return State(state.memory, (*state.parties[:index], party, *state.parties[index + 1:]))
