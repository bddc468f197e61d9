"""Histories about a queue that is played alone."""

import struct
from typing import Any

from engine.config import RingConfig
from scenarios.history.play import Options
from tests.guarantees.build import RPC, TICK_S, Builder, history
from tests.guarantees.cases import accepts, rejects, silent


def _alone(world: str = "sim") -> Builder:
    return history(world).promised(options=Options(queue="objects"))


def _puts(h: Builder, face: str, position: int | None, *, beside: int = 0, wanted: int = 0, readable: bool = True,
          outcome: str = "queue-put-at") -> Builder:
    h.observes("core.0", "queue-put", face=face, beside=beside, wanted=wanted, chunk=8, readable=readable)
    data: dict[str, Any] = {"position": position} if outcome == "queue-put-at" else {
        "error": "QueueTimeoutError: message 2 was not sent"}
    return h.observes("core.0", outcome, **data)


def _gets(h: Builder, *faces: str, node: str = "worker.0") -> Builder:
    for face in faces:
        h.observes(node, "queue-got", face=face, **({} if face else {"error": "cannot be decoded"}))
    return h


def _large(h: Builder | None = None) -> Builder:
    return _puts(_puts(h or _alone(), "a", 0, beside=1, wanted=1), "b", 1)


def _over(h: Builder) -> Builder:
    return h.observes("frontend.0", "closing", kept={}).observes("worker.0", "bye", reason="done")


@accepts("queue-hands-over")
def each_object_once_and_in_order() -> Builder:
    return _over(_gets(_large(), "a", "b").observes("worker.0", "queue-kept", faces=["a", "b"], now=["a", "b"]))


@accepts("queue-hands-over")
def what_cannot_be_read_is_one_error() -> Builder:
    h = _puts(_puts(_alone(), "a", 0, readable=False), "b", 1)
    return _over(_gets(h, "", "b"))


@accepts("queue-hands-over")
def what_was_interrupted_may_have_been_sent() -> Builder:
    h = _puts(_large(), "c", None, outcome="queue-interrupted")
    return _over(_gets(_puts(h, "d", 3), "a", "b", "c", "d"))


@accepts("queue-hands-over")
def what_was_interrupted_need_not_have_been_sent() -> Builder:
    h = _puts(_large(), "c", None, outcome="queue-interrupted")
    return _over(_gets(_puts(h, "d", 2), "a", "b", "d"))


@rejects("queue-hands-over")
def an_object_is_lost() -> Builder:
    return _gets(_puts(_large(), "c", 2), "a", "c")


@rejects("queue-hands-over")
def the_last_object_is_lost() -> Builder:
    return _over(_gets(_large(), "a"))


def _writer_dies(*got: str, rung: int, ready: bool = True, readable: bool = True) -> Builder:
    """When it has put in two objects, and the bell was rung so often: it rings when an object stands in the ring."""
    h = _large(_alone().observes("worker.0", "queue-ready", readers=0, deadline=1.0) if ready else None)
    h.observes("core.0", "queue-put", face="c", beside=0, wanted=0, chunk=8, readable=readable)
    for _ in range(rung):
        h.crosses("core.0/rpc:doorbell")
    h.sends(RPC[0], "x", position=9, bytes=1, overflow=False).fires("kill", "core.0/rpc:doorbell", nth=3)
    return _over(_gets(h.ends("core.0", exitcode=-9), *got))


@accepts("queue-hands-over")
def what_stood_in_the_ring_when_its_writer_died_is_handed_out() -> Builder:
    return _writer_dies("a", "b", "c", rung=3)


@accepts("queue-hands-over")
def what_did_not_stand_in_the_ring_when_its_writer_died_is_not() -> Builder:
    return _writer_dies("a", "b", rung=2)


@accepts("queue-hands-over")
def who_was_not_ready_when_the_writer_died_reads_nothing() -> Builder:
    return _writer_dies("a", "b", rung=3, ready=False)


@accepts("queue-hands-over")
def what_cannot_be_read_is_handed_to_nobody_when_its_writer_has_died() -> Builder:
    return _writer_dies("a", "b", "", rung=3, readable=False)


@accepts("queue-hands-over")
def what_went_beside_the_ring_goes_with_its_writer() -> Builder:
    h = _writer_dies("a", "b", rung=3)
    return h.sends(RPC[0], "large", position=10, bytes=99, overflow=True)


@rejects("queue-hands-over")
def what_stood_in_the_ring_when_its_writer_died_is_lost() -> Builder:
    return _writer_dies("a", "b", rung=3)


def _is_told(outcome: str, error: str) -> Builder:
    h = _gets(_large(), "a", "b").fires("kill", "core.0/rpc:doorbell").ends("core.0", exitcode=-9)
    h.observes("worker.0", "queue-wait", ring="rpc", began=h.now - .1, deadline=h.now + 1, ended=h.now,
               outcome=outcome)
    return h.observes("worker.0", "queue-failed", error=error)


@accepts("queue-hands-over")
def a_wait_ends_by_the_death_of_the_writer() -> Builder:
    return _is_told("peer-dead", "PeerDeadError: rpc: the writer has died")


@accepts("queue-hands-over")
def a_wait_is_cancelled() -> Builder:
    return _is_told("cancelled", "QueueCancelledError: leaving")


@rejects("queue-hands-over")
def a_wait_ends_by_the_death_of_the_writer_and_is_called_cancelled() -> Builder:
    return _is_told("cancelled", "PeerDeadError: rpc: the writer has died")


@rejects("queue-hands-over")
def an_object_comes_twice() -> Builder:
    return _gets(_large(), "a", "a")


@rejects("queue-hands-over")
def an_object_overtakes() -> Builder:
    return _gets(_large(), "a", "b", "a")


@rejects("queue-hands-over")
def an_object_comes_changed() -> Builder:
    return _gets(_large(), "a", "B")


@rejects("queue-hands-over")
def an_object_that_was_put_cannot_be_read() -> Builder:
    return _gets(_large(), "", "b")


@rejects("queue-hands-over")
def what_cannot_be_read_is_handed_out() -> Builder:
    return _gets(_puts(_large(), "c", 2, readable=False), "a", "b", "c")


@rejects("queue-hands-over")
def what_was_refused_arrives() -> Builder:
    h = _puts(_large(), "c", None, outcome="queue-not-put").fires("drop", "core.0/rpc:doorbell")
    return _gets(h, "a", "b", "c")


@rejects("queue-hands-over")
def who_puts_is_not_told_what_became_of_it() -> Builder:
    h = _large().fires("drop", "core.0/rpc:doorbell")
    return h.observes("core.0", "queue-not-put", error="QueueTimeoutError: ")


@rejects("queue-hands-over")
def an_object_is_refused_although_there_is_room() -> Builder:
    return _puts(_large(), "c", None, outcome="queue-not-put")


@rejects("queue-hands-over")
def a_message_goes_beside_a_ring_that_it_fits_into() -> Builder:
    return _puts(_alone().writes(RPC[0], 0, overflow=True), "a", 0)


def _loses_a_payload(error_after: float) -> Builder:
    h = _puts(_puts(_alone(), "a", 0), "b", 1).fires("drop", "core.0->worker.0/overflow:receive")
    h.crosses("core.0->worker.0/overflow:receive", "a").crosses("core.0->worker.0/overflow:receive", "b").wait(
        error_after)
    return h if error_after > 6 else _gets(h, "")


@rejects("queue-hands-over")
def a_lost_payload_is_given_up_too_soon() -> Builder:
    return _loses_a_payload(1)


@silent("queue-hands-over")
def a_lost_payload_is_given_up_by_who_hung_with_the_next_one_in_hand() -> Builder:
    h = _puts(_puts(_alone(), "a", 0), "b", 1).fires("drop", "core.0->worker.0/overflow:receive")
    h.crosses("core.0->worker.0/overflow:receive", "a").fires("hang", "core.0->worker.0/overflow:receive", nth=2)
    h.crosses("core.0->worker.0/overflow:receive", "b", fate="hang").wait(6.0).releases()
    return _gets(h, "")


@rejects("queue-hands-over")
def nobody_is_told_of_a_lost_payload() -> Builder:
    return _over(_gets(_loses_a_payload(7), "b"))


@rejects("queue-hands-over")
def a_kept_object_changes() -> Builder:
    return _gets(_large(), "a").observes("worker.0", "queue-kept", faces=["a"], now=["b"])


@rejects("queue-hands-over")
def a_large_buffer_is_copied_into_the_pickle() -> Builder:
    return _gets(_puts(_large(), "c", 2, beside=0, wanted=1), "a", "b", "c")


@rejects("queue-hands-over")
def a_number_is_left_out() -> Builder:
    return _gets(_puts(_large(), "c", 3), "a", "b", "c")


@rejects("queue-hands-over")
def an_end_fails_by_itself() -> Builder:
    return _gets(_large(), "a", "b").observes("worker.0", "queue-failed", error="PeerDeadError: the writer has died")


@silent("queue-hands-over", "queue-counts")
def small_objects() -> Builder:
    return _over(_gets(_puts(_alone(), "a", 0), "a"))


def _read(count: int = 2, **said: Any) -> Builder:
    h = _alone()
    for position in range(count):
        h.writes(RPC[0], position).reads(RPC[0], position)
    began = h.now
    h.wait(0.2).observes("worker.0", "queue-wait", ring="rpc", began=began, deadline=None, ended=began + 0.2,
                         outcome="ok")
    counted = {"ring": "rpc", "end": "reader", "messages": count, "bytes": 8 * count, "overflows": 0, "waits": 1,
               "wait_s": 0.2, "longest_wait_s": 0.2, "depth": 0, "errors": []}
    return h.observes("worker.0", "queue-counts", **{**counted, **said})


@accepts("queue-counts")
def a_reader_counts_what_it_read() -> Builder:
    return _read()


@accepts("queue-counts")
def damage_is_found() -> Builder:
    return _read().observes("worker.0", "queue-check", state="a flag was 9", damaged=True, found=["chunk 0: ..."])


def _miscounts(**said: Any) -> None:
    name, value = next(iter(said.items()))

    def miscounted() -> Builder:
        return _read(**said)

    miscounted.__name__ = f"{name}_is_counted_as_{value}"
    rejects("queue-counts")(miscounted)


for _name, _value in {"end": "writer", "messages": 3, "bytes": 15, "overflows": 1, "waits": 2, "wait_s": 0.1,
                      "longest_wait_s": 0.0, "depth": 1, "errors": ["chunk 0: flags are [9, 0]"]}.items():
    _miscounts(**{_name: _value})


@rejects("queue-counts")
def damage_is_overlooked() -> Builder:
    return _read().observes("worker.0", "queue-check", state="a flag was 9", damaged=True, found=[])


@rejects("queue-counts")
def damage_is_seen_where_there_is_none() -> Builder:
    return _read().observes("worker.0", "queue-check", state="all is well", damaged=False, found=["chunk 0: ..."])


def _wrote(**said: Any) -> Builder:
    """A real writer, which counts the seven bytes before an object of eight."""
    h = _puts(_alone("engine").writes(RPC[0], 0), "a", 0)
    counted = {"ring": "rpc", "end": "writer", "messages": 1, "bytes": 15, "overflows": 0, "waits": 0, "wait_s": 0.0,
               "longest_wait_s": 0.0, "depth": 0, "errors": []}
    return h.observes("core.0", "queue-counts", **{**counted, **said})


@silent("queue-counts")
def a_real_writer_counts_what_it_put_into_the_ring() -> Builder:
    return _wrote()


@rejects("queue-counts")
def a_real_writer_counts_the_objects_alone() -> Builder:
    return _wrote(bytes=8)


# -- how the ends meet


def _ends(options: str = "few", *, late: float = 0.1, named: str = "2 of 2 readers did not come, ranks [0, 1]",
          ready: float = 0.0, came: int = 2) -> Builder:
    h = history().promised(options=Options(queue=options))
    deadline = h.now + 0.1
    h.wait(late - TICK_S).observes("core.0", "queue-late", deadline=deadline, ended=h.now + TICK_S, error=named)
    for rank in range(came):
        h.observes(f"worker.{rank}", "queue-came", rank=rank)
    return h.wait(ready - TICK_S).observes("core.0", "queue-ready", readers=2, deadline=9.0)


@accepts("queue-ends-meet")
def who_waits_in_vain_is_told_who_is_missing() -> Builder:
    return _ends()


@accepts("queue-ends-meet")
def of_strangers_nobody_knows_who_they_are() -> Builder:
    h = history().promised(options=Options(queue="strangers")).observes("worker.0", "queue-came", rank=0).wait(0.1)
    return h.observes("core.0", "queue-late", deadline=h.now, ended=h.now,
                      error="2 of 2 readers did not come, ranks [0, 1]")


@rejects("queue-ends-meet")
def the_wait_ends_too_late() -> Builder:
    return _ends(late=0.15)


@rejects("queue-ends-meet")
def the_wait_ends_too_early() -> Builder:
    return _ends(late=0.05)


@rejects("queue-ends-meet")
def another_one_is_named() -> Builder:
    return _ends(named="1 of 2 readers did not come, ranks [1]")


@rejects("queue-ends-meet")
def who_has_come_is_named() -> Builder:
    h = history().promised(options=Options(queue="few")).observes("worker.0", "queue-came", rank=0).wait(0.1)
    return h.observes("core.0", "queue-late", deadline=h.now, ended=h.now,
                      error="2 of 2 readers did not come, ranks [0, 1]")


@rejects("queue-ends-meet")
def nobody_is_named() -> Builder:
    return _ends(named="not all have come")


@rejects("queue-ends-meet")
def a_writer_is_ready_too_soon() -> Builder:
    return _ends(came=1)


@rejects("queue-ends-meet")
def a_writer_is_ready_too_late() -> Builder:
    return _ends(ready=0.1)


@rejects("queue-ends-meet")
def a_writer_waits_on_behind_its_deadline() -> Builder:
    h = history().promised(options=Options(queue="few")).wait(.5).observes("worker.0", "queue-came", rank=0)
    return h.observes("core.0", "queue-ready", readers=1, deadline=1.1)


@rejects("queue-ends-meet")
def a_reader_is_ready_before_its_writer() -> Builder:
    h = history().promised(options=Options(queue="few")).observes("worker.0", "queue-came", rank=0)
    return h.observes("worker.0", "queue-ready", readers=0, deadline=9.0)


def _really(*came_s: float) -> Builder:
    """Readers that came so long before now."""
    h = history("engine").promised(options=Options(queue="few"))
    began = h.now
    for rank, seconds in enumerate(came_s):
        h.now = began + max(came_s) - seconds
        h.observes(f"worker.{rank}", "queue-came", rank=rank)
    h.now = began + max(came_s)
    return h


def _really_late(h: Builder, named: str) -> Builder:
    return h.observes("core.0", "queue-late", deadline=h.now, ended=h.now + TICK_S, error=named)


@accepts("queue-ends-meet")
def a_reader_that_has_just_come_may_be_missing() -> Builder:
    return _really_late(_really(0.1), "2 of 2 readers did not come, ranks [0, 1]")


@accepts("queue-ends-meet")
def a_reader_that_has_just_come_may_be_there() -> Builder:
    return _really_late(_really(0.1), "1 of 2 readers did not come, ranks [1]")


@rejects("queue-ends-meet")
def a_reader_that_came_long_ago_is_missing() -> Builder:
    return _really_late(_really(100.0), "2 of 2 readers did not come, ranks [0, 1]")


@rejects("queue-ends-meet")
def a_reader_that_has_not_come_is_there() -> Builder:
    return _really_late(_really(0.1), "1 of 2 readers did not come, ranks [0]")


@silent("queue-ends-meet")
def a_real_reader_is_ready_before_its_writer_says_so() -> Builder:
    return _really(0.1, 0.1).observes("worker.0", "queue-ready", readers=0, deadline=9e9)


@rejects("queue-ends-meet")
def a_real_reader_is_ready_before_another_has_come() -> Builder:
    h = _really(0.1).observes("worker.0", "queue-ready", readers=0, deadline=9e9)
    return h.observes("worker.1", "queue-came", rank=1)


@accepts("queue-ends-meet")
def a_question_is_answered() -> Builder:
    return _ends().observes("frontend.0", "queue-asked", words="the place of rank 99", answer="refused",
                            wanted="refused")


@rejects("queue-ends-meet")
def a_question_is_answered_wrongly() -> Builder:
    return _ends().observes("frontend.0", "queue-asked", words="the place of rank 99", answer=None, wanted="refused")


_CHUNKS_BYTES = 2 * RingConfig().max_chunk_bytes


def _lies(flags: bytes = b"\1\1\1\0\0\0", pids: tuple[int, ...] = (100, 101, 102), size: int = 0,
          left: int = 0, h: Builder | None = None) -> Builder:
    """One message, which both have read."""
    h = h or _ends().observes("core.0", "queue-put-at", position=0)
    h.ends("core.0", "worker.0", "worker.1")
    presence = b"".join(struct.pack("<IIQ", pid, left, 0) for pid in pids)
    tail = flags.ljust(64, b"\0") + bytes(128) + presence.ljust(64, b"\0")
    return h.observes("frontend.0", "queue-memory", bytes=_CHUNKS_BYTES + (size or len(tail)), tail=tail.hex())


@accepts("queue-ends-meet")
def the_memory_is_laid_out_as_documented() -> Builder:
    return _lies()


@accepts("queue-ends-meet")
def a_message_lies_at_another_place() -> Builder:
    return _lies(b"\3\1\1\0\0\0")


def _large_ones(flags: bytes) -> Builder:
    """Two, which fit into a chunk, and which both have read."""
    h = _ends()
    for position in (0, 1):
        h.observes("core.0", "queue-put", chunk=1 << 20).observes("core.0", "queue-put-at", position=position)
    return _lies(flags, h=h)


@accepts("queue-ends-meet")
def large_messages_have_changed_places() -> Builder:
    return _large_ones(b"\3\1\1\2\1\1")


@rejects("queue-ends-meet")
def large_messages_lie_at_places_of_their_own() -> Builder:
    return _large_ones(b"\1\1\1\1\1\1")


@rejects("queue-ends-meet")
def two_messages_lie_at_one_place() -> Builder:
    return _lies(b"\3\1\1\1\1\1").observes("core.0", "queue-put-at", position=1)


@rejects("queue-ends-meet")
def a_message_lies_at_no_place() -> Builder:
    return _lies(b"\7\1\1\0\0\0")


@rejects("queue-ends-meet")
def a_reader_has_flagged_what_it_has_not_read() -> Builder:
    return _lies(b"\1\1\1\0\0\1")


@rejects("queue-ends-meet")
def a_reader_has_not_flagged_what_it_has_read() -> Builder:
    return _lies(b"\1\1\0\0\0\0")


@rejects("queue-ends-meet")
def a_flag_is_neither_0_nor_1() -> Builder:
    return _lies(b"\1\1\2\0\0\0")


@rejects("queue-ends-meet")
def the_segment_is_too_large() -> Builder:
    return _lies(size=512)


@rejects("queue-ends-meet")
def an_end_says_it_is_another_process() -> Builder:
    return _lies(pids=(100, 102, 101))


@rejects("queue-ends-meet")
def an_end_says_that_it_has_left() -> Builder:
    return _lies(left=1)


@silent("queue-ends-meet")
def all_are_there_at_once() -> Builder:
    return _alone().observes("worker.0", "queue-came", rank=0).observes("worker.1", "queue-came", rank=1).wait(
        -TICK_S).observes("core.0", "queue-ready", readers=2, deadline=9.0)


def _interrupted(next_outcome: str) -> Builder:
    """What overflows is broken off, and whoever puts the next one in is told what became of that."""
    h = _alone().writes(RPC[0], 0, overflow=True).reads(RPC[0], 0, overflow=True)
    h.writes(RPC[0], 1, overflow=True).observes("core.0", "queue-interrupted")
    h.observes("core.0", "queue-put", face="d", beside=0, wanted=0, chunk=8, readable=True)
    return h.observes("core.0", next_outcome, error="PeerDeadError: a reader has died", position=2).wait(5.0)


@silent("ring-overflow-ordered")
def what_was_interrupted_is_not_waited_for_where_the_next_one_is_refused() -> Builder:
    return _interrupted("queue-not-put")


@silent("ring-overflow-ordered")
def whoever_is_to_have_what_was_interrupted_waits_for_it() -> Builder:
    h = _interrupted("queue-not-put")
    return h.observes("worker.0", "queue-wait", ring="rpc", began=h.now - 1.0, deadline=h.now, ended=h.now,
                      outcome="timeout")


@rejects("ring-overflow-ordered")
def what_was_interrupted_is_lost_where_the_next_one_is_put() -> Builder:
    return _interrupted("queue-put-at")
