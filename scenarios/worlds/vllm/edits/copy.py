"""A copy of an installed package in which some modules are other ones: all the rest are links to what is installed.

    folder/vllm/            links, and folders of their own on the way to an edited module
    folder/vllm/v1/...      nothing is written outside of `folder`: what Python compiles, least of all
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from scenarios.worlds.vllm.edits.edit import Edit, EditError, edited

_COMPILED = "__pycache__"


def make_copy(installed: Path, folder: Path, edits: Iterable[Edit]) -> Path:
    """`installed`: the folder in which the package lies. -> `folder`, to stand before it on Python's path.

    Raises EditError, OSError.
    """
    of_module: dict[str, list[Edit]] = defaultdict(list)
    for edit in edits:
        of_module[edit.path].append(edit)
    for path, its in sorted(of_module.items()):
        source = installed / path
        if not source.is_file():
            raise EditError(f"{its[0].module}: no such module in {installed}")
        _open_up(installed, folder, Path(path).parent)
        target = folder / path
        target.unlink()
        target.write_text(edited(source.read_text(encoding="utf-8"), its), encoding="utf-8")
        for compiled in (target.parent / _COMPILED).glob(f"{target.stem}.*"):
            compiled.unlink()
    return folder


def _open_up(installed: Path, folder: Path, below: Path) -> None:
    """Folders of our own down to `below`, with a link for each entry that is not on the way."""
    for part in [*reversed(below.parents), below]:
        if part == Path("."):
            folder.mkdir(parents=True, exist_ok=True)
            continue
        mine = folder / part
        if mine.is_symlink():
            mine.unlink()
        elif mine.is_dir():
            continue
        mine.mkdir()
        _link_all(installed / part, mine)


def _link_all(installed: Path, mine: Path) -> None:
    for entry in installed.iterdir():
        if entry.name != _COMPILED:
            (mine / entry.name).symlink_to(entry)
            continue
        (mine / _COMPILED).mkdir()
        for compiled in entry.iterdir():
            (mine / _COMPILED / compiled.name).symlink_to(compiled)
