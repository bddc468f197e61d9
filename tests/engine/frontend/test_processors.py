"""A request is checked before it is sent, and its tokens become what the caller sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig, SchedulerConfig
from engine.errors import BadRequestError, ConfigError
from engine.frontend.text import tokenizer
from engine.frontend.text.input_processor import InputProcessor
from engine.frontend.text.output_processor import OutputProcessor
from engine.messages import FinishReason, SamplingParams

MODEL = str(Path(__file__).parents[3] / "scenarios" / "model")
TOKENIZER = tokenizer.load_tokenizer(MODEL)
EOS = 2


def inputs_of(**config) -> InputProcessor:
    return tokenizer.inputs_of(EngineConfig(model=MODEL, **config))


def plain(text: str) -> list[int]:
    return TOKENIZER.backend_tokenizer.encode(text, add_special_tokens=False).ids


def test_text_becomes_the_tokens_that_transformers_gives() -> None:
    from transformers import AutoTokenizer

    text = "le café du réseau → 環"
    processed = inputs_of().process("r", text)
    assert processed.prompt == text
    assert processed.prompt_token_ids == AutoTokenizer.from_pretrained(MODEL)(text)["input_ids"]
    assert processed.eos_token_id == EOS


@pytest.mark.parametrize("prompt", [[1, 5, 7], (1, 5, 7), {"prompt_token_ids": [1, 5, 7]}])
def test_token_ids_pass_as_they_are(prompt) -> None:
    processed = inputs_of(skip_tokenizer_init=True).process("r", prompt)
    assert (processed.prompt, processed.prompt_token_ids) == (None, [1, 5, 7])


@pytest.mark.parametrize(("prompt", "params", "said"), [
    ([], SamplingParams(), "the prompt is empty"),
    ("", SamplingParams(), "the prompt is empty"),
    ([1] * 32, SamplingParams(), "32 tokens.*length of 32"),
    ([1, 9000], SamplingParams(), r"9000 at place 1 .*vocabulary of \d+$"),
    ([-1], SamplingParams(), "-1 at place 0"),
    ([1, "x"], SamplingParams(), "token 1 of the prompt is 'x'"),
    ([True], SamplingParams(), "token 0 of the prompt is True"),
    (17, SamplingParams(), "got int"),
    ({"text": "x"}, SamplingParams(), "'prompt_token_ids'"),
    ([1], SamplingParams(stop_token_ids=(700,)), "stop token id 700"),
    ([1], SamplingParams(seed=1 << 64), "64 bits"),
    ([1], {"max_tokens": 3}, "got dict"),
])
def test_a_request_that_cannot_be_served_says_why_with_its_numbers(prompt, params, said) -> None:
    processor = inputs_of(scheduler=SchedulerConfig(max_model_len=32))
    with pytest.raises(BadRequestError, match=said) as caught:
        processor.process("r7", prompt, params)
    assert caught.value.request_id == "r7"
    assert not caught.value.may_have_taken_effect


def test_the_longest_prompt_leaves_room_for_one_token() -> None:
    processor = inputs_of(scheduler=SchedulerConfig(max_model_len=32))
    assert len(processor.process("r", [1] * 31).prompt_token_ids) == 31


@pytest.mark.parametrize("request_", [("text", SamplingParams()), ([1], SamplingParams(stop=("x",)))])
def test_without_a_tokenizer_text_is_refused_by_name(request_) -> None:
    with pytest.raises(BadRequestError, match="skip_tokenizer_init"):
        inputs_of(skip_tokenizer_init=True).process("r", *request_)


def test_further_ends_of_a_model_count_as_stop_tokens_unless_ends_are_ignored() -> None:
    processor = inputs_of(skip_tokenizer_init=True)
    processor.model = msgspec.structs.replace(processor.model, eos_token_ids=(2, 9))
    assert processor.process("r", [1], SamplingParams(stop_token_ids=(5,))).sampling_params.stop_token_ids == (5, 9)
    assert processor.process("r", [1], SamplingParams(ignore_eos=True)).sampling_params.stop_token_ids == ()


def test_a_model_length_beyond_the_model_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="1 and the model's 1024, got 2000"):
        inputs_of(scheduler=SchedulerConfig(max_model_len=2000))


def test_a_directory_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer cannot be loaded"):
        tokenizer.load_tokenizer(str(tmp_path))


def test_the_frontend_needs_no_torch() -> None:
    code = ("import sys; from engine.frontend.text import output_processor, tokenizer\n"
            f"from engine.config import EngineConfig\n"
            f"tokenizer.inputs_of(EngineConfig(model={MODEL!r})).process('r', 'the core')\n"
            "assert not {'torch', 'transformers', 'asyncio'} & set(sys.modules), 'a heavy import'")
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(MODEL).parents[1], check=False).returncode == 0


# -- outputs


def processor_with(params: SamplingParams, tokenizer=TOKENIZER) -> OutputProcessor:
    processor = OutputProcessor(tokenizer)
    inputs = inputs_of()
    processor.add(inputs.process("r", "the ring", params))
    return processor


def test_outputs_are_cumulative_and_the_last_one_says_how_it_ended() -> None:
    processor, ids = processor_with(SamplingParams()), plain(" keeps every step")
    first = processor.on_tokens("r", ids[:1], num_cached_tokens=16)
    second = processor.on_tokens("r", ids[1:])
    last = processor.on_end("r", FinishReason.LENGTH)
    assert [p.output.token_ids for p in (first, second)] == [ids[:1], ids]
    assert (second.output.text, second.output.finished) == (" keeps every step", False)
    assert (last.text, last.finished, last.finish_reason, last.num_cached_tokens) == (
        " keeps every step", True, "length", 16)
    assert (last.prompt, processor.requests) == ("the ring", {})


def test_a_stop_string_is_told_and_ends_text_and_tokens_there() -> None:
    processor = processor_with(SamplingParams(stop=(" every st",)))
    ids = plain(" keeps every step.")
    progress = processor.on_tokens("r", [*ids, *ids])
    assert progress.stop_string == " every st"
    assert processor.on_tokens("r", ids).output.token_ids == progress.output.token_ids
    last = processor.on_end("r", FinishReason.STOP, " every st")
    assert (last.text, last.finish_reason, last.stop_reason) == (" keeps", "stop", " every st")
    assert last.token_ids == ids[: len(last.token_ids)]
    assert len(last.token_ids) < 2 * len(ids)


def test_a_stop_string_in_the_last_token_wins_over_the_length() -> None:
    processor = processor_with(SamplingParams(stop=("step",)))
    assert processor.on_tokens("r", plain(" keeps every step")).stop_string == "step"
    assert processor.on_end("r", FinishReason.LENGTH).finish_reason == "stop"


@pytest.mark.parametrize(("params", "end"), [
    (SamplingParams(stop_token_ids=(400,)), 400), (SamplingParams(), EOS),
])
def test_the_token_that_ends_a_request_is_a_token_but_no_text(params: SamplingParams, end: int) -> None:
    processor, ids = processor_with(params), plain(" keeps")
    processor.on_tokens("r", [*ids, end])
    last = processor.on_end("r", FinishReason.STOP, None if end == EOS else end)
    assert (last.token_ids, last.text) == ([*ids, end], " keeps")


def test_half_a_character_is_shown_only_when_nothing_follows() -> None:
    half = plain("→ 環")[-2:-1]
    processor = processor_with(SamplingParams())
    assert processor.on_tokens("r", half).output.text.strip() == ""
    assert processor.on_end("r", FinishReason.LENGTH).text.endswith("\ufffd")


def test_without_a_tokenizer_there_are_tokens_and_no_text() -> None:
    processor = OutputProcessor(None)
    processor.add(inputs_of(skip_tokenizer_init=True).process("r", [1, 2]))
    processor.on_tokens("r", [7, 8])
    output = processor.on_end("r", FinishReason.LENGTH)
    assert (output.token_ids, output.text, output.finished) == ([7, 8], "", True)


def test_tokens_for_a_request_that_has_ended_change_nothing() -> None:
    processor = processor_with(SamplingParams())
    processor.forget("r")
    assert processor.on_tokens("r", [5]) is None


def test_a_priority_is_taken_where_the_policy_serves_by_it() -> None:
    by_priority = inputs_of(skip_tokenizer_init=True, scheduler=SchedulerConfig(policy="priority"))
    assert by_priority.process("r", [1], None, -3).priority == -3
    for wrong in (1.5, "high", True, None, 1 << 63):
        with pytest.raises(BadRequestError, match="priority must be a whole number"):
            by_priority.process("r", [1], None, wrong)
    assert inputs_of(skip_tokenizer_init=True).process("r", [1], None, 0).priority == 0
    with pytest.raises(BadRequestError, match="the scheduler's policy is 'fcfs'; make the engine with policy"):
        inputs_of(skip_tokenizer_init=True).process("r", [1], None, 1)
