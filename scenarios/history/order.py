"""One order for all records of a play, which happened-before agrees with.

Program order inside a process and send-before-receive are kept; between records that neither relates, the
host's clock decides. A clock alone is not enough: in the twin many records share a moment, and on a host a
send may be written down a microsecond after its message was read.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import chain

from faults.journal import Record
from scenarios.history.flows import Flow
from scenarios.history.records import Records


def merge(seen: Records, flows: Iterable[Flow]) -> list[tuple[str, Record]]:
    """(node, record) of everything. A receive waits for its send, and with it all that follows in its process."""
    before = {id(receive): id(send) for flow in flows for send, receive in flow.pairs}
    files = [(node, seen.records(node)) for node in seen.nodes]
    heap = [(records[0].at, number, 0) for number, (_, records) in enumerate(files) if records]
    heapq.heapify(heap)
    order: list[tuple[str, Record]] = []
    emitted: set[int] = set()
    parked: dict[int, list[tuple[float, int, int]]] = {}
    while heap or parked:
        if not heap:  # sends that never come first: a damaged journal. Go on by the clock.
            for entry in chain.from_iterable(parked.values()):
                before.pop(id(files[entry[1]][1][entry[2]]), None)
                heapq.heappush(heap, entry)
            parked.clear()
        entry = heapq.heappop(heap)
        _, number, position = entry
        node, records = files[number]
        record = records[position]
        send = before.get(id(record))
        if send is not None and send not in emitted:
            parked.setdefault(send, []).append(entry)
            continue
        order.append((node, record))
        emitted.add(id(record))
        if position + 1 < len(records):
            heapq.heappush(heap, (records[position + 1].at, number, position + 1))
        for waiting in parked.pop(id(record), ()):
            heapq.heappush(heap, waiting)
    return order
