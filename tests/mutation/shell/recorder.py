"""Runs at the start of every process of a recorded play: writes down which lines of the engine's functions it runs.

Each line once for each process and at once, so that a process that is killed has said what it did. It is appended to
the `sitecustomize` of a planted copy (`tests.mutants.plant`), whose `TREE` it uses. A forked child begins anew.
"""

import os
import sys
import threading

TREE = os.path.dirname(os.path.abspath(__file__))
_FOLDER = os.path.join(TREE, "engine") + os.sep
_OF_A_FUNCTION = 0x01  # CO_OPTIMIZED: not the body of a module or class
_unseen = {}  # by code: its lines that were not run yet


def _begin() -> None:
    _unseen.clear()


def _call(frame, event, argument):
    code = frame.f_code
    lines = _unseen.get(code)
    if lines is None:
        ours = code.co_filename.startswith(_FOLDER) and code.co_flags & _OF_A_FUNCTION
        lines = _unseen[code] = {line for *_, line in code.co_lines() if line} if ours else set()
    return _line if lines else None


def _line(frame, event, argument):
    lines = _unseen.get(frame.f_code)
    if not lines:
        return None
    if frame.f_lineno in lines:
        lines.remove(frame.f_lineno)
        _say(os.path.relpath(frame.f_code.co_filename, TREE), frame.f_lineno)
    return _line


def _say(file, line):
    with open(os.path.join(TREE, "playing")) as playing:
        number = playing.read()
    with open(os.path.join(TREE, "lines", number), "a") as said:
        said.write(f"{file}:{line}\n")


if os.environ.get("RECORD_LINES"):
    os.register_at_fork(after_in_child=_begin)
    threading.settrace(_call)
    sys.settrace(_call)
