"""Every guarantee by its Python name: `from scenarios.guarantees.all import ends_once, death_is_told`."""

from __future__ import annotations

from scenarios.guarantees.base import Guarantee
from scenarios.guarantees.registry import GUARANTEES, guarantee, load_installed

__all__ = sorted(entry.name for entry in GUARANTEES.values())  # noqa: PLE0605


def __getattr__(name: str) -> Guarantee:
    if name.startswith("__"):
        raise AttributeError(name)
    if name.replace("_", "-") not in GUARANTEES:
        load_installed()
    try:
        return guarantee(name)
    except KeyError as error:
        raise AttributeError(str(error)) from None
