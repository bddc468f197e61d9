"""Messages between frontend and core: bursts, losses, doubles, swaps, and frames that are none."""

from __future__ import annotations

import pickle
import sys

from engine.topology import Mark, tensor_parallel
from faults.plan import corrupt, cut, delay, drop, duplicate, hang, marked, plan, reorder, stall, truncate, until
from scenarios.guarantees.all import (
    abort_is_final,
    bad_frame_isolated,
    bad_request_isolated,
    blocks_conserved,
    edge_fifo,
    ends_once,
    hwm0_no_loss,
    lost_request_is_bounded,
    memory_bounded,
    no_foreign_code,
    tokens_in_order,
    tokens_match_reference,
    unroutable_is_known,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import abort, add, asked, copy_that_is_none, of_nobody, raw, recorded, utility

REQUESTS = "frontend.0->core.0/requests"
OUTPUTS = "core.0->frontend.0/outputs"
#: For plans whose losses only a request's own time-out can end.
SOON_GIVEN_UP = {"config": lab_config(bounds={"request_s": 1.2})}


def test_burst_each_way_with_pausing_readers(world):
    """11,000 frames each way; both readers pause until 9,500 stand in front of them."""
    run = world.play(
        topology=tensor_parallel(1),
        workload=recorded("single").then(add(0), utility("ping", 7, times=11_000)),
        config=lab_config(bounds={"request_s": 60.0, "stall_s": 20.0}),
        plan=plan(
            hang("core.0", at=f"{REQUESTS}:receive", nth=100, until=until(f"{REQUESTS}:send", 9_500)),
            hang("frontend.0", at=f"{OUTPUTS}:receive", nth=100, until=until(f"{OUTPUTS}:send", 9_500))))
    run.holds(hwm0_no_loss, edge_fifo)


globals().update(family(__name__, (
    Case("test_request_is_lost",
         "One ADD never arrives: its caller is told within the time-out, the others are served.",
         plan(drop(REQUESTS, nth=4, match={"type": "ADD"})),
         (lost_request_is_bounded, ends_once, tokens_match_reference), play=SOON_GIVEN_UP),
    Case("test_request_is_lost_beside_one_that_goes_on",
         "One ADD never arrives while another request gets its tokens, slowly: that is no sign of the lost one.",
         plan(drop(REQUESTS, nth=2, match={"type": "ADD"}),
              *(hang("worker.1", at="core.0->worker.1/rpc:receive", nth=nth, until=until(seconds=0.2))
                for nth in range(20, 44, 2))), (lost_request_is_bounded, ends_once, tokens_match_reference),
         play={"workload": recorded("long").then(add(0), behind=("r0", 2)).then(add(1)),
               "topology": tensor_parallel(2), **SOON_GIVEN_UP}),
    Case("test_output_is_lost_in_mid_stream",
         "One message of outputs never arrives: no stream shows a hole, each ends as a clean prefix or whole.",
         plan(drop(OUTPUTS, nth=12)),
         (lost_request_is_bounded, tokens_in_order, ends_once), play=SOON_GIVEN_UP),
    Case("test_output_is_lost_and_tokens_go_on",
         "A message of outputs is lost, and its stream goes on for longer than one may be late: it is given up.",
         plan(drop(OUTPUTS, nth=9), *(hang("worker.1", at="core.0->worker.1/rpc:receive", nth=nth,
                                           until=until(seconds=0.2)) for nth in range(40, 54, 2))),
         (lost_request_is_bounded, tokens_in_order, ends_once, blocks_conserved),
         play={"workload": recorded("long").then(add(0), behind=("r0", 9)).then(add(1)),
               "topology": tensor_parallel(2)}),
    Case("test_output_is_lost_and_the_core_stands_still",
         "A message of outputs is lost, and the core stops for a while: what was given up meanwhile it frees at once.",
         plan(drop(OUTPUTS, nth=5), stall("core.0", at=marked("core.0", Mark.SCHEDULED), nth=11,
                                          until=until(seconds=1.2))),
         (lost_request_is_bounded, tokens_in_order, ends_once, blocks_conserved)),
    Case("test_output_is_doubled",
         "A request and a message of outputs arrive twice: it is served once, and its tokens are delivered once.",
         plan(duplicate(REQUESTS, nth=4, match={"type": "ADD"}), duplicate(OUTPUTS, nth=12)),
         (tokens_in_order, tokens_match_reference)),
    Case("test_output_is_cut_short",
         "One message of outputs loses its end: it is dropped and told of, and who misses tokens is told so.",
         plan(truncate(OUTPUTS, nth=12)), (bad_frame_isolated, lost_request_is_bounded, ends_once)),
    Case("test_outputs_swap",
         "Two messages of outputs arrive in the wrong order: the streams are right all the same.",
         plan(reorder(OUTPUTS, nth=12)),
         (tokens_in_order, tokens_match_reference)),
), topology=tensor_parallel(1), workload=recorded("eight-mixed")))


def test_abort_comes_behind_a_new_request_of_the_same_id(world):
    """An ABORT is late; meanwhile its caller uses the id again. The new request is not hurt."""
    run = world.play(
        topology=tensor_parallel(1),
        workload=recorded("eight-even").then(add(0, 1), steps=3).then(abort(0), add(0), steps=2).then(),
        plan=plan(delay(REQUESTS, match={"type": "ABORT"}, until=until(REQUESTS, 8))))
    run.holds(abort_is_final, ends_once, tokens_match_reference)


class _EndsWhoeverUnpickles:
    def __reduce__(self):
        return sys.exit, ("a pickle was executed",)


def test_frames_that_are_no_requests(world):
    """Too short, unknown, empty, a pickle, a map instead of a request: all dropped, everybody else is served."""
    hostile = pickle.dumps(_EndsWhoeverUnpickles())
    run = world.play(
        topology=tensor_parallel(1),
        workload=recorded("eight-even")
        .then(add(0, 1, 2, 3), raw(b"\x00"), raw(b"\x63", b"x"), raw(b"\x00", b""), raw(b"\x00", hostile),
              raw(b"\x03", hostile), raw(b"\x01", b"\xc1"), raw(b"\x00", b"\x81\xa1a\x01"),
              raw(b"\x00", b"\x92\xa5alien\x07"), steps=4)
        .then(add(4, 5, 6, 7)))
    run.holds(bad_frame_isolated, no_foreign_code, tokens_match_reference)


def test_frames_that_bear_the_id_of_a_request(world):
    """Three ADDs come once more and are none, one of them twice: who they name is served as if there were none."""
    run = world.play(
        topology=tensor_parallel(1),
        workload=recorded("eight-even").then(add(0, 1, 2, 3), steps=3).then(
            *(copy_that_is_none(name) for name in (0, 2, 3, 3)), add(4, 5, 6, 7)))
    run.holds(bad_frame_isolated, tokens_match_reference, tokens_in_order)


def test_requests_of_nobody(world):
    """One without a token, one too long, one of a client that there is none of: they end alone, and all is told."""
    run = world.play(
        topology=tensor_parallel(1), config=lab_config(scheduler={"max_model_len": 60}),
        workload=recorded("pair").then(
            add(0), of_nobody("empty"), of_nobody("long", *[5] * 60), of_nobody("of-7", 5, client_index=7),
            steps=4).then(add(1)))
    run.holds(bad_frame_isolated, tokens_match_reference, blocks_conserved)


def test_requests_are_damaged_on_the_way(world):
    """One ADD loses its end, others have a byte flipped: they fail alone, at once where it still says whose it is."""
    run = world.play(
        topology=tensor_parallel(1), workload=recorded("eight-even"), config=lab_config(bounds={"request_s": 1.2}),
        plan=plan(corrupt(REQUESTS, nth=2, byte=16, match={"type": "ADD"}),  # a token of its prompt
                  truncate(REQUESTS, nth=3, match={"type": "ADD"}),
                  corrupt(REQUESTS, nth=4, byte=18, match={"type": "ADD"}),  # another one: no model has so many
                  corrupt(REQUESTS, nth=6, byte=93, match={"type": "ADD"}),  # a parameter
                  corrupt(REQUESTS, nth=8, byte=0, match={"type": "ADD"})))
    run.holds(bad_frame_isolated, ends_once)


def test_request_for_a_core_that_has_disconnected(world):
    """The connection for requests is cut and stays cut: a later request and a later call fail at once, by name."""
    run = world.play(
        topology=tensor_parallel(1), config=lab_config(bounds={"request_s": 1.2}),
        workload=recorded("eight-even").then(add(0, 1), steps=3).then(steps=1).then(
            add(2), utility("reset_prefix_cache")),
        plan=plan(cut(REQUESTS, nth=5, until=until(f"{OUTPUTS}:send", 1_000_000))))
    run.holds(unroutable_is_known, ends_once)


def test_request_that_cannot_be_served(world):
    """A prompt that one block can never hold fails alone and says why, or is given up; one that fills it is served."""
    run = world.play(
        topology=tensor_parallel(1), config=lab_config(cache={"block_size": 77, "num_gpu_blocks": 1}),
        workload=asked(recorded("eight-mixed"), 3, max_tokens=1).then(
            add(1, 0), add(0, name="given up"), abort("given up"), steps=3).then(add(3), add(0, name="behind")))
    run.holds(bad_request_isolated, tokens_match_reference)


def test_more_requests_than_admitted(world):
    """Eight requests for a client that may have five in flight: three are refused by name."""
    run = world.play(
        topology=tensor_parallel(1), workload=recorded("eight-even"), config=lab_config(limits={"max_requests": 5}))
    run.holds(memory_bounded, tokens_match_reference)


def test_more_bytes_than_admitted(world):
    """Eight requests, long ones among them, for a client that may have 1,300 bytes in flight: some are refused."""
    run = world.play(
        topology=tensor_parallel(1), workload=recorded("eight-mixed"),
        config=lab_config(limits={"max_request_bytes": 1300}))
    run.holds(memory_bounded, ends_once, tokens_match_reference)
