"""A client of a play in the twin: the engine's own client, and the caller's part, which both worlds play."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count

import msgspec

from engine.config import EngineConfig
from engine.effects import Loop, MarkPoint, Now, Observe, Take
from engine.errors import RingtwinError
from engine.frontend.attachment import Attachment
from engine.frontend.launcher import LauncherLife
from engine.frontend.life import ClientLife
from engine.frontend.session import UtilityResult
from engine.frontend.streams import Stream, Streams
from engine.frontend.text.input_processor import InputProcessor, Prompt
from engine.messages import SamplingParams
from engine.model_config import ModelConfig
from engine.topology import Mark
from scenarios.lab.script import DONE, FAILED, GO, UP
from scenarios.workloads.caller import PROBE_S, Caller, Heard, ask_closed
from scenarios.workloads.workload import Command, Workload
from sim.process.effects import RunLoop
from sim.process.process import SimProcess

#: The queue that takes the lab's words.
ORDERS = "orders"
#: A launcher is asked to watch for so long at a time: it comes back sooner, with the time that it is.
WATCH_S = 10.0


class AskedLife:
    """A client as the caller asks it. Of whom there is news, a stream or an answer, waits in `news`."""

    def __init__(self, life: ClientLife, inputs: InputProcessor) -> None:
        self._life = self.life = life
        self._streams = Streams(life, inputs)
        #: What has come, in its order; of a stream that has not been looked at since, one entry under that stream.
        self._news: dict[object, tuple[Heard, Stream] | tuple[Command, UtilityResult]] = {}

    def add(self, name: str, prompt: Prompt, params: SamplingParams, priority: int = 0,
            rank: int | None = None) -> Loop[str]:
        stream = yield from self._streams.start(name, prompt, params, priority, rank)
        stream.changed = partial(self._news.setdefault, stream, (Heard(name, stream.internal_id), stream))
        if stream.ended:  # it was not sent
            stream.changed()
        return stream.internal_id

    def abort(self, name: str) -> Loop[None]:
        yield from self._life.abort(name)

    def send_raw(self, frames: list[bytes]) -> Loop[None]:
        yield from self._life.send(frames)

    def call(self, command: Command) -> Loop[None]:
        yield from self._streams.utility(
            command.method, command.args, lambda result: self._news.update({object(): (command, result)}))

    def check_health(self) -> Loop[None]:
        yield from self._life.check_health()

    @property
    def errored(self) -> bool:
        return self._life.session.dead is not None

    def tell(self, caller: Caller) -> Loop[None]:
        """Hand on what has come."""
        while self._news:
            whose, what = self._news.pop(next(iter(self._news)))
            if isinstance(what, Stream):
                yield from _listen(caller, whose, what)
                if what.ended:  # what came of it meanwhile was told with the rest
                    self._news.pop(what, None)
            else:
                failure = what.error or (ValueError(what.failure) if what.failure else None)
                yield from caller.answered(whose, what.result, failure)


def _listen(caller: Caller, heard: Heard, stream: Stream) -> Loop[None]:
    """Take the newest of a stream, and its end."""
    try:
        output = stream.take()
        while output is not None:
            yield from caller.hear(heard, output)
            if output.finished:
                yield from caller.ended(heard, None)
            output = stream.take()
    except RingtwinError as error:
        yield from caller.ended(heard, error)


def client_main(process: SimProcess, config: EngineConfig, workload: Workload, say: Callable[[bytes], None],
                await_death_s: float, inputs_of: Callable[[ModelConfig], InputProcessor], attachment: bytes,
                ) -> Loop[None]:
    """The client's main thread, as often as the lab says GO."""
    attached = msgspec.msgpack.decode(attachment, type=Attachment) if attachment else None
    yield MarkPoint(Mark.BORN)
    numbers = count(1)
    me = f"{process.node.life:x}{process.node.index:x}"  # ids differ between clients and their lives, as random ones do
    life = ClientLife(process.node, config, lambda: f"{me}{next(numbers):06x}", attached)
    try:
        yield RunLoop(_obey(life, workload, say, await_death_s, inputs_of))
    except (Exception, SystemExit):  # a program that ends by an exception shuts down on its way out
        yield from _shut_down(life)
        raise


def launcher_main(process: SimProcess, config: EngineConfig, clients: tuple[int, ...], say: Callable[[bytes], None],
                  ) -> Loop[None]:
    """The main thread of who owns their engines, until the lab says CLOSE."""
    yield MarkPoint(Mark.BORN)
    life = LauncherLife(process.node, config, clients)
    try:
        yield RunLoop(_own(life, say))
    except (Exception, SystemExit):
        yield from _shut_down(life)
        raise


def _own(life: LauncherLife, say: Callable[[bytes], None]) -> Loop[None]:
    try:
        attachment = yield from life.start()
    except RingtwinError as error:
        yield from _shut_down(life)
        yield Observe("bye", {"reason": "the engines did not start"})
        say(FAILED + b" " + str(error).encode())
        return
    say(UP + msgspec.msgpack.encode(attachment))
    now = yield Now()
    while not (yield Take(ORDERS, now if life.has_orphans or not life.reason else None)):
        now = yield from life.serve(now + WATCH_S)
    yield from _shut_down(life)
    yield Observe("bye", {"reason": "done"})


def _shut_down(life: ClientLife | LauncherLife) -> Loop[None]:
    """As `EngineCoreClient.shutdown` does."""
    try:
        yield from life.shutdown()
    except (Exception, SystemExit):
        yield from life.break_off()
        raise


def _obey(life: ClientLife, workload: Workload, say: Callable[[bytes], None], await_death_s: float,
          inputs_of: Callable[[ModelConfig], InputProcessor]) -> Loop[None]:
    try:
        yield from life.start()
    except RingtwinError as error:
        yield from _shut_down(life)
        yield Observe("bye", {"reason": "the engine did not start"})
        say(FAILED + b" " + str(error).encode())
        return
    say(UP)
    inputs = inputs_of(life.model)
    asked, orders = AskedLife(life, inputs), deque[bytes]()
    decode = None if inputs.tokenizer is None else inputs.tokenizer.decode
    while True:
        while not orders:  # an idle client reads on
            now = yield Now()
            orders.extend((yield Take(ORDERS, now + PROBE_S)))
            if not orders:
                yield from life.serve(now)
        if orders.popleft() != GO:
            break
        yield RunLoop(_serve(life, asked, Caller(workload, asked, decode), await_death_s))
        say(DONE)
    yield from _shut_down(life)
    yield from ask_closed(asked)
    yield Observe("bye", {"reason": "done"})


def _serve(life: ClientLife, asked: AskedLife, caller: Caller, await_death_s: float) -> Loop[None]:
    """The workload, once."""
    now: float = yield Now()
    next_probe: float | None = now
    leave_at = None
    yield from caller.begin()
    while True:
        yield from asked.tell(caller)
        if caller.finished:
            leave_at = now + await_death_s if leave_at is None else leave_at
            if asked.errored or now >= leave_at:
                break
        if next_probe is not None and now >= next_probe:
            next_probe = now + PROBE_S if (yield from caller.probe()) else None
            continue
        now = yield from life.serve(now + PROBE_S if next_probe is None else next_probe)
    yield from caller.look_back()
