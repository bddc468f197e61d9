"""The groups in which a real process decides together with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from engine.ports import Ports
from engine.process.consensus.effects import Card, Introduce, JoinGroup, LeaveGroup, Reduce


class Waits(Protocol):
    """What a process lends to a wait: `engine.process.shell.Process`."""

    ports: Ports

    def await_any(self, descriptors: list[int], timeout_s: float) -> None: ...


class Groups:
    def __init__(self, process: Waits) -> None:
        self._process = process
        self._groups: dict[str, Any] = {}
        self.answers: dict[type, Callable[[Any], Any]] = {
            Introduce: self._introduce, JoinGroup: self._join, Reduce: self._reduce, LeaveGroup: self._leave}

    def close(self) -> None:
        for name in list(self._groups):
            self._groups.pop(name).close()

    def _introduce(self, effect: Introduce) -> tuple[Card, ...]:
        cards: tuple[Card, ...] = self._process.ports.introduce(
            effect.card, effect.size, effect.where, effect.deadline, self._process.await_any)
        return cards

    def _join(self, effect: JoinGroup) -> None:
        group = self._process.ports.consensus_group(effect.group, effect.rank, effect.members, effect.where)
        try:
            group.meet(effect.deadline, self._process.await_any)
        except BaseException:
            group.close()
            raise
        self._groups[effect.group] = group

    def _reduce(self, effect: Reduce) -> list[int]:
        answer: list[int] = self._groups[effect.group].reduce(
            effect.op, effect.values, effect.deadline, self._process.await_any)
        return answer

    def _leave(self, effect: LeaveGroup) -> None:
        self._groups.pop(effect.group).close()
