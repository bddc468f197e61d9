"""What goes between a core's loop and its I/O threads (pure), and by which queues."""

from __future__ import annotations

import msgspec

from engine.messages import EngineCoreOutputs

INPUT, OUTPUT, KV = "input", "output", "kv"


class MalformedRequest(msgspec.Struct, frozen=True):
    """A frame of that client that was no request of its. `request_id` is set where it could be told which it was."""

    error: str
    request_id: str | None = None
    client_index: int = 0


class ClientGone(msgspec.Struct, frozen=True):
    """The connection of one of several clients has ended: what it asked for, nobody waits for."""

    client_index: int


class Terminate(msgspec.Struct, frozen=True):
    """It is asked to leave in order, by a signal or by its client."""

    why: str = "SIGTERM"


class Outgoing(msgspec.Struct, frozen=True):
    """One message for the output thread."""

    client_index: int
    outputs: EngineCoreOutputs


class Dead(msgspec.Struct, frozen=True):
    """The output thread's last item: tell every client, then end."""
