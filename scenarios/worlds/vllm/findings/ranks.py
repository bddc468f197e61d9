"""Findings of several engines of one client."""

from __future__ import annotations

from scenarios.worlds.vllm.findings.finding import Finding
from scenarios.worlds.vllm.findings.known import Known

RANKS = (
    Finding(
        id="coordinator-dies-unnoticed", release="0.33.0",
        title="The coordinator of engines in step dies: nobody is told, and a request to them at rest waits for ever",
        breaks=("ends-once",),
        source="vllm/v1/engine/async_llm.py, generate: a stream ends with its last output or with an error; "
               "vllm/v1/utils.py, wait_for_completion_or_failure: the coordinator's end is a server's failure",
        rows=("test_vllm_coordinator_in_step_is_killed",),
        mechanism="Once it has started, a client looks at its cores alone. Without a coordinator an engine that begins "
                  "a wave waits in a collective for the others, which nobody wakes.",
        control="coordinator-is-watched", by_hand="ranks.coordinator_killed"),
    Finding(
        id="death-is-told-behind-the-others", release="0.33.0",
        title="One of two engines dies: requests of the other one end as if their callers had aborted them",
        breaks=("nothing-without-cause",),
        source="vllm/v1/engine/__init__.py, FinishReason: abort is said of what its client has aborted; "
               "vllm/v1/engine/core_client.py, start_engine_core_monitor: at a core's end the engine is marked dead, "
               "and who waits gets EngineDeadError",
        rows=("test_vllm_rank_is_killed_beside_a_busy_one",),
        mechanism="The monitor asks the other cores to leave and waits for that before it marks the engine dead: they "
                  "abort what they have, and the client hands that on as an end like any other.",
        control="death-is-told-first", by_hand="ranks.rank_killed"),
    Finding(
        id="resume-waits-for-the-others", release="0.33.0",
        title="A resume of engines in step that have not paused, as a wave begins: all of them wait for ever",
        breaks=("ends-once",),
        source="vllm/v1/engine/core.py, DPEngineCoreProc.resume_scheduler: who has not paused ignores it",
        rows=("test_vllm_ranks_go_on_that_have_not_paused",),
        mechanism="Whether an engine enters the collective by which all leave a pause is decided by whether it runs, "
                  "and engines differ in that while they are woken.",
        control="who-has-not-paused-asks-nobody", by_hand="ranks.resume_amid_a_wave",
        known=(Known("vllm#55229", "a proposed change: a resume of what goes on does nothing"),)),
)
