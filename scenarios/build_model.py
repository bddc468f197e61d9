"""Builds the small Llama that the scenarios play with: `python -m scenarios.build_model`.

Promises: the same command on the same library versions gives the same tokenizer and a model of the same
quality; the directory is an ordinary Hugging Face one (config.json, model.safetensors, tokenizer.json) that
loads offline, in float32, below 1 MB; its greedy choices are decisive (median top-2 margin above 1), so that
a reference token never hangs on a rounding error; heads divide by 4, so it runs at TP=1, 2 and 4.

The text is made here. A handful of short stories about engines and rings is drawn from a small grammar and
learned nearly by heart. Stories share sentences, so what comes next depends on what was read long before:
a wrong key or value in the cache shows in the tokens.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import click

MODEL_DIR = Path(__file__).parent / "model"
STORIES = 40
MAX_BYTES = 1_000_000
VOCABULARY = 640
SPECIALS = ("<pad>", "<s>", "</s>")

SUBJECTS = (
    "the ring", "the core", "worker zero", "worker one", "the frontend", "a quiet reader", "the old writer",
    "the scheduler", "a lost message", "the coordinator", "the subscriber", "die Brücke", "le café du réseau",
    "環の番人",
)
VERBS = (
    "keeps", "counts", "waits for", "carries", "forgets", "answers", "publishes", "drops", "repeats", "holds",
    "wakes", "follows",
)
OBJECTS = (
    "every step", "the last token", "a cold block", "the slow reader", "its own flag", "two small frames",
    "the heartbeat", "a long prompt", "the empty chunk", "its neighbour", "the doorbell", "a shared prefix",
    "12 µs of silence", "the naïve clock",
)
ENDINGS = (
    "before the flag is set", "while the others sleep", "until the queue is empty", "and tells nobody",
    "→ then the next one starts", "as it promised", "after the fence", "in the order of arrival", "without a copy",
)


def stories(count: int = STORIES, seed: int = 7) -> list[str]:
    """Distinct stories of seven to ten sentences; a third of all sentences is shared between stories."""
    rng = random.Random(seed)

    def sentence() -> str:
        words = [rng.choice(SUBJECTS), rng.choice(VERBS), rng.choice(OBJECTS)]
        if rng.random() < 0.6:
            words.append(rng.choice(ENDINGS))
        return " ".join(words) + "."

    shared = [sentence() for _ in range(12)]
    return [
        " ".join(rng.choice(shared) if rng.random() < 0.33 else sentence() for _ in range(rng.randint(7, 10)))
        for _ in range(count)
    ]


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


def model_config(tokenizer):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=1024, rope_theta=10_000.0,
        tie_word_embeddings=True, attention_bias=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )


def train(tokenizer, texts: list[str], steps: int, seed: int, batch: int = 12, length: int = 192):
    """-> the trained model. Each row starts at a random token of a story and runs on into the next ones."""
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    rng = random.Random(seed)
    torch.set_num_threads(2)
    model = LlamaForCausalLM(model_config(tokenizer)).to(torch.float32)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    encoded = [[bos, *tokenizer(text, add_special_tokens=False)["input_ids"], eos] for text in texts]

    def row() -> list[int]:
        ids: list[int] = []
        while len(ids) < length:
            story = rng.choice(encoded)
            # An entrance in mid-story gets its <s> too: prompts do.
            start = rng.randrange(len(story) // 2) if rng.random() < 0.5 else 0
            ids += story if start == 0 else [bos, *story[start:]]
        return ids[:length]

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps, pct_start=0.1)
    model.train()
    for step in range(steps):
        ids = torch.tensor([row() for _ in range(batch)])
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
@click.option("--out", type=click.Path(path_type=Path), default=MODEL_DIR, show_default=True)
@click.option("--steps", default=450, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(out: Path, steps: int, seed: int) -> None:
    """Train the small model and write it to OUT. Takes about half a minute on two cores."""
    texts = stories()
    tokenizer = build_tokenizer(texts)
    model = train(tokenizer, texts, steps, seed)
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
