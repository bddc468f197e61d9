"""Ranks that each program starts for itself, as a program does it: by flat names, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.frontend.llm import LLM
from tests.engine.engine_lab import MODEL, SIXTY_FOUR
from tests.engine.frontend.test_modes import free_port

ROOT = Path(__file__).parents[3]
REQUESTS = SIXTY_FOUR[:6]
FLAT = {"data_parallel_size": 2, "data_parallel_rank": 0, "data_parallel_master_address": "tcp://127.0.0.1:1"}
#: One rank: generates what it is asked for, and says which tokens came, or why none did, and what it has left.
PROGRAM = """
import json, sys
from pathlib import Path
from engine import LLM, SamplingParams
from engine.errors import RingtwinError

fields, prompts, lengths, base = json.loads(sys.argv[1])
try:
    llm = LLM(runtime_dir=base, device="cpu", skip_tokenizer_init=True, num_gpu_blocks_override=64, **fields)
except RingtwinError as error:
    said = f"{type(error).__name__}: {error}"
else:
    with llm:
        answers = llm.generate(prompts, [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths])
        said = [answer.token_ids for answer in answers]
print(json.dumps([said, sorted(path.name for path in Path(base).iterdir())]), flush=True)
"""


class Program:
    """A rank in a process of its own."""

    def __init__(self, base: Path, requests: list[Any], **fields: Any) -> None:
        base.mkdir()
        given = [{"model": str(MODEL), **fields}, [request.prompt_token_ids for request in requests],
                 [request.params.max_tokens for request in requests], str(base)]
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(given)], cwd=ROOT,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def says(self) -> Any:
        """What it says, when it has left nothing behind."""
        try:
            out, errors = self.process.communicate(timeout=90.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert out, errors
        said, left = json.loads(out.splitlines()[-1])
        assert left == [], errors
        return said


def test_two_programs_with_a_rank_each_generate_what_one_would(tmp_path: Path) -> None:
    common = {"data_parallel_size": 2, "data_parallel_master_address": f"tcp://127.0.0.1:{free_port()}"}
    ranks = [Program(tmp_path / str(rank), REQUESTS[rank::2], data_parallel_rank=rank, **common) for rank in range(2)]
    said = [rank.says() for rank in ranks]
    assert said == [[request.reference_token_ids for request in REQUESTS[rank::2]] for rank in range(2)]


@pytest.mark.parametrize(("first", "second", "words"), [
    ({}, {"data_parallel_rank": 0}, "both came as rank 0"),
    ({}, {"data_parallel_size": 3}, "data_parallel_size is 2 of core.0 and 3 of core.1"),
    ({"pipeline_parallel_size": 2}, {}, "pipeline_parallel_size is 2 of core.0 and 1 of core.1"),
], ids=["one rank twice", "sizes", "stages"])
def test_programs_that_do_not_belong_together_are_told_why_and_leave_nothing(
        first: dict[str, Any], second: dict[str, Any], words: str, tmp_path: Path) -> None:
    common = {"data_parallel_size": 2, "data_parallel_master_address": f"tcp://127.0.0.1:{free_port()}"}
    ranks = [Program(tmp_path / "0", REQUESTS[:1], **{**common, "data_parallel_rank": 0, **first}),
             Program(tmp_path / "1", REQUESTS[:1], **{**common, "data_parallel_rank": 1, **second})]
    for said in [rank.says() for rank in ranks]:
        assert said.startswith("StartupError: ") and words in said


def test_a_rank_that_never_comes_is_named_to_the_one_that_waits(tmp_path: Path) -> None:
    alone = Program(tmp_path / "0", REQUESTS[:1], **{
        **FLAT, "data_parallel_master_address": f"tcp://127.0.0.1:{free_port()}", "bounds": {
            "handshake_s": 2.0, "collective_s": 10.0}})
    said = alone.says()
    assert said.startswith("StartupError: ") and "core.1 (rank 1) of 2 did not come within" in said


def test_an_address_that_is_not_this_host_s_is_named(tmp_path: Path) -> None:
    alone = Program(tmp_path / "0", REQUESTS[:1], **{**FLAT, "data_parallel_master_address": "tcp://192.0.2.1:9"})
    said = alone.says()
    assert said.startswith("StartupError: ") and "nobody can meet at tcp://192.0.2.1:9" in said


@pytest.mark.parametrize(("changes", "words"), [
    ({"data_parallel_master_address": "nowhere"}, "master_address must be tcp://host:port"),
    ({"data_parallel_master_address": 5}, r"data_parallel\.master_address: Expected `str \| null`, got `int`"),
    ({"data_parallel_rank": 2}, "data_parallel_rank must be below data_parallel_size, got 2 of 2"),
    ({"data_parallel_coordinator": True}, "have a client each, and no coordinator"),
    ({"data_parallel_head_address": "ipc:///h"}, "give no master_address"),
    ({"data_parallel_master_adress": "ipc:///m"}, "is it data_parallel_master_address"),
    ({"data_parallel_load_balancing": "fair", "data_parallel_master_address": None,
      "data_parallel_head_address": "ipc:///h"}, "data_parallel.load_balancing"),
])
def test_flat_names_that_contradict_each_other_are_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(model=str(MODEL), **{**FLAT, **changes})
