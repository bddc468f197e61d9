"""The calls that users of vLLM know, on a real engine; and a checkpoint of an ordinary model's shape."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engine import LLM, SamplingParams
from engine.errors import ConfigError
from scenarios.lab.settings import MODEL
from tests.scenarios.command.console import bench

TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
            "{% if add_generation_prompt %}core:{% endif %}")


@pytest.fixture(scope="module")
def llm():
    with LLM(model=str(MODEL), device="cpu", max_model_len=48, num_gpu_blocks_override=64, block_size=8) as made:
        yield made


def test_an_answer_without_a_limit_goes_to_the_model_s_length(llm) -> None:
    [output] = llm.generate("the core", SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(output.prompt_token_ids) + len(output.token_ids) == 48
    assert output.outputs[0].finish_reason == "length"
    assert output.outputs[0].text == output.text != ""


def test_one_stop_string_is_taken_as_it_is(llm) -> None:
    [whole] = llm.generate("the core", SamplingParams(max_tokens=20, ignore_eos=True, top_k=-1))
    word = whole.text.split()[2]
    [output] = llm.generate("the core", SamplingParams(max_tokens=20, ignore_eos=True, stop=word))
    assert output.text == whole.text[:whole.text.index(word)]
    assert output.outputs[0].stop_reason == word


def test_special_tokens_have_a_text_where_it_is_wanted(llm) -> None:
    prompt = llm.get_tokenizer()("the core")["input_ids"]
    special = llm.get_tokenizer().all_special_ids
    drawn = dict(max_tokens=40, ignore_eos=True, temperature=50.0)
    for seed in range(50):
        with_, without = (llm.generate([prompt], SamplingParams(seed=seed, skip_special_tokens=skip, **drawn))[0]
                          for skip in (False, True))
        assert with_.token_ids == without.token_ids
        if set(with_.token_ids[:-1]) & set(special):
            break
    else:
        pytest.fail("no answer had a special token")
    found = llm.get_tokenizer().convert_ids_to_tokens(next(t for t in with_.token_ids if t in special))
    assert found in with_.text and found not in without.text


def test_a_conversation_is_put_into_words_by_a_template(llm) -> None:
    talk = [{"role": "user", "content": "the ring"}]
    asked = SamplingParams(max_tokens=8)
    [one] = llm.chat(talk, asked, chat_template=TEMPLATE)
    assert one.prompt == "user: the ring core:"
    assert one.prompt_token_ids == llm.get_tokenizer().encode(one.prompt, add_special_tokens=False)
    [again] = llm.generate([one.prompt_token_ids], asked)
    assert one.token_ids == again.token_ids
    two = llm.chat([talk, [*talk, {"role": "core", "content": "the step"}]], asked, chat_template=TEMPLATE)
    assert [output.prompt for output in two] == [one.prompt, "user: the ring core: the step core:"]
    with pytest.raises(ConfigError, match="has no chat template"):
        llm.chat(talk, asked)


def test_a_bar_is_shown_where_it_is_wanted(llm, capfd) -> None:
    llm.generate(["the core", "the ring"], SamplingParams(max_tokens=2))
    assert capfd.readouterr().err == ""
    llm.generate(["the core", "the ring"], SamplingParams(max_tokens=2), use_tqdm=True)
    assert "2/2" in capfd.readouterr().err


def test_a_tokenizer_may_lie_elsewhere(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(MODEL, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(ConfigError, match="tokenizer cannot be loaded"):
        LLM(model=str(bare), device="cpu")
    with LLM(model=str(bare), tokenizer=str(MODEL), device="cpu") as llm:
        assert llm.generate("the core", SamplingParams(max_tokens=4))[0].text


#: SmolLM2-135M's own configuration: tied weights, three key-value heads for nine, a context of 8192.
SMOL = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
        "tie_word_embeddings": True, "rope_theta": 100000.0, "rms_norm_eps": 1e-5,
        "initializer_range": 0.041666666666666664, "bos_token_id": 0, "eos_token_id": 0, "dtype": "bfloat16"}
#: Of bfloat16, for numbers between 4 and 8: what two right orders of the same sums may differ by, a few times.
CLOSE = 4 * 2.0 ** -5


def test_an_ordinary_checkpoint_of_long_context_runs_without_a_flag(tmp_path: Path) -> None:
    """Tokens are those of transformers, where rounding leaves no doubt which one that is."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMOL)).to(torch.bfloat16).eval()
    model.save_pretrained(tmp_path / "smol")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, tmp_path / "smol")
    with bench() as place:
        said = place.run("generate", "--model", tmp_path / "smol", "--prompt", "the core", "--max-tokens", 4,
                         timeout_s=120)
        assert (said.code, said.err) == (0, "")
    with LLM(model=str(tmp_path / "smol"), device="cpu") as llm:
        [output] = llm.generate("the core", SamplingParams(max_tokens=24, ignore_eos=True))
        assert llm.call_utility("get_stats")[3] * llm.config.cache.block_size >= SMOL["max_position_embeddings"]
    tokens = [*output.prompt_token_ids, *output.token_ids]
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0, len(output.prompt_token_ids) - 1:-1].float()
    short = logits.max(dim=-1).values - logits.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
    assert short.max() <= CLOSE
    assert (short == 0).sum() > len(output.token_ids) // 2


def test_flags_of_generate_bound_length_and_cache(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "long")
    config = json.loads((tmp_path / "long" / "config.json").read_text())
    (tmp_path / "long" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 20}))
    with bench() as place:
        order = ["generate", "--model", tmp_path / "long", "--prompt", "the core", "--max-tokens", 4]
        full = place.run(*order, "--cache-mib", 1, timeout_s=90)
        assert full.code == 3 and "lower max_model_len, or give the cache more" in full.line
        assert place.run(*order, "--cache-mib", 1, "--max-model-len", 64, "--dtype", "bfloat16").code == 0
        assert place.left() == []
