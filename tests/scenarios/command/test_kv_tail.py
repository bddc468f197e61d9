"""`ringtwin kv-tail` against a publisher: what it prints, in which form, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("zmq")

from engine.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch  # noqa: E402
from engine.kv_events.mirror import KVCacheMirror  # noqa: E402
from engine.kv_events.publisher.process import ZmqEventPublisher  # noqa: E402
from engine.kv_events.reports import Applied, Gap, Healed, Malformed, Restarted, Snapshot, Unrecoverable  # noqa: E402
from scenarios.command.kv_tail import Tail, as_json, as_text, chains  # noqa: E402

ROOT = Path(__file__).parents[3]
BOUND_S = 30.0


@pytest.fixture
def publisher():
    one = ZmqEventPublisher(0, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", epoch=7)
    yield one
    one.shutdown()


def _chain(*hashes: int) -> KVEventBatch:
    return KVEventBatch(1.5, [BlockStored(list(hashes), None, list(range(2 * len(hashes))), 2, None)])


def _tail(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "scenarios.command", "kv-tail", *arguments], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_every_batch_is_a_json_line_and_the_last_line_sums_up(publisher) -> None:
    """Two batches before it came: a gap, two replays, and the mirror's blocks and chains."""
    publisher.publish(_chain(1, 2))
    publisher.publish(KVEventBatch(1.5, [BlockStored([3], 1, [7, 8], 2, None, locality="LOCAL", ownership="tier",
                                                     session_id="s", lookahead_token_ids=[[9]])]))
    process = _tail(publisher.address, "--replay", publisher.replay_address, "--json", "--mirror", "--seconds", "2")
    said, errors = process.communicate(timeout=BOUND_S)
    lines = [json.loads(line) for line in said.splitlines()]
    assert (process.returncode, errors) == (0, "")
    assert [line["what"] for line in lines if line["what"] != "rate"] == ["gap", "batch", "batch", "healed", "total"]
    assert lines[1] | {"number": 0, "source": "replay", "epoch": 7, "rank": 0, "ts": 1.5, "stored": 2} == lines[1]
    assert lines[-1] | {"batches": 2, "replayed": 2, "gaps": 1, "lost": 0, "blocks": 3, "chains": 2} == lines[-1]
    assert any(line["what"] == "rate" for line in lines)


def test_ctrl_c_ends_it_with_the_sum(publisher) -> None:
    """130, as everywhere; the sum is on stdout, nothing of a traceback on stderr."""
    process = _tail(publisher.address, "--replay", publisher.replay_address)
    seen = []
    publisher.publish(_chain(1))
    while not seen or not seen[-1].startswith("batch"):
        seen.append(process.stdout.readline())
        assert seen[-1], "it ended by itself"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=BOUND_S)
    assert process.returncode == 130 and "Traceback" not in errors
    assert said.splitlines()[-1].startswith("total") and "batches 1" in said.splitlines()[-1]
    assert time.monotonic() - began < 5.0


def test_an_endpoint_that_is_none_is_said_in_one_line() -> None:
    process = _tail("nowhere")
    said, errors = process.communicate(timeout=BOUND_S)
    assert (process.returncode, said) == (3, "")
    assert errors.count("\n") == 1 and "nowhere" in errors and "tcp://HOST:PORT" in errors


@pytest.mark.parametrize(("report", "line"), [
    (Applied(4, KVEventBatch(1.0, [BlockRemoved([1, 2]), AllBlocksCleared()]), "live"),
     "batch 4 live, removed 2, cleared 1"),
    (Gap(3, 9), "gap 3..9"), (Healed(3, 9), "healed 3..9"),
    (Unrecoverable(1, 2, "too old"), "unrecoverable 1..2 too old"),
    (Restarted(8), "restarted"), (Snapshot(7, []), "snapshot next 7"),
    (Malformed("kv", "bad"), "malformed channel kv, bad"),
])
def test_a_report_is_a_line(report, line: str) -> None:
    """Text for people, and the same as JSON."""
    if isinstance(report, Applied):
        report = Applied(report.number, _lived(report.batch), report.source)
    entry = Tail(0.0).entry(report)
    assert " ".join(as_text(entry).split()) == line
    assert json.loads(as_json(entry)) == entry


def test_a_mirror_that_never_knew_anything_is_said_to_be_unknown_since_0() -> None:
    """Nought is a number here. A mirror that knows all has no such word."""
    mirror = KVCacheMirror()
    assert "unknown" not in as_text(Tail(0.0, mirror).rate(2.0))
    mirror.lose(0, 4)
    assert "unknown since 0" in as_text(Tail(0.0, mirror).rate(2.0))
    assert json.loads(as_json(Tail(0.0, mirror).total(2.0)))["unknown_since"] == 0


def test_a_pipe_that_is_closed_ends_it_without_a_word(publisher) -> None:
    """As `head -1` does: the reader has seen enough."""
    process = _tail(publisher.address, "--replay", publisher.replay_address)
    publisher.publish(_chain(1))
    assert process.stdout.readline()
    process.stdout.close()
    assert (process.wait(BOUND_S), process.stderr.read()) == (128 + signal.SIGPIPE, "")


def test_a_publisher_that_dies_and_comes_again_is_told_as_a_restart(tmp_path: Path) -> None:
    """It prints on through the silence between, and follows the next life from its beginning."""
    addresses = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
    first = ZmqEventPublisher(0, *addresses, epoch=1)
    process = _tail(addresses[0], "--replay", addresses[1], "--json", "--mirror")
    try:
        first.publish(_chain(1, 2))
        _until(process, {"what": "batch", "epoch": 1})
        first.shutdown()
        _until(process, {"what": "rate", "batches_per_s": 0.0})
        second = ZmqEventPublisher(0, *addresses, epoch=2)
        try:
            second.publish(_chain(3))
            _until(process, {"what": "restarted", "epoch": 2})
            assert _until(process, {"what": "batch"})["number"] == 0
            assert _until(process, {"what": "rate"})["blocks"] == 1
        finally:
            second.shutdown()
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=BOUND_S)
        assert process.returncode == 130 and "Traceback" not in errors
        assert json.loads(said.splitlines()[-1]) | {"what": "total", "batches": 2} == json.loads(said.splitlines()[-1])
    finally:
        process.kill()
        process.communicate()


def _until(process: subprocess.Popen, wanted: dict) -> dict:
    """The next line that says so."""
    while True:
        said = process.stdout.readline()
        assert said, "it ended by itself"
        line = json.loads(said)
        if line | wanted == line:
            return line


def test_the_rate_is_of_the_time_since_it_was_told() -> None:
    tail = Tail(10.0)
    for number in range(30):
        tail.entry(Applied(number, _lived(_chain(1)), "live"))
    assert tail.rate(10.5) is None
    assert tail.rate(12.0)["batches_per_s"] == 15.0
    assert tail.rate(13.0)["batches_per_s"] == 0.0


def test_prefix_chains_are_counted_by_their_ends() -> None:
    """1-2-3, 1-2-4 and 9: three ends."""
    mirror = KVCacheMirror()
    mirror.apply(0, _chain(1, 2, 3))
    mirror.apply(1, KVEventBatch(1.0, [BlockStored([4], 2, [1, 2], 2, None), BlockStored([9], None, [1, 2], 2, None)]))
    assert chains(mirror) == 3


def _lived(batch: KVEventBatch):
    from engine.kv_events.codec import LivedBatch

    return LivedBatch(batch.ts, batch.events, 0, 1)
