"""Where plays come from: the host, the commit of the project, the command, the versions.

Promises: what cannot be found out is None, and no play fails for it; all but the time is looked up once a process.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scenarios.history.play import Provenance

ROOT = Path(__file__).parents[2]
PACKAGES = ("ringtwin", "torch", "pyzmq", "msgspec", "simpy", "transformers")
GIT_S = 10.0  # a checkout on a disk that does not answer must not keep a play waiting


def provenance(now: datetime | None = None) -> Provenance:
    """Of a play that begins now."""
    commit, changed = checkout(ROOT)
    return Provenance(
        began_at=(now or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        system=f"{platform.system()} {platform.release()}", machine=platform.machine(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        commit=commit, changed=changed, command=command())


@lru_cache(maxsize=4)
def checkout(root: Path) -> tuple[str | None, bool | None]:
    """(commit, whether files of it were changed) where `root` itself is a git checkout: one around it says nothing."""
    if not (root / ".git").exists():
        return None, None
    commit, changed = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit, None if commit is None or changed is None else bool(changed)


def _git(root: Path, *words: str) -> str | None:
    # A hook that plays has these set, and they name its own repository.
    environment = {name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE")}
    try:
        return subprocess.run(["git", "--no-optional-locks", *words], cwd=root, env=environment, capture_output=True,
                              text=True, timeout=GIT_S, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def command() -> str:
    """As it was called."""
    called = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None)
    program = f"python -m {called.removesuffix('.__main__')}" if called else shlex.quote(Path(sys.argv[0]).name)
    return " ".join([program, *map(shlex.quote, sys.argv[1:])])


@lru_cache(maxsize=2)
def versions(*, real: bool) -> dict[str, str]:
    """Of all that plays. `real`: by sockets, whose library has a version of its own; a twin may not have it at all."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if real and "pyzmq" in found:
        import zmq

        found["libzmq"] = zmq.zmq_version()
    return found
