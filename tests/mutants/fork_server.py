"""Run as a program: has imported what is not ours, and forks a process for each play that it is told of.

What is ours each process imports from its own copy. What it would import beside that takes as long as the play.

    stdin    a line of JSON each: {"tree": FOLDER, "arguments": [...], "said": FILE, "seconds": SO LONG AT MOST}
    stdout   the exit code of each, as of `python -m scenarios.command ARGUMENTS`, run in FOLDER with its output in FILE
"""

import importlib
import json
import multiprocessing.forkserver
import os
import runpy
import signal
import statistics
import sys
from xml.etree import ElementTree

import click
import jinja2
import msgspec
import pytest
import rich.console
import rich.progress
import simpy

FOREIGN = (ElementTree, click, jinja2, msgspec, multiprocessing.forkserver, pytest, rich, simpy, statistics)


def become(tree: str, arguments: list[str], said: str, seconds: int) -> None:
    """What an interpreter would be that was started there with the copy in its PYTHONPATH."""
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream, number in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(stream, number)
    signal.alarm(seconds)  # ends it then
    os.chdir(tree)
    os.environ["PYTHONPATH"] = tree
    sys.path[0] = tree
    sys.argv = ["scenarios.command", *arguments]
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")
    runpy.run_module("scenarios.command", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(**json.loads(line))
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
