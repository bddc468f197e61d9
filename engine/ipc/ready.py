"""How the ends of a queue find out that all of them are there.

Promises
- A writer counts readers that exist: each must live and have subscribed, a local one to the overflow socket, a remote
  one to its own; both by name. Of those that say no name (vLLM's) it counts subscriptions.
- Either wait ends by its deadline, by a cancellation, and by the death of the other end, and may be tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.errors import QueueTimeoutError
from engine.ipc import presence
from engine.ipc.queue import READY
from engine.ipc.remote import SUBSCRIBED, TOPIC

if TYPE_CHECKING:
    from engine.ipc.end import QueueEnd

OVERFLOW_SOCKET, REMOTE_SOCKET = "overflow", "remote"


class LocalReaders:
    """Which readers of this host have subscribed to the overflow socket: `readers` by number, and how many without one.

    A reader subscribes twice: to everything, as vLLM's do, and to `topic_of` its number.
    """

    def __init__(self) -> None:
        self.readers: set[int] = set()
        self._subscriptions = 0

    def note(self, frame: Any) -> None:
        kind, topic = bytes(frame[:1]), bytes(frame[1:])
        reader = topic[len(TOPIC):].partition(b":")[0]
        if kind == SUBSCRIBED and topic.startswith(TOPIC) and reader.isdigit():
            self.readers.add(int(reader))
        elif kind == SUBSCRIBED:
            self._subscriptions += 1

    @property
    def strangers(self) -> int:
        """Subscriptions that belong to none of `readers`."""
        return self._subscriptions - len(self.readers)


def wait_for_readers(end: QueueEnd, deadline: float) -> None:
    """Until every reader is there; then tell them."""
    ranks = end.handle.local_reader_ranks
    while True:
        end._raise_if_over()
        states = [presence.state(end._layout, end._memory, k) for k in range(len(ranks))]
        mute = end._subscribers.strangers - states.count("unknown")  # vLLM's readers only subscribe
        missing = [rank for k, (rank, state) in enumerate(zip(ranks, states, strict=True))
                   if state != "unknown" and not (state == "alive" and k in end._subscribers.readers)]
        if mute < 0:
            missing += [rank for rank, state in zip(ranks, states, strict=True) if state == "unknown"]
        others = end._remotes.missing() if end._remotes is not None else []
        if not missing and not others:
            break
        if missing:
            arrived = end._receive(OVERFLOW_SOCKET, deadline)
            if arrived is not None:
                end._subscribers.note(arrived[0])
        else:
            arrived = end._receive(REMOTE_SOCKET, deadline)
            if arrived is not None:
                end._note_remote(arrived[0])
        if arrived is None and end._ports.clock.monotonic() >= deadline:
            missing = sorted({*missing, *others})
            raise QueueTimeoutError(f"{end._name}: {len(missing)} of {end._queue.n_readers} readers did not "
                                    f"come, ranks {missing}")
    for socket in end._process.sockets.values():
        socket.send([READY])


def wait_for_writer(end: QueueEnd, deadline: float) -> None:
    """Until the writer has told, or something came that it sends only afterwards."""
    (socket,) = end._process.sockets
    while not end._queue.heard_ready:
        arrived = end._receive(socket, deadline)
        if arrived is not None:
            end._queue.keep_payload(arrived)
            continue
        end._raise_if_over()
        if end._ports.clock.monotonic() >= deadline:
            raise QueueTimeoutError(f"{end._name}: the writer did not say that all readers are there")
