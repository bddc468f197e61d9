"""`ringtwin doctor`: what this machine can run, and why not.

Promises: it starts no engine; a line says `ok`, `no` or `--` (matters only for some), what was found, and what to do.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from engine.process.files import PREFIX
from engine.process.runtime_dir import SHM, dead_engines
from scenarios.command import checks
from scenarios.command.shadows import hiding_in
from scenarios.lab import home
from scenarios.lab.settings import lab_config
from scenarios.worlds.registry import WORLDS

BASE = ("msgspec", "simpy", "click", "rich", "jinja2", "pytest")
ENGINE = {"torch": "torch", "pyzmq": "zmq", "safetensors": "safetensors", "transformers": "transformers",
          "tokenizers": "tokenizers"}
#: Below this the numbers of a report are the machine's, not the engine's.
FEW_CORES, LITTLE_MEMORY_GIB = 2, 4
GENERATE_TP = 2
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def examine(clean: bool) -> Iterator[str]:
    """Lines to print. With `clean`, what dead engines and labs left is ended and removed."""
    for name, world in WORLDS.items():
        reason = world.obstacle() or (None if world.virtual_time else _too_little_shm())
        ok = None if reason and world.by_name else reason is None
        yield _line(ok, f"{name} world", reason or ", ".join(filter(None, ("can be played", world.lack()))))
    yield ""
    yield _line(sys.version_info >= (3, 11), "python", f"{platform.python_version()} ({sys.executable})",
                "3.11 or newer is needed")
    for package in BASE:
        yield _package(package, package, needed=True)
    for package, module in ENGINE.items():
        yield _package(package, module, needed=False)
    yield from _machine()
    for place in hiding_in(Path.cwd()):
        yield _line(False, "this folder", f"{place.name} hides Ringtwin's package from programs that start here",
                    "rename it, or start pytest and python -m from another folder")
    yield ""
    yield from _leftovers(clean)


def _line(ok: bool | None, what: str, found: str, help_: str = "") -> str:
    word = {True: "ok", False: "no", None: "--"}[ok]
    return f"{word:3} {what:14} {found}" + (f"; {help_}" if help_ and not ok else "")


def _package(package: str, module: str, *, needed: bool) -> str:
    if importlib.util.find_spec(module) is None:
        return _line(False if needed else None, package, "not installed",
                     "pip install ringtwin" if needed else "for real processes: pip install 'ringtwin[engine]'")
    try:
        return _line(True, package, version(package))
    except PackageNotFoundError:
        return _line(True, package, "installed")


def _machine() -> Iterator[str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield _line(cores >= FEW_CORES, "cores", str(cores), "times will be the machine's, not the engine's")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    yield _line(memory >= LITTLE_MEMORY_GIB, "memory", f"{memory:.1f} GiB", "torch in four processes takes 2 to 3")
    needed = checks.shared_memory_bytes(lab_config().ring, GENERATE_TP)
    free = checks.free_shared_memory_bytes()
    yield _line(free >= needed, "/dev/shm", f"{checks.mebibytes(free)} free, a play takes {checks.mebibytes(needed)}",
                "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm")
    yield from _gpus()
    browser = next((name for name in BROWSERS if shutil.which(name)), None)
    yield _line(True if browser else None, "browser", browser or "no Chromium",
                "only the report's own tests need it")


def _gpus() -> Iterator[str]:
    count = checks.gpus()
    if not count:
        yield _line(None, "GPUs", "none", "real plays compute on the CPU")
        return
    if importlib.util.find_spec("torch") is None:
        yield _line(None, "GPUs", f"{count}, but torch is not installed")
        return
    import torch

    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not usable:
        yield _line(False, "GPUs", f"{count}, but this torch ({torch.__version__}) cannot use them",
                    "install a CUDA build of torch, or make report VENV_FLAGS=--system-site-packages")
        return
    names = ", ".join(dict.fromkeys(torch.cuda.get_device_name(index) for index in range(usable)))
    share = "" if usable >= GENERATE_TP else "; ranks share it and talk through host memory"
    yield _line(True, "GPUs", f"{usable} ({names}){share}")


def _too_little_shm() -> str | None:
    needed, free = checks.shared_memory_bytes(lab_config().ring, GENERATE_TP), checks.free_shared_memory_bytes()
    if free >= needed:
        return None
    return f"/dev/shm has {checks.mebibytes(free)} free, {checks.mebibytes(needed)} are needed"


def _leftovers(clean: bool) -> Iterator[str]:
    if clean:
        for what in home.sweep_labs():
            yield f"    removed {what}"
    found = [f"process {pid} of a dead lab" for pid in home.orphans()] + [str(path) for path in home.dead_homes()]
    found += dead_engine_files()
    if found:
        yield _line(False, "leftovers", f"{len(found)} of dead engines or labs", "ringtwin doctor --clean removes them")
        yield from (f"    {what}" for what in found)
    else:
        yield _line(True, "leftovers", "none")


def dead_engine_files() -> list[str]:
    """Segments and locks in /dev/shm whose engine is dead; nothing is removed."""
    return [str(path) for engine_id in dead_engines() for path in sorted(SHM.glob(f"{PREFIX}{engine_id}*"))]
