"""Whom a real process has to do with: its children, whoever started it, and others by their identity."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from engine.effects import (
    AwaitEnds,
    AwaitParent,
    EndChild,
    EndProcesses,
    ExitNow,
    Gone,
    HearChildren,
    Identity,
    IsAlive,
    StartChild,
    TellChild,
    TellParent,
    WhoAmI,
)
from engine.ports import Child, Ports
from engine.process.children import end_processes, readable
from engine.process.identity import is_alive, own_identity, start_time
from engine.process.recipes import Garbled, Word, sealed, unsealed
from engine.topology import Node

#: What a child runs when its recipe has come.
LIFE = "engine.process.entry:live"
_FOR_EVER = float("inf")
#: Who waits for a child's end looks so often whether it is ending: its sentinel tells when it is gone.
_LOOK_S = 0.05


class Family:
    """`left(deadline, most_s)` is the time until a deadline."""

    def __init__(self, ports: Ports, left: Callable[[float | None, float], float]) -> None:
        self._ports = ports
        self._left = left
        self._children: dict[Node, Child] = {}
        self._mute: set[Node] = set()  # their pipe is closed
        self._reaping = threading.Lock()
        self.answers: dict[type, Callable[[Any], Any]] = {
            WhoAmI: lambda effect: own_identity(),
            StartChild: self._start,
            TellChild: self._tell,
            HearChildren: self._hear,
            AwaitEnds: self._await_ends,
            EndChild: self._end,
            AwaitParent: self._await_parent,
            TellParent: lambda effect: ports.parent.send(sealed(effect.message)),
            IsAlive: lambda effect: is_alive((effect.process.pid, effect.process.start_time)),
            EndProcesses: lambda effect: end_processes(
                [(process.pid, process.start_time) for process in effect.processes], effect.patience_s),
            ExitNow: lambda effect: os._exit(effect.code),
        }

    def sentinel(self, node: Node) -> int:
        """Readable when that child is gone."""
        return self._children[node].sentinel

    def _await_parent(self, effect: AwaitParent) -> None:
        """Who has no parent waits for ever."""
        if self._ports.parent is None:
            threading.Event().wait()
        else:
            self._ports.parent.wait_until_gone()

    def _start(self, effect: StartChild) -> Identity:
        child = self._children[effect.node] = self._ports.start_child(effect.node, LIFE, effect.start_method)
        return Identity(child.pid, start_time(child.pid) or 0, os.getpid())

    def _tell(self, effect: TellChild) -> None:
        self._children[effect.node].send_recipe(sealed(effect.recipe))

    def _hear(self, effect: HearChildren) -> Any:
        while True:
            for node in effect.nodes:
                gone = self._children[node].ended()  # asked first: what it said before its end is heard first
                word = self._word(node)
                if word is not None:
                    return node, word
                if gone:
                    return node, self._gone(node)
            left_s = self._left(effect.deadline, _FOR_EVER)
            if left_s <= 0:
                return None
            readable([*(self._children[node].sentinel for node in effect.nodes),
                      *(self._children[node].fileno() for node in effect.nodes if node not in self._mute)],
                     min(left_s, _LOOK_S))

    def _word(self, node: Node) -> Any:
        try:
            message = None if node in self._mute else self._children[node].try_receive()
            return None if message is None else unsealed(message, Word)
        except (EOFError, OSError):
            self._mute.add(node)
        except msgspec.DecodeError as error:
            return Garbled(str(error))
        return None

    def _await_ends(self, effect: AwaitEnds) -> dict[Node, Gone]:
        children = {node: self._children[node] for node in effect.nodes}
        while True:
            ended = [node for node, child in children.items() if (child.gone() if effect.gone else child.ended())]
            left_s = self._left(effect.deadline, _FOR_EVER)
            if ended or left_s <= 0:
                return {node: self._gone(node) for node in ended}
            readable([child.sentinel for child in children.values()], min(left_s, _LOOK_S))

    def _gone(self, node: Node) -> Gone:
        with self._reaping:
            return Gone(self._children[node].exitcode())

    def _end(self, effect: EndChild) -> None:
        child = self._children[effect.node]
        if effect.how == "hang-up":
            self._mute.add(effect.node)
            child.hang_up()
        elif effect.how == "terminate":
            child.terminate()
        else:
            child.kill()
