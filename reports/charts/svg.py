"""SVG by hand: elements as escaped strings, coordinates short, colours left to the page's style sheet.

Everything that comes from a run passes through `tag` or `text`, and both escape.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from markupsafe import Markup, escape


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """One element. `class_` is written as class, `stroke_width` as stroke-width; None is left out."""
    # A page has a million of them: what needs no escaping does not go through it.
    written = "".join([f' {_written(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None])
    inside = "".join([child if type(child) is Markup else escape(child) for child in children if child])
    return Markup(f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>")  # noqa: S704


@lru_cache(maxsize=256)
def _written(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: object) -> object:
    return number(value) if type(value) is float or type(value) is int else escape(number(value))


def text(x: float, y: float, words: str, class_: str | None = None, anchor: str | None = None) -> Markup:
    return tag("text", words, x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("path", d=f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", class_=class_)


def drawing(width: float, height: float, label: str, class_: str, parts: Iterable[Markup]) -> Markup:
    """The whole picture, with the sentence a screen reader says instead of it."""
    return tag("svg", tag("title", label), *parts, viewBox=f"0 0 {number(width)} {number(height)}",
               width=width, height=height, class_=class_, role="img", aria_label=label)


def number(value: object) -> object:
    """Coordinates need no more than a tenth of a pixel."""
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
