"""What a process of a play needs is there when it is forked: what it imports then, each play pays for anew."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ENGINE = Path(__file__).parents[3] / "engine"
#: Only where sockets are encrypted, which no play's are.
SELDOM = {"engine.wire.curve"}


def imported_late(path: Path) -> Iterator[str]:
    """The engine's modules that functions of this file import when they run."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("engine."):
                    yield str(node.module)


def told_behind_the_imports(program: str) -> list[str]:
    """The words that it prints, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", f"import os, sys, scenarios.worlds.forking.preload; {program}"],
        cwd=ENGINE.parent, capture_output=True, text=True, check=True, timeout=120,
        env={name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}).stdout.split()


def test_the_fork_server_has_imported_whatever_the_engine_imports_late() -> None:
    loaded = set(told_behind_the_imports("print('\\n'.join(sys.modules))"))
    files = {path: ".".join(path.relative_to(ENGINE.parent).with_suffix("").parts) for path in ENGINE.rglob("*.py")}
    late = {name for path, module in files.items() if module in loaded for name in imported_late(path)}
    assert "engine.ipc.message_queue" in late, "the search finds nothing"
    assert late - loaded == SELDOM


def test_what_plays_are_forked_from_has_one_thread() -> None:
    assert told_behind_the_imports("print(len(os.listdir('/proc/self/task')))") == ["1"]
