"""Writes small histories by hand: what the processes would have put into their journals.

    h = history().started()
    h.request("a", tokens=[[1], [2, 3]])            # called, accepted, streamed, finished
    h.sends(OUTPUTS, "x").receives(OUTPUTS, "x")
    h.wait(0.2).observes("frontend.0", "engine-dead", reason="...")
    h.judged("ends-once").verdict

Time begins at 1.0 and every record takes a millisecond of it. Occurrences and nth are counted as the fault
layer counts them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from engine.config import Bounds, CacheConfig, EngineConfig, KVEventsConfig, LimitsConfig, RingConfig
from engine.topology import Engine, Mark, Topology, mark_site, side_by_side, tensor_parallel
from faults.journal import JournalFile, Kind, Record
from faults.plan import Fate, Fault, Plan, Until, owner_of
from scenarios.guarantees.judge import cell_of, judge
from scenarios.guarantees.registry import guarantee
from scenarios.history.history import History
from scenarios.history.names import base, life_of
from scenarios.history.play import Lab, Play, ProcessEnd
from scenarios.history.verdicts import Cell, Judgement

REQUESTS = "frontend.0->core.0/requests"
OUTPUTS = "core.0->frontend.0/outputs"
RPC = ["core.0->worker.0/rpc", "core.0->worker.1/rpc"]
RESPONSE = ["worker.0->core.0/response", "worker.1->core.0/response"]
TICK_S = 0.001

BOUNDS = Bounds(
    startup_s=4.0, handshake_s=2.0, step_s=1.0, rpc_s=1.0, heartbeat_s=0.2, stall_s=1.5, detection_s=0.1, request_s=2.0,
    output_gap_s=0.5, drain_s=1.0, linger_s=1.0, orphan_s=0.5, cleanup_s=1.0, ring_recheck_s=0.2, replay_s=0.5,
    collective_s=5.0)
WORKLOAD = {"name": "two", "requests": [
    {"index": 0, "prompt_token_ids": [1, 2], "sampling_params": {"max_tokens": 3}, "reference_token_ids": [7, 8, 9]},
    {"index": 1, "prompt_token_ids": [3], "sampling_params": {"max_tokens": 2}, "reference_token_ids": [5, 6]},
]}


class Builder:
    """A history in the making. Every method but the last few returns the builder."""

    def __init__(self, world: str = "sim", tp: int = 2, subscribers: int = 0, topology: Topology | None = None,
                 pp: int = 1, **config: Any) -> None:
        self.now = 1.0
        self.world, self.tp, self.pp = world, tp, pp
        self.topology = topology or tensor_parallel(tp, subscribers=subscribers, pp=pp)
        values: dict[str, Any] = {
            "model": "model", "tensor_parallel_size": tp, "pipeline_parallel_size": pp, "skip_tokenizer_init": True,
            "bounds": BOUNDS, "cache": CacheConfig(num_gpu_blocks=8),
            "ring": RingConfig(max_chunks=2, response_chunks=2), "limits": LimitsConfig(max_requests=4),
            "kv_events": KVEventsConfig(enable_kv_cache_events=bool(self.topology.subscribers), buffer_steps=4)}
        self.config = EngineConfig(**{**values, **config})
        self.records: dict[tuple[str, int], list[Record]] = {}
        self.faults: list[Fault] = []
        self.processes: dict[str, ProcessEnd] = {}
        self.lab_values: dict[str, Any] = {"leftovers_checked_at": 0.0}
        self.promises: tuple[str, ...] = ()
        self.play_values: dict[str, Any] = {}
        self._counts: Counter[tuple[str, int]] = Counter()
        self._digests: Counter[tuple[str, int, str]] = Counter()

    # -- time and raw records

    def wait(self, seconds: float) -> Builder:
        self.now += seconds
        return self

    def record(self, node: str, kind: Kind, site: str, data: dict[str, Any], *, nth: int = 0, digest: str = "",
               occurrence: int = 0, thread: str = "main") -> Builder:
        name, _, life = node.partition("@")
        records = self.records.setdefault((name, int(life or 0)), [])
        self.now += TICK_S
        records.append(Record(len(records), self.now, thread, kind, site, nth, digest, occurrence, data))
        return self

    def observes(self, node: str, what: str, **data: Any) -> Builder:
        return self.record(node, Kind.OBSERVATION, what, data)

    def crosses(self, site: str, digest: str = "", life: int = 0, **data: Any) -> Builder:
        """A crossing, written by the node that owns the site."""
        self._counts[site, life] += 1
        occurrence = self._digests[site, life, digest]
        self._digests[site, life, digest] += 1
        node = owner_of(site) + (f"@{life}" if life else "")
        return self.record(node, Kind.CROSSING, site, data, nth=self._counts[site, life], digest=digest,
                           occurrence=occurrence)

    def executes(self, worker: str, **call: Any) -> Builder:
        """A rank is about to execute a call."""
        return self.crosses(mark_site(base(worker), Mark.EXECUTING), life=life_of(worker), **call)

    def sends(self, edge: str, *digests: str, **data: Any) -> Builder:
        for digest in digests:
            self.crosses(f"{edge}:send", digest, **data)
        return self

    def receives(self, edge: str, *digests: str, **data: Any) -> Builder:
        for digest in digests:
            self.crosses(f"{edge}:receive", digest, **data)
        return self

    def carries(self, edge: str, *digests: str, **data: Any) -> Builder:
        """Each frame is received before the next one is sent."""
        for digest in digests:
            self.sends(edge, digest, **data).receives(edge, digest, **data)
        return self

    def writes(self, edge: str, position: int, digest: str = "", overflow: bool = False,
               stores: bool = True) -> Builder:
        """A ring message: crossing and the four stores."""
        self.crosses(f"{edge}:send", digest or f"m{position}", position=position, bytes=8, overflow=overflow)
        source, channel = edge.partition("->")[0], edge.rpartition("/")[2]
        if stores:
            for name in ("reset", "data", "readers", "written"):
                self.crosses(f"{source}/{channel}:store.{name}")
        return self

    def reads(self, edge: str, position: int, digest: str = "", overflow: bool = False,
              stores: bool = True) -> Builder:
        """The read flag and the crossing."""
        source, _, rest = edge.partition("->")
        target, _, channel = rest.partition("/")
        if stores:
            place = f"{target}/rpc" if channel == "rpc" else f"{target}/response.{source.partition('.')[2]}"
            self.crosses(f"{place}:store.read")
        return self.crosses(f"{edge}:receive", digest or f"m{position}", position=position, bytes=8, overflow=overflow)

    # -- faults, the lab, processes

    def fires(self, fate: str, site: str, *, node: str | None = None, nth: int = 1, until: Until | None = None,
              life: int = 0, planned: bool = True) -> Builder:
        """A fault of the plan fires; its receipt is written by the node that crosses the site."""
        crosser = owner_of(site)
        fault = Fault(id=f"f{len(self.faults) + 1}", site=site, fate=Fate(fate), nth=nth, until=until,
                      victim=node if node and node != crosser else None)
        if planned:
            self.faults.append(fault)
        return self.record(crosser + (f"@{life}" if life else ""), Kind.RECEIPT, fault.id, {
            "site": site, "nth": nth, "fate": fate, "victim": node or crosser})

    def plans(self, fate: str, site: str) -> Builder:
        """A fault that the plan has and that never fires."""
        self.faults.append(Fault(id=f"f{len(self.faults) + 1}", site=site, fate=Fate(fate)))
        return self

    def releases(self, number: int = -1) -> Builder:
        fault = self.faults[number]
        return self.record(owner_of(fault.site), Kind.RELEASE, fault.id, {"site": fault.site, "nth": fault.nth})

    def ends(self, *nodes: str, at: float | None = None, killed_by_lab: bool = False, exitcode: int | None = 0,
             alive: bool = False) -> Builder:
        """The lab saw these processes end, now or `at`; or it saw them alive to the last."""
        for node in nodes:
            name, _, life = node.partition("@")
            self.processes[node] = ProcessEnd(
                node=name, life=int(life or 0), pid=100 + len(self.processes), started_at=0.5,
                ended_at=None if alive else self.now if at is None else at, exitcode=exitcode,
                killed_by_lab=killed_by_lab)
        return self

    def lab(self, **values: Any) -> Builder:
        self.lab_values.update(values)
        return self

    def promised(self, *names: str, **play: Any) -> Builder:
        self.promises += names
        self.play_values.update(play)
        return self

    # -- what an engine usually does

    def started(self, life: int = 0, blocks: int = 8, core_blocks: int | None = None) -> Builder:
        """An ordinary start: HELLO, metadata, READY, the announcement, ready on both sides."""
        suffix = f"@{life}" if life else ""
        config = {"tensor_parallel_size": self.tp, "pipeline_parallel_size": self.pp,
                  "data_parallel_size": self.config.data_parallel_size}
        up, down = "core.0->frontend.0/handshake", "frontend.0->core.0/handshake"
        announce = "core.0->frontend.0/requests"
        self.observes(f"frontend.0{suffix}", "starting")
        for edge, digest in ((up, ""), (up, "hello"), (down, "metadata"), (up, "ready"), (announce, "")):
            self.crosses(f"{edge}:send", digest, life=life).crosses(f"{edge}:receive", digest, life=life)
        self.observes(f"core.0{suffix}", "ready", num_gpu_blocks=core_blocks or blocks, parallel_config=config)
        return self.observes(f"frontend.0{suffix}", "ready", num_gpu_blocks=blocks, parallel_config=config)

    def called(self, request: str, index: int = 0, *, internal: str | None = None, core: bool = True,
               node: str = "frontend.0") -> Builder:
        """Called and accepted, and taken by the core."""
        internal = internal or f"{request}-0"
        self.observes(node, "call", request=request, index=index, prompt=2, max_tokens=3)
        self.observes(node, "accepted", request=request, internal=internal)
        if core:
            self.observes(node.replace("frontend", "core"), "request", request=internal, action="add", reason="")
        return self

    def streams(self, request: str, *chunks: list[int], offset: int = 0) -> Builder:
        for chunk in chunks:
            self.observes("frontend.0", "tokens", request=request, offset=offset, tokens=chunk)
            offset += len(chunk)
        return self

    def ended(self, request: str, outcome: str = "finished", node: str = "frontend.0", **data: Any) -> Builder:
        return self.observes(node, "end", **{
            "request": request, "outcome": outcome, "reason": data.pop("reason", "why"), "finish_reason": None,
            "error": None, "may_have_taken_effect": False, **data})

    def dies(self, request: str, **data: Any) -> Builder:
        """The caller is told that the engine is dead, of whatever it died."""
        reason = "core.0 died (exit code -9): worker.1 died: planted by the plan"
        return self.ended(request, "engine-dead", error="EngineDeadError", **{"reason": reason, **data})

    def request(self, request: str, index: int = 0, tokens: list[list[int]] | None = None, **end: Any) -> Builder:
        reference = WORKLOAD["requests"][index]["reference_token_ids"]
        return self.called(request, index).streams(request, *([reference] if tokens is None else tokens)).ended(
            request, **end)

    # -- the result

    def play(self) -> Play:
        values: dict[str, Any] = {
            "scenario": "by_hand", "title": "Written by hand.", "world": self.world,
            "topology": self.topology, "workload": WORKLOAD,
            "plan": Plan(tuple(self.faults)), "config": self.config, "promises": self.promises}
        return Play(**{**values, **self.play_values})

    def lab_seen(self) -> Lab:
        values: dict[str, Any] = {"began_at": 0.0, "ended_at": self.now, "processes": list(self.processes.values()),
                                  "leftovers": []}
        return Lab(**{**values, **self.lab_values})

    def journals(self) -> list[JournalFile]:
        return [JournalFile(node, life, records, torn=False) for (node, life), records in self.records.items()]

    def history(self) -> History:
        return History(self.play(), self.lab_seen(), self.journals())

    def judged(self, name: str) -> Cell:
        return cell_of(guarantee(name), self.history())

    def judgement(self) -> Judgement:
        return judge(self.play(), self.lab_seen(), self.journals())


def history(world: str = "sim", **values: Any) -> Builder:
    return Builder(world, **values)


def two_engines(*, subscribers: bool = False) -> Topology:
    """Engine 0 and, beside it, engine 1: data-parallel ranks of these numbers, if there are subscribers."""
    return side_by_side(*(Engine(tp=2, data_parallel_rank=k if subscribers else None,
                                 subscribers=(k,) if subscribers else ()) for k in range(2)))


def bounds(**changes: float) -> Bounds:
    """The bounds of these histories, some of them changed."""
    return msgspec.structs.replace(BOUNDS, **changes)
