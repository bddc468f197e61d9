"""The promise about the KV cache itself: who owns its blocks."""

from __future__ import annotations

from scenarios.guarantees.base import MEMORY, Envelope, Finding, Guarantee
from scenarios.guarantees.replay import Served, replayed
from scenarios.history.history import EngineLife, Fate, History, Record, kind_of

CHAPTER = "KV cache and its events"


def _judge_silence(finding: Finding, served: Served) -> None:
    """Between two steps that are far apart, and after its last one, a core is idle, and tells of its books."""
    history, core = finding.history, served.engine.core
    asked = all(hit.fate == Fate.TERMINATE and kind_of(hit.node) == "core" for hit in history.faults.receipts)
    alone = len(history.joined(served.engine)) == 1  # who steps together with one that was asked to leave ends with it
    if history.simulated and asked and alone and not history.play.options.kill_all_then_restart:
        books = history.by_node("blocks").get(core, ())
        told = len(history.by_node("kv-cache").get(core, ()))
        if not books or books[-1].number < served.steps[-1].number:
            finding.broke("{} had nothing to do and told nothing of its books", core, node=core)
        elif told != (len(books) if publishes(history, served.engine) else 0):
            finding.broke("{} told of its books {} times and of its cache {} times", core, len(books), told, node=core)


def publishes(history: History, engine: EngineLife) -> bool:
    """As the lab configures it: an engine beside the first one only as a rank of data."""
    rank = history.play.topology.engine(engine.engine).data_parallel_rank
    events = history.play.config.kv_events
    return events.enable_kv_cache_events and events.publisher != "null" and (
        engine.engine == min(history.main) or rank is not None)


def _judge_freed(finding: Finding, node: str, idle: Record) -> None:
    """A core without a request has told of each that it took that it is free, once."""
    taken = [r.data["request"] for r in finding.history.by_node("request").get(node, ())
             if r.data["action"] == "add" and r.number < idle.number]
    freed = [r.data["request"] for r in finding.history.by_node("freed").get(node, ()) if r.number < idle.number]
    if sorted(taken) != sorted(freed):
        finding.broke("{} is idle without a request, took {} and freed {}", node, sorted(taken), sorted(freed),
                      at=idle.at, node=node)


def check_blocks_conserved(history: History) -> Finding:
    finding = Finding(history)
    for served in replayed(history):
        for record, text in served.books:
            finding.broke("{}: {}", served.engine.core, text, at=record.at, node=served.engine.core)
        _judge_silence(finding, served)
    for node, records in history.by_node("blocks").items():
        freed = history.by_node("freed").get(node, [])
        aborted = {r.data["request"] for r in history.by_node("request").get(node, ()) if r.data["action"] == "abort"}
        before = 0
        for record in records:
            data = record.data
            for error in data.get("errors") or ():
                finding.broke("{}'s cache is not in order: {}", node, error, at=record.at, node=node)
            if data["used"] != data["total"] - data["free"]:
                finding.broke("{} has {} free and {} used blocks of {}", node, data["free"], data["used"],
                              data["total"], at=record.at, node=node)
            if data["used"] and not data.get("requests"):
                finding.broke("{} is idle without a request and {} blocks are still used", node, data["used"],
                              at=record.at, node=node)
            if not data.get("requests"):
                _judge_freed(finding, node, record)
            since = [r for r in freed if before <= r.number < record.number]
            before = record.number
            if since and not data.get("requests"):
                finding.witness("all {} blocks of {} were free after {} requests, {} of them aborted", data["total"],
                                node, len(since), sum(r.data["request"] in aborted for r in since), at=record.at,
                                node=node)
    return finding


GUARANTEES = (
    Guarantee(
        id="blocks-conserved", chapter=CHAPTER, source="vLLM V1 engine core", check=check_blocks_conserved,
        sentence="Every block has one owner or is free; after all requests have ended, all blocks are free or cached.",
        wrong={
            "owner": "gives one block to two requests",
            "freed": "forgets the blocks of a request that was aborted or preempted",
        },
        witness="the core looked at its books when idle, after requests had held blocks",
        envelope=Envelope(outside=(MEMORY,)),
    ),
)
