"""An exception strikes a poll at any line of what it does: nothing that was read is lost, nothing is false after it."""

from __future__ import annotations

import os
import sys
from collections import deque
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("zmq")

from engine.errors import BadFrameError  # noqa: E402
from engine.kv_events.codec import LivedBatch, encode_batch, number_frame, read_live, read_request  # noqa: E402
from engine.kv_events.mirror import KVCacheMirror  # noqa: E402
from engine.kv_events.publisher.log import KVEventLog  # noqa: E402
from engine.kv_events.reports import Applied, Malformed, Report, Restarted  # noqa: E402
from engine.kv_events.subscriber.follow import feed  # noqa: E402
from engine.kv_events.subscriber.process import KVEventSubscriber  # noqa: E402
from engine.messages import BlockRemoved, BlockStored, EventBatch  # noqa: E402
from engine.topology import subscriber as subscriber_node  # noqa: E402

#: The files of the subscriber.
FOLDER = os.sep + os.path.join("engine", "kv_events") + os.sep


class Struck(BaseException):
    """What a signal handler raises."""


class Wire:
    """A publisher behind two sockets without a network; the time stands still unless somebody has nothing to read."""

    def __init__(self) -> None:
        self.node = subscriber_node()
        self.parent = None
        self.now = 0.0
        self.clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        self.log = KVEventLog(epoch=7, topic="kv")
        self.queues: dict[str, deque[list[bytes]]] = {"kv": deque(), "replay": deque()}

    def publish(self, *events: Any, lost: bool = False) -> None:
        frames = self.log.frames(self.log.number()[0], EventBatch(1.0, list(events)))
        if not lost:
            self.queues["kv"].append(frames)

    def open_socket(self, spec: Any) -> Any:
        always = os.open(os.devnull, os.O_RDONLY)  # "something may have come": nobody sleeps here
        return SimpleNamespace(address=spec.address, send=self._ask, close=lambda linger_s=None: os.close(always),
                               fileno=lambda: always, was_cut=lambda: False,
                               try_receive=lambda: self._receive(self.queues[spec.name]))

    def _ask(self, frames: list[bytes], peer: Any) -> None:
        self.queues["replay"].extend(self.log.answer(read_request(frames)))

    def _receive(self, queue: deque[list[bytes]]) -> tuple[int, list[bytes]] | None:
        self.now += 0.001
        return (0, queue.popleft()) if queue else None


def _wire() -> Wire:
    """Batches of two kinds, one of them lost on the way: a gap and its replay."""
    wire = Wire()
    for number in range(6):
        removed = [BlockRemoved([number - 2])] if number in (3, 5) else []
        wire.publish(*removed, BlockStored([number], None, [1, 2], 2, None), lost=number == 2)
    return wire


def _strike(line: int) -> Any:
    """A tracer that raises at so many lines below `poll`, in the files of the subscriber."""
    left = line

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        code = frame.f_code
        if FOLDER not in code.co_filename or code.co_name in ("poll", "<genexpr>"):
            return trace
        if event == "line":
            left -= 1
            if left < 0:
                raise Struck
        return trace

    return trace


def _play(line: int) -> tuple[bool, list[Report], KVCacheMirror, Wire]:
    """-> (whether the exception struck, all that was told, the subscriber's mirror, the publisher)"""
    wire, told, struck = _wire(), [], False
    reader = KVEventSubscriber("tcp://nowhere:1", "tcp://nowhere:2", poll_s=0.05, answer_s=0.05, ports=wire)
    before = sys.gettrace()
    sys.settrace(_strike(line))
    try:
        told += reader.poll(0.02)
        told += reader.poll(0.02)
    except Struck:
        struck = True
    finally:
        sys.settrace(before)
    for _ in range(200):
        if reader._reading.whole and reader.follower.caught_up and reader.mirror.next_seq == wire.log.numbered:
            break
        told += reader.poll(0.02)
    told += reader.poll(0.2)  # nothing comes twice
    reader.close()
    return struck, told, reader.mirror, wire


@pytest.mark.parametrize("offset", range(4))
def test_an_exception_at_any_line_loses_no_report_and_corrupts_nothing(offset: int) -> None:
    """Every fourth line of the two polls, from each of four: what was told makes the same mirror, which is true."""
    line, starts_over, lines = offset, 0, 0
    while True:
        struck, told, mirror, wire = _play(line)
        told_mirror, expected = KVCacheMirror(), 0
        for report in told:
            feed(told_mirror, report)  # raises where a batch is doubled or missing
            expected = 0 if isinstance(report, Restarted) else expected + isinstance(report, Applied)
        assert expected == wire.log.numbered == mirror.next_seq, (line, told)
        assert mirror.blocks == told_mirror.blocks and mirror.hashes() == [0, 2, 4, 5], (line, told)
        assert mirror.unknown_since is None, (line, told)
        assert not any(isinstance(report, Malformed) for report in told)
        if not struck:
            break
        starts_over += any(isinstance(report, Restarted) for report in told)
        lines += 1
        line += 4
    assert lines > 100 and 0 < starts_over < lines


def _deep(depth: int) -> bytes:
    """A batch whose event nests lists so deep."""
    batch = LivedBatch(1.0, [BlockStored([1], None, [1], 1, None, extra_keys=[("x",)])], 0)
    payload = encode_batch(batch, 0, None)
    assert payload.count(b"\x91\xa1x") == 1
    return payload.replace(b"\x91\xa1x", b"\x91" * depth + b"\xa1x")


def test_a_nesting_that_is_too_deep_is_a_bad_frame() -> None:
    assert read_live([b"", number_frame(0), _deep(20)])[1].events[0].block_hashes == [1]
    with pytest.raises(BadFrameError):
        read_live([b"", number_frame(0), _deep(100_000)])


def test_one_bad_frame_is_told_and_the_batches_before_it_are_too() -> None:
    wire = _wire()
    wire.queues["kv"].append([b"kv", number_frame(6), _deep(100_000)])
    with KVEventSubscriber("tcp://nowhere:1", ports=wire) as reader:
        told = reader.poll(0.02) + reader.poll(0.02) + reader.poll(0.02)
    assert [report.number for report in told if isinstance(report, Applied)] == [0, 1, 3, 4, 5]
    assert [report.channel for report in told if isinstance(report, Malformed)] == ["kv"]
