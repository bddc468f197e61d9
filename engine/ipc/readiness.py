"""How the ends of a queue find out that all of them are there: the loops that every world drives.

Promises
- A writer waits for readers that exist: each must live and have subscribed, by name, a local one to the overflow
  socket, a remote one to its own. Then it says READY.
- A reader waits until the writer has said READY_FRAME, or something came that it sends only afterwards.
- Either wait ends by its deadline, by a cancellation, and by the death of the other end, and may be tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from engine.effects import Loop, Now, Receive, Send
from engine.errors import QueueTimeoutError
from engine.ipc.framing import READY_FRAME
from engine.ipc.presence import PEER_CHECK_S, RemoteReaders
from engine.ipc.queue import QueueWriter
from engine.ipc.ring import MOVE_BYTES
from engine.ports import Unroutable


class Reader(Protocol):
    """What of a `QueueReader` or `RemoteReader` is needed here."""

    name: str
    heard_ready: bool

    @property
    def inbox(self) -> str | None: ...
    def keep_payload(self, frames: list[Any]) -> None: ...
    def check_writer(self) -> Loop[None]: ...


def wait_for_readers(queue: QueueWriter, deadline: float, look: Callable[[], Loop[None]] | None = None) -> Loop[None]:
    """Until all of `queue.readers` and `queue.remotes` are there; then tell them. While nobody comes it looks by
    `look`, which may raise.

    Raises QueueTimeoutError naming who is missing, PeerDeadError for a reader that came and went.
    """
    local, remotes, arrived, missing = queue.readers, queue.remotes, None, list[int]()
    while True:
        if remotes is not None and queue.remote_outbox is not None:
            yield from look_at_remotes(remotes, queue.remote_outbox)
        if local is not None and (arrived is None or local.may_be_complete()):
            missing = yield from local.missing()
        others = [] if remotes is None else remotes.missing()
        if not missing and not others:
            break
        arrived = yield from _receive(queue.overflow_outbox if missing else queue.remote_outbox, deadline)
        if arrived is None:
            if look is not None:
                yield from look()
            if (yield Now()) >= deadline:
                if local is not None:
                    missing = yield from local.missing()  # some may have come since all were asked for
                late = sorted({*missing, *others})
                raise QueueTimeoutError(f"{queue.name}: {len(late)} of {queue.n_readers} readers did not come, ranks "
                                        f"{late}")
        elif missing and local is not None:
            local.note(arrived[0])
        elif remotes is not None and queue.remote_outbox is not None:
            yield from _note(remotes, queue.remote_outbox, arrived[0])
    for outbox in (queue.overflow_outbox, queue.remote_outbox):
        if outbox is not None:
            yield Send(outbox, [READY_FRAME])
    if local is not None and local.presence.all_known():
        queue.writer.moves_from = MOVE_BYTES


def wait_for_writer(queue: Reader, deadline: float, look: Callable[[], Loop[None]] | None = None) -> Loop[None]:
    """Until the writer has told that all are there. `look` as in `wait_for_readers`.

    Raises QueueTimeoutError, PeerDeadError.
    """
    while queue.inbox is not None and not queue.heard_ready:
        arrived = yield from _receive(queue.inbox, deadline)
        if arrived is not None:
            queue.keep_payload(arrived)
            continue
        yield from queue.check_writer()
        if look is not None:
            yield from look()
        if (yield Now()) >= deadline:
            raise QueueTimeoutError(f"{queue.name}: the writer did not say that all readers are there")


def look_at_remotes(remotes: RemoteReaders, socket: str) -> Loop[None]:
    """Take notice of what readers on other hosts have said. Raises PeerDeadError for one that is gone."""
    while (arrived := (yield Receive((socket,), 0.0))) is not None:
        yield from _note(remotes, socket, arrived[2][0])
    remotes.check()


def _note(remotes: RemoteReaders, socket: str, frame: Any) -> Loop[None]:
    for refusal in remotes.note(frame):
        try:
            yield Send(socket, [refusal])
        except Unroutable:
            pass  # so many messages wait that it will find no READY_FRAME either


def _receive(inbox: str | None, deadline: float) -> Loop[list[Any] | None]:
    """The next frames there, or None by the deadline or the next look at the peers."""
    assert inbox is not None
    arrived = yield Receive((inbox,), min(deadline, (yield Now()) + PEER_CHECK_S))
    return None if arrived is None else list(arrived[2])
