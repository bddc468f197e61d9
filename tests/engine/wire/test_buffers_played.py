"""In a play: what is large travels beside its message, as far as it was asked for, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from engine.topology import tensor_parallel
from scenarios.lab.settings import lab_config
from scenarios.workloads import add, recorded, utility
from scenarios.worlds.registry import WORLDS

#: Prompts of 307, 5 and 79 tokens, and a call with two lists of 20 numbers.
WORKLOAD = recorded("eight-mixed").then(add(0, 1, 2), utility("ping", [[*range(20)], [*range(20, 40)]]), steps=2).then()


@pytest.mark.parametrize(("own_frame_bytes", "asked", "answered"), [
    (0, [], []), (64 << 10, [], []), (317, [1], []), (316, [1, 1], []), (64, [1, 1, 2], [2])])
def test_what_is_large_travels_beside_its_message(
        tmp_path: Path, own_frame_bytes: int, asked: list[int], answered: list[int]) -> None:
    world = WORLDS["sim"].make(tmp_path)
    run = world.play(topology=tensor_parallel(2), workload=WORKLOAD,
                     config=lab_config(sockets={"own_frame_bytes": own_frame_bytes})).runs[0]
    world.close()
    found: dict[str, list[int]] = {"requests": [], "outputs": []}
    records = [record for journal in run.journals for record in journal.records]
    for record in records:
        channel = record.site.rpartition("/")[2].removesuffix(":receive")
        if channel in found and "buffers" in record.data:
            found[channel].append(record.data["buffers"])
    assert found == {"requests": asked, "outputs": answered}
    ends = Counter(record.data["outcome"] for record in records if record.site == "end")
    assert ends == {"finished": 3}
