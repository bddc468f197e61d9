"""Who is served next: first come, first served, or by priority. Pure.

Promises
- `first` is whoever is to come in next; nobody who stands behind it overtakes it.
- Among equals who came first is served first, whoever else has come and gone meanwhile; who gave way keeps its place.

`FCFSQueue` puts who gave way before whoever has not run yet. `PriorityQueue` serves the lowest `priority` first, as
vLLM's: who came first among equals, by the order in which the core took them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, ValuesView
from itertools import count
from typing import Protocol

from engine.core.request import Request


class RequestQueue(Protocol):
    """The requests that wait, by id, in the order in which they are served."""

    def add(self, request: Request) -> None:
        """It has come."""

    def give_back(self, request: Request) -> None:
        """It was running, and gave way."""

    def first(self) -> Request: ...
    def values(self) -> ValuesView[Request] | list[Request]: ...
    def admit(self, request: Request, running: list[Request]) -> None:
        """Put it among those who run, of whom the last is the first to give way."""

    def __delitem__(self, request_id: str) -> None: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...


class FCFSQueue(OrderedDict[str, Request]):
    def add(self, request: Request) -> None:
        self[request.request_id] = request

    def give_back(self, request: Request) -> None:
        self[request.request_id] = request
        self.move_to_end(request.request_id, last=False)

    def first(self) -> Request:
        return next(iter(self.values()))

    def admit(self, request: Request, running: list[Request]) -> None:
        running.append(request)


class PriorityQueue:
    def __init__(self) -> None:
        self._numbers = count()
        self._requests: dict[str, Request] = {}
        self._order: list[tuple[int, int, str]] = []

    def add(self, request: Request) -> None:
        request.came = next(self._numbers)
        self.give_back(request)

    def give_back(self, request: Request) -> None:
        self._requests[request.request_id] = request
        insort(self._order, _place(request))

    def first(self) -> Request:
        return self._requests[self._order[0][2]]

    def values(self) -> list[Request]:
        return [self._requests[request_id] for request_id in self]

    def admit(self, request: Request, running: list[Request]) -> None:
        insort(running, request, key=_place)

    def __delitem__(self, request_id: str) -> None:
        request = self._requests.pop(request_id)
        del self._order[bisect_left(self._order, _place(request))]

    def __iter__(self) -> Iterator[str]:
        return (request_id for _, _, request_id in self._order)

    def __len__(self) -> int:
        return len(self._order)


def _place(request: Request) -> tuple[int, int, str]:
    return request.priority, request.came, request.request_id


#: By `SchedulerConfig.policy`.
QUEUES: dict[str, type[FCFSQueue] | type[PriorityQueue]] = {"fcfs": FCFSQueue, "priority": PriorityQueue}
