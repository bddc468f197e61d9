"""Plausible runs without an engine: what the report's tests read, and what its look is judged by.

`write_examples(folder)` writes run directories to disk, with journals, as a play would leave them.
`bare_run(...)` is one run in memory, for truth tables: verdicts without journals.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.topology import Topology, tensor_parallel
from faults.journal import Journal, Kind, journal_path
from faults.plan import Fate, Fault, Plan
from reports.collect import Promise
from scenarios.history.play import Lab, Play, ProcessEnd
from scenarios.history.run import Run, load_run, save
from scenarios.history.verdicts import Cell, Evidence, FaultReceipt, Judgement, Verdict

HELD, BROKEN, UNTESTED, OUTSIDE, UNKNOWN = Verdict
REQUESTS, LIFE, RING, KV = "Requests and tokens", "Death and cleanliness", "Ring and collective RPC", "KV cache"
PROMISES = {promise.id: promise for promise in (
    Promise(id="hwm0-no-loss", sentence="Every frame sent between two living processes is received exactly once.",
            source="seed 001, section 1", chapter="Transport"),
    Promise(id="edge-fifo", sentence="Frames of one edge arrive in the order they were sent.", source="seed 001",
            chapter="Transport"),
    Promise(id="bad-frame-isolated", sentence="A malformed frame never kills a process or another request.",
            source="seed 001", chapter="Transport"),
    Promise(id="ends-once", sentence="Every accepted request gets exactly one outcome.", source="vLLM",
            chapter=REQUESTS),
    Promise(id="tokens-in-order", sentence="Streamed tokens arrive once each and in order.", source="vLLM",
            chapter=REQUESTS),
    Promise(id="tokens-match-reference", sentence="Greedy tokens equal the reference.", source="transformers",
            chapter=REQUESTS),
    Promise(id="lost-request-is-bounded", sentence="A lost frame ends in an error within the client time-out.",
            source="seed 001", chapter=REQUESTS),
    Promise(id="ring-exact-prefix", sentence="Every reader sees an exact prefix of what was written.",
            source="seed 000, section 2", chapter=RING),
    Promise(id="rpc-matched", sentence="Reply i of rank r answers call i.", source="seed 002", chapter=RING),
    Promise(id="workers-in-step", sentence="All workers execute the same calls in the same order.",
            source="seed 002", chapter=RING),
    Promise(id="death-is-told", sentence="The death of any process ends every call within the detection bound.",
            source="seed 003", chapter=LIFE),
    Promise(id="stall-is-told", sentence="A process that stops making progress is noticed within its deadline.",
            source="seed 003", chapter=LIFE),
    Promise(id="nothing-left-behind", sentence="Nothing remains after the bound.", source="seed 004", chapter=LIFE),
    Promise(id="kv-gap-seen", sentence="A subscriber knows of every loss.", source="seed 001, section 4", chapter=KV),
    Promise(id="kv-replay-complete", sentence="Replay yields exactly the missing batches.", source="seed 001",
            chapter=KV),
    Promise(id="kv-mirror-true", sentence="The mirror equals the engine's own cache.", source="seed 001", chapter=KV),
)}


def _append(file: Path, data: bytes) -> None:
    """A journal of a process stays open to its end: here one process writes hundreds."""
    with file.open("ab") as opened:
        opened.write(data)


def replay_command(run: Run) -> str:
    return f"ringtwin replay out/runs/{run.path.name}"


def cell(guarantee: str, verdict: Verdict, expected: Verdict | None = None, *evidence: Evidence,
         **rest: Any) -> Cell:
    reasons = list(evidence) or [Evidence(text=f"{guarantee} was judged on this run")]
    return Cell(guarantee=guarantee, verdict=verdict, expected=expected,
                witnesses=rest.pop("witnesses", 0 if verdict is UNTESTED else 3), evidence=reasons, **rest)


def bare_run(scenario: str = "test_calm", world: str = "engine", *cells: Cell, choice: int = 0,
             faults: tuple[Fault, ...] = (), fired: bool = True, failure: str | None = None, judged: bool = True,
             title: str = "A sentence.", promises: tuple[str, ...] | None = None) -> Run:
    """One run in memory, without journals."""
    expected = {c.guarantee: c.expected for c in cells if c.expected is not None}
    if promises is None:
        promises = tuple(guarantee for guarantee, verdict in expected.items() if verdict is HELD)
    play = Play(scenario=scenario, title=title, world=world, topology=tensor_parallel(2), workload={},
                plan=Plan(faults), config=EngineConfig(model="tiny"), promises=promises, choice=choice,
                expected={guarantee: verdict for guarantee, verdict in expected.items() if verdict is not HELD})
    judgement = Judgement(cells=list(cells), faults=[FaultReceipt(id=f.id, fired=fired) for f in faults],
                          ended="clean", seconds=1.5)
    lab = Lab(began_at=0.0, ended_at=1.5, processes=[], leftovers=[], failure=failure)
    return Run(Path(f"/runs/{scenario}-{world}-{choice}"), play, lab, [], judgement if judged else None)


class Stage:
    """Writes one run directory: a clock, a journal per process, and the usual traffic of a step."""

    def __init__(self, folder: Path, scenario: str, world: str, title: str, *, subscribers: int = 0,
                 faults: tuple[Fault, ...] = (), choice: int = 0, start: float = 1000.0) -> None:
        self.path = folder / f"{scenario}-{world}-{choice}"
        (self.path / "journals").mkdir(parents=True)
        self.topology = tensor_parallel(2, subscribers=subscribers)
        self.play = Play(scenario=scenario, title=title, world=world, topology=self.topology, workload={"name": "x"},
                         plan=Plan(faults), config=EngineConfig(model="tiny", tensor_parallel_size=2), promises=(),
                         choice=choice, versions={"python": "3.11", "simpy": "4.1"})
        self.now = self.start = start if world == "engine" else 0.0
        self.step_s = 0.004 if world == "engine" else 0.003
        self.journals: dict[str, Journal] = {}
        self.ends: dict[str, tuple[float, int]] = {}
        self.counts: dict[str, int] = {}
        self.receipts: dict[str, dict[str, Any]] = {}
        self.position = 0
        for number, node in enumerate(self.topology.nodes):
            name = str(node)
            file = journal_path(self.path / "journals", name, 0)
            self.journals[name] = Journal(partial(_append, file), lambda: self.now)
            self.pass_time(0.01)
            self.see(name, "born", pid=100 + number, ppid=1, start_time=1, segments=[], paths=[])

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def mark(self, node: str, name: str, **data: Any) -> None:
        site = f"{node}/mark:{name}"
        nth = self.counts[site] = self.counts.get(site, 0) + 1
        self.journals[node].append(Kind.CROSSING, site, nth=nth, data=data)

    def see(self, node: str, name: str, **data: Any) -> None:
        self.journals[node].append(Kind.OBSERVATION, name, data=data)

    def message(self, edge: str, *, lost: bool = False, dropped_by: str = "", position: int | None = None,
                took: float = 0.0004) -> None:
        nth = self.counts[edge] = self.counts.get(edge, 0) + 1
        source, _, rest = edge.partition("->")
        target = rest.partition("/")[0]
        data = {} if position is None else {"position": position, "bytes": 900, "overflow": False}
        digest = "" if position is not None else f"{hash_of(edge, nth):016x}"
        self.journals[source].append(Kind.CROSSING, f"{edge}:send", nth=nth, digest=digest, data=data)
        self.pass_time(took)
        if dropped_by:
            data = data | {"fate": "drop", "fault": dropped_by}
        if not lost:
            self.journals[target].append(Kind.CROSSING, f"{edge}:receive", nth=nth, digest=digest, data=data)

    def step(self, number: int, *, silent: tuple[str, ...] = (), outputs: bool = True) -> None:
        """Schedule, broadcast, two collectives, replies, outputs. Silent workers read and never answer."""
        self.pass_time(self.step_s / 4)
        workers = [str(node) for node in self.topology.workers]
        for name in workers:
            self.message(f"core.0->{name}/rpc", position=self.position)
            self.mark(name, "executing", call=self.position, method="execute_model", step=number)
        speaking = [name for name in workers if name not in silent]
        for name in speaking:
            self.pass_time(self.step_s / 8)
            nth = self.counts[name] = self.counts.get(name, 0) + 1
            self.journals[name].append(Kind.CROSSING, f"{name}/collective:enter", nth=nth)
        for name in speaking:
            self.message(f"{name}->core.0/response", position=self.position)
        self.position += 1
        if outputs and not silent:
            self.message("core.0->frontend.0/outputs")

    def start_up(self) -> None:
        for edge in ("core.0->frontend.0/handshake", "frontend.0->core.0/handshake", "core.0->frontend.0/handshake"):
            self.pass_time(0.02)
            self.message(edge)
        self.see("core.0", "ready", num_gpu_blocks=64, parallel_config={})
        self.see("frontend.0", "ready", num_gpu_blocks=64, parallel_config={})
        for index in range(8):
            self.message("frontend.0->core.0/requests")
            self.see("frontend.0", "call", request=f"r{index}", index=index, prompt=12, max_tokens=16)

    def fire(self, fault: Fault, node: str) -> None:
        self.journals[node].append(Kind.RECEIPT, fault.id, data={
            "site": fault.site, "nth": fault.nth, "fate": fault.fate.value, "victim": fault.victim or node})
        self.receipts[fault.id] = {"at": self.now, "node": node}

    def die(self, node: str, exitcode: int) -> None:
        self.ends[node] = (self.now, exitcode)

    def leave(self, *, exitcode: int = 0) -> None:
        for node in self.journals:
            if node not in self.ends:
                self.pass_time(0.002)
                self.see(node, "bye", reason="closed")
                self.ends[node] = (self.now, exitcode)

    def finish(self, *cells: Cell, ended: str = "clean", fired: bool = True) -> Path:
        held = {c.guarantee: c.expected for c in cells if c.expected is not None}
        play = msgspec.structs.replace(
            self.play, promises=tuple(g for g, verdict in held.items() if verdict is HELD),
            expected={g: verdict for g, verdict in held.items() if verdict is not HELD})
        save(self.path / "play.json", play)
        save(self.path / "lab.json", Lab(
            began_at=self.start, ended_at=self.now, leftovers=[], processes=[
                ProcessEnd(node=node, life=0, pid=100, started_at=self.start, ended_at=at, exitcode=code)
                for node, (at, code) in self.ends.items()]))
        faults = [FaultReceipt(id=fault.id, fired=fired, **self.receipts.get(fault.id, {}))
                  for fault in self.play.plan.faults]
        save(self.path / "verdicts.json", Judgement(cells=list(cells), faults=faults, ended=ended,
                                                    seconds=self.now - self.start))
        return self.path


def hash_of(edge: str, nth: int) -> int:
    value = nth
    for letter in edge:
        value = (value * 131 + ord(letter)) % (1 << 64)
    return value


def untested(*but: str) -> list[Cell]:
    return [cell(guarantee, UNTESTED, None, Evidence(text="no occasion on which it could have failed"))
            for guarantee in PROMISES if guarantee not in but]


def calm(folder: Path, world: str, name: str = "test_eight_mixed_requests") -> Path:
    stage = Stage(folder, name, world, "Nothing goes wrong while eight mixed requests are served.")
    stage.start_up()
    for number in range(60):
        stage.step(number)
    stage.leave()
    mine = [cell(g, HELD, HELD, Evidence(text="480 occasions, for example request r3", at=stage.start + 0.2,
                                         node="frontend.0"), witnesses=480)
            for g in ("edge-fifo", "ends-once", "tokens-in-order", "tokens-match-reference", "rpc-matched",
                      "workers-in-step", "nothing-left-behind")]
    return stage.finish(*mine, *untested(*(c.guarantee for c in mine)))


def killed(folder: Path, world: str, *, choice: int = 0, name: str = "test_worker_dies_while_the_others_answer",
           took: float = 0.019, told: Verdict = HELD) -> Path:
    fault = Fault(id="f1", site="worker.1->core.0/response:send", fate=Fate.KILL, nth=3)
    stage = Stage(folder, name, world, "One of two workers is killed after it read the step and before it answered.",
                  faults=(fault,), choice=choice)
    stage.start_up()
    for number in range(40):
        stage.step(number)
    stage.step(40, silent=("worker.1",))
    stage.fire(fault, "worker.1")
    stage.die("worker.1", -9)
    stage.pass_time(took)
    stage.see("frontend.0", "engine-dead", reason="worker.1 died (SIGKILL), noticed by its sentinel")
    stage.receipts["f1"]["detected_at"] = stage.now
    stage.see("core.0", "dying", reason="worker.1 died", queued=0)
    stage.message("core.0->frontend.0/outputs")
    stage.leave()
    death = cell("death-is-told", told, HELD,
                 Evidence(text="8 pending calls ended with EngineDeadError", at=stage.start + 0.6, node="frontend.0",
                          bound=0.1, measured=took), bound=0.1, measured=took, witnesses=8)
    mine = [death, cell("ends-once", HELD, HELD, witnesses=8), cell("ring-exact-prefix", HELD),
            cell("nothing-left-behind", HELD, HELD, Evidence(text="nothing remained after the bound"), bound=5.0,
                 measured=0.21), cell("hwm0-no-loss", OUTSIDE, None, Evidence(text="a kill is outside its envelope"))]
    return stage.finish(*mine, *untested(*(c.guarantee for c in mine)), ended="clean error")


def stalled(folder: Path, world: str, took: float = 0.62) -> Path:
    fault = Fault(id="f1", site="core.0/mark:scheduled", fate=Fate.STALL, nth=5)
    stage = Stage(folder, "test_core_is_stopped", world, "The core is stopped in mid-step and never resumed.",
                  faults=(fault,))
    stage.start_up()
    for number in range(6):
        stage.step(number)
    stage.fire(fault, "core.0")
    stage.pass_time(took)
    stage.see("frontend.0", "engine-dead", reason="core.0 did not beat for 0.6 s")
    stage.receipts["f1"]["detected_at"] = stage.now
    stage.die("core.0", -9)
    stage.leave()
    mine = [cell("stall-is-told", HELD, HELD, bound=0.8, measured=took), cell("ends-once", HELD, HELD)]
    return stage.finish(*mine, *untested(*(c.guarantee for c in mine)), ended="clean error")


def lost_output(folder: Path, world: str, verdict: Verdict = HELD) -> Path:
    fault = Fault(id="f1", site="core.0->frontend.0/outputs:receive", fate=Fate.DROP, nth=9)
    stage = Stage(folder, "test_lost_output_frame", world, "One output frame in the middle of a stream is lost.",
                  faults=(fault,))
    stage.start_up()
    for number in range(8):
        stage.step(number)
    stage.step(8, outputs=False)
    stage.message("core.0->frontend.0/outputs", dropped_by="f1")
    stage.fire(fault, "frontend.0")
    for number in range(9, 16):
        stage.step(number)
    stage.pass_time(0.5)
    stage.receipts["f1"]["detected_at"] = stage.now
    stage.leave()
    why = Evidence(text="the stream of r3 went on after token 7 and skipped token 8", at=stage.start + 0.3,
                   node="frontend.0")
    mine = [cell("tokens-in-order", verdict, HELD, why), cell("edge-fifo", HELD, HELD),
            cell("lost-request-is-bounded", HELD, HELD, bound=2.0, measured=0.5)]
    return stage.finish(*mine, *untested(*(c.guarantee for c in mine)), ended="isolated request")


def gap(folder: Path, world: str) -> Path:
    fault = Fault(id="f1", site="core.0->subscriber.0/kv:wire", fate=Fate.CUT, nth=1)
    stage = Stage(folder, "test_subscriber_is_cut", world, "The subscriber's connection is cut and comes back.",
                  subscribers=1, faults=(fault,))
    stage.start_up()
    for seq in range(60):
        stage.step(seq)
        stage.see("core.0", "kv-published", seq=seq, took=2e-6)
        if seq == 20:
            stage.fire(fault, "core.0")
        if 20 <= seq < 34:
            continue
        stage.message("core.0->subscriber.0/kv")
        if seq == 34:
            stage.see("subscriber.0", "kv-gap", first=20, last=33)
            stage.message("subscriber.0->core.0/replay")
        elif seq == 40:
            for missing in range(20, 41):
                stage.message("core.0->subscriber.0/replay", took=0.0002)
                stage.see("subscriber.0", "kv-batch", seq=missing, source="replay")
            stage.see("subscriber.0", "kv-healed", first=20, last=33)
        if seq < 20 or seq > 40:
            stage.see("subscriber.0", "kv-batch", seq=seq, source="live")
    stage.see("subscriber.0", "kv-mirror", hashes=[1, 2], next_seq=60, unknown_since=None)
    stage.leave()
    mine = [cell(g, HELD, HELD) for g in ("kv-gap-seen", "kv-replay-complete", "kv-mirror-true")]
    return stage.finish(*mine, *untested(*(c.guarantee for c in mine)))


def canary(folder: Path, world: str) -> Path:
    stage = Stage(folder, "test_canary_hwm_1000", world, "With a high-water mark of 1000 a burst loses frames.")
    stage.start_up()
    for number in range(30):
        stage.step(number, outputs=number != 20)
    stage.message("core.0->frontend.0/outputs", lost=True)
    stage.leave()
    mine = [cell("hwm0-no-loss", BROKEN, BROKEN, Evidence(text="19,000 of 20,000 output frames never arrived")),
            cell("edge-fifo", HELD, HELD)]
    return stage.finish(*mine, *untested(*(c.guarantee for c in mine)))


def silent(folder: Path, world: str, fired: bool) -> Path:
    fault = Fault(id="f1", site="frontend.0->core.0/requests:receive", fate=Fate.CORRUPT, nth=99)
    stage = Stage(folder, "test_malformed_frame", world, "A malformed frame arrives at the input socket.",
                  faults=(fault,))
    stage.start_up()
    for number in range(5):
        stage.step(number)
    if fired:
        stage.fire(fault, "core.0")
        stage.see("core.0", "bad-frame", edge="frontend.0->core.0/requests", error="not msgpack")
    stage.leave()
    verdict = HELD if fired else UNKNOWN
    mine = [cell("bad-frame-isolated", verdict, HELD, Evidence(text="" if fired else "f1 did not fire")),
            cell("ends-once", UNTESTED, HELD)]
    return stage.finish(*mine, *untested(*(c.guarantee for c in mine)), fired=fired)


def write_examples(folder: Path) -> list[Run]:
    """A report with everything in it: held, broken, canary, unknown, untested, worlds that disagree."""
    paths = [calm(folder, "sim"), calm(folder, "engine"),
             killed(folder, "sim", took=0.002), killed(folder, "sim", choice=1, took=0.011), killed(folder, "engine"),
             stalled(folder, "sim", 0.6), stalled(folder, "engine"),
             lost_output(folder, "sim"), lost_output(folder, "engine", BROKEN),
             gap(folder, "sim"), gap(folder, "engine"),
             canary(folder, "sim"), canary(folder, "engine"),
             silent(folder, "sim", True), silent(folder, "engine", False)]
    return [load_run(path) for path in paths]


def write_held(folder: Path, kills: int = 12) -> list[Run]:
    """A report as it should look: everything held, many kills."""
    paths = [calm(folder, "sim"), calm(folder, "engine"), stalled(folder, "sim", 0.6), stalled(folder, "engine"),
             lost_output(folder, "sim"), lost_output(folder, "engine"), gap(folder, "sim"), gap(folder, "engine"),
             canary(folder, "sim"), canary(folder, "engine")]
    for number in range(kills):
        name = f"test_worker_dies[{number}]"
        paths += [killed(folder, "sim", name=name, took=0.002 + 0.001 * (number % 3)),
                  killed(folder, "engine", name=name, took=0.012 + 0.004 * (number % 7))]
    return [load_run(path) for path in paths]


__all__ = ["PROMISES", "Stage", "Topology", "bare_run", "cell", "replay_command", "write_examples", "write_held"]
