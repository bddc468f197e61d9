"""What explains an incident beside faults: what the callers asked, what the lab did, what the configuration admits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine.topology import NodeKind
from scenarios.history.history import FOREVER, History, Operation, kind_of
from scenarios.history.names import base, of_life
from scenarios.history.verdicts import Verdict
from scenarios.law.incidents import LAB, Incident, Sort

#: What can be asked of a core, and of its workers while they serve.
_KNOWN_CALLS = frozenset({"ping", "pause_scheduler", "resume_scheduler", "run_steps", "reset_prefix_cache",
                          "collective_rpc", "get_stats", "get_queue_stats"})
_ASKED_OF_WORKERS = frozenset({"check_health", "determine_available_memory", "get_num_blocks"})
_MOST_PINGED_BYTES = 1 << 20
_EXECUTORS = frozenset({"auto", "mp", "uni"})


def cannot_be_done(method: str, args: list[Any]) -> bool:
    """Whether no core can answer this call with anything but why not."""
    if method == "run_steps":
        return len(args) != 1 or args[0] < 1
    if method == "collective_rpc":
        return not args or args[0] not in _ASKED_OF_WORKERS or (len(args) > 1 and args[1] < 1)
    if method == "ping" and len(args) > 1 and args[1] != 1:
        return not isinstance(args[0], str) or not 0 <= len(args[0]) * args[1] <= _MOST_PINGED_BYTES
    return method not in _KNOWN_CALLS


class Cause(NamedTuple):
    """One row: these sorts of incidents are explained where this holds."""

    name: str
    sorts: frozenset[Sort]
    holds: Callable[[History, Incident], bool]


# -- what the callers asked --------------------------------------------------------------------------------------


def _was_aborted(history: History, incident: Incident) -> bool:
    operation = incident.operation
    return operation is not None and operation.abort is not None


def _recorded(history: History, operation: Operation) -> dict[str, Any]:
    requests = history.play.workload.get("requests", ())
    return next((request for position, request in enumerate(requests)
                 if request.get("index", position) == operation.index), {})


def _open_before(history: History, operation: Operation) -> list[Operation]:
    """What the same caller had open when it called this. By program order: in the twin times are equal."""
    if operation.call is None:
        return []
    number = operation.call.number
    return [other for other in history.operations if other.node == operation.node and other is not operation
            and other.call is not None and other.call.number < number
            and not (other.ends and other.ends[0].number < number)]


def _cannot_be_served(history: History, incident: Incident) -> bool:
    """By the workload: it says so itself, the id is in use, it asks for a core that there is none of, the prompt is
    empty or too long for the model, or there are more tokens than the whole cache holds: the last one is not kept
    there.
    """
    operation = incident.operation
    if operation is None:
        return False
    if any(other.request == operation.request for other in _open_before(history, operation)):
        return True
    recorded, config = _recorded(history, operation), history.play.config
    rank, cores = recorded.get("data_parallel_rank"), history.engines_of(operation.node)
    if rank is not None and (type(rank) is not int or rank not in range(len(cores))):
        return True
    prompt, answers = recorded.get("prompt_token_ids", ()), recorded.get("reference_token_ids") or (0,)
    longest, blocks = config.scheduler.max_model_len, config.cache.num_gpu_blocks
    if recorded.get("unservable") or not prompt or (longest is not None and len(prompt) >= longest):
        return True
    return blocks is not None and len(prompt) + len(answers) - 1 > blocks * config.cache.block_size


def _more_than_admitted(history: History, incident: Incident) -> bool:
    operation, limits = incident.operation, history.play.config.limits
    if operation is None:
        return False
    others = _open_before(history, operation)
    if len(others) >= limits.max_requests:
        return True
    return sum(_most_bytes(history, other) for other in (operation, *others)) > limits.max_request_bytes


def _most_bytes(history: History, operation: Operation) -> int:
    """More than a request takes on the wire."""
    return 1000 + 9 * len(_recorded(history, operation).get("prompt_token_ids", ()))


def _impossible_call(history: History, incident: Incident) -> bool:
    data = incident.record.data if incident.record is not None else {}
    return "method" in data and cannot_be_done(data["method"], data.get("args", [1]))


def _steps_are_run_already(history: History, incident: Incident) -> bool:
    """The workload asks for steps within a phase that has some of its own: the call that comes too soon fails, and the
    other one is answered later.
    """
    if incident.record is None or incident.record.data.get("method") != "run_steps":
        return False
    asked = sum(action["kind"] == "utility" and action["method"] == "run_steps" for phase in
                history.play.workload.get("phases", ()) if phase.get("steps") for action in phase.get("actions", ()))
    calls = [record for record in history.by_node("utility")[incident.node] if record.data["method"] == "run_steps"]
    failed = [record for record in calls if record.data["failure"]]
    return incident.record in failed[:asked] and not calls[-1].data["failure"]


def _steps_out_of_no_pause(history: History, incident: Incident) -> bool:
    """The workload itself asks for steps, of ranks that run a number of them out of a pause only."""
    asked = any(action.get("method") == "run_steps" for phase in history.play.workload.get("phases", ())
                for action in phase.get("actions", ()))
    return asked and bool(history.play.topology.stepping) and incident.record is not None and \
        incident.record.data.get("method") == "run_steps"


def _raw_frames(history: History, incident: Incident) -> bool:
    """The workload sends bytes that are no request. The core refuses what still says whose it would be."""
    if incident.sort is Sort.STRANGE and (incident.record is None or incident.record.data.get("action") != "refused"):
        return False
    return kind_of(incident.node) == NodeKind.CORE and bool(history.play.raw)


def _aborted_too_late(history: History, incident: Incident) -> bool:
    """The core hears of an abort, by the caller or after a failure, of what it was asked for and is over by then."""
    assert incident.record is not None
    if incident.record.data.get("action") != "unknown-abort":
        return False
    internal = incident.record.data.get("request")
    return any(o.internal == internal and history.asked_of(o).core == incident.node and (
        o.abort is not None or o.ended_at is not None) for o in history.operations)


def _rude_subscriber(history: History, incident: Incident) -> bool:
    return history.play.options.rude_subscriber and kind_of(incident.node) == NodeKind.CORE


def _intruder(history: History, incident: Incident) -> bool:
    """Somebody speaks with it on this channel who is none of its peers. No more is dropped there than was said."""
    record = incident.record
    if record is None:
        return False
    channel = str(record.data.get("edge")).rpartition("/")[2]
    dropped = sum(one.number <= record.number and str(one.data.get("edge")).rpartition("/")[2] == channel
                  for one in history.by_node("bad-frame")[incident.node])
    return dropped <= sum(len(intruder.messages) for intruder in history.play.options.intruders
                          if intruder.channel.value == channel and history.meets(incident.node, intruder))


def _noisy_publisher(history: History, incident: Incident) -> bool:
    """Each is on record before it is heard, and explains one that is dropped, or a gap before its number."""
    record = incident.record
    if record is None:
        return False
    if incident.sort is Sort.MISTOLD:
        return any(told.number < record.number for told in history.by_node("impossible").get(incident.node, ()))
    if incident.node not in history.by_node("malformed"):
        return False
    if incident.sort is Sort.KV_READER:
        return history.play.options.misnumbered_batch and record.site == "kv-gap" and \
            record.number > history.by_node("malformed")[incident.node][0].number
    heard, dropped = (sum(one.number <= record.number and one.data["edge"] == record.data["edge"]
                          for one in history.by_node(name)[incident.node]) for name in ("malformed", "bad-frame"))
    return dropped <= heard


# -- what another incident explains ------------------------------------------------------------------------------


def _whom_it_follows_is_gone(history: History, incident: Incident) -> bool:
    """A subscriber waits for what it missed until the lab ends it: of a dead engine, of one that never started, or that
    went while it stood still, or while the thread did that answers. Those have their own causes.
    """
    if kind_of(incident.node) != NodeKind.SUBSCRIBER:
        return False
    engine = history.engine_of(incident.node).engine
    def is_of_it(node: str) -> bool:
        return any(one.engine == engine for one in history.engines_of(node))

    return any(is_of_it(death.node) for death in history.ends.deaths) or not any(
        start.ready for start in history.startups if is_of_it(start.node)) or any(
        history.faults.stands_still(history.ends.at(core), core) for core in history.of_kind(NodeKind.CORE)
        if is_of_it(core))


def _nobody_ends_it(history: History, incident: Incident) -> bool:
    """By the plan it stands still to the end: a subscriber, which its own program would end, or a process whose owner
    is gone without having ended it.
    """
    if kind_of(incident.node) == NodeKind.SUBSCRIBER:
        return history.faults.stands_still(incident.at, incident.node)
    return any(history.nobody_ends(process) for process in history.lab.processes
               if of_life(process.node, process.life) == incident.node)


# -- what the lab did --------------------------------------------------------------------------------------------


def _after_closing(history: History, incident: Incident) -> bool:
    """The lab, or the caller's program at its end, has begun to shut that engine down."""
    return incident.at >= history.closes_at(incident.node)


def _left_by_another(history: History, incident: Incident) -> bool:
    """All that step together are asked to leave at once, and one that is amid a forward misses who left first."""
    mine = history.engine_of(incident.node)
    return _after_closing(history, incident) and any(
        record.at <= incident.at for other in history.joined(mine) if other != mine
        for record in history.by_node("dying").get(other.core, ())[:1])


def _given_up_with_another(history: History, incident: Incident) -> bool:
    """Of several cores of a client one could not start, and the client ends the others, which may not hear yet."""
    mine = history.engine_of(incident.node)
    return _after_closing(history, incident) and any(
        startup.end is not None and not startup.ready and len(history.engines_of(startup.node)) > 1
        and history.is_of(startup.node, mine) for startup in history.startups)


def _closed_by_another(history: History, incident: Incident) -> bool:
    """One of those that step together, and were started by several, was shut down; or the client of a headless one."""
    return any(history.is_apart(mine) and incident.at >= history.group_closing_at(mine)
               for mine in history.engines_of(incident.node)) if incident.node != LAB else False


def _head_was_shut_down(history: History, incident: Incident) -> bool:
    """The head takes along the coordinator, which clients of other cores watch."""
    if incident.record is None or incident.record.site != "coordinator-dead":
        return False
    heads = {history.greeted_by(mine)[0] for mine in history.engines_of(incident.node)}
    return any(closing.at <= incident.at for head in heads for closing in history.by_node("closing").get(head, ()))


def _configured_otherwise(history: History, incident: Incident) -> bool:
    """Of several that start engines of one group one is configured otherwise than the others."""
    return bool(history.play.options.differs) and incident.node != LAB


def _missed(history: History, incident: Incident) -> bool:
    """Nobody wakes anybody: of a rank that was asked nothing in a wave, and of those that missed it."""
    return incident.node != LAB and history.is_in_vain(incident.node, incident.at)


def _asked_to_leave(history: History, incident: Incident) -> bool:
    """A core says why it leaves."""
    return incident.record is not None and incident.record.site == "dying" and _after_closing(history, incident)


def _killed_by_the_lab(history: History, incident: Incident) -> bool:
    """All processes of the first engine at once, when its workload was done."""
    if not history.play.options.kill_all_then_restart or incident.node == LAB:
        return False
    mine = history.engine_of(incident.node)
    if mine.engine not in history.main:
        return False
    ended = (p.ended_at for p in history.lab.processes if p.killed_by_lab and not p.life)
    killed = min((at for at in ended if at is not None), default=FOREVER)
    return incident.at >= killed and (mine.life == 0 or kind_of(incident.node) == NodeKind.SUBSCRIBER)


def _came_late(history: History, incident: Incident) -> bool:
    """A subscriber that joins when batches have been published has missed them."""
    return history.play.options.late_subscriber


def _cannot_start(history: History, incident: Incident) -> bool:
    return history.play.options.long_runtime_dir


def _has_no_executor(history: History, incident: Incident) -> bool:
    """None has that name, or the one that has it runs a single rank."""
    name = history.play.config.distributed_executor_backend
    return name not in _EXECUTORS or (name == "uni" and history.ranks_of(incident.node) > 1)


# -- what the configuration admits -------------------------------------------------------------------------------


def _narrow_queue(history: History, incident: Incident) -> bool:
    """More batches than a queue of the configuration holds."""
    events = history.play.config.kv_events
    published = max((len(records) for records in history.by_node("kv-published").values()), default=0)
    return published > min(events.hwm or FOREVER, events.subscriber_hwm or FOREVER, events.max_queue_size or FOREVER)


def _canary(history: History, incident: Incident) -> bool:
    """A weakness that the scenario has switched on, and declared to break a promise."""
    return any(verdict is Verdict.BROKEN for verdict in history.play.expected.values())


def _reader_has_left(history: History, incident: Incident) -> bool:
    """A subscriber that is done has left, and what answers its last question finds nobody there."""
    record = incident.record
    if record is None or record.site not in _TO_NOBODY:
        return False
    mine, site = history.engine_of(incident.node).engine, record.data.get("site")
    return any(byes[0].at <= incident.at and history.engine_of(reader).engine == mine
               for reader, byes in history.by_node("bye").items()
               if kind_of(reader) == NodeKind.SUBSCRIBER and (site is None or f"->{base(reader)}/" in site))


#: What a core says of an answer that found nobody.
_TO_NOBODY = frozenset({"not-sent", "replay-ended"})
#: What the end of one brings about for those that step with it.
_TOGETHER = frozenset({Sort.DEATH, Sort.DEAD, Sort.TOLD, Sort.START, Sort.UTILITY, Sort.UNSENT, Sort.RPC, Sort.WAIT,
                       Sort.ORPHAN, Sort.THREAD})
_AFTERWARDS = frozenset({Sort.WAIT, Sort.UNSENT, Sort.ORPHAN, Sort.KV_SENDER, Sort.KV_READER, Sort.TOLD})

def _reader_is_slow(history: History, incident: Incident) -> bool:
    """A queue whose reader takes longer for an object than its writer waits for room."""
    return history.play.options.queue.startswith("slow") and incident.record is not None and \
        incident.record.data.get("outcome") == "timeout"


CAUSES: tuple[Cause, ...] = (
    Cause("its caller aborted it", frozenset({Sort.ABORTED}), _was_aborted),
    Cause("it cannot be served", frozenset({Sort.FAILED}), _cannot_be_served),
    Cause("more than is admitted", frozenset({Sort.REFUSED}), _more_than_admitted),
    Cause("the core cannot do what is asked", frozenset({Sort.UTILITY}), _impossible_call),
    Cause("steps are being run already", frozenset({Sort.UTILITY}), _steps_are_run_already),
    Cause("ranks that step together are not paused", frozenset({Sort.UTILITY}), _steps_out_of_no_pause),
    Cause("the workload sends bytes that are no request", frozenset({Sort.BAD_FRAME, Sort.STRANGE}), _raw_frames),
    Cause("somebody speaks with it who is none of its peers", frozenset({Sort.BAD_FRAME}), _intruder),
    Cause("it was over when its abort came", frozenset({Sort.STRANGE}), _aborted_too_late),
    Cause("a subscriber asks what none asks", frozenset({Sort.BAD_FRAME, Sort.KV_SENDER}), _rude_subscriber),
    Cause("a publisher says what none says", frozenset({Sort.BAD_FRAME, Sort.MISTOLD, Sort.KV_READER}),
          _noisy_publisher),
    Cause("whom it follows is gone", frozenset({Sort.OVERSTAY}), _whom_it_follows_is_gone),
    Cause("who follows it was done and has left", frozenset({Sort.UNSENT, Sort.KV_SENDER}), _reader_has_left),
    Cause("it stands still, and nobody is left to end it", frozenset({Sort.OVERSTAY}), _nobody_ends_it),
    Cause("its engine was shut down", _AFTERWARDS, _after_closing),
    Cause("one of those that it steps with has left before it", frozenset({Sort.RPC}), _left_by_another),
    Cause("another core of its client could not start", frozenset({Sort.DEATH}), _given_up_with_another),
    Cause("its engine was asked to leave", frozenset({Sort.DEAD}), _asked_to_leave),
    Cause("one of those that it steps with was shut down", _TOGETHER, _closed_by_another),
    Cause("the head was shut down, and the coordinator with it", frozenset({Sort.DEAD}), _head_was_shut_down),
    Cause("one of those that step together was asked nothing in a wave", _TOGETHER, _missed),
    Cause("some are configured otherwise than others", frozenset({Sort.START, Sort.DEATH, Sort.DEAD}),
          _configured_otherwise),
    Cause("its reader is slower than it waits", frozenset({Sort.WAIT}), _reader_is_slow),
    Cause("the lab killed its engine", frozenset({Sort.DEATH, Sort.ORPHAN, Sort.LEFTOVER, Sort.KV_READER}),
          _killed_by_the_lab),
    Cause("it joined late", frozenset({Sort.KV_READER}), _came_late),
    Cause("its directory's name is too long", frozenset({Sort.START, Sort.DEATH}), _cannot_start),
    Cause("its executor cannot be had", frozenset({Sort.START, Sort.DEATH, Sort.DEAD}), _has_no_executor),
    Cause("more events than a queue holds", frozenset({Sort.KV_READER, Sort.KV_SENDER}), _narrow_queue),
    Cause("a canary", frozenset({Sort.FAILED, Sort.UTILITY, Sort.KV_READER, Sort.OVERSTAY}), _canary),
)
