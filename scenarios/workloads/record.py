"""Rebuilds the recorded workloads: `python -m scenarios.record`.

Promises: each file in scenarios/recorded holds prompts as token ids and, for each, the tokens that transformers'
`generate` chose greedily with the shipped model; so both worlds and the judges know the right answer without
a model. Tokens whose choice would hang on a rounding error are kept out: a prompt whose answer has a top-2
margin below `LEAST_MARGIN` anywhere is replaced by the next candidate. End-of-sequence is treated as the engine
treats it: with `ignore_eos` it is a token like others, without it is the last token of the answer.

    {"name", "model", "requests": [{"index", "prompt_token_ids", "sampling_params", "reference_token_ids",
                                    "prompt", "reference"}]}          (the last two, texts, are for readers)

A request may also say what is `asked` instead of its tokens or its parameters, why it is `unservable`, and the tokens
that end an answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from scenarios.workloads.build_model import DEEP_DIR, MODEL_DIR, tale

RECORDED_DIR = Path(__file__).parents[1] / "recorded"
#: What the model of five layers is asked.
DEEP = ("eight-growing", "sixty-four")
#: Sums in another order (tensor parallel, chunks, batches) move a logit by about 1e-5.
LEAST_MARGIN = 0.02


class ReferenceRecorder:
    """Knows the model: `answer` is the reference. `told` hears how many answers there are."""

    def __init__(self, directory: Path, told: Callable[[int], None] = lambda count: None) -> None:
        import torch
        from transformers import AutoTokenizer, LlamaForCausalLM

        self._torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self._model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._eos = self.tokenizer.eos_token_id
        self._told, self._answers = told, 0

    def answer(self, prompt: list[int], max_tokens: int, ignore_eos: bool, stops: Sequence[int] = (),
               min_tokens: int = 0) -> tuple[list[int], float]:
        """-> the greedy tokens, and the smallest top-2 margin among their choices.

        `stops`: tokens that end it, too. None that ends it is chosen among the first `min_tokens`.
        """
        eos = [*stops, *(() if ignore_eos else (self._eos,))] or None
        # Both places: generate fills in from the one what the other leaves open.
        self._model.generation_config.eos_token_id = self._model.config.eos_token_id = eos
        with self._torch.inference_mode():
            out = self._model.generate(
                self._torch.tensor([prompt]), attention_mask=self._torch.ones(1, len(prompt), dtype=self._torch.long),
                max_new_tokens=max_tokens, min_new_tokens=min_tokens or None, do_sample=False, output_scores=True,
                return_dict_in_generate=True)
        self._answers += 1
        self._told(self._answers)
        top = self._torch.cat(out.scores).topk(2).values
        tokens = out.sequences[0, len(prompt):].tolist()
        if eos is None and len(tokens) != max_tokens:
            raise click.ClickException(f"generate stopped after {len(tokens)} of {max_tokens} tokens")
        return tokens, float((top[:, 0] - top[:, 1]).min())

    def kept_going(self, candidates: Iterator[list[int]], max_tokens: int, min_tokens: int, ignore_eos: bool,
                   stop_at: int | None = None) -> dict[str, Any]:
        """The first candidate whose answer would end before it may: by itself, or at the token in place `stop_at`,
        which it has not had before.
        """
        for prompt in candidates:
            plain, _ = self.answer(prompt, max_tokens, ignore_eos)
            stops = [] if stop_at is None else [plain[stop_at]]
            if stop_at is not None and stops[0] in plain[:stop_at]:
                continue
            tokens, margin = self.answer(prompt, max_tokens, ignore_eos, stops, min_tokens)
            if margin >= LEAST_MARGIN and (stops or len(plain) < min_tokens):
                asked = {"max_tokens": max_tokens, "ignore_eos": ignore_eos, "min_tokens": min_tokens}
                return {
                    "prompt_token_ids": prompt,
                    "sampling_params": {**asked, "stop_token_ids": stops} if stops else asked,
                    "reference_token_ids": tokens,
                    **({} if ignore_eos else {"end_token_ids": [self._eos]}),
                    "prompt": self.tokenizer.decode(prompt), "reference": self.tokenizer.decode(tokens),
                }
        raise click.ClickException("no candidate left whose answer would end too soon")

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


def eight_mixed(recorder: ReferenceRecorder, prompts: Prompts, most: int = 24) -> list[dict[str, Any]]:
    """Long, short, three with 64 shared tokens (one only by its first 40), one that stops by itself, and one
    that grows by `most` tokens.
    """
    shared = next(prompts.of(64, 64))
    return [
        recorder.record(prompts.of(300, 320), 16),
        recorder.record(prompts.of(3, 5), 16),
        recorder.record(prompts.of(72, 90, shared), 16),
        recorder.record(prompts.of(66, 80, shared), 12),
        recorder.record(prompts.of(60, 80, shared[:40]), 16),
        recorder.record(prompts.of(30, 70), 24, ignore_eos=False, fits=lambda tokens: 6 <= len(tokens) < 24),
        recorder.record(prompts.of(100, 120), most),
        recorder.record(prompts.of(10, 20), 20),
    ]


def eight_growing(recorder: ReferenceRecorder, prompts: Prompts) -> list[dict[str, Any]]:
    """The same, but the one goes on alone for twice as long, so that a small cache must preempt."""
    return eight_mixed(recorder, Prompts(recorder.tokenizer, seed=1), most=48)


def even(count: int, max_tokens: int, least: int = 12, most: int = 40) -> Callable[..., list[dict[str, Any]]]:
    return lambda recorder, prompts: [recorder.record(prompts.of(least, most), max_tokens) for _ in range(count)]


def sixty_four(recorder: ReferenceRecorder, prompts: Prompts) -> list[dict[str, Any]]:
    """Every length from a few tokens to 130, half of them behind one of two shared prefixes."""
    first, second = next(prompts.of(32, 32)), next(prompts.of(48, 48))
    prefixes = [[], first, [], second]
    return [recorder.record(prompts.of(50 if prefixes[i % 4] else 4, 130, prefixes[i % 4]), 16) for i in range(64)]


#: Tokens of a byte or two: an end of 次, which the prompt begins; é, →, aé; an end without a beginning, a beginning.
BYTES = [97, 130, 105, 264, 161, 231, 243, 322, 105, 105, 165, 108]
PAD = 0


def texts(recorder: ReferenceRecorder, prompts: Prompts) -> list[dict[str, Any]]:
    """Prompts given as text, stop strings that begin and end within tokens, stop tokens, the end of sequence, and
    characters of several tokens. What is sampled has no reference: the twin's model takes what stands there.
    """
    plain = recorder.record(prompts.of(12, 24), 16, fits=lambda tokens: len(set(tokens)) < len(tokens))
    other = recorder.record(prompts.of(12, 24), 16)
    ended = recorder.record(prompts.of(30, 70), 24, ignore_eos=False, fits=lambda tokens: 3 <= len(tokens) < 20)
    text, tokens = other["reference"], plain["reference_token_ids"]
    early = len(recorder.tokenizer.decode(other["reference_token_ids"][:4]))
    repeated = next(token for token in tokens if tokens.count(token) > 1)
    first, ends = tokens.index(repeated), [recorder.tokenizer.eos_token_id, PAD]

    def asked(request: dict[str, Any], **params: Any) -> dict[str, Any]:
        return {**request, "sampling_params": {**request["sampling_params"], **params}}

    def cut(request: dict[str, Any], count: int) -> dict[str, Any]:
        return {**request, "reference_token_ids": request["reference_token_ids"][:count]}

    sampled = {"temperature": 50.0, "seed": 3, "max_tokens": len(BYTES)}
    words = {**other, "asked": other["prompt"].removeprefix("<s>")}
    return [
        {**plain, "asked": {"prompt": plain["prompt"].removeprefix("<s>")}},
        asked(words, stop=[text[9:17], text[12:15] + "#", text[30:34]]),
        asked(other, stop=[text[5:8], text[3:8], text[15:19], text[20:21]], min_tokens=4),
        asked(other, stop=[text[-3:] + "#", "#" + text[-2:], text[20:35] + "#", text[:9] + "#"]),
        asked(other, stop=[text[15:19], text[14:17], text[12:17]]),
        asked(other, stop=[text[:3]]),
        {**cut(asked(plain, stop_token_ids=[repeated]), first + 1), "asked": {
            "prompt_token_ids": plain["prompt_token_ids"]}},
        {**asked(ended, stop=["#"]), "end_token_ids": ends},
        asked(other, stop=[text[-2:]]),
        {**plain, "asked": "", "unservable": "the prompt is empty"},
        {"prompt_token_ids": [1, *BYTES[-2:]], "sampling_params": {**sampled, "ignore_eos": True},
         "reference_token_ids": [*BYTES[:9], PAD, *BYTES[10:]]},
        {"prompt_token_ids": [1, *BYTES[1:3]], "sampling_params": {**sampled, "min_tokens": 2},
         "reference_token_ids": [PAD, *BYTES[1:5], PAD], "end_token_ids": ends},
        {"prompt_token_ids": [1, *tokens[:2]], "sampling_params": {
            **sampled, "ignore_eos": True, "stop_token_ids": [repeated], "min_tokens": 2},
         "reference_token_ids": [tokens[2], repeated, tokens[2], repeated]},
        asked(other, stop=[text[early - 2:early + 1] + "#"], min_tokens=4),
        {"prompt_token_ids": [1, *tokens[1:3]], "sampling_params": {
            **sampled, "ignore_eos": True, "stop": [recorder.tokenizer.decode(tokens[2])], "min_tokens": 1},
         "reference_token_ids": [ends[0], tokens[2], tokens[3]]},
    ]


def kept_going(recorder: ReferenceRecorder, prompts: Prompts) -> list[dict[str, Any]]:
    """Answers that would end sooner than they may, by the end of sequence and by stop tokens, beside two that may.

    Of the last two one would end at the last token at which it may not, the other one ends at the first where it may.
    """
    return [
        recorder.kept_going(prompts.of(30, 70), 24, 18, ignore_eos=False),
        recorder.kept_going(prompts.of(12, 30), 20, 12, ignore_eos=True, stop_at=4),
        recorder.record(prompts.of(12, 30), 16),
        recorder.kept_going(prompts.of(12, 30), 20, 20, ignore_eos=True, stop_at=0),
        recorder.record(prompts.of(30, 70), 24, ignore_eos=False, fits=lambda tokens: 6 <= len(tokens) < 24),
        recorder.kept_going(prompts.of(12, 30), 16, 7, ignore_eos=True, stop_at=6),
        recorder.kept_going(prompts.of(12, 30), 16, 7, ignore_eos=True, stop_at=7),
    ]


def long_prompt(recorder: ReferenceRecorder, prompts: Prompts) -> list[dict[str, Any]]:
    """More tokens than attend together, beside a short prompt."""
    return [recorder.record(prompts.of(560, 600), 8), recorder.record(prompts.of(10, 20), 8)]


def unservable(recorder: ReferenceRecorder, prompts: Prompts) -> list[dict[str, Any]]:
    """What cannot be served where prompts are token ids and a request has at most 34 tokens, each by its name, and
    the largest and smallest that can be.
    """
    short, full = recorder.record(prompts.of(12, 12), 8), recorder.record(prompts.of(33, 33), 1)
    vocabulary = len(recorder.tokenizer)

    def bad(why: str, asked: Any = None, **params: Any) -> dict[str, Any]:
        request = {**short, "sampling_params": {**short["sampling_params"], **params}, "unservable": why}
        return request if asked is None else {**request, "asked": asked}

    def odd(prompt: list[int], **params: Any) -> dict[str, Any]:
        return {"prompt_token_ids": prompt, "reference_token_ids": [5, 6], "sampling_params": {
            "max_tokens": 2, "ignore_eos": True, "temperature": 1.0, **params}}

    return [
        short, {**full, "sampling_params": {"max_tokens": 16, "ignore_eos": True}},
        bad("the prompt is empty", []),
        bad("with at least one token of output", [*full["prompt_token_ids"], 5]),
        bad(f"token id {vocabulary} at place 1", [5, vocabulary, 6]),
        bad("token id -1 at place 2", [5, 6, -1]),
        bad("token 1 of the prompt", [5, "x"]), bad("token 0 of the prompt", [True]),
        bad("got int", 5), bad("needs 'prompt' or 'prompt_token_ids'", {"text": "x"}),
        bad("runs without a tokenizer", "the ring"), bad("runs without a tokenizer", {"prompt": "the ring"}),
        bad("stop strings need a tokenizer", stop=["x"]),
        bad(f"stop token id {vocabulary}", stop_token_ids=[vocabulary]),
        bad("seed", seed=1 << 63), bad("top_k", top_k=1 << 63), bad("max_tokens", max_tokens=1 << 63),
        odd([0, vocabulary - 1], stop_token_ids=[vocabulary - 1], seed=(1 << 63) - 1), odd([7, 0], seed=-(1 << 63)),
        {**bad("sampling_params must be SamplingParams"), "asked_params": {"max_tokens": 8}},
    ]


WORKLOADS: dict[str, Callable[[ReferenceRecorder, Prompts], list[dict[str, Any]]]] = {
    "eight-mixed": eight_mixed,
    "eight-even": even(8, 16),
    "single": even(1, 16),
    "pair": even(2, 16),
    "long": even(4, 100),
    "sixty-four": sixty_four,
    "texts": texts,
    "unservable": unservable,
    "kept-going": kept_going,
    "long-prompt": long_prompt,
    "eight-growing": eight_growing,
}


def write(path: Path, name: str, requests: list[dict[str, Any]], model: Path = MODEL_DIR) -> None:
    """One line per request, so that a change of one is one line in a diff."""
    lines = [json.dumps({"index": index, **request}, ensure_ascii=False) for index, request in enumerate(requests)]
    shipped = model.relative_to(RECORDED_DIR.parents[1]) if model.is_relative_to(RECORDED_DIR.parents[1]) else model
    head = f'{{"name": {json.dumps(name)}, "model": {json.dumps(str(shipped))}, "requests": [\n'
    path.write_text(head + ",\n".join(lines) + "\n]}\n")


@click.command()
@click.option("--model", type=click.Path(path_type=Path, exists=True), default=MODEL_DIR, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=RECORDED_DIR, show_default=True)
@click.option("--deep", is_flag=True, help="What the model of five layers is asked, with its answers.")
@click.argument("names", nargs=-1, type=click.Choice(sorted(WORKLOADS)))
def main(model: Path, out: Path, deep: bool, names: tuple[str, ...]) -> None:
    """Record the workloads NAMES (all, if none is given) with the model's own greedy answers."""
    if deep:
        model, out, names = DEEP_DIR, out / "deep", names or DEEP
    recorder = ReferenceRecorder(model)
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, build) in enumerate(WORKLOADS.items()):
        if names and name not in names:
            continue
        requests = build(recorder, Prompts(recorder.tokenizer, seed=number + 1))
        write(out / f"{name}.json", name, requests, model)
        tokens = sum(len(request["reference_token_ids"]) for request in requests)
        click.echo(f"{out / name}.json: {len(requests)} requests, {tokens} tokens")


if __name__ == "__main__":
    main()
