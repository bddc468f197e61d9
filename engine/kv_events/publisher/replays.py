"""Who asks a publisher for what it sent, and when each is answered. Pure.

Promises
- Replays of several peers take turns, `chunk_batches` at a time. At most `MAX_REPLAYS` hold a copy of the window;
  further requests wait for their turn, and beyond `MAX_WAITING` in the socket: each is answered.
- A malformed request is told and not answered: an end marker would claim that there was nothing to send. An answer
  that cannot be made or sent is told, and ends no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from engine.effects import Loop, Receive, Send
from engine.errors import BadFrameError, QueueCancelledError, UnroutableError
from engine.kv_events.codec import ReplayRequest, read_request
from engine.kv_events.publisher.log import KVEventLog, tell
from engine.ports import Unroutable

#: A replay gives way to the next one, and looks for new requests, after this many batches.
CHUNK_BATCHES = 64
#: So many replays are under way at once, each with its copy of references to the window.
MAX_REPLAYS = 64
#: So many requests wait for them; until there is room no more are read.
MAX_WAITING = 1000


def replay_loop(log: KVEventLog, *, inbox: str = "replay", chunk_batches: int = CHUNK_BATCHES) -> Loop[None]:
    """Answer replay requests, in turns, until the inbox is closed or the process is cancelled."""
    turns = _Turns()
    while True:
        message = yield Receive((inbox,) if turns.room else (), 0.0 if turns.replays else None)
        if message is not None:
            _, peer, frames = message
            try:
                turns.ask(peer, read_request(frames))
            except BadFrameError as error:
                yield from tell("bad-frame", {"edge": inbox, "error": str(error)})
        if turns.replays:
            replay = turns.replays.popleft()
            if (yield from _send_chunk(log, replay, inbox, chunk_batches)):
                turns.replays.append(replay)
            turns.admit()


class _Replay:
    def __init__(self, peer: Any, request: ReplayRequest) -> None:
        self.peer = peer
        self.ask(request)

    def ask(self, request: ReplayRequest) -> None:
        """From the beginning, or anew."""
        self.request = request
        self._messages: Iterator[list[bytes]] | None = None

    def next_message(self, log: KVEventLog) -> list[bytes] | None:
        """None after the last. The first is of the moment when it is taken. Raises what `KVEventLog.answer` does."""
        if self._messages is None:
            self._messages = log.answer(self.request)
        return next(self._messages, None)


class _Turns:
    """Whose replays are under way, and who waits."""

    def __init__(self) -> None:
        self.replays: deque[_Replay] = deque()
        self._waiting: deque[_Replay] = deque()

    @property
    def room(self) -> bool:
        return len(self._waiting) < MAX_WAITING

    def ask(self, peer: Any, request: ReplayRequest) -> None:
        """A peer that asks again with a tag gave its earlier question up, and keeps its turn.

        One without a tag waits for both ends.
        """
        if request.tag is not None:
            for earlier in (*self.replays, *self._waiting):
                if earlier.peer == peer and earlier.request.tag is not None:
                    earlier.ask(request)
                    return
        self._waiting.append(_Replay(peer, request))
        self.admit()

    def admit(self) -> None:
        while self._waiting and len(self.replays) < MAX_REPLAYS:
            self.replays.append(self._waiting.popleft())


def _send_chunk(log: KVEventLog, replay: _Replay, outbox: str, chunk_batches: int) -> Loop[bool]:
    """-> whether there is more to send."""
    for _ in range(chunk_batches):
        try:
            frames = replay.next_message(log)
            if frames is None:
                return False
            yield Send(outbox, frames, replay.peer)
        except QueueCancelledError:
            raise
        except BadFrameError as error:  # a question that this publisher does not answer
            yield from tell("bad-frame", {"edge": outbox, "error": str(error)})
            return False
        except (Unroutable, UnroutableError) as error:  # it left, or reads too slowly: it will ask again
            yield from tell("replay-ended", {"edge": outbox, "error": str(error)})
            return False
        except Exception as error:  # whatever was stored or asked for, the next question is another
            yield from tell("replay-ended", {"edge": outbox, "error": f"no answer: {error!r}"})
            return False
    return True
