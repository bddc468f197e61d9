"""Every error the engine raises on purpose, by name.

An error says what was attempted, on which node, and whether it may have taken effect. Callers of the
library catch `RingtwinError`; each subclass names one situation a user can act on.
"""

from __future__ import annotations

from collections.abc import Iterable


class RingtwinError(Exception):
    """Base of all errors that this project raises on purpose."""


class ConfigError(RingtwinError):
    """The user asked for something that cannot be started (bad model directory, tp, path, ...)."""


class StartupError(RingtwinError):
    """An engine did not reach READY within its bound, or one of its children failed to."""


class ChildGoneError(StartupError):
    """A process ended while its parent still waited for it to be ready."""


class EngineDeadError(RingtwinError):
    """The engine is dead: every pending and every later call ends with this error.

    `reason` names the process that died or stalled and how it was noticed.
    """

    def __init__(self, reason: str = "the engine is dead") -> None:
        super().__init__(reason)
        self.reason = reason


class RequestError(RingtwinError):
    """One request failed alone; the engine and all other requests go on.

    `may_have_taken_effect` is False only when the request certainly never reached the core.
    """

    def __init__(self, request_id: str, reason: str, *, may_have_taken_effect: bool = False) -> None:
        super().__init__(f"request {request_id!r}: {reason}")
        self.request_id = request_id
        self.reason = reason
        self.may_have_taken_effect = may_have_taken_effect


class BadRequestError(RequestError, ValueError):
    """The request cannot be served as asked (prompt too long, parameter out of range, duplicate id)."""


class RefusedError(RequestError):
    """Admission limits or a draining engine refused the request; retry later or elsewhere."""


class RequestTimeoutError(RequestError, TimeoutError):
    """No output arrived within the client time-out; the request may have taken effect."""


class UnroutableError(RequestError):
    """The core this request was meant for is not connected; the frame was not sent."""


class BadFrameError(RingtwinError, ValueError):
    """Bytes from a socket are not a message of the protocol. The frame is dropped, nobody else is hurt."""


class QueueError(RingtwinError):
    """Base of the errors of a ring and its message queue."""


class QueueTimeoutError(QueueError, TimeoutError):
    """A read or a write did not finish by its deadline. Nothing was consumed, nothing was published."""


class QueueCancelledError(QueueError):
    """A wait on a queue was ended by shutdown or by the death of the peer."""


class QueueDecodeError(QueueError, ValueError):
    """A message was taken from its queue but could not be decoded; the queue stays aligned."""


class PeerDeadError(QueueCancelledError):
    """The process at the other end of a queue is dead."""


class RpcError(RingtwinError):
    """A worker raised while executing an RPC. `rank` and `method` say where, `name` by which name it is known."""

    def __init__(self, rank: int, method: str, message: str, name: str = "") -> None:
        super().__init__(f"{name or f'worker.{rank}'} failed in {method}: {message}")
        self.rank = rank
        self.method = method


class RpcTimeoutError(RingtwinError, TimeoutError):
    """No reply to an RPC by its deadline: a worker hangs, is stopped, or sits in a stuck collective."""


class CollectiveError(RingtwinError, RuntimeError):
    """A collective failed: a rank is dead, did not enter in time, or entered another one.

    `blamed`: whom it names. `follows`: they gave up, for a reason that it does not know.
    """

    def __init__(self, message: str = "", blamed: Iterable[str] = (), *, follows: bool = False) -> None:
        super().__init__(message)
        self.blamed = tuple(blamed)
        self.follows = follows


class WorkerDeadError(RingtwinError):
    """A worker process is gone."""


class SpaceError(RingtwinError, OSError):
    """Too little shared memory: says how much is needed and how to get it."""
