"""Findings in released versions of vLLM, each confirmed by hand without the lab, and by a mend of its cause."""

from __future__ import annotations

from scenarios.worlds.vllm.findings import known
from scenarios.worlds.vllm.findings.asking import ASKING
from scenarios.worlds.vllm.findings.finding import Finding
from scenarios.worlds.vllm.findings.ranks import RANKS

_PROCESSES = (
    Finding(
        id="core-outlives-its-caller", release="0.33.0",
        title="SIGKILL of the process that owns an engine leaves its core and all workers running",
        breaks=("no-orphans",),
        source="vllm/v1/engine/core.py, run_engine_core: says of a caller that ends unexpectedly that core and workers "
               "will be killed by the manager of processes; vllm/v1/executor/multiproc_executor.py: a worker ends with "
               "its parent",
        rows=("test_vllm_frontend_is_killed",),
        mechanism="The manager of processes lives in the caller and dies with it. A worker looks at a pipe of its "
                  "core; the core looks at nothing of the process that started it.",
        control="core-watches-its-caller", by_hand="caller_killed",
        known=(known.KILLED_CALLER, known.KILLED_CALLER_MEND)),
    Finding(
        id="workers-outlive-an-engine-that-timed-out", release="0.33.0",
        title="The step's time-out ends an engine, and the workers that hang stay when it has been shut down",
        breaks=("no-orphans",),
        source="vllm/v1/executor/multiproc_executor.py, _ensure_worker_termination: all worker processes are ended, in "
               "the end by SIGKILL; tests/v1/shutdown, test of a forward error: no process holds the device afterwards",
        rows=("test_vllm_worker_is_stopped",),
        mechanism="A core that fails takes the default handler for SIGTERM before it ends its workers, and gives them "
                  "seconds for that. Its client, told of the failure, sends it SIGTERM meanwhile: it ends at once, and "
                  "nobody is left to end workers that no pipe reaches because they hang.",
        control="core-ends-its-workers", by_hand="worker_stopped",
        known=(known.TERMINATED_IN_SHUTDOWN, known.WEDGED_WORKER)),
    Finding(
        id="start-waits-for-a-dead-core", release="0.33.0",
        title="SIGKILL of a core while its forked workers come up: the start neither fails nor ends, and workers stay",
        breaks=("start-ends", "no-orphans"),
        source="vllm/v1/engine/utils.py, wait_for_engine_startup: a core process that ends fails the start; "
               "vllm/v1/executor/multiproc_executor.py: a worker ends with its parent",
        rows=("test_vllm_core_is_killed_at_start",),
        mechanism="The start waits for the sentinel of the core's process, which is the end of a pipe that the core's "
                  "forked workers have inherited: it is readable when the last of them has gone. Workers begin to look "
                  "at their parent when they have loaded, so one that waits for a rank that will not come waits on.",
        control="start-looks-at-the-core-itself", by_hand="core_killed_at_start",
        known=(known.START_WITHOUT_BOUND,)),
    Finding(
        id="start-without-a-bound", release="0.33.0",
        title="The documented time-out of a start does not end it when an engine never shakes hands to the end",
        breaks=("start-ends",),
        source="vllm/envs.py, VLLM_ENGINE_READY_TIMEOUT_S: how long cores are waited for while an engine starts",
        rows=("test_vllm_start_is_stuck", "test_vllm_greeting_is_lost", "test_vllm_subscription_of_a_core_is_lost"),
        mechanism="The wait for the cores' handshakes asks its sockets in a loop that has no deadline: the time-out is "
                  "read by a later step of the start alone, which is not reached.",
        control="start-has-a-bound", by_hand="stuck_start",
        known=(known.START_WITHOUT_BOUND,)),
    Finding(
        id="worker-is-stuck-as-it-leaves", release="0.33.0", by_chance=True,
        title="A worker whose core has died may never leave: two of its threads send on one ZMQ socket",
        breaks=("ends-once", "death-is-told", "health-is-true", "no-orphans"),
        source="vllm/v1/executor/multiproc_executor.py: a worker ends with its parent; vllm/distributed/"
               "device_communicators/shm_broadcast.py, SpinCondition: another thread may have a reader leave",
        rows=("test_vllm_core_is_killed_amid_a_message", "test_vllm_is_killed", "test_vllm_is_killed_async",
              "test_vllm_stage_is_killed"),
        mechanism="The thread that hears of the parent's end sets a flag and wakes the main thread by a PAIR socket. A "
                  "main thread that is busy sees the flag at once, and does the same on its way out. A socket of "
                  "libzmq's is one thread's: the second send may wait for ever, or the process is aborted. A worker "
                  "that stays keeps open what would tell the client of the core's end.",
        control="cancels-once", by_hand="rings.cancelled_twice"),
)

FINDINGS = (*_PROCESSES, *ASKING, *RANKS)


def finding_of(scenario: str, guarantee: str) -> Finding | None:
    """What it is that this guarantee is broken in that scenario; None: nobody knows yet."""
    return next((one for one in FINDINGS if one.shows(scenario, guarantee)), None)
