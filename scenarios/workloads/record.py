"""Rebuilds the recorded workloads: `python -m scenarios.record`.

Promises: each file in scenarios/recorded holds prompts as token ids and, for each, the tokens that transformers'
`generate` chose greedily with the shipped model; so both worlds and the judges know the right answer without
a model. Tokens whose choice would hang on a rounding error are kept out: a prompt whose answer has a top-2
margin below `LEAST_MARGIN` anywhere is replaced by the next candidate. End-of-sequence is treated as the engine
treats it: with `ignore_eos` it is a token like others, without it is the last token of the answer.

    {"name", "model", "requests": [{"index", "prompt_token_ids", "sampling_params", "reference_token_ids",
                                    "prompt", "reference"}]}          (the last two, texts, are for readers)
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from scenarios.workloads.build_model import MODEL_DIR, tale

RECORDED_DIR = Path(__file__).parents[1] / "recorded"
#: Sums in another order (tensor parallel, chunks, batches) move a logit by about 1e-5.
LEAST_MARGIN = 0.02


class ReferenceRecorder:
    """Knows the model: `answer` is the reference."""

    def __init__(self, directory: Path) -> None:
        import torch
        from transformers import AutoTokenizer, LlamaForCausalLM

        self._torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self._model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._eos = self.tokenizer.eos_token_id

    def answer(self, prompt: list[int], max_tokens: int, ignore_eos: bool) -> tuple[list[int], float]:
        """-> the greedy tokens, and the smallest top-2 margin among their choices."""
        eos = None if ignore_eos else self._eos
        # Both places: generate fills in from the one what the other leaves open.
        self._model.generation_config.eos_token_id = self._model.config.eos_token_id = eos
        with self._torch.inference_mode():
            out = self._model.generate(
                self._torch.tensor([prompt]), attention_mask=self._torch.ones(1, len(prompt), dtype=self._torch.long),
                max_new_tokens=max_tokens, do_sample=False, output_logits=True, return_dict_in_generate=True)
        top = self._torch.cat(out.logits).topk(2).values
        tokens = out.sequences[0, len(prompt):].tolist()
        if ignore_eos and len(tokens) != max_tokens:
            raise click.ClickException(f"generate stopped after {len(tokens)} of {max_tokens} tokens")
        return tokens, float((top[:, 0] - top[:, 1]).min())

    def record(self, candidates: Iterator[list[int]], max_tokens: int, ignore_eos: bool = True,
               fits: Callable[[list[int]], bool] = lambda tokens: True) -> dict[str, Any]:
        """The first candidate whose answer is decisive and `fits`, as a request without its index."""
        for prompt in candidates:
            tokens, margin = self.answer(prompt, max_tokens, ignore_eos)
            if margin >= LEAST_MARGIN and fits(tokens):
                return {
                    "prompt_token_ids": prompt,
                    "sampling_params": {"max_tokens": max_tokens, "ignore_eos": ignore_eos},
                    "reference_token_ids": tokens,
                    "prompt": self.tokenizer.decode(prompt), "reference": self.tokenizer.decode(tokens),
                }
        raise click.ClickException("no candidate left whose answer is decisive")


class Prompts:
    """An endless supply of beginnings of tales, the same for the same seed; no prompt comes twice."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self._rng = random.Random(seed)
        self._tokenizer = tokenizer
        self._seen: set[tuple[int, ...]] = set()

    def of(self, least: int, most: int, prefix: Sequence[int] = ()) -> Iterator[list[int]]:
        """Prompts of `least` to `most` tokens; a `prefix` takes the place of as many tokens at their beginning."""
        while True:
            length = self._rng.randint(least, most)
            ids: list[int] = []
            while len(ids) < length:
                ids += self._tokenizer(tale(self._rng, 60))["input_ids"]
            ids = [*prefix, *ids[len(prefix):length]]
            if tuple(ids) not in self._seen:
                self._seen.add(tuple(ids))
                yield ids


def eight_mixed(recorder: ReferenceRecorder, prompts: Prompts) -> list[dict[str, Any]]:
    """Long, short, three with 64 shared tokens (one only by its first 40), one that stops by itself, and one
    that grows by 48 tokens, so that a small cache must preempt.
    """
    shared = next(prompts.of(64, 64))
    return [
        recorder.record(prompts.of(300, 320), 16),
        recorder.record(prompts.of(3, 5), 16),
        recorder.record(prompts.of(72, 90, shared), 16),
        recorder.record(prompts.of(66, 80, shared), 12),
        recorder.record(prompts.of(60, 80, shared[:40]), 16),
        recorder.record(prompts.of(30, 70), 24, ignore_eos=False, fits=lambda tokens: 6 <= len(tokens) < 24),
        recorder.record(prompts.of(100, 120), 48),
        recorder.record(prompts.of(10, 20), 20),
    ]


def even(count: int, max_tokens: int, least: int = 12, most: int = 40) -> Callable[..., list[dict[str, Any]]]:
    return lambda recorder, prompts: [recorder.record(prompts.of(least, most), max_tokens) for _ in range(count)]


def sixty_four(recorder: ReferenceRecorder, prompts: Prompts) -> list[dict[str, Any]]:
    """Every length from a few tokens to 130, half of them behind one of two shared prefixes."""
    first, second = next(prompts.of(32, 32)), next(prompts.of(48, 48))
    prefixes = [[], first, [], second]
    return [recorder.record(prompts.of(50 if prefixes[i % 4] else 4, 130, prefixes[i % 4]), 16) for i in range(64)]


WORKLOADS: dict[str, Callable[[ReferenceRecorder, Prompts], list[dict[str, Any]]]] = {
    "eight-mixed": eight_mixed,
    "eight-even": even(8, 16),
    "single": even(1, 16),
    "pair": even(2, 16),
    "long": even(4, 100),
    "sixty-four": sixty_four,
}


def write(path: Path, name: str, requests: list[dict[str, Any]]) -> None:
    """One line per request, so that a change of one is one line in a diff."""
    lines = [json.dumps({"index": index, **request}, ensure_ascii=False) for index, request in enumerate(requests)]
    head = f'{{"name": {json.dumps(name)}, "model": "scenarios/model", "requests": [\n'
    path.write_text(head + ",\n".join(lines) + "\n]}\n")


@click.command()
@click.option("--model", type=click.Path(path_type=Path, exists=True), default=MODEL_DIR, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=RECORDED_DIR, show_default=True)
@click.argument("names", nargs=-1, type=click.Choice(sorted(WORKLOADS)))
def main(model: Path, out: Path, names: tuple[str, ...]) -> None:
    """Record the workloads NAMES (all, if none is given) with the model's own greedy answers."""
    recorder = ReferenceRecorder(model)
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, build) in enumerate(WORKLOADS.items()):
        if names and name not in names:
            continue
        requests = build(recorder, Prompts(recorder.tokenizer, seed=number + 1))
        write(out / f"{name}.json", name, requests)
        tokens = sum(len(request["reference_token_ids"]) for request in requests)
        click.echo(f"{out / name}.json: {len(requests)} requests, {tokens} tokens")


if __name__ == "__main__":
    main()
