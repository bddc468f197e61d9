"""Whether something that is called like one of our packages hides it. Imports nothing of ours."""

from __future__ import annotations

import importlib.util
from pathlib import Path

#: The packages that this project installs, by the names that are given.
PACKAGES = ("engine", "faults", "sim", "scenarios", "reports")
HOME = Path(__file__).parents[2]


def hidden() -> str | None:
    """Which of our packages Python finds somewhere else, and what to do; None where all is as it should be."""
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin) if spec is not None and spec.origin is not None else None
        if found is None:
            return f"{HOME / name}: Python does not find it under the name {name!r}; install Ringtwin again"
        if found.parent.resolve() != (HOME / name).resolve():
            where = found.parent if found.name == "__init__.py" else found
            return (f"{where} hides Ringtwin's own package {name!r} ({HOME / name}): it stands before it on Python's "
                    "path; rename it, or run this from another folder")
    return None


def hiding_in(folder: Path) -> list[Path]:
    """What in this folder would hide a package of ours from Python programs that are started in it."""
    places = [folder / name for name in PACKAGES if folder.resolve() != HOME.resolve()]
    return [place for place in places if (place / "__init__.py").exists()] + [
        file for place in places if (file := place.with_suffix(".py")).exists()]
