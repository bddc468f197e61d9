"""What a real process opens, and gives back: files, sockets, its heartbeat and those of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from engine.effects import (
    ClaimFiles,
    Close,
    HoldFiles,
    OpenHeartbeat,
    OpenSocket,
    RemoveFiles,
    ReserveAddress,
    SweepFiles,
)
from engine.errors import QueueError, StartupError
from engine.ports import Ports, Socket
from engine.process.files import EngineFiles, files_gone
from engine.process.runtime_dir import RuntimeDir, sweep
from engine.topology import Node


class Opens(Protocol):
    """What loops know by name, and what the rest of a process does with it: `engine.process.shell.Process`."""

    ports: Ports
    sockets: dict[str, Socket]
    heartbeat: memoryview | None
    beats: dict[Node, memoryview]

    def close(self) -> None: ...


class Belongings:
    def __init__(self, process: Opens) -> None:
        self._process = process
        self._runtime: dict[str, RuntimeDir] = {}
        self.answers: dict[type, Callable[[Any], Any]] = {
            SweepFiles: lambda effect: sweep(),
            ClaimFiles: self._claim,
            HoldFiles: lambda effect: self._files(effect.files).hold(),
            RemoveFiles: lambda effect: self._files(effect.files).remove(),
            OpenHeartbeat: self._open_heartbeat,
            OpenSocket: self._open_socket,
            ReserveAddress: lambda effect: self._process.ports.reserve_address(effect.address),
            Close: self._close,
        }

    def _claim(self, effect: ClaimFiles) -> EngineFiles:
        runtime = RuntimeDir.create(effect.runtime_dir)
        self._runtime[runtime.engine_id] = runtime
        return runtime.files

    def _files(self, files: EngineFiles) -> RuntimeDir:
        runtime = self._runtime.get(files.engine_id)
        if runtime is None:
            runtime = self._runtime[files.engine_id] = RuntimeDir.of(files)
        return runtime

    def _open_heartbeat(self, effect: OpenHeartbeat) -> None:
        try:
            word = self._process.ports.shared_word(effect.name, create=effect.create)
        except QueueError:
            raise StartupError(files_gone(effect.of)) from None
        if effect.of is None:
            self._process.heartbeat = word
        else:
            self._process.beats[effect.of] = word

    def _open_socket(self, effect: OpenSocket) -> str:
        socket = self._process.sockets[effect.spec.name] = self._process.ports.open_socket(effect.spec)
        return socket.address

    def _close(self, effect: Close) -> None:
        if effect.linger_s is not None:
            for socket in self._process.sockets.values():
                socket.close(effect.linger_s)
        self._process.close()
        self._process.ports.close()
