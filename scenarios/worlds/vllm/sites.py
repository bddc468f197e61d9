"""Where faults reach vLLM's processes (pure): what a plan may name there, and why it may not name the rest."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.topology import Mark, NodeKind, Topology, mark_site
from faults.plan import PROCESS_FATES, Fault, Plan
from faults.sites import home_of
from scenarios.history.names import kind_of
from scenarios.history.play import Options
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import Workload
from scenarios.worlds.base import NotHereError

#: Of a worker; of a core, where it is its own only rank.
OF_A_RANK = (Mark.LOADING, Mark.READY, Mark.EXECUTING, Mark.COPYING)
#: Crash points that the stand-in passes: in a caller of `AsyncLLM`, in the core's scheduler, in a worker.
MARKS = {
    NodeKind.FRONTEND: (Mark.BORN, Mark.DYING),
    NodeKind.CORE: (Mark.BORN, Mark.STEP, Mark.SCHEDULED, Mark.EXECUTED, *OF_A_RANK, Mark.DUMMY),
    NodeKind.WORKER: (Mark.BORN, *OF_A_RANK),
}
#: By part of the configuration: what the lab sets of vLLM. Bounds are vLLM's own.
_SETTINGS = {"cache": ("block_size", "num_gpu_blocks", "enable_prefix_caching"),
             "scheduler": ("max_num_batched_tokens", "max_num_seqs", "policy", "async_scheduling", "max_model_len"),
             "limits": (), "sockets": (), "data_parallel": (),
             "kv_events": ("enable_kv_cache_events", "buffer_steps", "hwm", "max_queue_size", "topic",
                           "subscriber_hwm", "replay")}
#: Calls of a workload that vLLM's client has, too.
CALLS = frozenset({"reset_prefix_cache", "is_paused", "pause_scheduler", "resume_scheduler"})
_WHOLE = ("device_communicator", "distributed_executor_backend", "max_concurrent_batches", "skip_tokenizer_init",
          "model")
#: What a caller asks our engine for, and nobody vLLM.
_OPTIONS = ("kill_all_then_restart", "noisy_publisher", "client_returns", "intruders", "synchronous",
            "long_runtime_dir", "differs", "queue", "program", "plain", "impossible_events", "misnumbered_batch")


def check(plan: Plan, options: Options) -> None:
    """Raises NotHereError."""
    for name in _OPTIONS:
        if getattr(options, name) != getattr(Options(), name):
            raise NotHereError(f"vLLM has no part that plays {name!r}")
    for fault in plan.faults:
        if (why := _why_not(fault)) is not None:
            raise NotHereError(f"{fault.site}: {why}")
        if fault.until is not None and fault.until.site is not None and (why := _of_site(fault.until.site)) is not None:
            raise NotHereError(f"{fault.until.site}: {why}")


def check_topology(topology: Topology, plan: Plan = Plan()) -> None:  # noqa: B008
    """Raises NotHereError."""
    ranks = {str(engine.core): {mark_site(engine.core, mark) for mark in (*OF_A_RANK, Mark.DUMMY)}
             for engine in topology.engines if engine.workers}
    for fault in plan.faults:
        if fault.site in ranks.get(home_of(fault.site)[0], ()):
            raise NotHereError(f"{fault.site}: a core that has workers does not pass it")
    if len(topology.clients) > 1 or topology.launchers or topology.offline:
        raise NotHereError("engines of vLLM's are played with one client, which starts them")
    if topology.subscribers and len(topology.engines) > 1:
        raise NotHereError("vLLM's ranks publish at no addresses that the lab can give all of them")


def check_config(config: EngineConfig, workload: Workload) -> None:
    """What is asked for must be known to vLLM, or the play says nothing. Raises NotHereError."""
    usual = lab_config()
    for part, fields in _SETTINGS.items():
        mine, theirs = getattr(config, part), getattr(usual, part)
        for name in mine.__struct_fields__:
            if name not in fields and getattr(mine, name) != getattr(theirs, name):
                raise NotHereError(f"vLLM knows no {part}.{name}, or the lab does not set it there")
    for name in _WHOLE:
        if getattr(config, name) != getattr(usual, name):
            raise NotHereError(f"vLLM knows no {name}, or the lab does not set it there")
    called = {action.method for phase in workload.phases for action in phase.actions if action.kind == "utility"}
    if called - CALLS:
        raise NotHereError(f"vLLM's client has no call {', '.join(sorted(called - CALLS))}")
    if any(action.kind == "raw" for phase in workload.phases for action in phase.actions):
        raise NotHereError("nobody but its own client speaks with vLLM's core")
    if any(request.unservable or request.asked is not None or request.asked_params is not None
           for request in workload.requests):
        raise NotHereError("what vLLM refuses is not what our engine refuses")
    if any(request.params.temperature for request in workload.requests):
        raise NotHereError("the stand-in draws no tokens")


def _why_not(fault: Fault) -> str | None:
    why = _of_site(fault.site)
    if why is None and fault.fate not in PROCESS_FATES and "/mark:" in fault.site:
        return f"a fate of messages, {fault.fate.value}, befalls no mark"
    return why


def _of_site(site: str) -> str | None:
    node, _ = home_of(site)
    if kind_of(node) == NodeKind.SUBSCRIBER:  # it is the lab's own, with ports that know all fates
        return None
    if "/mark:" not in site:
        return "messages and rings of vLLM are out of reach yet; its marks are not"
    kind, mark = NodeKind(kind_of(node)), site.rpartition(":")[2]
    known = [one.value for one in MARKS.get(kind, ())]
    return None if mark in known else f"no {kind.value} of vLLM passes it; it passes {', '.join(known) or 'none'}"
