"""Who is served next, by either policy."""

from __future__ import annotations

import random

import pytest

from engine.core.request_queue import QUEUES, FCFSQueue, PriorityQueue
from tests.engine.core.scheduler_fakes import make_request


def request(name: str, priority: int = 0):
    made = make_request(name, [1])
    made.priority = priority
    return made


def test_first_come_first_served_and_who_gave_way_before_all() -> None:
    queue = FCFSQueue()
    for name in "abc":
        queue.add(request(name, priority=ord("c") - ord(name)))
    a = queue.first()
    del queue["a"]
    queue.give_back(a)
    assert list(queue) == ["a", "b", "c"]
    running = []
    queue.admit(a, running)
    queue.admit(queue["c"], running)
    assert [one.request_id for one in running] == ["a", "c"]


def test_the_lowest_priority_is_served_first_and_who_came_first_among_equals() -> None:
    queue = PriorityQueue()
    for name, priority in (("a", 2), ("b", 1), ("c", 1), ("d", -5), ("e", 2)):
        queue.add(request(name, priority))
    assert list(queue) == ["d", "b", "c", "a", "e"]
    assert [one.request_id for one in queue.values()] == list(queue)
    b = queue.values()[1]
    del queue["b"]
    assert "b" not in queue and len(queue) == 4
    queue.give_back(b)  # it keeps its place before "c", who came later
    assert list(queue) == ["d", "b", "c", "a", "e"]
    assert queue.first().request_id == "d"
    running = []
    for one in (queue.values()[3], queue.values()[1], queue.values()[0]):
        queue.admit(one, running)
    assert [one.request_id for one in running] == ["d", "b", "a"]


@pytest.mark.parametrize("policy", QUEUES)
def test_whoever_leaves_leaves_the_others_in_order(policy: str) -> None:
    queue, dice = QUEUES[policy](), random.Random(7)
    names = [f"r{number}" for number in range(200)]
    for name in names:
        queue.add(request(name, dice.randint(0, 3)))
    order = list(queue)
    gone = set(dice.sample(names, 150))
    for name in gone:
        del queue[name]
    assert list(queue) == [name for name in order if name not in gone]
    with pytest.raises(KeyError):
        del queue["nobody"]
