"""A program that begins engines and ends them: it loses one, forgets one, is interrupted, and cannot start one."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import combinations
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.frontend.client import EngineCoreClient
from engine.frontend.llm import LLM
from engine.process.files import PREFIX
from engine.process.runtime_dir import SHM, RuntimeDir, sweep
from scenarios.programs.asking import GONE_S, PATIENCE_S, Asking, held, interrupting, is_gone, is_near, no_more, until
from scenarios.programs.generation_user import children, in_a_child, prompts_of

NOWHERE = "/proc/nowhere"


def ask_engines(ask: Asking) -> None:
    config = msgspec.structs.replace(ask.config, skip_tokenizer_init=False, tensor_parallel_size=1)
    _loses_it(ask, config)
    _is_at_a_terminal(ask, config)
    _is_impatient(ask, config)
    _is_spawned(ask, config)
    _forgets_to_shut_down(ask, config)
    _is_killed_beside_a_child(ask, config)
    _cannot_start(ask, config)
    _has_no_process(ask, config)
    _is_swept(ask)


def _loses_it(ask: Asking, config: EngineConfig) -> None:
    """Its core is killed while it is called, and in the middle of what it generates."""
    prompts, params, _ = prompts_of(ask)
    for words, work in (("a call", lambda llm: llm.call_utility("ping", 1)),
                        ("a prompt", lambda llm: llm.generate(prompts[0], params[0]))):
        with LLM(config=config) as llm:
            [core] = children()
            os.kill(core, signal.SIGSTOP)  # nothing is answered before
            killer = threading.Timer(0.1, os.kill, (core, signal.SIGKILL))
            killer.start()
            began = time.monotonic()
            ask(f"{words} whose engine is lost", lambda: work(llm), "EngineDeadError")
            ask.took(f"telling it of {words} whose engine is lost", time.monotonic() - began - 0.1,
                     config.bounds.detection_s)
            killer.join()
            ask(f"{words} of a lost engine", lambda: work(llm), "EngineDeadError")


def _forgets_to_shut_down(ask: Asking, config: EngineConfig) -> None:
    """A program that ends, or that drops its engine, leaves nothing."""
    prompts, params, _ = prompts_of(ask)
    for words, run in (("a program", in_a_child), ("a child of multiprocessing", _in_a_worker)):
        read, write = os.pipe()

        def generates() -> None:
            llm = LLM(config=config)
            llm.generate(prompts[0], params[0])
            os.write(write, b" ".join(b"%d" % child for child in children()))

        ask(f"the exit code of {words} that forgets to shut down", lambda: run(generates), 0)
        os.close(write)
        with os.fdopen(read, "rb") as said:
            started = [int(child) for child in said.read().split()]
        ask(f"whether what {words} had started is gone",
            lambda: bool(started) and until(lambda: all(map(is_gone, started))), True)
    llm: Any = LLM(config=config)
    ask("what it has started", lambda: len(children()), 1)
    del llm
    gc.collect()
    ask("what is left of one that was dropped", lambda: until(lambda: not children(), GONE_S), True)


def _is_killed_beside_a_child(ask: Asking, config: EngineConfig) -> None:
    """A program has a child of its own, which has inherited whatever it had open, and is killed: its engine goes."""
    read, write = os.pipe()

    def dies() -> None:
        llm = LLM(config=config)
        started = children()
        mine = os.fork()
        if not mine:
            signal.pause()
        os.write(write, b" ".join(b"%d" % child for child in (mine, *started)))
        os.kill(os.getpid(), signal.SIGKILL)
        del llm

    ask("the exit code of a program that is killed", lambda: in_a_child(dies), -signal.SIGKILL)
    mine, *started = [int(child) for child in os.read(read, 4096).split()]
    ask("whether what it had started is gone, beside a child of its own",
        lambda: bool(started) and until(lambda: all(map(is_gone, started))), True)
    os.kill(mine, signal.SIGKILL)
    os.close(read)
    os.close(write)


def _is_at_a_terminal(ask: Asking, config: EngineConfig) -> None:
    """Ctrl-C reaches all that a program has started, and is for the program alone."""
    prompts, params, answers = prompts_of(ask)
    others = _sockets(os.getpid())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    masked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with LLM(config=msgspec.structs.replace(config, tensor_parallel_size=2)) as llm:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        signal.signal(signal.SIGINT, before)
        started = _descendants(os.getpid())
        for pid in started:
            os.kill(pid, signal.SIGINT)
        ask("how many it has started", lambda: len(started), 3)
        holds = [_sockets(pid) - others for pid in (os.getpid(), *started)]
        ask("which of its pipes more than one of them holds", lambda: [
            pipe for one, other in combinations(holds, 2) for pipe in one & other], [])
        ask("what it generates when they were interrupted", lambda: llm.generate(prompts[0], params[0])[0].token_ids,
            answers[0])
        ask("who is there then", lambda: _descendants(os.getpid()), started)


def _is_impatient(ask: Asking, config: EngineConfig) -> None:
    """A core that stands still takes its time to go; who does not wait for that leaves nothing all the same."""
    before = held()
    llm: Any = LLM(config=config)
    [core] = children()
    os.kill(core, signal.SIGSTOP)
    began = time.monotonic()
    with interrupting(0.1):
        ask("to be interrupted in the middle of a shutdown", llm.shutdown, InterruptedError)
    ask("whether it ends then", lambda: is_near(time.monotonic() - began, 0.1), True)
    ask("whether its core is gone", lambda: until(lambda: is_gone(core)), True)
    ask("how often it can be shut down then", llm.shutdown, None)
    llm = None
    ask("what it holds then", lambda: until(lambda: not active_children(), GONE_S) and no_more(before), True)


def _is_spawned(ask: Asking, config: EngineConfig) -> None:
    """As on a machine with a GPU: nothing is inherited, and who sweeps takes nothing of it."""
    prompts, params, answers = prompts_of(ask)
    with LLM(config=msgspec.structs.replace(config, start_method="spawn")) as llm:
        engine_id = llm.client.life.files.engine_id
        ask("whether it has something in shared memory", lambda: bool(_left_of(engine_id)), True)
        ask("what one generates that was spawned", lambda: llm.generate(prompts[0], params[0])[0].token_ids, answers[0])
        ask("what a sweep takes of it", lambda: [path for path in sweep() if config.runtime_dir in path], [])
        ask("what it generates then", lambda: llm.generate(prompts[1], params[1])[0].token_ids, answers[1])
    ask("what is left of it", lambda: until(lambda: not children(), GONE_S), True)
    ask("what is left of it in shared memory", lambda: _left_of(engine_id), [])


def _cannot_start(ask: Asking, config: EngineConfig) -> None:
    """It says what its user can mend, and leaves nothing."""
    before = held()
    for words, changes, parts in (
            ("a model that is not there", {"model": NOWHERE}, (NOWHERE,)),
            ("a directory that cannot be made", {"runtime_dir": NOWHERE}, (NOWHERE, "runtime_dir")),
            ("a directory without a model", {"model": ask.folder}, (ask.folder,))):
        ask.raised(f"to start with {words}", lambda: LLM(config=msgspec.structs.replace(config, **changes)),
                   ConfigError, *parts)
    for index in (-1, "0"):
        ask.raised(f"a client of index {index!r}", lambda: EngineCoreClient(config, client_index=index), ConfigError,
                   "client_index", repr(index))
    for flat in ({"block_size": "x"}, {"max_num_seqs": 1.5}, {"dtype": "float64"}, {"device": "gpu"},
                 {"tensor_parallel_size": "2"}, {"data_parallel_rank": 2, "data_parallel_size": 2}):
        ask.raised(f"to start with {flat}", lambda: LLM(config.model, **flat), ConfigError, *flat)
    for options, bounds, part in (
            ({"lockstep": True}, {}, "lockstep"), ({"coordinator": True}, {}, "coordinator"),
            ({"lockstep": True}, {"collective_s": 300.0, "step_s": 300.0}, "collective_s"),
            ({"lockstep": True, "unchanged_s": 2.0}, {"collective_s": 2.0, "step_s": 9.0}, "unchanged_s")):
        cores = 2 if bounds else 1
        ask.raised(f"{cores} with {options} and {bounds}", lambda: LLM(
            config.model, data_parallel_size=cores, data_parallel=options, bounds=bounds), ConfigError, part)
    ask.raised("to start with a config and a model beside it", lambda: LLM(config.model, config=config), ConfigError,
               "model")
    ask.raised("to start with what there is none of", lambda: LLM(config.model, carrier_pigeon=1), ConfigError,
               "carrier_pigeon")
    ask("what is left of those that did not start", lambda: no_more(before) and until(lambda: not children(), GONE_S),
        True)
    ask("what is left of them in shared memory", lambda: [
        lock.name for lock in SHM.glob(f"{PREFIX}*.lock") if _is_of(lock, NOWHERE)], [])


def _has_no_process(ask: Asking, config: EngineConfig) -> None:
    """Where the system has none left."""
    before = _sockets(os.getpid())
    with patch("os.fork", side_effect=BlockingIOError("no more processes")):
        ask("to start where no process can be", lambda: LLM(config=config), BlockingIOError)
    gc.collect()
    ask("which of its pipes are left", lambda: sorted(_sockets(os.getpid()) - before), [])
    with LLM(config=config) as llm:
        ask("how many it has started when some can be", lambda: [len(children()), llm.client.num_gpu_blocks > 0],
            [1, True])


def _is_swept(ask: Asking) -> None:
    """What a process has left that ended in silence is removed; nothing that is alive by the time it would be.

    In a place of its own: whoever begins an engine on this host sweeps, too.
    """
    shm = Path(ask.folder, "shm")
    shm.mkdir()
    with patch("engine.process.runtime_dir.SHM", shm):
        _is_swept_from(ask, shm)


def _is_swept_from(ask: Asking, shm: Path) -> None:
    def leaves() -> None:
        left = RuntimeDir.create(ask.folder)
        Path(shm, left.segment("left")).write_bytes(b"x")
        Path(ask.folder, "left").write_text(f"{left.engine_id} {left.path}")
        os._exit(0)

    in_a_child(leaves)
    engine_id, path = Path(ask.folder, "left").read_text().split()
    ask("what is there of an engine that ended in silence", lambda: [
        os.path.exists(path), len(_left_of(engine_id, shm))], [True, 2])
    ask("whether a sweep says that it was removed", lambda: path in sweep(), True)
    ask("what is there then", lambda: [os.path.exists(path), len(_left_of(engine_id, shm))], [False, 0])
    alive = RuntimeDir.create(ask.folder)
    with patch("engine.process.runtime_dir.dead_engines", return_value=[alive.engine_id]):
        ask("what a sweep takes of one that was taken meanwhile", sweep, [])
    ask("whether it is there", alive.path.exists, True)
    alive.remove()
    ask("whether it is there when it has removed itself", alive.path.exists, False)


def _left_of(engine_id: str, shm: Path = SHM) -> list[str]:
    return sorted(path.name for path in shm.glob(f"{PREFIX}{engine_id}*"))


def _is_of(lock: Path, folder: str) -> bool:
    try:
        return lock.read_text().startswith(folder)
    except OSError:  # another's, which is gone by now
        return False


def _in_a_worker(work: Callable[[], Any]) -> int | None:
    child = get_context("fork").Process(target=work)
    child.start()
    child.join(PATIENCE_S)
    code = child.exitcode
    child.kill()
    child.join()
    return code


def _sockets(pid: int) -> set[str]:
    """What it has open of sockets, pipes that go both ways among them."""
    return {name for file in Path(f"/proc/{pid}/fd").iterdir() if (name := _where(file)).startswith("socket:")}


def _where(file: Path) -> str:
    try:
        return os.readlink(file)
    except OSError:  # closed meanwhile
        return ""


def _descendants(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *_descendants(child))]
