"""The twin's text: what its stand-in decodes is what the model's own tokenizer does."""

from __future__ import annotations

import random

import pytest

from engine.frontend.text.tokenizer import load_tokenizer
from scenarios.lab.settings import MODEL
from scenarios.workloads.workload import recorded
from scenarios.worlds.twin.text import RecordedTokenizer

WORKLOAD = recorded("texts")


@pytest.mark.parametrize("skip", [False, True])
def test_any_tokens_give_the_same_text(skip: bool) -> None:
    real, stand_in = load_tokenizer(str(MODEL)), RecordedTokenizer(str(MODEL), WORKLOAD)
    dice, size = random.Random(7), real.backend_tokenizer.get_vocab_size()
    for _ in range(2000):
        tokens = [dice.randrange(size) for _ in range(dice.randint(0, 8))]
        assert stand_in.decode(tokens, skip_special_tokens=skip) == real.decode(tokens, skip_special_tokens=skip)


def test_recorded_texts_give_the_same_tokens() -> None:
    real, stand_in = load_tokenizer(str(MODEL)), RecordedTokenizer(str(MODEL), WORKLOAD)
    texts = [r.asked for r in WORKLOAD.requests if isinstance(r.asked, str) and not r.unservable]
    assert texts
    assert [stand_in(text) for text in texts] == [real(text) for text in texts]
