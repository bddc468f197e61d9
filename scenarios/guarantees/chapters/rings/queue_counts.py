"""Judges what an end of a queue that is played alone counts, and what its check finds."""

from __future__ import annotations

from typing import Any

from scenarios.guarantees.base import Finding
from scenarios.history.history import History, Record


def check_queue_counts(history: History) -> Finding:
    finding = Finding(history)
    for node, records in history.by_node("queue-counts").items():
        for record in records:
            _judge_counts(finding, node, record)
    for node, records in history.by_node("queue-check").items():
        for record in records:
            if bool(record.data["found"]) != record.data["damaged"]:
                finding.broke("{} found {} where {}", node, record.data["found"] or "nothing wrong",
                              record.data["state"], at=record.at, node=node)
            elif record.data["damaged"]:
                finding.witness("{} saw that {}", node, record.data["state"], at=record.at, node=node)
    return finding


def _judge_counts(finding: Finding, node: str, said: Record) -> None:
    history, data = finding.history, said.data
    crossed = _crossed(history, node, "send" if data["end"] == "writer" else "receive")
    waits = [wait for wait in history.by_node("queue-wait").get(node, ()) if wait.number < said.number]
    took = [wait.data["ended"] - wait.data["began"] for wait in waits]
    counted = {
        "end": "reader" if node.startswith("worker.") else "writer",
        "messages": max(crossed, default=-1) + 1,
        "waits": len(waits),
        "wait_s": sum(took),
        "longest_wait_s": max(took, default=0.0),
        "bytes": sum(record.data["bytes"] for record in crossed.values()) + _headers(history, data["end"], crossed),
        "overflows": 0 if crossed and all(record.data["overflow"] for record in crossed.values()) else sum(
            record.data["overflow"] for record in crossed.values()),  # from afar nothing comes by the ring
        "depth": 0,
    }
    for name, value in counted.items():
        if not _agrees(history, node, name, data[name], value):
            finding.broke("{} counts {} {}, and it was {}", node, name, data[name], value, at=said.at, node=node)
    if data["errors"] and not history.faults.receipts:
        finding.broke("{} finds its ring wrong: {}", node, "; ".join(data["errors"]), at=said.at, node=node)
    if counted["waits"]:
        finding.witness("{} counted {} messages and {} waits", node, data["messages"], data["waits"], at=said.at,
                        node=node)


def _headers(history: History, end: str, crossed: dict[int, Record]) -> int:
    """What a real writer counts beside: of what it puts into the ring at once, the chunk's flag, number and sizes."""
    if history.simulated or end != "writer" or "far" in history.play.options.queue:
        return 0
    beside, last = dict[int, int](), 0
    for record in history.records("core.0"):
        last = record.data["beside"] if record.site == "queue-put" else last
        if record.site == "queue-put-at":
            beside[record.data["position"]] = last
    return sum(3 + 4 * (1 + beside[position]) for position, record in crossed.items() if not record.data["overflow"])


def _agrees(history: History, node: str, name: str, said: Any, value: Any) -> bool:
    if name in ("wait_s", "longest_wait_s"):
        return abs(said - value) < 1e-9 or node in history.by_node("queue-interrupted")
    if history.faults.receipts and name in ("messages", "bytes", "overflows", "depth"):
        return True  # what befell a process may have kept it from counting
    raw = any("raw" in record.data for record in history.by_node("queue-put").get(node, ()))
    if name in ("bytes", "overflows") and (raw or node in history.by_node("queue-interrupted") or any(
            record.data.get("error") for record in history.by_node("queue-got").get(node, ()))):
        return bool(said <= value)  # what was interrupted, or could not be read, need not be counted
    if name == "waits" and node in history.by_node("queue-interrupted"):
        return bool(said >= value)  # it was counted, and then kept from being told
    return bool(said == value)


def _crossed(history: History, node: str, operation: str) -> dict[int, Record]:
    found: dict[int, Record] = {}
    for flow in history.flows():
        if flow.edge.channel.value == "rpc" and node == (flow.source if operation == "send" else flow.target):
            for record in flow.sends if operation == "send" else flow.receives:
                found[record.data["position"]] = record
    return found
