"""What the client of a play does: a recorded workload and the driver that both worlds run (pure).

A workload is requests (token ids, parameters, reference tokens from `transformers`) and phases. A phase is a
list of actions and a number of steps: the scheduler is paused while the actions are sent, then runs exactly that
many steps. So the same request is in the same step in both worlds, and the nth crossing means the same.

    workload = recorded("eight-mixed").then(add(0, 1, 2), steps=3).then(add(3), abort(1), steps=None)

The driver is told what was delivered and says what to do next; it knows neither sockets nor time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.frontend.text.input_processor import Prompt
from engine.messages import EngineCoreRequest, SamplingParams
from engine.topology import Client, Topology
from engine.wire.codec import encode_add

RECORDED = Path(__file__).parents[1] / "recorded"
#: More tokens than a request has: its end.
ENDED = 10_000


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked, and what is to come of it."""

    index: int
    prompt_token_ids: list[int]
    sampling_params: dict[str, Any]
    reference_token_ids: list[int]
    asked: Any = None  # instead of the tokens: a text, or what is no prompt
    asked_params: Any = None  # instead of the parameters: what is none
    end_token_ids: list[int] = []  # those of the model that end it
    unservable: str = ""  # why it cannot be served: what its caller must be told
    priority: Any = 0
    data_parallel_rank: Any = None  # the core that is asked for, where there are several

    @property
    def prompt(self) -> Prompt:
        return self.prompt_token_ids if self.asked is None else self.asked

    @property
    def params(self) -> SamplingParams:
        return msgspec.convert(self.sampling_params, SamplingParams)

    @property
    def given(self) -> Any:
        """What the caller gives as parameters."""
        return self.params if self.asked_params is None else self.asked_params


class Action(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing the client does. `index` is a request of the recording; `name` the caller's id for it."""

    kind: Literal["add", "abort", "utility", "raw"]
    index: int = -1
    name: str = ""
    method: str = ""
    args: list[Any] = []
    times: int = 1


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Actions while the scheduler is paused, then `steps` steps; None: until nothing is left to do; 0: none, and the
    next phase begins when the last call was answered. `behind`: until this request has so many tokens, and what runs is
    not stopped.
    """

    actions: list[Action]
    steps: int | None = None
    behind: tuple[str, int] | None = None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one of several clients asks instead of what all others ask."""

    client: int
    phases: list[Phase]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    requests: list[RecordedRequest]
    phases: list[Phase] = []
    free: bool = False  # no step of the engine is counted: others use it, too
    shares: list[Share] = []

    def then(self, *actions: Action | Iterable[Action], steps: int | None = None,
             behind: tuple[str, int] | None = None) -> Workload:
        """The same workload with one more phase."""
        flat = [a for item in actions for a in ([item] if isinstance(item, Action) else item)]
        return msgspec.structs.replace(self, phases=[*self.phases, Phase(actions=flat, steps=steps, behind=behind)])

    def but(self, client: int, other: Workload) -> Workload:
        """That client asks what the other one has, of the same requests."""
        share = Share(client=client, phases=other.phases or [Phase(actions=[])])
        return msgspec.structs.replace(self, shares=[share, *self.shares])

    def played(self) -> Workload:
        """With phases: where none were given, all requests at once."""
        return self if self.phases else self.then(add(*(r.index for r in self.requests)))


def workload_for(workload: Workload, client: Client, topology: Topology) -> Workload:
    """What this client asks: of an engine beside the first that it computes all blocks itself, each time it is asked.

    Of several clients of the same engines, or of engines that step together, each asks the same, and none counts their
    steps.
    """
    together = next(one for one in topology.deployments if client in one.clients)
    if len(together.clients) > 1:
        own = next((share.phases for share in workload.shares if share.client == client.index), workload.phases)
        return msgspec.structs.replace(workload, phases=own, free=True)
    return from_an_empty_cache(workload) if client.engines[0] else workload


def from_an_empty_cache(workload: Workload) -> Workload:
    """The same, behind a reset of the prefix cache: where it is played again, all blocks are computed again."""
    first, *rest = workload.played().phases
    first = msgspec.structs.replace(first, actions=[utility("reset_prefix_cache"), *first.actions])
    return msgspec.structs.replace(workload, phases=[first, *rest])


def asked(workload: Workload, index: int, *, longest: int | None = None, **params: Any) -> Workload:
    """One of its requests asked for otherwise: with other parameters, of a model that takes `longest` tokens at most.

    Its answer is as much of the recorded one as these leave.
    """
    request = next(request for request in workload.requests if request.index == index)
    changed = msgspec.structs.replace(request, sampling_params={**request.sampling_params, **params})
    wanted, reference = changed.params, request.reference_token_ids
    limits = [] if wanted.max_tokens is None else [wanted.max_tokens]
    limits += [] if longest is None else [longest - len(request.prompt_token_ids)]
    most = min(limits, default=len(reference))
    stops = [number for number, token in enumerate(reference, 1)
             if number > wanted.min_tokens and token in wanted.stop_token_ids]
    changed = msgspec.structs.replace(changed, reference_token_ids=reference[:max(0, min([most, *stops]))],
                                      end_token_ids=request.end_token_ids or _ends_of(request))
    return msgspec.structs.replace(
        workload, requests=[changed if request.index == index else request for request in workload.requests])


def _ends_of(request: RecordedRequest) -> list[int]:
    """The token of the model that ended it before its length did; none where something else did, or may have."""
    params, reference = request.params, request.reference_token_ids
    is_cut = params.ignore_eos or params.stop or params.max_tokens is None or len(reference) >= params.max_tokens
    return [] if is_cut or not reference or reference[-1] in params.stop_token_ids else [reference[-1]]


def continued(workload: Workload, index: int, tokens: int) -> Workload:
    """With one more request: what one of them asks, and so many tokens of its answer. What it is to answer is the rest.

    It comes last. Raises ValueError where the answer has no more than these.
    """
    request = next(request for request in workload.requests if request.index == index)
    had, rest = request.reference_token_ids[:tokens], request.reference_token_ids[tokens:]
    if not rest:
        raise ValueError(f"request {index} has an answer of {len(had)} tokens, {tokens} leave nothing to be asked for")
    more = msgspec.structs.replace(request, index=max(one.index for one in workload.requests) + 1,
                                   prompt_token_ids=[*request.prompt_token_ids, *had], reference_token_ids=rest,
                                   sampling_params={**request.sampling_params, "max_tokens": len(rest)})
    return msgspec.structs.replace(workload, requests=[*workload.requests, more])


def prioritised(workload: Workload, *priorities: int) -> Workload:
    """Its requests with these priorities, by index."""
    return msgspec.structs.replace(workload, requests=[
        msgspec.structs.replace(request, priority=priorities[request.index]) for request in workload.requests])


def oddly(workload: Workload, index: int, **kinds: str) -> Workload:
    """One of its requests with values of another kind than these fields have, by the names of the kinds: whoever calls
    an engine that is not ours makes them (`scenarios.worlds.vllm.host.values`).
    """
    return msgspec.structs.replace(workload, requests=[
        msgspec.structs.replace(request, asked_params={"kinds": kinds, "params": request.sampling_params})
        if request.index == index else request for request in workload.requests])


def for_ranks(workload: Workload, ranks: dict[int, Any]) -> Workload:
    """These of its requests, by index, ask for a core by its rank."""
    return msgspec.structs.replace(workload, requests=[
        msgspec.structs.replace(request, data_parallel_rank=ranks.get(request.index)) for request in workload.requests])


def add(*indices: int, name: str = "") -> list[Action]:
    """Send requests. `name` gives one request an id of its own, to use it twice."""
    return [Action(kind="add", index=index, name=name or f"r{index}") for index in indices]


def generated(name: str) -> Workload:
    """All requests of a recording at once, by the names that `LLM.generate` gives them."""
    workload = recorded(name)
    return workload.then(*(add(request.index, name=f"generate-{place}")
                           for place, request in enumerate(workload.requests)))


def abort(*names: int | str) -> list[Action]:
    """End requests before their time."""
    return [Action(kind="abort", name=_named(name)) for name in names]


def _named(name: int | str) -> str:
    """The caller's id for a request of the recording, or for one that has a name of its own."""
    return f"r{name}" if isinstance(name, int) else name


def utility(method: str, *args: Any, times: int = 1) -> Action:
    """Call a utility of the core, `times` times without waiting in between."""
    return Action(kind="utility", method=method, args=list(args), times=times)


def raw(*frames: bytes) -> Action:
    """Send bytes that are no request."""
    return Action(kind="raw", args=[frame.hex() for frame in frames])


def copy_that_is_none(name: int | str) -> Action:
    """Send what bears the id of a request that was asked for, and is none."""
    return Action(kind="raw", name=_named(name))


def of_nobody(name: str, *prompt: int, client_index: int = 0) -> Action:
    """Send a request that no client of the core has made."""
    return raw(*encode_add(EngineCoreRequest(name, list(prompt), SamplingParams(max_tokens=2), client_index)))


@lru_cache(maxsize=32)
def recorded(name: str) -> Workload:
    """A workload that ships with the project. Raises FileNotFoundError for an unknown name."""
    data = json.loads((RECORDED / f"{name}.json").read_text())
    requests = [msgspec.convert(request, RecordedRequest, strict=False) for request in data["requests"]]
    return Workload(name=data["name"], requests=requests)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What the client does now. `ticket` is told back with a utility's answer."""

    kind: Literal["add", "abort", "utility", "raw", "finish"]
    request_id: str = ""
    request: RecordedRequest | None = None
    method: str = ""
    args: list[Any] = []
    ticket: int = -1


class Driver:
    """Plays a workload. Call `start`, then `ended` and `answered` as things happen; do what they return."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload.played()
        self._by_index = {request.index: request for request in self.workload.requests}
        self._phase = -1
        self._open: Counter[str] = Counter()  # an id may be used again before its first use has ended
        self._tickets = 0
        self._awaited: set[int] = set()
        self._steps_ticket: int | None = None
        self._behind: tuple[str, int] | None = None  # which request's tokens the next phase waits for
        self._finished = False
        self._dead = self._told = False

    @property
    def unanswered(self) -> int:
        """How many calls have neither an answer nor an error."""
        return len(self._awaited)

    def start(self) -> list[Command]:
        return ([self._utility("pause_scheduler", [])] if self._pauses() else []) + self._next_phase()

    def _pauses(self) -> bool:
        first = self.workload.phases[0]
        return not self.workload.free and (len(first.actions) > 1 or bool(first.steps))

    def ended(self, request_id: str) -> list[Command]:
        """A request got its end, whatever end."""
        self._open[request_id] -= 1
        return self.heard(request_id, None) + self._maybe_finish()

    def heard(self, request_id: str, tokens: int | None) -> list[Command]:
        """A request has got so many tokens; None: all that it will get."""
        if self._behind is None or self._dead or request_id != self._behind[0] or (
                tokens is not None and tokens < self._behind[1]):
            return []
        self._behind = None
        return self._next_phase()

    def answered(self, ticket: int, failed: bool) -> list[Command]:
        """A utility call was answered, or failed."""
        self._awaited.discard(ticket)
        if ticket == self._steps_ticket:
            self._steps_ticket = None
            if not self._dead and self._phase + 1 < len(self.workload.phases):
                return self._next_phase()
        return self._maybe_finish()

    def died(self, told: bool = True) -> list[Command]:
        """The engine is dead: nothing more is begun, what is open ends by itself. `told`: by now all of it has."""
        self._dead, self._told = True, told
        return self._maybe_finish()

    def _next_phase(self) -> list[Command]:
        self._phase += 1
        phase = self.workload.phases[self._phase]
        commands = [command for action in phase.actions for command in self._commands(action)]
        if phase.steps == 0:
            self._steps_ticket = commands[-1].ticket
            return commands
        if phase.steps is not None:
            call = self._utility("run_steps", [phase.steps])
            self._steps_ticket = call.ticket
            return [*commands, call]
        if self._pauses() if not self._phase else not self.workload.free:
            commands.append(self._utility("resume_scheduler", []))
        self._behind = phase.behind
        return commands + self._maybe_finish()

    def _commands(self, action: Action) -> list[Command]:
        if action.kind == "add":
            self._open[action.name] += 1
            return [Command(kind="add", request_id=action.name, request=self._by_index[action.index])]
        if action.kind == "abort":
            return [Command(kind="abort", request_id=action.name)]
        if action.kind == "raw":
            return [Command(kind="raw", request_id=action.name, args=action.args)]
        return [self._utility(action.method, action.args) for _ in range(action.times)]

    def _utility(self, method: str, args: list[Any]) -> Command:
        self._tickets += 1
        self._awaited.add(self._tickets)
        return Command(kind="utility", method=method, args=args, ticket=self._tickets)

    def _maybe_finish(self) -> list[Command]:
        last = self._dead or (self._phase == len(self.workload.phases) - 1 and self._steps_ticket is None
                              and self._behind is None)
        if self._finished or not last or +self._open or (self._awaited and not self._told):
            return []
        self._finished = True
        return [Command(kind="finish")]
