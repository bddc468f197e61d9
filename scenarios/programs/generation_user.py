"""A program that generates: by `LLM` where it has no event loop, by `AsyncLLM` where it has one, as README shows it.

What it asks the model is its play's workload, whose answers `transformers` chose.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from multiprocessing import process
from pathlib import Path
from typing import Any

import msgspec

import engine
from engine.config import EngineConfig
from engine.errors import BadRequestError
from engine.wire.buffers import MAX_BUFFERS
from scenarios.programs.asking import GONE_S, PATIENCE_S, Asking, Turns, held, interrupting, no_more, until

TEXT = " Bruno is our ring."
#: What has so many travels as a frame of its own: less than what a real socket sends without a copy, by a thread that
#: it keeps.
APART_BYTES = 1 << 10


def ask_generation(ask: Asking) -> None:
    config = msgspec.structs.replace(
        ask.config, skip_tokenizer_init=False, tensor_parallel_size=1,
        sockets=msgspec.structs.replace(ask.config.sockets, own_frame_bytes=APART_BYTES))
    _of_the_package(ask)
    _without_a_loop(ask, config)
    _on_a_loop(ask, config)


def _of_the_package(ask: Asking) -> None:
    """Its names are imported when they are first used."""
    for name in engine.__all__:
        ask(f"the name {name}", lambda: getattr(engine, name).__name__, name)
    ask.raised("a name that it does not have", lambda: engine.carrier_pigeon, AttributeError, "carrier_pigeon")


def prompts_of(ask: Asking) -> tuple[list[Any], list[Any], list[list[int]]]:
    """-> prompts, parameters, answers"""
    requests = ask.workload.requests
    return ([request.prompt_token_ids for request in requests], [request.params for request in requests],
            [request.reference_token_ids for request in requests])


# -- without an event loop --------------------------------------------------------------------------------------------


def _without_a_loop(ask: Asking, config: EngineConfig) -> None:
    prompts, params, answers = prompts_of(ask)
    few = msgspec.structs.replace(config, limits=msgspec.structs.replace(config.limits, max_requests=2))
    with engine.LLM(config=few) as llm:
        before, progress = held(), list[list[int]]()

        def told(*counts: int) -> None:
            progress.append(list(counts))

        ask("one prompt", lambda: [one.token_ids for one in llm.generate(prompts[0], params[0])], answers[:1])
        ask("more prompts than may be open at once",
            lambda: [one.token_ids for one in llm.generate(prompts, params, told)] == answers, True)
        ask("how it is told of its progress", lambda: progress, [
            [done + 1, len(prompts)] for done in range(len(prompts))])
        ask("the same for all of them", lambda: [one.token_ids for one in llm.generate(
            prompts, engine.SamplingParams(max_tokens=3, ignore_eos=True))], [answer[:3] for answer in answers])
        ask.raised("three parameters for two prompts", lambda: llm.generate(prompts[:2], params[:3]), ValueError, "2",
                   "3")
        ask("one that cannot be served", lambda: llm.generate([prompts[0], []], params[0]), BadRequestError)
        ask("no prompt at all", lambda: llm.generate([]), [])
        [one] = llm.generate(TEXT, params[0])
        ask("what is said of it", lambda: [one.prompt, one.finished, one.finish_reason, len(one.token_ids) > 1],
            [TEXT, True, "length", True])
        for prompt in (one.prompt_token_ids, {"prompt": TEXT}, [TEXT], [one.prompt_token_ids]):
            ask(f"the same, given as {type(prompt).__name__} of {len(prompt)}",
                lambda: [same.token_ids == one.token_ids for same in llm.generate(prompt, params[0])], [True])
        ask("a call", lambda: llm.call_utility("ping", "ab", 3), "ababab")
        many = [bytes(APART_BYTES)] * (MAX_BUFFERS + 1)
        ask("a call with more buffers than a message may have", lambda: llm.call_utility("ping", many) == many, True)
        ask.raised("a call that there is none of", lambda: llm.call_utility("carrier_pigeon"), ValueError,
                   "carrier_pigeon")
        ask("its health", llm.check_health, None)
        _is_interrupted(ask, llm, prompts, params)
        ask("what a forked child's end does to it", lambda: [in_a_child(), llm.call_utility("ping", 1)], [0, 1])
        ask("what it holds when it is done", lambda: no_more(before), True)
    ask("to generate when it is shut down", lambda: llm.generate(prompts[0]), "EngineDeadError")
    ask("its health then", llm.check_health, "EngineDeadError")
    ask("how often it can be shut down", llm.shutdown, None)


def _is_interrupted(ask: Asking, llm: Any, prompts: list[Any], params: list[Any]) -> None:
    """By an exception out of a signal handler, or Ctrl-C: what was asked for is given up, the next call is answered."""
    for error in (InterruptedError, KeyboardInterrupt):
        llm.call_utility("pause_scheduler")
        with interrupting(0.05, partial(_raise, error)):
            ask("to generate while a handler raises", lambda: _ended_by(lambda: llm.generate(prompts, params)),
                error.__name__)
        ask("whether all is given up", lambda: until(lambda: _is_idle(llm.call_utility("get_stats"))), True)
        llm.call_utility("resume_scheduler")


def _raise(error: type[BaseException]) -> None:
    raise error


def _ended_by(work: Callable[[], Any]) -> str:
    try:
        work()
    except BaseException as error:
        return type(error).__name__
    return "nothing"


def _is_idle(stats: list[int]) -> bool:
    """None runs, none waits."""
    return not any(stats[:2])


def in_a_child(work: Callable[[], Any] = lambda: None) -> int:
    """As a program that ends in a forked child. -> its exit code"""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            process._children.clear()  # they are its parent's, and to be waited for by that
            work()
            atexit._run_exitfuncs()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- on an event loop -------------------------------------------------------------------------------------------------


def _on_a_loop(ask: Asking, config: EngineConfig) -> None:
    before = held()
    llm = engine.AsyncLLM(config)
    ask("its blocks", lambda: llm.client.num_gpu_blocks, config.cache.num_gpu_blocks)
    asyncio.run(_asks(ask, llm))
    asyncio.run(_leaves_early(ask, llm))
    asyncio.run(_loses_its_core(ask, llm, config))
    llm.shutdown()
    llm.shutdown()
    asyncio.run(_is_asked_when_it_is_shut_down(ask, llm))
    ask("what is left of it", lambda: no_more(before) and until(lambda: not children(), GONE_S), True)


async def _asks(ask: Asking, llm: Any) -> None:
    prompts, params, answers = prompts_of(ask)
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    others = Turns(0.001)
    outputs = [output async for output in llm.generate(prompts[0], params[0], "a")]
    ask("what comes in the end", lambda: outputs[-1].token_ids, answers[0])
    ask("whether each output goes on with the one before it", lambda: all(map(_goes_on, outputs, outputs[1:])), True)
    ask("whether there was more than one, and others had their turn", lambda: [len(outputs) > 1, others.count > 1],
        [True, True])
    others.end()

    async def last(place: int) -> list[int]:
        return [output async for output in llm.generate(prompts[place], params[place], f"b{place}")][-1].token_ids

    at_once = await asyncio.gather(*map(last, range(len(prompts))))
    ask("what is asked for at once", lambda: at_once == answers, True)
    call = await llm.call_utility("ping", "ab", 2)
    ask("a call on a loop", lambda: call, "abab")
    failed = await _error(llm.call_utility("carrier_pigeon"))
    ask("a call on a loop that there is none of", lambda: failed, "ValueError")
    given_up = llm.start_utility("ping", "given up")
    given_up.cancel()
    call = await llm.call_utility("ping", "next")
    ask("a call behind one that was given up", lambda: call, "next")
    ask("what its loop complains of", lambda: complaints, [])
    ask("its health on a loop", lambda: [llm.errored, llm.dead_error], [False, None])
    healthy = await _error(llm.check_health())
    ask("what it says of its health", lambda: healthy, "")


def _goes_on(sooner: Any, later: Any) -> bool:
    have = len(sooner.token_ids)
    return later.token_ids[:have] == sooner.token_ids and len(later.token_ids) > have and not sooner.finished


async def _error(asked: Any) -> str:
    try:
        await asked
    except Exception as error:
        return type(error).__name__
    return ""


async def _leaves_early(ask: Asking, llm: Any) -> None:
    """Whoever leaves a stream is done with its request; this is another loop than before."""
    prompts, params, answers = prompts_of(ask)
    await llm.call_utility("pause_scheduler")  # what it leaves does not end by itself
    async with aclosing(llm.generate(prompts[1], params[1], "left")) as outputs:
        steps = asyncio.ensure_future(llm.call_utility("run_steps", 2))  # sent behind the request
        async for output in outputs:
            ask("whether there is more of what it leaves", lambda: output.finished, False)
            break
    await steps
    stats = await _rests(llm)
    ask("whether what it left is given up", lambda: _is_idle(stats), True)
    await llm.call_utility("resume_scheduler")
    again = [output async for output in llm.generate(prompts[1], params[1], "left")]
    ask("the same by the same name", lambda: again[-1].token_ids, answers[1])
    await _is_cancelled(ask, llm)
    stream = llm.start("closed", prompts[2], params[2])
    ask("whether the engine's name differs from its caller's", lambda: stream.internal_id not in ("", "closed"), True)
    await stream.aclose()
    rest = [output async for output in stream]
    ask("what comes of a stream that was closed", lambda: len(rest), 0)
    stream = llm.start("ended", prompts[3], params[3])
    llm.abort("ended")
    rest = [output async for output in stream]
    ask("how one ends that was aborted", lambda: [rest[-1].finished, rest[-1].finish_reason], [True, "abort"])
    later = llm.start("ended", prompts[1], params[1])
    await stream.aclose()
    rest = [output async for output in later]
    ask("what one has whose name that one had before it was closed", lambda: rest[-1].token_ids, answers[1])
    ask("how often it can be closed", lambda: stream.aclose().close(), None)


async def _is_cancelled(ask: Asking, llm: Any) -> None:
    """A task that waits for its first token, which does not come."""
    prompts, params, _ = prompts_of(ask)
    await llm.call_utility("pause_scheduler")
    waits = asyncio.ensure_future(_to_its_end(llm.generate(prompts[1], params[1], "waits"), []))
    await llm.call_utility("ping", 1)
    stats = await llm.call_utility("get_stats")
    ask("whether what a task waits for is asked for", lambda: _is_idle(stats), False)
    waits.cancel()
    rested = await _rests(llm)
    ask("whether it is given up as its task is cancelled", lambda: _is_idle(rested), True)
    await llm.call_utility("resume_scheduler")


async def _rests(llm: Any) -> Any:
    """Until it has nothing to do. -> what it says of that"""
    for _ in range(500):
        stats = await llm.call_utility("get_stats")
        if _is_idle(stats):
            break
        await asyncio.sleep(0.002)
    return stats


async def _loses_its_core(ask: Asking, llm: Any, config: EngineConfig) -> None:
    """It is killed in the middle of a stream."""
    prompts, params, _ = prompts_of(ask)
    [core] = children()
    stream = llm.start("lost", prompts[0], params[0])
    first = await stream.__anext__()
    ask("whether it has begun", lambda: first.finished, False)
    for _ in range(2):  # behind another step
        await llm.call_utility("ping", 1)
    os.kill(core, signal.SIGKILL)
    began = time.monotonic()
    while not llm.errored and time.monotonic() < began + PATIENCE_S:
        await asyncio.sleep(0.002)
    rest: list[Any] = []
    error = await _error(_to_its_end(stream, rest))
    lasted = time.monotonic() - began
    ask("whether it has what it had been told before it looked", lambda: bool(rest), True)
    ask("what it is told of its core's death", lambda: error, "EngineDeadError")
    ask.took("telling it of its core's death", lasted, config.bounds.detection_s)
    ask("what it says of its engine then", lambda: [llm.errored, type(llm.dead_error).__name__],
        [True, "EngineDeadError"])
    ask("what it says to who asks for more", lambda: llm.start("more", prompts[0], params[0]), "EngineDeadError")
    dead = await _error(llm.check_health())
    ask("what it says of its health then", lambda: dead, "EngineDeadError")


async def _is_asked_when_it_is_shut_down(ask: Asking, llm: Any) -> None:
    """On a loop that it has not served."""
    prompts, params, _ = prompts_of(ask)
    ask("to start when it is shut down", lambda: llm.start("closed", prompts[0], params[0]), "EngineDeadError")
    ask("to be called when it is shut down", lambda: llm.start_utility("ping", "x"), "EngineDeadError")


async def _to_its_end(stream: Any, seen: list[Any]) -> None:
    async for output in stream:
        seen.append(output)


def children(pid: int | str = "self") -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()]
