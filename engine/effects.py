"""What a pure loop may ask of the world.

Lives of processes, and all that they do meanwhile, are generators: they yield one of these effects, and are sent its
result, or an exception of `engine.errors`. `engine/process/shell.py` answers with the ports of a real process,
`sim/process/answers/` on SimPy. So each loop is written once, and can be stopped exactly between two effects."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import msgspec

from engine.ports import RingSpec, SocketSpec
from engine.topology import Mark, Node

Result = TypeVar("Result")
#: A pure loop: yields effects, returns its result.
Loop = Generator["Effect", Any, Result]


class Effect(msgspec.Struct):
    """Base of all effects. The collector may pass over (`gc`) none that holds a loop or an object, as circles may."""


class Now(Effect, gc=False):
    """-> seconds of a monotonic clock."""


class MarkPoint(Effect, gc=False):
    """A crash point that is no message. -> None"""

    mark: Mark
    data: dict[str, Any] | None = None


class Observe(Effect, gc=False):
    """Something a judge wants to know. Not counted, costs nothing where nobody records. -> None"""

    name: str
    data: dict[str, Any]


class Describe(Effect):
    """As `Observe`, of what takes long to tell: it is put together only where somebody records. -> None"""

    name: str
    describe: Callable[[], dict[str, Any]]


class Warn(Effect):
    """Something an operator wants to know, whoever records: each kind is logged now and then. -> None"""

    name: str
    data: dict[str, Any]


class Beat(Effect, gc=False):
    """The process is alive and got this far. Written to a shared word, never counted. -> None"""

    count: int


class Send(Effect):
    """Put one message on an outbox. Never waits. `peer` is an index where the socket has several. -> None

    Raises UnroutableError-like `engine.errors` where the socket knows that nobody will get it.
    """

    outbox: str
    frames: list[Any]
    peer: int = 0


class Receive(Effect, gc=False):
    """Wait for a message on any of the named inboxes until `deadline` (monotonic; None: until closed).

    -> (inbox name, peer index, frames), or None at the deadline. A deadline in the past looks once. The end of a child
    among `ends` is a deadline, too.
    """

    inboxes: tuple[str, ...]
    deadline: float | None
    ends: tuple[Node, ...] = ()


class WasCut(Effect, gc=False):
    """-> whether a connection of a watched inbox ended since the last question: known before the next one speaks."""

    inbox: str


class IsOver(Effect, gc=False):
    """-> whether the connections to a watched, bound inbox have ended, and all that they brought was received"""

    inbox: str


class Put(Effect):
    """Append to a queue inside the process. Never waits. -> None"""

    queue: str
    item: Any


class Take(Effect, gc=False):
    """Wait until a queue inside the process has items, then take all. -> list, empty at the deadline"""

    queue: str
    deadline: float | None


class Waiting(Effect, gc=False):
    """-> how many items are in a queue inside the process"""

    queue: str


class Attempt(Effect):
    """Run one `try_write` or `try_read` of a ring against shared memory. -> what `operation` returns

    `ring` is the name of the ring (for sites). The twin re-executes the operation from recorded loads
    when the process is to be stopped between two stores.
    """

    ring: str
    operation: Callable[[], Any]


class RingCrossing(Effect, gc=False):
    """A ring message is about to be written (`send`), or was read and is about to be used (`receive`). -> None

    `parts` are its buffers as framed, `position` its number in the ring from 0. Here a plan stops a process around it.
    """

    ring: str
    operation: str
    position: int
    parts: list[Any]
    overflow: bool = False


class RingBell(Effect, gc=False):
    """Wake whoever sleeps on this bell. -> None"""

    bell: str


class WaitBell(Effect, gc=False):
    """Sleep until the bell rings, the loop is cancelled, or `deadline`. -> True if it may have rung

    Raises QueueCancelledError when the process is shutting down or the peer is known to be dead.
    """

    bell: str
    deadline: float | None


class Call(Effect):
    """Execute a method of the worker object. -> its result; its exception is thrown into the loop"""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


# -- the process itself ------------------------------------------------------------------------------------------


class Identity(msgspec.Struct, frozen=True):
    """What tells a process from every other one, now and later."""

    pid: int
    start_time: int  # clock ticks after boot
    ppid: int = 0


class WhoAmI(Effect):
    """-> Identity of this process."""


class WallTime(Effect):
    """-> seconds since the epoch: for what must differ between lives, never to order two things."""


class LogLine(Effect):
    """Tell whoever runs the engine. -> None"""

    text: str
    error: BaseException | None = None


class OnTerminate(Effect):
    """From here on SIGTERM puts `item` into `queue`; else it raises SystemExit(item) in the main thread. -> None"""

    queue: str | None
    item: Any


class Cancel(Effect):
    """End every wait for a message or a bell with `error`, now and later; the first reason stays. -> None"""

    error: Exception


class StartThread(Effect):
    """Run `loop` beside this one; its error (cancelled is none) is a `ThreadFailed` in the queue `told`. -> None"""

    name: str
    loop: Loop[Any]
    told: str | None = None


class ThreadFailed(msgspec.Struct, frozen=True):
    """A thread of this process ended with an error."""

    name: str
    error: BaseException


class JoinThread(Effect):
    """Wait for the end of a thread. -> whether it has ended by the deadline; one that was not started has"""

    name: str
    deadline: float


class Close(Effect):
    """Close all that this process has open. `linger_s`: no socket lingers longer; 0: nobody will read it. -> None"""

    linger_s: float | None = None


class ExitNow(Effect):
    """End the process here and now, all threads. Does not return."""

    code: int


# -- other processes ---------------------------------------------------------------------------------------------


class StartChild(Effect):
    """Start the process of this node, by its kind, before the first socket and thread: under fork they must not be
    inherited. It sleeps until its recipe comes. -> its Identity"""

    node: Node
    start_method: str


class TellChild(Effect):
    """Send a child its recipe, a struct. A child that is gone hears nothing, which is no error. -> None"""

    node: Node
    recipe: msgspec.Struct


class HearChildren(Effect):
    """Wait until one of these children has said something on its pipe, or then is gone, until `deadline`.

    -> (node, what it said, Garbled where it cannot be read), or (node, Gone), or None at the deadline"""

    nodes: tuple[Node, ...]
    deadline: float


class Gone(msgspec.Struct, frozen=True):
    """A process has ended; `exitcode` as `multiprocessing` has it, negative for a signal."""
    exitcode: int | None


class AwaitEnds(Effect):
    """Wait until one of these children does nothing more, or has nothing more, either (`gone`: on a GPU that takes a
    while), until `deadline` (None: for ever). -> {node: Gone} of those"""

    nodes: tuple[Node, ...]
    deadline: float | None
    gone: bool = False


class EndChild(Effect):
    """Let a child go: close its pipe ("hang-up"), SIGTERM ("terminate") or SIGKILL ("kill"). -> None"""

    node: Node
    how: str


class AwaitParent(Effect):
    """Wait until whoever started this process is gone. -> None"""


class TellParent(Effect):
    """Say something, a struct, to whoever started this process. -> None"""

    message: msgspec.Struct


class IsAlive(Effect):
    """-> whether exactly this process, by id and start time, still runs"""

    process: Identity


class EndProcesses(Effect):
    """Wait until these processes, no children, are gone, and kill those that are not after `patience_s`. -> None"""

    processes: tuple[Identity, ...]
    patience_s: float


# -- files, shared memory, sockets, the model --------------------------------------------------------------------


class SweepFiles(Effect):
    """Remove what dead engines left. -> None"""


class ClaimFiles(Effect):
    """Make a directory and names for this engine. -> EngineFiles. Raises ConfigError."""

    runtime_dir: str | None


class HoldFiles(Effect):
    """Keep the engine's names taken while this process lives, too. -> None"""

    files: Any  # engine.process.files.EngineFiles


class RemoveFiles(Effect):
    """Remove everything that this engine has in the file system. -> None"""

    files: Any  # engine.process.files.EngineFiles


class OpenHeartbeat(Effect):
    """Open the shared word in which a core counts: `of` that one, or this process itself. -> None"""

    name: str
    create: bool
    of: Node | None = None


class ReadHeartbeat(Effect):
    """Of this core. -> (count, when it was written, or None before the first)"""
    of: Node


class OpenSocket(Effect):
    """Known to loops by `spec.name`. -> where it is bound, wildcard resolved. Raises ConfigError: no host of ours"""

    spec: SocketSpec


class ReserveAddress(Effect):
    """Of tcp, for a socket that another process will bind: see `Ports.reserve_address`. -> the address with its port"""

    address: str


class CreateRing(Effect):
    """Open the writing end of a ring, and what belongs to it. -> (QueueWriter, handle for its readers, as bytes)

    `segment` and `overflow_address` name what is created. `space_bell` names a bell that this process sleeps on and
    shares among its rings. `rings` names a ring that this process reads: the new one wakes that one's writer.
    """

    name: str
    spec: RingSpec
    segment: str
    overflow_address: str
    space_bell: str = ""
    rings: str = ""


class OpenRing(Effect):
    """Open the reading end of `rank` of a ring by its writer's handle. `bell`: as `space_bell`. -> QueueReader"""

    name: str
    handle: bytes
    rank: int
    spec: RingSpec
    bell: str = ""


class ReadModel(Effect):
    """-> engine.model_config.ModelConfig of a model that can be served. Raises ConfigError."""

    config: Any  # engine.config.EngineConfig


class MakeWorker(Effect):
    """Make the object whose methods `Call` calls: one rank of the model. -> None"""

    config: Any  # engine.config.EngineConfig
    rank: int
    world_size: int
    init_method: str
    across: Any = None  # engine.process.consensus.effects.Across
    local_dp_rank: int = 0
