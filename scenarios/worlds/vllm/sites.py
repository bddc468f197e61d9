"""Where faults reach vLLM's processes (pure): what a plan may name there, and why it may not name the rest."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.topology import Channel, Edge, Mark, Node, NodeKind, Topology, mark_site
from faults.plan import PROCESS_FATES, Fate, Fault, Plan, allowed_at
from faults.sites import home_of
from scenarios.history.names import kind_of
from scenarios.history.play import Options
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import Workload
from scenarios.worlds.base import NotHereError
from scenarios.worlds.vllm.rings.layout import CHUNKS
from scenarios.worlds.vllm.rings.tripwire import MOST_BYTES

#: Of a worker; of a core, where it is its own only rank.
OF_A_RANK = (Mark.LOADING, Mark.READY, Mark.EXECUTING, Mark.COPYING)
#: Crash points that the stand-in passes: in a caller of `AsyncLLM`, in the core's scheduler, in a worker.
MARKS = {
    NodeKind.FRONTEND: (Mark.BORN, Mark.DYING),
    NodeKind.CORE: (Mark.BORN, Mark.STEP, Mark.SCHEDULED, Mark.EXECUTED, *OF_A_RANK, Mark.DUMMY),
    NodeKind.WORKER: (Mark.BORN, *OF_A_RANK),
}
#: What a relay stands between.
CHANNELS = (Channel.HANDSHAKE, Channel.REQUESTS, Channel.OUTPUTS, Channel.WAVE, Channel.REPORT, Channel.STATS)
_RING = "rings of vLLM are memory: what goes through one is hit where it lies"
_EVENTS = "what vLLM publishes is hit where it is heard, and on the wire"
#: Of these only the wire: who hears them is the lab's own, and passes all other fates itself.
WIRES = (Channel.KV, Channel.REPLAY)
_BEYOND = {
    Channel.BIRTH: "no such pipe of vLLM's: a process knows what it is by the way that it was started",
    Channel.RPC: _RING, Channel.RESPONSE: _RING, Channel.OVERFLOW: "nothing stands between the rings of vLLM and what "
    "they have no room for",
    Channel.KV: _EVENTS, Channel.REPLAY: _EVENTS,
}
#: What somebody who stands beside a process can do to it.
_STRIKES = frozenset({Fate.KILL, Fate.STALL, Fate.TERMINATE})
#: Stores of a ring that its watch sees, and what befalls them there (`rings/watch.py`).
STORES = {"reset": _STRIKES, "data": frozenset({Fate.CORRUPT}), "readers": _STRIKES | {Fate.CORRUPT},
          "written": _STRIKES, "read": _STRIKES}
#: So many readers have flags that fit into a processor's watchpoints.
_MOST_READERS = MOST_BYTES // CHUNKS - 1
_UNSEEN = "it is over before anybody beside its process could look"
#: By part of the configuration: what the lab sets of vLLM. Bounds are vLLM's own.
_SETTINGS = {"cache": ("block_size", "num_gpu_blocks", "enable_prefix_caching"),
             "scheduler": ("max_num_batched_tokens", "max_num_seqs", "policy", "async_scheduling", "max_model_len"),
             "limits": ("max_requests",), "sockets": (), "data_parallel": (),
             "kv_events": ("enable_kv_cache_events", "buffer_steps", "hwm", "max_queue_size", "topic",
                           "subscriber_hwm", "replay")}
#: Calls of a workload that vLLM's client has, too.
CALLS = frozenset({"reset_prefix_cache", "is_paused", "collective_rpc", "pause_generation", "shutdown",
                   "pause_scheduler", "resume_scheduler"})
#: What a client of its HTTP server does beside asking: it sends the head of a request and no more, and goes away.
CALLS_OF_A_SERVER = frozenset({"begin_a_request", "leave_amid_a_request"})
_WHOLE = ("device_communicator", "distributed_executor_backend", "max_concurrent_batches", "skip_tokenizer_init",
          "model")
#: What a caller asks our engine for, and nobody vLLM.
_OPTIONS = ("kill_all_then_restart", "noisy_publisher", "client_returns", "intruders", "long_runtime_dir", "differs",
            "queue", "program", "plain", "impossible_events", "misnumbered_batch")


def check(plan: Plan, options: Options) -> None:
    """Raises NotHereError."""
    for name in _OPTIONS:
        if getattr(options, name) != getattr(Options(), name):
            raise NotHereError(f"vLLM has no part that plays {name!r}")
    for fault in plan.faults:
        if (why := _why_not(fault)) is not None:
            raise NotHereError(f"{fault.site}: {why}")
        until = fault.until.site if fault.until is not None else None
        if until is not None and (why := why_out_of_reach(until)) is not None:
            raise NotHereError(f"{until}: {why}")
    if needs_watch(plan) and needs_relay(plan, options):
        raise NotHereError("messages and rings of vLLM's are hit in plays of their own")
    if options.over_http and needs_relay(plan, options):
        raise NotHereError("cores of vLLM's HTTP server are started by a process of its own, and not relayed")


def check_topology(topology: Topology, plan: Plan = Plan()) -> None:  # noqa: B008
    """Raises NotHereError."""
    ranks = {str(engine.core): {mark_site(engine.core, mark) for mark in (*OF_A_RANK, Mark.DUMMY)}
             for engine in topology.engines if engine.workers}
    for fault in plan.faults:
        if fault.site in ranks.get(home_of(fault.site)[0], ()):
            raise NotHereError(f"{fault.site}: a core that has workers does not pass it")
        if needs_tripwire(Plan((fault,))) and "/rpc:" in fault.site and len(
                topology.engine(Node.parse(home_of(fault.site)[0]).index).workers) > _MOST_READERS:
            raise NotHereError(f"{fault.site}: a processor watches no more than the flags of {_MOST_READERS} readers")
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
    if strange := called - CALLS - CALLS_OF_A_SERVER:
        raise NotHereError(f"vLLM's client has no call {', '.join(sorted(strange))}")
    if any(action.kind == "raw" for phase in workload.phases for action in phase.actions):
        raise NotHereError("nobody but its own client speaks with vLLM's core")
    if any(request.unservable or request.asked is not None or (
            request.asked_params is not None and "kinds" not in request.asked_params) for request in workload.requests):
        raise NotHereError("what vLLM refuses is not what our engine refuses")
    if any(request.params.temperature for request in workload.requests):
        raise NotHereError("the stand-in draws no tokens")


def fates_within_reach(site: str) -> frozenset[Fate]:
    """What may befall a crossing of a site that is within reach."""
    if (store := _store_of(site)) is not None:
        return STORES[store]
    return allowed_at(site) - (PROCESS_FATES - _STRIKES if "->" in site else frozenset())


def needs_relay(plan: Plan, options: Options) -> bool:
    """Whether the messages of a play pass a relay: where a fault names one, or somebody asks for it."""
    sites = [fault.site for fault in plan.faults]
    sites += [fault.until.site for fault in plan.faults if fault.until is not None and fault.until.site is not None]
    return options.relayed or any(_channel_of(site) in CHANNELS or _is_wire_of_events(site) for site in sites)


def _is_wire_of_events(site: str) -> bool:
    return _channel_of(site) in WIRES and site.endswith(":wire")


def needs_watch(plan: Plan) -> bool:
    """Whether somebody watches the rings of a play: where a fault names a store of one."""
    return any(_store_of(fault.site) or fault.until is not None and _store_of(fault.until.site or "")
               for fault in plan.faults)


def needs_tripwire(plan: Plan) -> bool:
    """Whether stores of a writer are to be seen, as who may trace its process sees them."""
    return any(_store_of(fault.site) not in (None, "read") for fault in plan.faults)


def _store_of(site: str) -> str | None:
    """Which of those that are seen."""
    store = site.rpartition(":store.")[2]
    return store if store in STORES else None


def _channel_of(site: str) -> Channel | None:
    place = site.rpartition(":")[0]
    return Edge.parse(place).channel if "->" in place else None


def _why_not(fault: Fault) -> str | None:
    why = why_out_of_reach(fault.site)
    if why is not None:
        return why
    if fault.fate not in fates_within_reach(fault.site):
        if _store_of(fault.site) is not None:
            return f"who watches vLLM's rings stands beside its processes, and cannot have one {fault.fate.value}"
        return (f"a relay of vLLM's messages stands beside its processes, and cannot have one {fault.fate.value}"
                if "->" in fault.site else f"{fault.fate.value} befalls no mark of vLLM's")
    return None


def why_out_of_reach(site: str) -> str | None:
    """Why no fault reaches this site of vLLM's, in words; None where it does."""
    node, life = home_of(site)
    if kind_of(node) == NodeKind.SUBSCRIBER:  # it is the lab's own, with ports that know all fates
        return None
    channel = _channel_of(site)
    if channel in CHANNELS or _is_wire_of_events(site) or _store_of(site) is not None:
        return "no process of vLLM's lives twice in a play" if life else None
    if ":store." in site or site.endswith(":doorbell"):
        return _UNSEEN
    if channel is not None or "/mark:" not in site:
        return _BEYOND.get(channel) or "no crossing of vLLM's is seen there"
    kind, mark = NodeKind(kind_of(node)), site.rpartition(":")[2]
    known = [one.value for one in MARKS.get(kind, ())]
    return None if mark in known else f"no {kind.value} of vLLM passes it; it passes {', '.join(known) or 'none'}"
