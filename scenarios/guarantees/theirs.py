"""What engines that are not ours promise, by world and guarantee, and where they say so (in our words).

What stands here is judged; of the other guarantees it is said that nobody there has promised them, and they are never
counted. Bounds of theirs are those that the play's configuration has (`scenarios/worlds/vllm/arguments.py`).
"""

from __future__ import annotations

import msgspec

from engine.topology import Channel
from scenarios.guarantees.base import LOSSES, MESSAGE, STALLS, Where
from scenarios.history.receipts import Receipt

_CLIENT, _ASYNC = "vllm/v1/engine/core_client.py", "vllm/v1/engine/async_llm.py"
_EVENTS, _TESTS = "vllm/distributed/kv_events.py", "tests/v1"


class Theirs(msgspec.Struct, frozen=True):
    """Where it is promised. `outside`: faults that it does not speak of there, beside those that it never does."""

    source: str
    outside: tuple[Where, ...] = ()


#: Nothing watches a core that stands still: no bound is documented for it.
_STOPPED_CORE = (Where(STALLS, nodes="core.*", why="vLLM promises nothing of a core that stands still"),)
#: What ZMQ does not do to a message of a connection that stands.
_WATCHED = "vLLM watches processes: of a message that is lost, changed, doubled or overtaken it promises nothing"
#: All but the counts that a coordinator tells: by them a client chooses, and no more (vllm/v1/engine/coordinator.py).
_MESSAGES = tuple(Where(LOSSES | MESSAGE, sites=f"*->*/{channel}*", why=_WATCHED) for channel in Channel
                  if channel is not Channel.STATS)
#: Promises about streams, which consist of messages.
_OF_STREAMS = ("ends-once", "tokens-in-order", "tokens-match-reference")
#: Of vLLM 0.33.0.
_VLLM = {
    "ends-once": f"{_ASYNC}, generate: a stream ends with its last output, marked finished, or with an error",
    "tokens-in-order": f"{_ASYNC}, generate: outputs are yielded as they come, cumulative by default",
    "tokens-match-reference": "docs, prefix caching, chunked prefill and preemption: none of them changes an output",
    "death-is-told": f"{_CLIENT}, BackgroundResources and its monitor of cores: EngineDeadError to who waits and who "
                     f"asks later; {_TESTS}/shutdown, tests of a forward error and of a process that is killed",
    "stall-is-told": "vllm/envs.py, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: a call of the workers that takes longer fails",
    "health-is-true": f"{_ASYNC}, check_health: raises where the engine has died",
    "no-orphans": "vllm/v1/executor/multiproc_executor.py, a worker's pipe to its parent: it ends when that is gone; "
                  f"{_TESTS}/shutdown: no process holds the device when the engine is gone",
    "calls-answered": "vllm/v1/engine/core.py, _invoke_utility_method: what a call fails by is handed to who asked; "
                      "vllm/v1/executor/abstract.py, collective_rpc: the results of each worker, and TimeoutError; "
                      "vllm/v1/engine/exceptions.py, EngineDeadError: raised where the core dies",
    "bad-request-isolated": f"{_ASYNC}, generate: what fails by one request is raised to its caller, recoverable "
                            "(vllm/v1/engine/exceptions.py, EngineGenerateError); vllm/v1/engine/core.py, "
                            "_handle_request_preproc_error: an error that is the request's own; "
                            "vllm/config/scheduler.py, max_num_queued_reqs: how many may be in flight",
    "start-ends": "vllm/v1/engine/utils.py, wait_for_engine_startup: a process that fails ends the start with an error",
    "kv-seq": f"{_EVENTS}, EventPublisher: batches in order, by numbers that go on by one",
    "kv-gap-seen": f"{_EVENTS}, EventPublisher: numbers tell a subscriber which batches it has missed",
    "kv-replay-complete": f"{_EVENTS}, ZmqEventPublisher: who asks from a number gets all batches from there that are "
                          "kept, and a mark of the end",
    "kv-mirror-true": "vllm/config/kv_events.py: events tell of blocks that are stored and removed",
    "dp-burst-spreads": f"{_CLIENT}, DPLBAsyncMPClient: what a client has sent counts at once, so a burst is spread",
    "nothing-without-cause": "vllm/v1/engine/__init__.py, FinishReason: a request ends as aborted where its client has "
                             "aborted it",
}

THEIRS: dict[str, dict[str, Theirs]] = {"vllm": {
    name: Theirs(source, _STOPPED_CORE + (_MESSAGES if name in _OF_STREAMS else ())) for name, source in _VLLM.items()}}


def beyond(guarantee: str, world: str, receipt: Receipt) -> Where | None:
    """Why a fault that our promise has to survive is none that theirs speaks of; None: it is."""
    theirs = THEIRS.get(world, {}).get(guarantee)
    return None if theirs is None else next((where for where in theirs.outside if where.covers(receipt)), None)


def is_promised(guarantee: str, world: str) -> bool:
    return world not in THEIRS or guarantee in THEIRS[world]
