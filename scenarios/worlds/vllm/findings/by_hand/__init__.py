"""Programs that show a finding with vLLM and the stand-in alone: no fault layer, no journal, no judge.

    VLLM_PYTHON -m scenarios.worlds.vllm.findings.by_hand.caller_killed [--mended]

Each says what it saw, and exits with 1 where vLLM broke its promise, with 0 where it kept it.
"""
