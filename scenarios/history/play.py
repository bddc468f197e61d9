"""What was asked of a world, and what its lab saw from outside. Plain values, saved beside the journals."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from engine.config import EngineConfig
from engine.messages import EngineCoreRequest, EngineCoreRequestType
from engine.topology import Channel, Topology
from faults.plan import Plan
from scenarios.history.verdicts import Verdict

#: Plays did not always record whether their time was virtual. Of those that do not say so, this world's was.
_ONCE_VIRTUAL = "sim"
#: What records hold. Of 1, which did not say so, callers were told that their engine died, and not why.
SCHEMA = 2
#: Worlds of engines that are not ours. They promise what `scenarios.guarantees.theirs` lists, and record less.
OTHERS = frozenset({"vllm"})
#: `Options.program` of the one that damages books of an engine and looks at them: both worlds play it.
BOOKS = "books"
#: The one that publishes and reads batches of its own, frame by frame: both worlds play it, too.
BATCHES = "batches"


class Intruder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nobody's process: a socket of the lab's, which connects where one of the first engines' is bound, and speaks."""

    at: str  # that socket's short name: what its file is called
    kind: Literal["XSUB", "PUSH", "DEALER"]
    identity: bytes | None = None
    bad: list[list[bytes]] = []  # messages that are none there, or that nobody may send: each has to be named
    idle: list[list[bytes]] = []  # messages that say nothing, or nothing new: they have to do no harm
    early: bool = False  # it comes as soon as there is that socket; else when all are ready

    @property
    def messages(self) -> list[list[bytes]]:
        return [*self.bad, *self.idle]

    @property
    def channel(self) -> Channel:
        """What it speaks on."""
        return next(_CHANNELS[part] for part in self.at.split(".") if part in _CHANNELS)

    def poses_as(self, node: str) -> bool:
        """Whether it goes by the identity of that core, or client."""
        return self.identity is not None and self.identity == int(node.rpartition(".")[2]).to_bytes(2, "little")

    @property
    def client(self) -> int:
        """Which one it speaks with, where it is a client."""
        first, *rest = self.at.split(".")
        return int(rest[0]) if first == "client" else 0


#: Of a bound socket, by a part of its short name.
_CHANNELS = {"stats": Channel.STATS, "waves": Channel.WAVE, "reports": Channel.REPORT, "outputs": Channel.OUTPUTS,
             "requests": Channel.REQUESTS, "handshake": Channel.HANDSHAKE}


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What else a world is asked for, beside topology, workload and plan."""

    late_subscriber: bool = False  # subscribers join when the workload is done
    #: SIGKILL of the whole first engine when its workload is done, then the same again; subscribers outlive it.
    kill_all_then_restart: bool = False
    #: subscriber.0 goes by an identity that nobody knows and asks malformed questions beside its own.
    rude_subscriber: bool = False
    without_epochs: bool = False  # subscribers hear their publisher as the original's: no epochs, reports, snapshots
    noisy_publisher: bool = False  # subscriber.0 hears messages that are none before the first ones of each socket
    impossible_events: bool = False  # subscriber.0 hears of blocks that no cache has
    misnumbered_batch: bool = False  # subscriber.0 hears a batch twice, and by a number that nobody has given
    #: The last client of the first engines comes back: when it has been killed, or served and told to leave.
    client_returns: bool = False
    intruders: list[Intruder] = []  # who else speaks with the first engines, and is none of theirs
    await_death_s: float = 0.0  # clients stay so long after the workload, until they hear of their engine's death
    rest_s: float = 0.0  # the lab asks for nothing for so long when the workload is done
    long_runtime_dir: bool = False
    plain: bool = False  # no fault layer at all; nothing is recorded
    synchronous: bool = False  # a real client is a program without an event loop, which generates and waits
    over_http: bool = False  # clients ask the engine's HTTP server, where it has one
    polling: bool = False  # a real subscriber is a program that polls
    relayed: bool = False  # vLLM's messages pass the lab's relay also where no fault names one; ours are watched anyway
    #: Of several that start engines of one group, the last is configured with these instead: fields of `EngineConfig`,
    #: those of `data_parallel` by their own names.
    differs: dict[str, Any] = {}
    queue: str = ""  # no engine: its queue alone, a row of `scenarios.lab.queue_play`
    edits: tuple[str, ...] = ()  # of an engine that is not ours: its functions that are changed (`vllm.edits.registry`)
    program: str = ""  # no engine of the lab's: a program that uses parts of one, a row of `scenarios.programs.program`

    @property
    def without_engine(self) -> bool:
        """Who runs then is a program, and says what it did in words of its own."""
        return bool(self.queue or self.program)


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where and by what a play was made. None: it could not be found out."""

    began_at: str  # UTC, 2026-01-31T23:59:59Z
    system: str
    machine: str
    python: str
    cores: int  # that its processes might use
    commit: str | None  # of the project, where it is a git checkout
    changed: bool | None  # whether files of that commit were changed
    command: str


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """What was played: enough to play it again."""

    scenario: str  # the test function's name, with its parameters
    title: str  # its sentence
    world: str  # its name in scenarios/worlds/registry.py
    topology: Topology
    workload: dict[str, Any]  # the recorded workload, whole: prompts, phases, reference tokens
    plan: Plan
    config: EngineConfig
    promises: tuple[str, ...]  # guarantees that must be HELD
    expected: dict[str, Verdict] = {}  # canaries: declared verdicts that differ from HELD
    options: Options = Options()
    seed: int = 0
    unsteady: float = 0.0  # real processes stand still for a moment at this share of their crossings
    choice: int = 0  # which of several allowed outcomes the twin played
    versions: dict[str, str] = {}
    schema: int = SCHEMA
    provenance: Provenance | None = None  # plays did not always record it
    virtual_time: bool | None = None  # whether its world keeps its own time, which no machine can starve

    @property
    def simulated(self) -> bool:
        return self.world == _ONCE_VIRTUAL if self.virtual_time is None else self.virtual_time

    @property
    def is_ours(self) -> bool:
        """Whether it is our engine, or its twin, that is played: it promises all that is judged here."""
        return self.world not in OTHERS

    @property
    def says_why(self) -> bool:
        """Whether callers are told who died, and of what."""
        return self.schema > 1 and self.is_ours

    @property
    def raw(self) -> list[list[bytes]]:
        """Messages that its workload sends, and no client of its own; of several clients each sends its own."""
        shares = {share["client"]: share["phases"] for share in reversed(self.workload.get("shares", ()))}
        clients = self.topology.deployments[0].clients if shares else ()
        asked = [shares.get(client.index, self.workload.get("phases", ())) for client in clients]
        return [[bytes.fromhex(frame) for frame in action.get("args", ())]
                for phases in asked or [self.workload.get("phases", ())]
                for phase in phases for action in phase.get("actions", ()) if action["kind"] == "raw"]

    @property
    def raw_messages(self) -> int:
        """How many of them are no request."""
        raw = self.raw
        return len(raw) - len(self.strangers) if raw else 0

    @property
    def strangers(self) -> list[EngineCoreRequest]:
        """Those that are one."""
        found = []
        for frames in self.raw:
            if len(frames) > 1 and frames[0] == EngineCoreRequestType.ADD:
                try:
                    found.append(msgspec.msgpack.decode(frames[1], type=EngineCoreRequest))
                except (msgspec.DecodeError, ValueError, RecursionError):
                    continue
        return found

    @property
    def declared(self) -> dict[str, Verdict]:
        """What the scenario declared, by guarantee: HELD where promised, the canary's verdict where it says so."""
        return {guarantee: Verdict.HELD for guarantee in self.promises} | self.expected


class ProcessEnd(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the play as the lab saw it from outside."""

    node: str
    life: int
    pid: int
    started_at: float
    ended_at: float | None  # None: still there when the lab stopped looking
    exitcode: int | None = None
    killed_by_lab: bool = False  # the lab had to: the process outlived its bound


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """What a process holds at a moment. A process of the twin has neither memory nor processor time of its own."""

    threads: int
    descriptors: int  # of the twin: its sockets and ring ends
    memory_bytes: int | None = None  # resident; not where a device's library loads itself when it is first used
    processor_s: float | None = None  # since it was born
    turns: int | None = None  # of the twin: how often its threads went on


class Moment(StrEnum):
    """When the lab looks at what processes hold."""

    READY = "ready"  # engine and subscribers are there, and nobody has asked for anything
    DONE = "done"  # all that was asked has ended
    RESTED = "rested"  # `Options.rest_s` later
    QUIET = "quiet"  # the subscribers have left, too


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    life: int
    moment: Moment
    at: float  # when the lab had looked at all of them
    holds: Holdings
    since: float | None = None  # when it began to look


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What the lab saw of an engine beside the first one."""

    engine: int
    served: bool  # also after the first one's play
    touched: list[str]  # what it had when it was ready, and had no more


class Lab(msgspec.Struct, frozen=True, kw_only=True):
    """What no process of the engine could have said about itself."""

    began_at: float
    ended_at: float
    processes: list[ProcessEnd]
    leftovers: list[str]  # processes, segments, socket files, temporary files after the bound, as text
    leftovers_checked_at: float | None = None
    longest_starvation_s: float = 0.0  # the heartbeat process's longest gap beyond its period
    guard_expired: bool = False  # the play was ended by the lab's guard: a hang, or a starved machine
    beside: list[Beside] = []  # engines beside the first
    measured: list[Measured] = []  # processes that were there at those moments
    printed: list[str] = []  # of each traceback that a process has printed the last line
    restarts: list[dict[str, Any]] = []  # {"life": 1, "ready": bool, "served": bool, "removed": [...], "error": str}
    failure: str | None = None  # the harness itself failed: exit code 3
    took_s: float | None = None  # by the machine's clock, where the play has a time of its own
