"""Starts a core and speaks with it: what drives `ClientLife` in a real process.

`EngineCoreClient` never waits after its start: `pump` takes what has arrived, `tick` lets time pass. The
sync and the async client differ only in who waits: `SyncMPClient` polls descriptors, `AsyncMPClient` hands
them to the event loop.

Promises
- Those of `engine.frontend.life`.
- A program that ends without `shutdown`, or by an exception, shuts down on its way out; so does a child of
  `multiprocessing`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
from multiprocessing.util import Finalize
from typing import Any, Generic, TypeVar

from engine.config import EngineConfig
from engine.effects import Loop
from engine.errors import ConfigError
from engine.frontend.arguments import checked
from engine.frontend.attachment import Attachment
from engine.frontend.launcher import LauncherLife
from engine.frontend.life import ClientLife
from engine.frontend.session import ClientSession
from engine.ports import Ports
from engine.process.entry import open_ports
from engine.process.living import EngineProcess
from engine.topology import frontend, launcher

#: Clients whose engines run, of this process and (after a fork) of its parent. Held here until their shutdown: a ZMQ
#: context that is collected together with its sockets would wait for them for ever.
_open_clients: set[Opened[Any]] = set()
_Life = TypeVar("_Life", ClientLife, LauncherLife)


def end_client(client: Opened[Any]) -> None:
    """Shut down unless it is another process's: a fork has copies of its parent's clients."""
    if client.owner_pid == os.getpid():
        client.shutdown()


@atexit.register
def _end_all() -> None:
    """Runs before `multiprocessing` waits for children that nobody told to go."""
    for client in list(_open_clients):
        end_client(client)


class Opened(Generic[_Life]):
    """A life of this process that has others to end. Raises what its start raises, and leaves nothing behind then."""

    def __init__(self, ports: Any, life: _Life) -> None:
        self.ports, self.life = ports, life
        self.owner_pid = os.getpid()
        self.process = EngineProcess(ports)
        self.run = self.process.run
        _open_clients.add(self)
        #: `multiprocessing` asks its own children's exit handlers for nothing, and they, too, wait for theirs.
        self._last = Finalize(None, end_client, (self,), exitpriority=0)
        try:
            self.started: Any = self.run(life.start())
        except BaseException:
            self.shutdown()
            raise

    def shutdown(self) -> None:
        """End the engine and remove everything it has. Safe to call twice, and on an engine that never started."""
        ending: Loop[None] = self.life.shutdown()
        try:
            self.run(ending)
        except BaseException:  # a second Ctrl-C
            ending.close()
            self.run(self.life.break_off())
            raise
        finally:
            _open_clients.discard(self)
            self._last.cancel()


class EngineLauncher(Opened[LauncherLife]):
    """Engines for several clients, each in a process of its own. Raises ConfigError or StartupError.

        with EngineLauncher(config, clients=2) as launcher:
            ...  # in process k: AsyncLLM(config, attachment=launcher.attachment, client_index=k)
            launcher.serve(60.0)

    Without clients the cores are headless: the client that is the head asks them, which `config` says where to greet.
    """

    def __init__(self, config: EngineConfig, clients: int = 2, *, ports: Ports | None = None) -> None:
        if not isinstance(clients, int) or clients < 0:
            raise ConfigError(f"engines are shared by 1 client or more, or headless (0), got clients={clients!r}")
        config = checked(config)
        index = 0 if clients or not config.is_spread else config.data_parallel_rank // len(config.local_ranks)
        opened = ports or open_ports(launcher(index), "", b"", io_threads=config.sockets.io_threads)
        super().__init__(opened, LauncherLife(opened.node, config, tuple(range(clients))))

    @property
    def attachment(self) -> Attachment:
        """What a client has to be given; msgpack can carry it to another process."""
        attachment: Attachment = self.started
        return attachment

    def serve(self, for_s: float) -> str:
        """Watch over the engines, at most so long. -> why no core is left, or nothing while one is

        That is told at once. Who goes on calling this has it end workers that a dead core has left.
        """
        now = self.ports.clock.monotonic()
        until, told = now + for_s, self.life.reason
        while (self.life.has_orphans if told else not self.life.reason) and now < until:
            now = self.run(self.life.serve(until))
        return self.life.reason

    def __enter__(self) -> EngineLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class EngineCoreClient(Opened[ClientLife]):
    """A client of engines that it starts, or of those of an `attachment`, as the one with this index among its clients.

    Raises ConfigError or StartupError from its constructor, which leaves nothing behind.
    """

    def __init__(self, config: EngineConfig, *, ports: Ports | None = None, attachment: Attachment | None = None,
                 client_index: int = 0) -> None:
        if not isinstance(client_index, int) or client_index < 0:
            raise ConfigError(f"client_index counts from 0, got {client_index!r}")
        index = config.data_parallel_rank if config.is_offline else client_index
        if config.is_spread:
            index = config.data_parallel_rank // len(config.local_ranks)
        opened: Any = ports or open_ports(frontend(index), "", b"", io_threads=config.sockets.io_threads)
        super().__init__(opened, ClientLife(opened.node, config, lambda: secrets.token_hex(4), attachment))

    @staticmethod
    def make_client(config: EngineConfig, *, asyncio_mode: bool, **more: Any) -> EngineCoreClient:
        """vLLM's factory."""
        return (AsyncMPClient if asyncio_mode else SyncMPClient)(config, **more)

    @property
    def session(self) -> ClientSession:
        return self.life.session

    @property
    def num_gpu_blocks(self) -> int:
        return self.life.num_gpu_blocks

    @property
    def tick_s(self) -> float:
        return self.life.tick_s

    # -- requests

    def send_raw(self, frames: list[Any]) -> None:
        """Send frames as they are: for tests of what the core makes of them."""
        self.run(self.life.send(frames))

    # -- what happens

    def filenos(self) -> list[int]:
        """Descriptors that are readable when `pump` has something to do."""
        return [*(self.process.sockets[inbox].fileno() for inbox in self.life.inboxes),
                *self._sentinels()]

    def _sentinels(self) -> list[int]:
        return [self.process.children.sentinel(node) for node in self.life.watched]

    def pump(self, most: int = 256) -> bool:
        """Take what has arrived, at most `most` messages of each inbox. -> whether there may be more"""
        if self._take(most):
            return True
        self.run(self.life.look_at_cores())
        return False

    def _take(self, most: int = 256) -> bool:
        return all(any([self._take_from(inbox) for inbox in self.life.inboxes]) for _ in range(most))

    def _take_from(self, inbox: str) -> bool:
        message = self.process.sockets[inbox].try_receive()
        if message is None:
            return False
        self.run(self.life.on_any((inbox, *message)))
        return True

    def tick(self) -> None:
        """Let time pass: time-outs, the heartbeat, the end of a death's grace."""
        self.run(self.life.tick())

    @property
    def grace_left_s(self) -> float | None:
        """How long the last words of a dead core are still waited for; None while it lives."""
        deadline = self.life.deadline
        return None if deadline is None else max(0.0, deadline - self.ports.clock.monotonic())

    @property
    def dead_cores(self) -> dict[str, str]:
        """Of several cores those that are dead, each with the reason. Known when the health was asked for."""
        return self.life.dead_cores

    def check_health(self) -> None:
        """Raises EngineDeadError where no core is left that makes progress. Never waits."""
        self.run(self.life.check_health())


class SyncMPClient(EngineCoreClient):
    """For callers without an event loop."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until something may have happened or the time is over, then take it."""
        if not self.pump():
            self.run(self.life.serve(self.ports.clock.monotonic() + timeout_s))
            self.pump()


class AsyncMPClient(EngineCoreClient):
    """For asyncio: the loop watches the descriptors."""

    loop: asyncio.AbstractEventLoop | None = None
    _look: asyncio.TimerHandle | None = None  # for the last words of a dead core

    def shutdown(self) -> None:
        self.detach()
        super().shutdown()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve this loop from now on, and no other. One that was shut down serves none, and watches nothing."""
        self.detach()
        if self.life.closed:
            return
        self._loop = self.loop = loop
        self._watched, self._sentinels_watched = self.filenos(), set(self._sentinels())
        for descriptor in self._watched:
            loop.add_reader(descriptor, self._readable)
        self._timer = loop.call_later(self.tick_s, self._on_timer)
        loop.call_soon(self._readable)

    def detach(self) -> None:
        if self.loop is None:
            return
        self.loop = None
        self._timer.cancel()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if not self._loop.is_closed():
            for descriptor in self._watched:
                self._loop.remove_reader(descriptor)
        self._watched = []

    def _readable(self) -> None:
        if self.loop is not None:  # else called by an earlier promise of the loop
            self._watch_on(self.pump())

    def _watch_on(self, has_more: bool) -> None:
        if self.loop is None:  # detached by what came
            return
        if has_more:
            self._loop.call_soon(self._readable)  # let the others run, then go on
        sentinels = self._sentinels()
        for sentinel in self._sentinels_watched.difference(sentinels):
            self._loop.remove_reader(sentinel)  # it stays readable for ever
            self._sentinels_watched.discard(sentinel)
            self._watched.remove(sentinel)
        left_s = self.grace_left_s
        if left_s is not None and self._look is None:
            self._look = self._loop.call_later(left_s, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._readable()

    def _on_timer(self) -> None:
        self._timer = self._loop.call_later(self.tick_s, self._on_timer)  # first: whatever fails is tried again
        has_more = self._take()  # nothing is too late that was here in time
        self.tick()
        self._watch_on(has_more)
