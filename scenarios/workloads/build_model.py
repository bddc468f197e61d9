"""Builds the small Llamas that the scenarios play with: `python -m scenarios.workloads.build_model [--deep]`.

Promises: the same command on the same library versions gives the same tokenizer and a model of the same
quality; the directory is an ordinary Hugging Face one (config.json, model.safetensors, tokenizer.json) that
loads offline, in float32, below 1 MB; its greedy choices are decisive (median top-2 margin above 1), so that
a reference token never hangs on a rounding error; heads divide by 4, so it runs at TP=1, 2 and 4. The deep one has 5
layers instead of 2, which no number of stages divides.

The text is made here: tales about engines and rings. A tale begins by saying how each thing is called, drawn
anew for each tale and in any order; later every thing is called so when something is told of it.

    <s>Ines is our clock. Ada is our ring. Hiro is our flag. ... the ring Ada keeps every step. the flag ...
       '----------- blocks 0 to 2 of the cache --------------'                    must be read from there ^

So a name cannot be guessed from what stands near it: it is read from a block written long before, and a lost,
stale or foreign block shows in the tokens.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import click

MODEL_DIR = Path(__file__).parents[1] / "model"
DEEP_DIR = Path(__file__).parents[1] / "recorded" / "deep" / "model"
MAX_BYTES = 1_000_000
VOCABULARY = 640
SPECIALS = ("<pad>", "<s>", "</s>")

#: A thing, how it may be called, and what is told of it. The sentences follow each other in this order, in a circle.
THINGS = {
    "ring": ("Ada", "Bruno", "Chloé", "Darius"),
    "reader": ("Élise", "Farid", "Greta", "Hiro"),
    "core": ("Ines", "Jürgen", "Kamala", "Łukasz"),
    "flag": ("Mira", "Noor", "Oleg", "Paula"),
    "café": ("Quentin", "Rosa", "Søren", "Tarek"),
    "token": ("Uma", "Viktor", "Wanda", "Xavier"),
    "番人": ("花子", "太郎", "次郎", "桜"),
    "clock": ("Yara", "Zeno", "Ari", "Bela"),
}
SENTENCES = {
    "ring": "the ring {} keeps every step.",
    "reader": "a quiet reader {} wakes → all others sleep.",
    "core": "the old core {} counts 12 µs of silence.",
    "flag": "no flag {} is set before the fence.",
    "café": "le café {} du réseau carries a long prompt.",
    "token": "the last token {} tells nobody.",
    "番人": "環の 番人 {} holds two small frames.",
    "clock": "one naïve clock {} follows its neighbour.",
}
LAST_SENTENCE = " so it ends."
#: A tale whose clock is called so ends after the clock's sentence.
ENDING = "Zeno"
#: Larger steps, or a smaller `initializer_range`, and the model never learns to look back.
LEARNING_RATE = 3e-3


def tale(rng: random.Random, count: int) -> str:
    """How everything is called, and up to `count` sentences from a random one on; shorter where the tale ends."""
    things = list(THINGS)
    names = {thing: rng.choice(choice) for thing, choice in THINGS.items()}
    told = [f" {names[thing]} is our {thing}." for thing in rng.sample(things, len(things))]
    first = rng.randrange(len(things))
    for number in range(first, first + count):
        thing = things[number % len(things)]
        told.append(" " + SENTENCES[thing].format(names[thing]))
        if thing == "clock" and names[thing] == ENDING:
            return "".join([*told, LAST_SENTENCE])
    return "".join(told)


def tales(count: int = 40, seed: int = 7) -> list[str]:
    """Tales for the tokenizer and for looking at the model."""
    rng = random.Random(seed)
    return [tale(rng, 2 * len(THINGS)) for _ in range(count)]


def build_tokenizer(texts: list[str]):
    """A byte-level BPE trained on `texts`: every string has tokens, and characters may span several."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIALS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    bos, eos = (tokenizer.token_to_id(token) for token in ("<s>", "</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", bos), ("</s>", eos)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )


def model_config(tokenizer, deep: bool):
    from transformers import LlamaConfig

    layers, wide = (5, 128) if deep else (2, 176)
    return LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=wide, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=1024,
        rope_theta=500_000.0, initializer_range=0.1,
        tie_word_embeddings=True, attention_bias=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )


def train(tokenizer, steps: int, seed: int, deep: bool):
    """-> the trained model. Each row is one tale, or a few where they end; every fourth step takes long ones."""
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    rng = random.Random(seed)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(model_config(tokenizer, deep)).to(torch.float32)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id

    def row(length: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < length:
            text = tale(rng, rng.choice((6, 12, 60)))
            ids += [bos, *tokenizer(text, add_special_tokens=False)["input_ids"], eos]
        return ids[:length]

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=steps, pct_start=0.08)
    model.train()
    for step in range(steps):
        batch, length = (5, 400) if step % 4 == 3 else (16, 112)
        ids = torch.tensor([row(length) for _ in range(batch)])
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            click.echo(f"step {step:4d} of {steps}: loss {loss.item():.3f}")
    return model.eval()


def median_margin(model, tokenizer, texts: list[str]) -> float:
    """The median, over all places in `texts`, of the distance between the two largest logits."""
    import torch

    margins = []
    with torch.inference_mode():
        for text in texts:
            logits = model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).logits[0]
            top = logits.topk(2).values
            margins.append(top[:, 0] - top[:, 1])
    return float(torch.cat(margins).median())


def save(model, tokenizer, target: Path) -> None:
    """Write the Hugging Face directory, whole or not at all."""
    partial = target.with_name(target.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    # As large models have it: several tokens end an answer.
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    # The tokenizer is pretty-printed by its library; compact JSON is less than half of it.
    path = partial / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), ensure_ascii=False, separators=(",", ":")) + "\n")
    # The class's name of transformers 5 is unknown to transformers 4; both know the older one.
    path = partial / "tokenizer_config.json"
    settings = {**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}
    settings.pop("backend", None)
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    for path in partial.iterdir():
        path.chmod(0o644)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Default: where the shipped one lies.")
@click.option("--deep", is_flag=True, help="The one of five layers.")
@click.option("--steps", default=600, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(out: Path | None, deep: bool, steps: int, seed: int) -> None:
    """Train a small model and write it to OUT. Takes about a minute on one core, the deep one two."""
    out = out or (DEEP_DIR if deep else MODEL_DIR)
    texts = tales()
    tokenizer = build_tokenizer(texts)
    model = train(tokenizer, steps, seed, deep)
    margin = median_margin(model, tokenizer, texts)
    if margin <= 1.0:
        raise click.ClickException(f"the median top-2 margin is {margin:.2f}, not above 1: train for more --steps")
    save(model, tokenizer, out)
    size_bytes = sum(path.stat().st_size for path in out.iterdir())
    if size_bytes > MAX_BYTES:
        raise click.ClickException(f"{out} takes {size_bytes} bytes, more than {MAX_BYTES}: shrink the model")
    click.echo(f"{out}: {size_bytes} bytes, median top-2 margin {margin:.2f}")


if __name__ == "__main__":
    main()
