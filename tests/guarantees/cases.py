"""The table of unit histories: which guarantee, which verdict, why.

Each guarantee needs one that it accepts with a witness, one that it must reject (the engine of its `wrong`),
and one that says nothing about it. `tests/guarantees/test_cases.py` plays them and counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scenarios.history.verdicts import Verdict
from tests.guarantees.build import Builder


class Case(NamedTuple):
    guarantee: str
    verdict: Verdict
    build: Callable[[], Builder]

    @property
    def name(self) -> str:
        return f"{self.guarantee}-{self.verdict.value.lower()}-{self.build.__name__}"


CASES: list[Case] = []


def _register(verdict: Verdict, names: tuple[str, ...]) -> Callable[[Callable[[], Builder]], Callable[[], Builder]]:
    def register(build: Callable[[], Builder]) -> Callable[[], Builder]:
        CASES.extend(Case(name, verdict, build) for name in names)
        return build

    return register


def accepts(*names: str):  # noqa: ANN201
    """These guarantees hold here, and had an occasion to fail."""
    return _register(Verdict.HELD, names)


def rejects(*names: str):  # noqa: ANN201
    """These guarantees are broken here."""
    return _register(Verdict.BROKEN, names)


def silent(*names: str):  # noqa: ANN201
    """This says nothing about these guarantees."""
    return _register(Verdict.UNTESTED, names)


def outside(*names: str):  # noqa: ANN201
    """A fault that these guarantees need not survive fired here."""
    return _register(Verdict.OUTSIDE, names)


def unknown(*names: str):  # noqa: ANN201
    """It cannot be told here whether these guarantees hold."""
    return _register(Verdict.UNKNOWN, names)
