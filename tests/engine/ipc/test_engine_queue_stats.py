"""What the queues between the core and its workers count, asked of a running engine."""

from __future__ import annotations

import pytest

from engine.frontend.llm import LLM
from tests.engine.engine_lab import config

pytest.importorskip("torch")


def test_a_core_with_workers_tells_what_its_queues_counted() -> None:
    with LLM(config=config(2)) as llm:
        llm.call_utility("ping")
        rpc, *responses = llm.call_utility("get_queue_stats")
    assert (rpc["end"], rpc["messages"] > 0, rpc["bytes"] > 0) == ("writer", True, True)
    assert [(stats["end"], stats["messages"] > 0) for stats in responses] == [("reader", True)] * 2


def test_a_core_without_workers_has_no_queues_to_tell_of() -> None:
    with LLM(config=config(1)) as llm:
        assert llm.call_utility("get_queue_stats") == []
