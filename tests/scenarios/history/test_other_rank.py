"""What the lab keeps of a neighbouring rank's events, and the addresses at which it looks for them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

import pytest

from engine.config import EngineConfig, config_from
from engine.wire.wiring import offset_endpoint_port
from faults.journal import Kind, Record
from scenarios.history.other_rank import stream_of
from scenarios.history.play import Said
from scenarios.worlds.addresses import address_of_rank, reserved_ports


def _records(*observations: tuple[str, dict[str, Any]], kind: Kind = Kind.OBSERVATION) -> list[Record]:
    return [Record(number, 1.0 + number, "main", kind, name, 0, "", 0, data)
            for number, (name, data) in enumerate(observations)]


def test_a_stream_is_what_was_handed_over_and_what_was_said() -> None:
    """Batch 1 was lost at the queue; the cache was looked at before batch 3, and again after it."""
    publisher = _records(
        ("born", {"pid": 1}), ("kv-published", {"seq": 0, "took": 0.0}), ("kv-lost", {"seq": 1, "reason": "full"}),
        ("kv-published", {"seq": 2, "took": 0.0}), ("kv-cache", {"hashes": [1]}),
        ("kv-published", {"seq": 3, "took": 0.0}), ("kv-cache", {"hashes": [1, 2]}))
    subscriber = _records(("born", {"pid": 2}), ("kv-batch", {"seq": 0, "source": "live", "rank": 4}), ("bye", {}))
    stream = stream_of(4, publisher, subscriber)
    assert (stream.rank, stream.published, stream.lost) == (4, 4, [1])
    assert (stream.cache, stream.cache_next) == ([1, 2], 4)
    assert stream.said == [Said(at=2.0, what="kv-batch", data={"seq": 0, "source": "live", "rank": 4})]


def test_a_stream_of_nobody_is_empty() -> None:
    """Neither process recorded anything, and a crossing is no observation."""
    for records in ([], _records(("kv-published", {"seq": 0}), kind=Kind.CROSSING)):
        stream = stream_of(1, records, records)
        assert (stream.published, stream.cache_next, stream.said) == (0, None, [])


@pytest.mark.parametrize("base", ["tcp://127.0.0.1:5557", "ipc:///tmp/kv.ipc", "inproc://kv"])
@pytest.mark.parametrize("rank", [0, 1, 12])
def test_the_lab_looks_for_a_rank_where_the_engine_publishes_it(base: str, rank: int) -> None:
    """Two statements of one rule, which scenarios hold against each other: here they agree."""
    assert address_of_rank(base, rank) == offset_endpoint_port(base, rank)
    assert rank == 0 or address_of_rank(base, rank) != base


def test_ports_of_ranks_lie_in_a_row_and_can_be_listened_at_twice() -> None:
    with ExitStack() as held:
        for first in reserved_ports(held, 2, ranks=3):
            for port in range(first, first + 3):
                for _ in range(2):
                    socket.create_server(("127.0.0.1", port)).close()


def test_nobody_else_is_given_a_reserved_port() -> None:
    """Two labs reserve in turns, and others take whatever the kernel gives them, some of it to connect from."""
    with ExitStack() as held, ExitStack() as others:
        seen: list[int] = []
        server = others.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1000))
        for _ in range(100):
            seen += [first + rank for first in reserved_ports(held, 2, ranks=2) for rank in range(2)]
            seen += [others.enter_context(taken).getsockname()[1] for taken in (
                socket.create_server(("127.0.0.1", 0)), socket.create_connection(server.getsockname()))]
        assert len(set(seen)) == len(seen) == 600


def test_a_port_that_somebody_listens_at_is_not_reserved_for_a_rank() -> None:
    """Taken, and by another reservation held: neither is there for an explicit second one."""
    with ExitStack() as held:
        first = reserved_ports(held, 1)[0]
        with pytest.raises(OSError), socket.socket() as other:
            other.bind(("127.0.0.1", first))


def test_a_rank_is_no_negative_number() -> None:
    assert config_from({"model": "m", "data_parallel_rank": 3}).data_parallel_rank == 3
    with pytest.raises(ValueError, match="data_parallel_rank must be 0 or more, got -1"):
        EngineConfig(model="m", data_parallel_rank=-1)
    with pytest.raises(ValueError, match="data_parallel_rank must be 0 or more, got -1"):
        config_from({"model": "m", "data_parallel_rank": -1})
