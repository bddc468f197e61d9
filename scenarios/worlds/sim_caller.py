"""A client of a play in the twin: the engine's own client, and the caller's part, which both worlds play."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count

from engine.config import EngineConfig
from engine.effects import Loop, MarkPoint, Now, Observe, Take
from engine.errors import RingtwinError
from engine.frontend.life import ClientLife
from engine.frontend.session import Delivery, Tokens, UtilityResult
from engine.messages import SamplingParams
from engine.topology import Mark
from scenarios.lab.script import DONE, FAILED, GO, UP
from scenarios.workloads.caller import PROBE_S, Caller
from scenarios.workloads.workload import Command, Workload
from sim.process.effects import RunLoop
from sim.process.process import SimProcess

#: The queue that takes the lab's words.
ORDERS = "orders"


class AskedLife:
    """A client as the caller asks it. What comes later waits in `deliveries`."""

    def __init__(self, life: ClientLife, eos_token_id: int | None) -> None:
        self._life = life
        self._eos_token_id = eos_token_id
        self._calls: dict[int, Command] = {}
        self._deliveries: deque[Delivery] = deque()
        life.deliver = self._deliveries.append

    def add(self, name: str, prompt_token_ids: list[int], params: SamplingParams) -> Loop[str]:
        return (yield from self._life.add(name, prompt_token_ids, params, self._eos_token_id))

    def abort(self, name: str) -> Loop[None]:
        yield from self._life.abort(name)

    def send_raw(self, frames: list[bytes]) -> Loop[None]:
        yield from self._life.send(frames)

    def call(self, command: Command) -> Loop[None]:
        self._calls[(yield from self._life.utility(command.method, command.args))] = command

    def check_health(self) -> Loop[None]:
        yield from self._life.check_health()

    @property
    def errored(self) -> bool:
        return self._life.session.dead is not None

    def tell(self, caller: Caller) -> Loop[None]:
        """Hand on what has come."""
        while self._deliveries:
            delivery = self._deliveries.popleft()
            if isinstance(delivery, Tokens):
                yield from caller.tokens(delivery.request_id, delivery.internal_id, delivery.offset,
                                         delivery.token_ids)
            elif isinstance(delivery, UtilityResult):
                failure = delivery.error or (ValueError(delivery.failure) if delivery.failure else None)
                yield from caller.answered(self._calls.pop(delivery.call_id), delivery.result, failure)
            else:
                yield from caller.ended(delivery.request_id, delivery.internal_id, delivery.finish_reason,
                                        delivery.error)


def client_main(process: SimProcess, config: EngineConfig, workload: Workload, say: Callable[[bytes], None],
                await_death_s: float, eos_token_id: int | None) -> Loop[None]:
    """The client's main thread, as often as the lab says GO."""
    yield MarkPoint(Mark.BORN)
    numbers = count(1)
    me = f"{process.node.life:x}{process.node.index:x}"  # ids differ between clients and their lives, as random ones do
    life = ClientLife(process.node, config, lambda: f"{me}{next(numbers):06x}")
    try:
        yield RunLoop(_obey(life, workload, say, await_death_s, eos_token_id))
    except (Exception, SystemExit):  # a program that ends by an exception shuts down on its way out
        yield from life.shutdown()
        raise


def _obey(life: ClientLife, workload: Workload, say: Callable[[bytes], None], await_death_s: float,
          eos_token_id: int | None) -> Loop[None]:
    try:
        yield from life.start()
    except RingtwinError as error:
        yield from life.shutdown()
        yield Observe("bye", {"reason": "the engine did not start"})
        say(FAILED + b" " + str(error).encode())
        return
    say(UP)
    asked, orders = AskedLife(life, eos_token_id), deque[bytes]()
    while True:
        while not orders:  # an idle client reads on
            now = yield Now()
            orders.extend((yield Take(ORDERS, now + PROBE_S)))
            if not orders:
                yield from life.serve(now)
        if orders.popleft() != GO:
            break
        yield RunLoop(_serve(life, asked, Caller(workload, asked), await_death_s))
        say(DONE)
    yield from life.shutdown()
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
