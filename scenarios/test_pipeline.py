"""Layers in stages: what goes from one to the next, and what becomes of the others when one is gone."""

from __future__ import annotations

from pathlib import Path

from engine.topology import Mark, tensor_parallel
from faults.plan import Plan, hang, kill, marked, plan, raises, stall, terminate, until
from scenarios.guarantees.all import (
    abort_is_final,
    async_same_tokens,
    blocks_conserved,
    death_is_told,
    drain,
    ends_once,
    first_error_told,
    groups_agree,
    health_is_true,
    nothing_left_behind,
    placeholders_conserved,
    pp_no_stale_slot,
    pp_stage_death_told,
    pp_tokens_match,
    rpc_any_rank_fails_fast,
    rpc_matched,
    served_in_turn,
    stall_is_told,
    steps_in_order,
    tokens_in_order,
    tokens_match_reference,
    two_phase_paired,
    workers_in_step,
)
from scenarios.lab.family import Case, family
from scenarios.test_scheduling import pressure, under_pressure

DEEP = str(Path(__file__).parent / "recorded" / "deep" / "model")
#: Who waits for another rank gives up before the core does: so it can be told who that is.
NAMED = {"collective_s": 0.6}
STAGES, PROMISED = under_pressure(bounds=NAMED), under_pressure(bounds=NAMED, scheduler={"async_scheduling": True})
IN_ORDER = (steps_in_order, two_phase_paired, served_in_turn, blocks_conserved, tokens_match_reference, abort_is_final)
WHOLE = (pp_tokens_match, pp_no_stale_slot)
TOLD = (pp_stage_death_told, ends_once, nothing_left_behind)
TWO_OF_TWO, FOUR = tensor_parallel(2, pp=2), tensor_parallel(1, pp=4)
FOUR_STAGES = {"topology": FOUR, "config": under_pressure(model=DEEP, bounds=NAMED),
               "workload": pressure("deep/eight-growing")}

globals().update(family(__name__, (
    Case("test_two_stages",
         "Two stages, each with its own layers, and a step in each of them: prompts in pieces, aborts, preemptions.",
         Plan(), (*IN_ORDER, pp_tokens_match, rpc_matched, workers_in_step)),
    Case("test_two_stages_one_after_the_other",
         "Two stages and one step in flight: as one engine in two parts.",
         Plan(), (tokens_match_reference, two_phase_paired, served_in_turn),
         play={"config": under_pressure(max_concurrent_batches=1)}),
    Case("test_two_stages_of_two_ranks",
         "Two ranks in each stage, each of which hands over its share.",
         Plan(), (*IN_ORDER, pp_tokens_match, groups_agree), play={
             "topology": TWO_OF_TWO, "config": under_pressure()}),
    Case("test_two_stages_over_gloo",
         "Two stages of two ranks without shared memory.",
         Plan(), (pp_tokens_match, groups_agree), play={
             "topology": TWO_OF_TWO, "config": under_pressure(device_communicator="gloo")}),
    Case("test_four_stages_of_unequal_layers",
         "Five layers in four stages, four steps in flight.",
         Plan(), (*IN_ORDER, *WHOLE), play={"topology": FOUR, "config": under_pressure(model=DEEP),
                                            "workload": pressure("deep/eight-growing")}),
    Case("test_two_stages_of_promised_tokens",
         "With async scheduling the last stage tells the first one what it has sampled.",
         Plan(), (*IN_ORDER, *WHOLE, async_same_tokens, placeholders_conserved), play={"config": PROMISED}),
    Case("test_two_stages_of_two_ranks_with_promised_tokens",
         "The same, with two ranks in each stage.",
         Plan(), (*IN_ORDER, *WHOLE, async_same_tokens), play={
             "config": under_pressure(scheduler={"async_scheduling": True}), "topology": TWO_OF_TWO}),
    Case("test_four_stages_of_promised_tokens",
         "Four stages, five steps in flight: those between the first and the last never see a token.",
         Plan(), (*IN_ORDER, *WHOLE, async_same_tokens), play={
             "topology": FOUR, "config": under_pressure(model=DEEP, scheduler={"async_scheduling": True}),
             "workload": pressure("deep/eight-growing")}),
    Case("test_two_stages_drain",
         "SIGTERM with a step in each stage: what was accepted is answered.",
         plan(terminate("core.0", at=marked("core.0", Mark.SUBMITTED), nth=8)),
         (drain, tokens_match_reference, steps_in_order, nothing_left_behind)),
), topology=tensor_parallel(1, pp=2), workload=pressure(), config=STAGES))

globals().update(family(__name__, (
    Case("test_first_stage_dies_before_it_hands_over",
         "The first stage is killed when it has computed a step that the next one waits for.",
         plan(kill("worker.0", at="worker.0/pipe:send", nth=8)),
         (*TOLD, death_is_told, tokens_in_order)),
    Case("test_first_stage_dies_as_it_begins",
         "The first stage is killed as it comes to a step whose call the next one has read, and waits for it.",
         plan(hang("worker.0", at="core.0->worker.0/rpc:receive", nth=17, until=until(seconds=0.1)),
              kill("worker.0", at=marked("worker.0", Mark.EXECUTING), nth=17)), (*TOLD, death_is_told)),
    Case("test_last_stage_dies_with_a_full_queue",
         "The last stage is killed as it takes a step, and the next one is on its way.",
         plan(kill("worker.1", at="core.0->worker.1/rpc:receive", nth=21)),
         (death_is_told, ends_once, tokens_in_order, nothing_left_behind)),
    Case("test_last_stage_stands_still_before_it_tells",
         "The last stage is stopped when it has sampled the tokens that the first one goes on with.",
         plan(stall("worker.1", at="worker.1/pipe:send", nth=4)),
         (ends_once, nothing_left_behind, stall_is_told),  # the machine decides whether the first stage waits by then
         play={"config": PROMISED}),
    Case("test_middle_stage_stands_still",
         "One of four stages is stopped: not those are named that wait for it.",
         plan(stall("worker.1", at="worker.1/pipe:receive", nth=6)), (*TOLD, stall_is_told, health_is_true),
         play=FOUR_STAGES),
    Case("test_middle_stage_hangs",
         "One of four stages hangs before it hands over.",
         plan(hang("worker.2", at="worker.2/pipe:send", nth=6)), (*TOLD, stall_is_told),
         play=FOUR_STAGES),
    Case("test_first_stage_fails_with_the_next_step_sent",
         "The first stage raises in a step, and the next one has been sent already: the last one waits in vain.",
         plan(raises("worker.0", at=marked("worker.0", Mark.EXECUTING), nth=15)),
         (*TOLD, first_error_told, rpc_any_rank_fails_fast)),
    Case("test_rank_of_a_stage_fails",
         "One of two ranks of a stage raises before it hands over: its like in the next stage waits, and is not named.",
         plan(raises("worker.1", at="worker.1/pipe:send", nth=6)), (*TOLD, rpc_any_rank_fails_fast),
         play={"topology": TWO_OF_TWO}),
    Case("test_rank_of_a_stage_stands_still",
         "One of two ranks of a stage is stopped before a collective: its like waits, and the next stage for that.",
         plan(stall("worker.1", at="worker.1/collective:enter", nth=9)), (*TOLD, stall_is_told, groups_agree),
         play={"topology": TWO_OF_TWO}),
    Case("test_rank_of_a_stage_stands_still_as_it_hands_over",
         "The same before it hands over: in the next stage one waits for it, and the other one for that.",
         plan(stall("worker.1", at="worker.1/pipe:send", nth=4)), (*TOLD, stall_is_told),
         play={"topology": TWO_OF_TWO}),
    Case("test_stage_is_late",
         "The first stage stands still for a while with a step in its hands, and goes on.",
         plan(stall("worker.0", at="worker.0/pipe:send", nth=8, until=until(seconds=0.3))),
         (pp_tokens_match, steps_in_order)),
), topology=tensor_parallel(1, pp=2), workload=pressure(), config=STAGES))
