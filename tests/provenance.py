"""Where a figure comes from: the commit that was measured, and the day."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commit() -> str:
    """The commit, and whether the tree differs from it."""
    def said(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = said("status", "--porcelain", "--untracked-files=no")
    return said("rev-parse", "--short", "HEAD") + (" and changes" if changed else "")


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def command(module: str) -> str:
    """As it was called."""
    return " ".join(["python -m", module, *(word for word in sys.argv[1:] if word != "--publish")])
