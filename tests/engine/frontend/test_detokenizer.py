"""Tokens become text in steps that never take anything back, and end before a stop string."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.frontend.text.detokenizer import Detokenizer, IncrementalDecoder
from engine.frontend.text.tokenizer import load_tokenizer

MODEL = str(Path(__file__).parents[3] / "scenarios" / "model")
TOKENIZER = load_tokenizer(MODEL)
BACKEND = TOKENIZER.backend_tokenizer
VOCABULARY = BACKEND.get_vocab_size()

texts = st.text(st.one_of(st.sampled_from("the ring é環µ→😀👩‍🚀\ufffd ."), st.characters(codec="utf-8")), max_size=40)


def plain(text: str) -> list[int]:
    return BACKEND.encode(text, add_special_tokens=False).ids


def steps(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    """The visible text after each token and at the end; a stop string ends it."""
    seen = []
    for token in ids:
        stopped = detokenizer.add(token)
        seen.append(detokenizer.text)
        if stopped is not None:
            break
    detokenizer.finish()
    return [*seen, detokenizer.text]


@settings(max_examples=300, deadline=None)
@given(texts, texts)
def test_any_text_comes_out_whole_whatever_the_prompt_was(prompt: str, text: str) -> None:
    seen = steps(Detokenizer(TOKENIZER, plain(prompt)), plain(text))
    assert seen[-1] == text


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=40))
def test_any_tokens_even_broken_characters_give_what_decoding_at_once_gives(ids: list[int]) -> None:
    seen = steps(Detokenizer(TOKENIZER), ids)
    assert seen[-1] == BACKEND.decode(ids, skip_special_tokens=True)


@settings(max_examples=300, deadline=None)
@given(texts, st.lists(st.text("the ring é環", min_size=1, max_size=4), max_size=3))
def test_visible_text_never_shrinks_and_never_shows_half_a_character(text: str, stop: list[str]) -> None:
    seen = steps(Detokenizer(TOKENIZER, stop=stop), plain(text))
    for earlier, later in zip(seen, seen[1:], strict=False):
        assert later.startswith(earlier)
    if "\ufffd" not in text:
        assert not any("\ufffd" in shown for shown in seen)


@settings(max_examples=300, deadline=None)
@given(texts, st.lists(st.text("the ring é環.", min_size=1, max_size=5), min_size=1, max_size=3))
def test_text_ends_before_the_stop_string_complete_first_however_tokens_fall(text: str, stop: list[str]) -> None:
    detokenizer = Detokenizer(TOKENIZER, stop=stop)
    seen = steps(detokenizer, plain(text))
    # The rule itself, character by character: the first end at which some stop string is complete, the longest there.
    ends = (max((word for word in stop if text[:end].endswith(word)), key=len, default=None)
            for end in range(1, len(text) + 1))
    end, first = next(((end, word) for end, word in enumerate(ends, 1) if word is not None), (len(text), None))
    assert seen[-1] == text[: end - len(first or "")]
    assert detokenizer.stopped_by == first


def test_a_stop_string_is_told_by_the_token_that_completes_it() -> None:
    ids = plain("the core keeps every step. the ring waits")
    detokenizer = Detokenizer(TOKENIZER, stop=["step. the"])
    last = next(i for i, token in enumerate(ids) if detokenizer.add(token) is not None)
    assert detokenizer.stopped_by == "step. the"
    assert "step. the" in BACKEND.decode(ids[: last + 1])
    assert "step. the" not in BACKEND.decode(ids[:last])
    assert detokenizer.text == "the core keeps every "


def test_what_may_become_a_stop_string_is_held_back_until_it_is_decided() -> None:
    detokenizer = Detokenizer(TOKENIZER, stop=["step!"])
    shown = steps(detokenizer, plain("every step. the"))
    assert not any(text.endswith("step") for text in shown)
    assert shown[-1] == "every step. the"


def test_a_stop_string_within_the_first_min_tokens_does_not_count() -> None:
    ids = plain("the core the core")
    detokenizer = Detokenizer(TOKENIZER, stop=["core"], min_tokens=len(ids) - 1)
    assert steps(detokenizer, ids)[-1] == "the core the "


def test_special_tokens_give_no_text() -> None:
    eos = BACKEND.token_to_id("</s>")
    assert steps(Detokenizer(TOKENIZER), [*plain("the core"), eos, eos])[-1] == "the core"


def test_a_spaced_word_keeps_its_space_behind_the_prompt() -> None:
    """Decoders of the sentencepiece kind drop the space of the first word they see."""

    class Sentencepiece:
        words = ("▁Hello", "▁world", "▁again")

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return "".join(self.words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    decoder = IncrementalDecoder(Sentencepiece(), [0])
    assert decoder.add(1) + decoder.add(2) == " world again"


def test_tokens_whose_text_is_out_are_forgotten_so_that_long_answers_stay_cheap() -> None:
    decoder = IncrementalDecoder(TOKENIZER)
    for token in plain("the core keeps every step. ") * 300:
        decoder.add(token)
        assert len(decoder._ids) < 16
