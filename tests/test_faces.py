"""The places from which programs import what is public: they stay where they are, whatever moves behind them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("module", "names"), [
    ("engine", "LLM AsyncLLM EngineConfig SamplingParams"),
    ("engine.ipc.message_queue", "MessageQueue"),
    ("engine.core.kv_events", "BlockStored BlockRemoved AllBlocksCleared KVEventBatch ZmqEventPublisher"),
    ("engine.kv_subscriber_shell", "KVEventSubscriber SubscriberRecipe subscriber_main"),
])
def test_what_is_public_is_where_it_was(module: str, names: str) -> None:
    if module != "engine.core.kv_events":
        pytest.importorskip("zmq")
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_the_subscriber_is_the_same_from_either_place() -> None:
    pytest.importorskip("zmq")
    from engine.kv_events.subscriber.process import KVEventSubscriber
    from engine.kv_subscriber_shell import KVEventSubscriber as same

    assert same is KVEventSubscriber


def test_the_recorder_of_workloads_is_a_command_and_does_nothing_when_imported() -> None:
    found = subprocess.run([sys.executable, "-c", "import scenarios.record"], capture_output=True, text=True,
                           check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    from scenarios.workloads.record import main

    assert callable(main)
