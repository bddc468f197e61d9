"""What engines have on this host beside processes: found from outside, by name."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from engine.process.files import PREFIX
from engine.process.runtime_dir import SHM


def engine_files(folder: Path) -> list[str]:
    """Segments, locks and socket files of engines whose runtime directory lies in `folder`."""
    found = [str(path) for path in folder.glob(f"{PREFIX}*")] + [
        str(path) for path in folder.glob(f"{PREFIX}*/*")]
    for lock in SHM.glob(f"{PREFIX}*.lock"):
        with contextlib.suppress(OSError):
            if Path(os.fsdecode(lock.read_bytes())).parent == folder:
                found += [str(lock), *map(str, SHM.glob(f"{lock.name[:-len('.lock')]}-*"))]
    return sorted(set(found))
