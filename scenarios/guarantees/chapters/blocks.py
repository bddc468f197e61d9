"""The promise about the KV cache itself: who owns its blocks."""

from __future__ import annotations

from scenarios.guarantees.base import MEMORY, Envelope, Finding, Guarantee
from scenarios.guarantees.replay import replayed
from scenarios.history.history import History

CHAPTER = "KV cache and its events"


def check_blocks_conserved(history: History) -> Finding:
    finding = Finding(history)
    for served in replayed(history):
        for record, text in served.books:
            finding.broke("{}: {}", served.engine.core, text, at=record.at, node=served.engine.core)
    for node, records in history.by_node("blocks").items():
        freed = history.by_node("freed").get(node, [])
        aborted = {r.data["request"] for r in history.by_node("request").get(node, ()) if r.data["action"] == "abort"}
        before = 0
        for record in records:
            data = record.data
            for error in data.get("errors", ()):
                finding.broke("{}'s cache is not in order: {}", node, error, at=record.at, node=node)
            if data["free"] + data["used"] != data["total"]:
                finding.broke("{} has {} free and {} used blocks of {}", node, data["free"], data["used"],
                              data["total"], at=record.at, node=node)
            if data["used"] and not data.get("requests"):
                finding.broke("{} is idle without a request and {} blocks are still used", node, data["used"],
                              at=record.at, node=node)
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
