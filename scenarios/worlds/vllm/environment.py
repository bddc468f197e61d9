"""Which vLLM is played: its interpreter, and the folder from which its processes load the stand-in.

The lab's environment has no vLLM. `RINGTWIN_VLLM_PYTHON` names an interpreter that has one; `make vllm` builds one.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from scenarios.worlds.vllm.host import fit

ROOT = Path(__file__).parents[3]
#: Names the interpreter; `--vllm-python` does, too. Where neither does: the environment of `make vllm`.
VARIABLE = "RINGTWIN_VLLM_PYTHON"
BUILT = Path(".venv-vllm/bin/python")
#: What is tested. Others are played if the lab's adapter fits them (`host/fit.py`).
TESTED = "0.33.0"
#: vLLM imports within this, also from a cold disk.
IMPORT_S = 180.0
#: Of the lab's packages what vLLM's processes load.
_PACKAGES = ("engine", "faults", "scenarios")
_ENTRY_POINTS = """[vllm.platform_plugins]
ringtwin = scenarios.worlds.vllm.stand_in:platform

[vllm.general_plugins]
ringtwin = scenarios.worlds.vllm.stand_in:register
"""
#: Where the package lies, without importing it.
_PLACE = "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('vllm').origin).parent.parent)"
_PROBE = """
import importlib.metadata as m, json, sys
found = {"python": sys.version.split()[0]}
for name in ("vllm", "torch", "pyzmq", "msgspec"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def interpreter() -> Path | None:
    """The one that is named, or built; None: there is none."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return BUILT.absolute() if BUILT.exists() else None


def obstacle() -> str | None:
    """Why no vLLM can be played here, in a line, or None."""
    python = interpreter()
    if python is None:
        return f"no interpreter with vLLM is named ({VARIABLE}, or --vllm-python), and `make vllm` has built none"
    try:
        found = version_of(python)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"{python} cannot be asked for its vLLM: {error}"
    if not found:
        return f"{python} has no vLLM"
    why = None if found == TESTED else misfit_of(python)
    return why and f"vLLM {found} cannot be played as {TESTED} can: {why}"


@cache
def misfit_of(python: Path) -> str | None:
    """What the lab's adapter uses of vLLM and this interpreter's does not have, in a line; None: it fits. Asked once:
    its vLLM is imported for it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            told = subprocess.run([str(python), "-m", fit.__name__], capture_output=True, text=True, check=False,
                                  timeout=IMPORT_S,
                                  env={**os.environ, **VARIABLES, "PYTHONPATH": str(make_path(Path(folder)))})
        except (OSError, subprocess.SubprocessError) as error:
            return f"{type(error).__name__}: {error}"
    last = (told.stdout.splitlines() or [""])[-1]
    if last == fit.FITS:
        return None
    return last.removeprefix(fit.MISFIT) if last.startswith(fit.MISFIT) else \
        f"its interpreter ended with {told.returncode}: {(told.stderr.splitlines() or ['and said nothing'])[-1]}"


def version_of(python: Path) -> str:
    """Without importing it. Empty where there is none. Raises OSError, SubprocessError, ValueError."""
    return versions_of(python).get("vllm", "")


def versions_of(python: Path) -> dict[str, str]:
    """Of all that plays there, as far as it is there. Raises OSError, SubprocessError, ValueError."""
    told = subprocess.run([str(python), "-c", _PROBE], capture_output=True, text=True, timeout=30, check=True)
    return dict(json.loads(told.stdout))


def installed(python: Path) -> Path:
    """The folder in which this interpreter's vLLM lies. Raises OSError, SubprocessError."""
    told = subprocess.run([str(python), "-c", _PLACE], capture_output=True, text=True, timeout=30, check=True)
    return Path(told.stdout.strip())


def make_path(folder: Path) -> Path:
    """A folder for PYTHONPATH, with the lab's packages and the entry points by which vLLM finds the stand-in, and
    nothing else of the lab's environment."""
    path = folder / "path"
    declared = path / "ringtwin_vllm-1.dist-info"
    declared.mkdir(parents=True)
    for name in _PACKAGES:
        (path / name).symlink_to(ROOT / name)
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: ringtwin-vllm\nVersion: 1\n")
    (declared / "entry_points.txt").write_text(_ENTRY_POINTS)
    return path


#: Of every process of a play.
VARIABLES = {
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # what a preempted request has said stays with its worker
    "VLLM_MQ_MAX_CHUNK_BYTES_MB": "1",  # small rings: many plays fit into memory
    "VLLM_PLUGINS": "ringtwin", "PYTHONDONTWRITEBYTECODE": "",
}
