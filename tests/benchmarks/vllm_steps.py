"""vLLM's part of `test_vllm_steps.py`, for its interpreter: an `LLM` whose workers compute nothing and say one token
for whatever is scheduled. For each line of its input, a number of requests, it prints a line: the seconds they took.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def one_token_each(requests: Any, output: Any) -> dict[str, list[int]]:
    return {name: [7] for name in output.num_scheduled_tokens}


def main() -> None:
    asked = json.loads(sys.argv[1])
    from vllm import LLM, SamplingParams

    from scenarios.worlds.vllm.stand_in import requests, worker

    requests.Requests.execute = one_token_each  # type: ignore[method-assign]
    worker.StandInWorker._meet = lambda self: None  # type: ignore[method-assign]
    llm = LLM(**asked["arguments"])
    params = SamplingParams(max_tokens=asked["tokens"], ignore_eos=True, temperature=0.0, detokenize=False)
    print("ready", flush=True)
    for line in sys.stdin:
        prompts = [{"prompt_token_ids": [number + 1] * asked["prompt"]} for number in range(int(line))]
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - began
        assert [list(output.outputs[0].token_ids) for output in outputs] == [[7] * asked["tokens"]] * len(prompts)
        print(took, flush=True)


if __name__ == "__main__":
    main()
