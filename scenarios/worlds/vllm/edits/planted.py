"""Bugs of ours in vLLM's functions, and which promise each of them breaks in which scenario: the lab must see it."""

from __future__ import annotations

import msgspec

from scenarios.worlds.vllm.edits.edit import Edit, begins, does, passes

_CORE, _CLIENT = "vllm.v1.engine.utils", "vllm.v1.engine.core_client"
_EXECUTOR, _OUTPUTS = "vllm.v1.executor.multiproc_executor", "vllm.v1.engine.output_processor"


class Planted(msgspec.Struct, frozen=True):
    sentence: str
    edits: tuple[Edit, ...]
    scenario: str  # that has to turn red
    breaks: str  # the promise that it must break there, among others perhaps


PLANTED = {
    "tokens-of-another": Planted(
        "Two requests of a step are given each other's tokens.",
        (Edit(_OUTPUTS, "OutputProcessor.process_outputs", begins(
            "if len(engine_core_outputs) > 1:\n"
            "    one, other = engine_core_outputs[:2]\n"
            "    one.new_token_ids, other.new_token_ids = other.new_token_ids, one.new_token_ids")),),
        "test_vllm_calm", "tokens-match-reference"),
    "core-unwatched": Planted(
        "The client's monitor of cores does nothing.",
        (Edit(_CLIENT, "MPClient.start_engine_core_monitor", does("return None")),),
        "test_vllm_is_killed[core.0 in decode]", "death-is-told"),
    "parent-unwatched": Planted(
        "A worker does not look at the pipe that tells of its core's end.",
        (Edit(_EXECUTOR, "WorkerProc.monitor_death_pipe", does("return None")),),
        "test_vllm_is_killed[core.0 in decode]", "no-orphans"),
    "always-healthy": Planted(
        "Whoever asks for the health hears that all is well.",
        (Edit("vllm.v1.engine.async_llm", "AsyncLLM.check_health", does("return None")),),
        "test_vllm_is_killed_at_rest[core.0]", "health-is-true"),
    "step-without-bound": Planted(
        "No step has a time-out.",
        (Edit(_EXECUTOR, "MultiprocExecutor.execute_model", passes("timeout", "None")),
         Edit(_EXECUTOR, "MultiprocExecutor.sample_tokens", passes("timeout", "None"))),
        "test_vllm_worker_is_stopped[worker.1 in decode]", "stall-is-told"),
    "start-unwatched": Planted(
        "A core that ends amid the start is not looked at.",
        (Edit(_CORE, "CoreEngineProcManager.sentinels", does("return []")),),
        "test_vllm_worker_is_killed_at_start[worker.1]", "start-ends"),
}
