"""The pages' templates, and the files that stand inside of them."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

TEMPLATES = Path(__file__).parents[1] / "templates"


def environment() -> jinja2.Environment:
    """What comes from a run is escaped, and what nobody gave is an error."""
    return jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True,
                              lstrip_blocks=True, undefined=jinja2.StrictUndefined)


def inline(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704 - our own file
