"""Programs that use the engine and end in ways that a test's own process cannot: each runs in a process of its own.

    python -m tests.engine.programs NAME TP START_METHOD RUNTIME_DIR

A program says on its standard output, one JSON object a line: `engine`, when it runs (its id, its directory, its
processes), then what the test asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def open_llm(tp: int, start_method: str, runtime_dir: str) -> Any:
    from engine.frontend.llm import LLM
    from tests.engine.engine_lab import Owned, config, engine_processes

    llm = LLM(config=config(tp, start_method=start_method, runtime_dir=runtime_dir))
    owned = Owned.by(llm)
    say(engine=owned.engine_id, path=owned.path, processes=engine_processes(llm))
    return llm


def generate_for_ever(llm: Any) -> None:
    from tests.engine.engine_lab import ENDLESS, PROMPT

    while True:
        llm.generate([PROMPT] * 4, ENDLESS, on_progress=lambda done, of: None)


def interrupted(*arguments: Any) -> None:
    """Waits in generate for the signal that ends it; the engine is nobody's business afterwards."""
    generate_for_ever(open_llm(*arguments))


def interrupted_in_with(*arguments: Any) -> None:
    with open_llm(*arguments) as llm:
        generate_for_ever(llm)


#: Engines that live to the end of their program: an engine nobody refers to any more ends before.
KEPT: list[Any] = []


def never_shut_down(*arguments: Any) -> None:
    llm = open_llm(*arguments)
    KEPT.append(llm)
    from tests.engine.engine_lab import PROMPT

    llm.generate([PROMPT])
    say(done=True)


def never_shut_down_by_a_worker(*arguments: Any) -> None:
    """The engine is a child's of `multiprocessing`, which runs no exit handler of its own accord."""
    import multiprocessing

    worker = multiprocessing.get_context("fork").Process(target=never_shut_down, args=arguments)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)


def raises(*arguments: Any) -> None:
    KEPT.append(open_llm(*arguments))
    raise ValueError("the program's own mistake")


def forks_a_child_of_its_own(*arguments: Any) -> None:
    """The child inherits every descriptor of its parent, the engine's pipes among them, and lives on."""
    llm = open_llm(*arguments)
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    say(child=pid)
    generate_for_ever(llm)


def forks_a_child_that_ends(*arguments: Any) -> None:
    """A child that runs to its end leaves its parent's engine alone."""
    llm = open_llm(*arguments)
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    os.waitpid(pid, 0)
    from tests.engine.engine_lab import PROMPT

    say(tokens=len(llm.generate([PROMPT])[0].token_ids))
    llm.shutdown()


def killed_while_starting(*arguments: Any) -> None:
    """SIGKILL of itself as soon as its core is born."""
    import threading

    from tests.engine.engine_lab import descendants

    def watch() -> None:
        while len(found := descendants()) < 2:
            pass
        say(processes=found)
        os.kill(os.getpid(), 9)

    from engine.process.runtime_dir import RuntimeDir

    create = RuntimeDir.create

    def created(base: str | None) -> Any:
        runtime = create(base)
        say(engine=runtime.engine_id, path=str(runtime.path))
        threading.Thread(target=watch, daemon=True).start()
        return runtime

    RuntimeDir.create = created
    open_llm(*arguments)


PROGRAMS: dict[str, Callable[..., None]] = {f.__name__: f for f in (
    interrupted, interrupted_in_with, never_shut_down, never_shut_down_by_a_worker, raises, forks_a_child_of_its_own,
    forks_a_child_that_ends, killed_while_starting)}


class Program:
    """A started program, as the test sees it. A context manager: the program is dead afterwards."""

    def __init__(self, name: str, tp: int, runtime_dir: Any, start_method: str = "fork",
                 env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.programs", name, str(tp), start_method, str(runtime_dir)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, **(env or {})})
        self.pid = self._process.pid

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.communicate()

    def hear(self) -> dict[str, Any]:
        """Its next words. Raises AssertionError with its errors where it ends without them."""
        line = self._process.stdout.readline()
        assert line, self._process.stderr.read()
        return json.loads(line)

    def signal_group(self, number: int) -> None:
        """As a terminal does on Ctrl-C: to all processes of the program's session."""
        os.killpg(self.pid, number)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> tuple[int, str]:
        """-> (exit code, standard error). Raises subprocess.TimeoutExpired."""
        _, errors = self._process.communicate(timeout=timeout_s)
        return self._process.returncode, errors


if __name__ == "__main__":
    _, program, ranks, method, where = sys.argv
    PROGRAMS[program](int(ranks), method, where)
