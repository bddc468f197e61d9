"""vLLM's rings, watched, stopped and damaged by who stands beside its processes.

A writer stands still right behind a store to a ring's flags. There what it has stored is changed, or it is struck; a
reader is struck while a message waits for it. What is changed in memory nobody promises to notice: judged is that each
request ends all the same.
"""

from engine.topology import Mark, tensor_parallel
from faults.plan import Fate, Fault, Plan, behind, hang, kill, marked, plan, stall, until
from scenarios.guarantees.all import (
    death_is_told,
    ends_once,
    health_is_true,
    no_orphans,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import recorded

THERE = Only(world="vllm", reason="these are vLLM's rings")
ASYNC = {"config": lab_config(scheduler={"async_scheduling": True})}
#: Of a rank: its calls are to execute a step and to sample, so this is one of the first kind, and the second one waits.
EXECUTES = 21
WRITERS = {"the broadcast": ("core.0", "rpc"), "the answers": ("worker.0", "response")}
#: From here on messages count.
BEGINS = hang("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=EXECUTES, until=until(seconds=0.0))
#: Of the payload its first one, by which it cannot be read; of the readers' flags all.
BYTES = {"data": 0, "readers": -1}
#: Of the answers to two calls in a row one is waited for: that to sample.
TIMES = {"data": 2, "readers": 1}
#: Dies, and takes its engine along.
TOLD = (ends_once, death_is_told, health_is_true)
SOME_TIME = until(seconds=0.5)


def _changed(what: str) -> Plan:
    """`what`: "data of the broadcast". A while after the begin."""
    place, _, ring = what.partition(" of ")
    writer, name = WRITERS[ring]
    return plan(BEGINS, behind("f1", Fault(
        id="", site=f"{writer}/{name}:store.{place}", fate=Fate.CORRUPT, nth=4, times=TIMES[place],
        byte=BYTES[place])))


def _struck(what: str) -> Plan:
    """`what`: "core.0 stopped at rpc:reset". Right behind that store of a message, a while after the begin."""
    node, fate, _, place = what.split()
    ring, _, store = place.partition(":")
    site = f"{node}/{ring}:store.{store}"
    struck = kill(node, at=site, nth=4) if fate == "killed" else stall(node, at=site, nth=4, until=SOME_TIME)
    return plan(BEGINS, behind("f1", struck))


def _each(fate: str, node: str, ring: str) -> tuple[str, ...]:
    return tuple(f"{node} {fate} at {ring}:{store}" for store in ("reset", "readers", "written"))


globals().update(family(__name__, (
    Case("test_vllm_ring_is_changed", "A call, or an answer, cannot be read: each request ends all the same.", _changed,
         (ends_once,), only=THERE, each=tuple(f"data of {ring}" for ring in WRITERS)),
    Case("test_vllm_ring_hides_a_message", "Its readers seem to have read it: the step's time-out ends the engine.",
         _changed, (ends_once,), only=THERE, each=tuple(f"readers of {ring}" for ring in WRITERS)),
    Case("test_vllm_writer_is_stopped", "It stands still for a while amid a message: all is served, every token right.",
         _struck, (tokens_match_reference, tokens_in_order), each=_each("stopped", "worker.0", "response"), only=THERE),
    Case("test_vllm_core_is_stopped_amid_a_message", "The same of the core, of which vLLM promises nothing meanwhile.",
         _struck, (), each=_each("stopped", "core.0", "rpc"), only=THERE),
    Case("test_vllm_writer_is_killed", "It dies amid a message: each request ends, each caller is told.", _struck,
         (*TOLD, tokens_in_order), each=_each("killed", "worker.0", "response"), only=THERE),
    Case("test_vllm_core_is_killed_amid_a_message", "The same of the core: its workers go, too. One of them would be "
         "stuck in one of fifty plays: the cause of that is mended here.", _struck,
         (*TOLD, tokens_in_order, no_orphans), each=_each("killed", "core.0", "rpc"), only=THERE,
         play={"options": Options(edits=("cancels-once",))}),
    Case("test_vllm_reader_is_killed_with_a_message", "A message waits for it when it dies: callers are told.", plan(
        hang("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=EXECUTES, until=until(seconds=1.0)),
        behind("f1", kill("worker.1", at="worker.1/rpc:store.read"))), TOLD, only=THERE),
    Case("test_vllm_reader_is_stopped_with_a_message", "It goes on after a while, and reads it: all is served.", plan(
        hang("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=EXECUTES, until=until("worker.1/rpc:store.read")),
        behind("f1", stall("worker.1", at="worker.1/rpc:store.read", until=SOME_TIME))),
        (tokens_match_reference, tokens_in_order), only=THERE),
), topology=tensor_parallel(2), workload=recorded("eight-growing"), **ASYNC))
