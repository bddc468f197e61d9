"""Whoever the lab has stand beside a vLLM is run before it, and its children are not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scenarios.worlds.vllm.relay.precedence import run_before_others

POLICIES = """
import os
from scenarios.worlds.vllm.relay.precedence import run_before_others
print(run_before_others(), os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR, flush=True)
child = os.fork()
if not child:
    print(os.sched_getscheduler(0) == os.SCHED_OTHER, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_it_is_run_before_others_and_its_children_are_not() -> None:
    ours, children = subprocess.run(
        [sys.executable, "-c", POLICIES], capture_output=True, text=True, check=True).stdout.splitlines()
    assert ours in ("True True", "False False")  # the second: this system does not allow it
    assert children == "True"


def test_where_it_is_refused_all_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    assert run_before_others() is False
