"""What a child and whoever started it tell each other while it is born is lost, late, doubled, damaged or cut off.

    up      a worker's READY, a core's word of its workers, a coordinator's of its sockets, why one could not start
    down    the recipe, by which a child knows what it is
"""

from __future__ import annotations

from collections.abc import Callable

from engine.topology import Mark, data_parallel, tensor_parallel
from faults.plan import (
    Fault,
    corrupt,
    cut,
    delay,
    drop,
    duplicate,
    kill,
    marked,
    plan,
    raises,
    reorder,
    stall,
    truncate,
    until,
)
from scenarios.guarantees.all import (
    birth_told,
    death_is_told,
    handshake_order,
    no_orphans,
    nothing_left_behind,
    start_ends,
    tokens_match_reference,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import recorded

READY, WORKERS = "worker.1->core.0/birth", "core.0->frontend.0/birth"
WORKER_RECIPE, CORE_RECIPE = "core.0->worker.1/birth", "frontend.0->core.0/birth"
BOUND, HUB_RECIPE = "coordinator.0->frontend.0/birth", "frontend.0->coordinator.0/birth"
HELD, HELD_TOO_LONG = until(seconds=0.3), until(seconds=8.0)
FAILED, LEAVING = {"type": "failed"}, {"type": "leaving"}

#: What a start does not survive, by its name.
LOST: dict[str, Callable[..., Fault]] = {
    "drop": drop, "truncate": truncate, "corrupt": corrupt, "reorder": reorder, "cut": cut}
_SHORT = lab_config(bounds={"handshake_s": 1.5, "startup_s": 3.0})
_ENDS = (birth_told, start_ends, nothing_left_behind)
_SERVES = (birth_told, handshake_order, tokens_match_reference)
_COORDINATED = {"topology": data_parallel(2, coordinated=True)}
_SHARED = {"topology": data_parallel(2, clients=2)}


def _lost(*edges: str) -> dict[str, object]:
    return {"each": tuple(LOST), "plan": lambda fate: plan(*(LOST[fate](edge) for edge in edges))}


globals().update(family(__name__, (
    Case("test_worker_s_ready_is_dropped", "READY of a worker is lost: the start fails, by its name.",
         plan(drop(READY)), _ENDS),
    Case("test_worker_s_ready_is_damaged", "READY of a worker cannot be read: the start fails at once, by its name.",
         plan(corrupt(READY)), _ENDS),
    Case("test_worker_s_ready_is_lost", "READY of a worker does not come as it was said: the start fails, by its name.",
         lambda fate: plan(LOST[fate](READY)), _ENDS, each=("truncate", "reorder", "cut")),
    Case("test_worker_s_recipe_is_lost", "A worker is not told what it is: the start fails, by its name.",
         promises=_ENDS, **_lost(WORKER_RECIPE)),
    Case("test_core_s_recipe_is_lost", "A core is not told what it is: the start fails, by its name.",
         promises=_ENDS, **_lost(CORE_RECIPE)),
    Case("test_coordinator_s_addresses_are_lost", "Nobody learns where a coordinator is: the start fails, by its name.",
         promises=_ENDS, play=_COORDINATED, **_lost(BOUND)),
    Case("test_coordinator_s_recipe_is_lost", "A coordinator is not told what it is: the start fails, by its name.",
         promises=_ENDS, play=_COORDINATED, **_lost(HUB_RECIPE)),
    Case("test_launched_core_s_recipe_is_lost", "The same of a core that a launcher starts.",
         promises=_ENDS, play=_SHARED, **_lost("launcher.0->core.1/birth")),
    Case("test_worker_s_ready_is_late", "READY of a worker comes a little later: the start takes longer, and serves.",
         lambda edge: plan(delay(edge, until=HELD)), _SERVES, each=(READY, "worker.0->core.0/birth")),
    Case("test_word_at_birth_is_late", "A word or a recipe comes a little later: the start takes longer, and serves.",
         lambda edge: plan(delay(edge, until=HELD)), _SERVES, each=(WORKER_RECIPE, WORKERS, CORE_RECIPE)),
    Case("test_word_at_birth_is_too_late", "A word or a recipe is later than a start may take: it fails, by name.",
         lambda edge: plan(delay(edge, until=HELD_TOO_LONG)), _ENDS, each=(READY, WORKER_RECIPE, CORE_RECIPE)),
    Case("test_word_at_birth_comes_twice", "A word or a recipe comes twice, and counts once.",
         lambda edge: plan(duplicate(edge)), _SERVES, each=(READY, WORKER_RECIPE, WORKERS, CORE_RECIPE)),
    Case("test_who_the_workers_are_is_lost", "A core's client does not learn who its workers are, and needs it for "
         "nothing while the core can end them.",
         lambda fate: plan(LOST[fate](WORKERS)), (birth_told, handshake_order, nothing_left_behind),
         each=("drop", "truncate", "corrupt", "reorder")),
    Case("test_who_the_workers_are_is_lost_and_the_core_dies", "They go by themselves when their core is gone.",
         plan(drop(WORKERS), kill("core.0", at=marked("core.0", Mark.STEP), nth=4)),
         (death_is_told, no_orphans, nothing_left_behind)),
    Case("test_canary_nobody_knows_a_stopped_worker",
         "A core gives up a worker that stands still, and is killed before it has ended it: its client does not know "
         "it, and nobody ends it.",
         plan(drop(WORKERS), stall("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=5),
              kill("core.0", at=marked("core.0", Mark.DYING))), (death_is_told,),
         broken=(no_orphans, nothing_left_behind)),
    Case("test_core_s_pipe_is_cut_at_birth", "The core takes its client for gone, and the start fails, by its name.",
         plan(cut(WORKERS)), _ENDS),
    Case("test_why_a_worker_could_not_start_is_lost", "Its exit code is named in place of its reason.",
         lambda fate: plan(raises("worker.1", at=marked("worker.1", Mark.LOADING)), LOST[fate](READY)),
         _ENDS, each=tuple(LOST)),
    Case("test_why_a_core_could_not_start_is_lost", "Its exit code is named in place of its reason.",
         lambda fate: plan(raises("core.0", at=marked("core.0", Mark.READY)), LOST[fate](WORKERS, nth=2)),
         _ENDS, each=tuple(LOST)),
    Case("test_why_a_core_leaves_is_lost", "Its callers are told that it died, if not why.",
         lambda fate: plan(raises("core.0", at=marked("core.0", Mark.STEP), nth=4), LOST[fate](WORKERS, nth=2)),
         (birth_told, death_is_told, nothing_left_behind), each=tuple(LOST)),
), topology=tensor_parallel(2), workload=recorded("pair"), config=_SHORT))
