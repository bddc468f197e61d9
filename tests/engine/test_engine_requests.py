"""Requests of a real engine: each ends once, alone, and as its caller was promised."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import BadRequestError, EngineDeadError, RefusedError, RequestTimeoutError
from engine.frontend.llm import LLM
from engine.messages import SamplingParams
from tests.engine.engine_lab import (
    ENDLESS,
    PROMPT,
    SIXTY_FOUR,
    async_llm,
    config,
    run,
    wrong_answers,
)


async def last(stream):
    return [output async for output in stream][-1]


@pytest.mark.parametrize("seed", range(3))
def test_abort_at_any_moment_ends_that_request_alone(seed: int) -> None:
    """32 requests, half of them aborted after a random number of outputs: the others answer as the reference."""
    rng = random.Random(seed)

    async def one(llm, request, abort_after: int | None):
        outputs = []
        stream = llm.start(f"r{request.index}", request.prompt_token_ids, request.params)
        if abort_after == 0:
            llm.abort(f"r{request.index}")
        async for output in stream:
            outputs.append(output)
            if abort_after is not None and len(outputs) == abort_after:
                llm.abort(f"r{request.index}")
        return outputs

    async def main():
        with async_llm(config(1 + seed % 2)) as llm:
            requests = SIXTY_FOUR[:32]
            aborts = [rng.choice([None, rng.randrange(0, 12)]) for _ in requests]
            all_outputs = await asyncio.gather(*map(lambda r, a: one(llm, r, a), requests, aborts))
            for request, after, outputs in zip(requests, aborts, all_outputs, strict=True):
                final, reference = outputs[-1], request.reference_token_ids
                assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
                assert final.token_ids == reference[:len(final.token_ids)]
                if after is None:
                    assert final.finish_reason == "length" and final.token_ids == reference
                elif final.finish_reason == "length":  # it had ended when its abort came
                    assert final.token_ids == reference
                else:
                    assert final.finish_reason == "abort"
            assert await llm.call_utility("get_stats") == [0, 0, 256, 256]

    run(main())


def test_a_stream_that_is_left_early_aborts_its_request() -> None:
    async def main():
        with async_llm(config()) as llm:
            outputs = llm.generate(PROMPT, ENDLESS, "left")
            async for _ in outputs:
                break
            await outputs.aclose()
            assert await llm.call_utility("get_stats") == [0, 0, 256, 256]

    run(main())


def test_a_cancelled_task_aborts_its_request() -> None:
    async def main():
        with async_llm(config()) as llm:
            begun = asyncio.Event()

            async def consume():
                async for _ in llm.generate(PROMPT, ENDLESS, "cancelled"):
                    begun.set()

            task = asyncio.create_task(consume())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await llm.call_utility("get_stats") == [0, 0, 256, 256]

    run(main())


def test_an_id_is_free_again_at_once_and_the_old_abort_does_not_reach_the_new_request() -> None:
    """Abort and reuse, many times: every new request answers in full."""
    async def main():
        with async_llm(config()) as llm:
            request = SIXTY_FOUR[1]
            for _ in range(20):
                llm.start("same", PROMPT, ENDLESS)
                llm.abort("same")
                output = await last(llm.generate(request.prompt_token_ids, request.params, "same"))
                assert output.token_ids == request.reference_token_ids

    run(main())


def test_an_id_in_use_is_refused_and_its_owner_is_not_disturbed() -> None:
    async def main():
        with async_llm(config()) as llm:
            request = SIXTY_FOUR[0]
            stream = llm.start("mine", request.prompt_token_ids, request.params)
            with pytest.raises(BadRequestError, match="in use"):
                llm.start("mine", PROMPT, ENDLESS)
            assert (await last(stream)).token_ids == request.reference_token_ids

    run(main())


def test_a_consumer_that_reads_nothing_for_a_whole_answer_gets_it_all_in_one_output() -> None:
    """Outputs are cumulative: what a slow consumer skips costs it nothing, and the engine no memory."""
    async def main():
        with async_llm(config()) as llm:
            slow = llm.start("slow", SIXTY_FOUR[2].prompt_token_ids, SIXTY_FOUR[2].params)
            others = [last(llm.start(f"o{r.index}", r.prompt_token_ids, r.params)) for r in SIXTY_FOUR[3:9]]
            await asyncio.gather(*others)
            while not slow._stream.ended:
                await llm.call_utility("ping")
            outputs = [output async for output in slow]
            assert len(outputs) == 1
            assert outputs[0].token_ids == SIXTY_FOUR[2].reference_token_ids

    run(main())


def test_300_requests_over_a_limit_of_100_are_served_or_refused_by_name() -> None:
    async def main():
        with async_llm(config(limits={"max_requests": 100})) as llm:
            streams, refused = [], 0
            for index in range(300):
                request = SIXTY_FOUR[index % 64]
                try:
                    streams.append((request, llm.start(f"r{index}", request.prompt_token_ids, request.params)))
                except RefusedError as error:
                    refused += 1
                    assert error.request_id == f"r{index}" and "the limit is 100" in str(error)
                    assert not error.may_have_taken_effect
            assert (len(streams), refused) == (100, 200)
            outputs = await asyncio.gather(*(last(stream) for _, stream in streams))
            assert all(o.token_ids == r.reference_token_ids for (r, _), o in zip(streams, outputs, strict=True))
            assert len(llm.client.session) == 0

    run(main())


def test_bytes_in_flight_are_limited_too() -> None:
    async def main():
        with async_llm(config(limits={"max_request_bytes": 1000})) as llm:
            first_stream = llm.start("first", SIXTY_FOUR[0].prompt_token_ids, SIXTY_FOUR[0].params)
            with pytest.raises(RefusedError, match="bytes of requests"):
                for index in range(10):
                    llm.start(f"r{index}", SIXTY_FOUR[0].prompt_token_ids, SIXTY_FOUR[0].params)
            assert (await last(first_stream)).token_ids == SIXTY_FOUR[0].reference_token_ids

    run(main())


def test_more_prompts_than_the_limit_go_through_generate_in_turns() -> None:
    with LLM(config=config(limits={"max_requests": 5})) as llm:
        assert wrong_answers(llm) == []


BAD = {
    "too long": ([5] * 1024, None),
    "empty": ([], None),
    "outside the vocabulary": ([10 ** 6], None),
    "text without a tokenizer": ("text", None),
    "stop strings without a tokenizer": (PROMPT, SamplingParams(stop=("x",))),
    "not a prompt": (7, None),
}


def test_bad_requests_fail_alone_and_say_why() -> None:
    async def main():
        with async_llm(config()) as llm:
            good = llm.start("good", SIXTY_FOUR[0].prompt_token_ids, SIXTY_FOUR[0].params)
            for name, (prompt, params) in BAD.items():
                with pytest.raises(BadRequestError):
                    llm.start(name, prompt, params)
                assert name not in llm._service.streams._streams
            assert (await last(good)).token_ids == SIXTY_FOUR[0].reference_token_ids
            assert len(llm.client.session) == 0

    run(main())


def test_a_bad_prompt_among_good_ones_is_told_before_anything_is_sent() -> None:
    with LLM(config=config()) as llm:
        with pytest.raises(BadRequestError):
            llm.generate([PROMPT, [10 ** 6], PROMPT], SamplingParams(max_tokens=2))
        assert len(llm.client.session) == 0
        assert len(llm.generate([PROMPT], SamplingParams(max_tokens=2))[0].token_ids) == 2


GARBAGE = [
    [b""], [b"\x00"], [b"\x00", b"\xc1"], [b"\x00", b"\x93\x01\x02\x03"], [b"\x09", b"\x90"],
    [b"\x01", b"\x81\x01\x02"],
    [b"\x03", b"\x94\x00\x00\xa4ping\xc0"], [b"\x00" * 70_000, b"x"], [b"\x00", b"\xff" * 100_000],
    [b"\x00", b"\x93\xa1x\x91\xa1y\x80"], [b"\x03", b"\x94\xcf" + b"\xff" * 8 + b"\x00\xa4ping\x90"],
    [b"\x02", b"\x90"],
]


def test_bytes_that_are_no_request_hurt_nobody() -> None:
    async def main():
        with async_llm(config()) as llm:
            stream = llm.start("good", SIXTY_FOUR[0].prompt_token_ids, SIXTY_FOUR[0].params)
            for frames in GARBAGE:
                llm.client.send_raw(frames)
            assert (await last(stream)).token_ids == SIXTY_FOUR[0].reference_token_ids
            assert await llm.call_utility("ping", "alive") == "alive"

    run(main())


def test_a_core_for_which_no_client_has_that_index_goes_on() -> None:
    """A well-formed utility call of client 7: its answer has nowhere to go, and that is all."""
    async def main():
        with async_llm(config()) as llm:
            llm.client.send_raw([b"\x03", b"\x94\x07\x00\xa4ping\x90"])
            assert await llm.call_utility("ping", 1) == 1

    run(main())


# -- utilities


@pytest.mark.parametrize("tp", [1, 2])
def test_collective_rpc_reaches_every_rank_and_answers_in_rank_order(tp: int) -> None:
    with LLM(config=config(tp, cache={"num_gpu_blocks": None, "cpu_cache_bytes": 4 << 20})) as llm:
        counts = llm.call_utility("collective_rpc", "get_num_blocks")
        assert len(counts) == tp and len(set(counts)) == 1
        assert llm.call_utility("collective_rpc", "check_health") == [None] * tp


def test_many_calls_in_flight_at_once_all_return() -> None:
    """More calls than the rings have chunks, submitted before the first answer is read."""
    with LLM(config=config(2)) as llm:
        assert llm.call_utility("collective_rpc", "check_health", 50) == [None, None]


@pytest.mark.parametrize(("call", "reason"), [
    (("no_such_utility",), "unknown utility"),
    (("run_steps", 0), "at least 1"),
    (("run_steps", "many"), "run_steps"),
    (("ping", 1, 2, 3), "ping"),
])
def test_a_utility_that_cannot_be_called_so_fails_alone(call: tuple, reason: str) -> None:
    with LLM(config=config()) as llm:
        with pytest.raises(ValueError, match=reason):
            llm.call_utility(*call)
        assert llm.call_utility("ping", "still here") == "still here"


@pytest.mark.parametrize("tp", [1, 2])
def test_a_method_that_no_worker_has_fails_alone(tp: int) -> None:
    with LLM(config=config(tp)) as llm:
        for method in ("no_such_method", "_loaded", "__class__"):
            with pytest.raises(ValueError, match=method):
                llm.call_utility("collective_rpc", method)
        assert llm.call_utility("ping", 1) == 1


def test_the_prefix_cache_is_forgotten_when_asked() -> None:
    request = SIXTY_FOUR[0]
    with LLM(config=config()) as llm:
        def cached() -> int:
            return llm.generate([request.prompt_token_ids], [request.params])[0].num_cached_tokens

        assert [cached(), cached() > 0] == [0, True]
        assert llm.call_utility("reset_prefix_cache") is True
        assert cached() == 0


def test_paused_nothing_answers_and_exactly_k_steps_run() -> None:
    async def main():
        with async_llm(config()) as llm:
            await llm.call_utility("pause_scheduler")
            stream = llm.start("r", PROMPT, ENDLESS)
            steps = await llm.call_utility("run_steps", 3)
            assert steps == 3
            async for output in stream:
                assert len(output.token_ids) <= 3
                if len(output.token_ids) == 3:
                    break
            assert await llm.call_utility("get_stats") == [1, 0, *(await llm.call_utility("get_stats"))[2:]]
            await llm.call_utility("resume_scheduler")
            async for output in stream:
                if len(output.token_ids) > 3:
                    break
            await stream.aclose()

    run(main())


# -- time


def test_a_request_that_hears_nothing_in_time_says_that_it_may_have_taken_effect() -> None:
    """The scheduler is paused: the request waits in the core. Its caller's wait ends, and the core frees it."""
    async def main():
        settings = impatient()
        with async_llm(settings) as llm:
            await llm.call_utility("pause_scheduler")
            with pytest.raises(RequestTimeoutError) as caught:
                await last(llm.start("silent", PROMPT, ENDLESS))
            assert caught.value.may_have_taken_effect
            assert await llm.call_utility("get_stats") == [0, 0, 256, 256]
            assert not llm.errored

    import msgspec

    from tests.engine import engine_lab

    def impatient():
        bounds = msgspec.structs.replace(engine_lab.BOUNDS, request_s=0.3)
        return msgspec.structs.replace(engine_lab.config(), bounds=bounds)

    run(main())


# -- several loops, several engines


def test_one_engine_serves_two_event_loops_after_each_other() -> None:
    with async_llm(config()) as llm:
        for turn in range(2):
            request = SIXTY_FOUR[turn]
            output = run(last(llm.generate(request.prompt_token_ids, request.params, "r")))
            assert output.token_ids == request.reference_token_ids


def test_two_engines_of_one_process_do_not_meet() -> None:
    with LLM(config=config(2)) as one, LLM(config=config(2)) as other:
        assert one.client.life.files.engine_id != other.client.life.files.engine_id
        assert wrong_answers(one, SIXTY_FOUR[:4]) == wrong_answers(other, SIXTY_FOUR[4:8]) == []
        one.shutdown()
        assert wrong_answers(other, SIXTY_FOUR[:4]) == []
        with pytest.raises(EngineDeadError):
            one.generate([PROMPT])
