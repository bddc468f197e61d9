"""Families: scenarios that differ in a row of a table and in nothing that is done.

    globals().update(family(__name__, (
        Case("test_output_is_doubled", "One message of outputs arrives twice: its tokens are delivered once.",
             plan(duplicate(OUTPUTS, nth=12)), (tokens_in_order, tokens_match_reference)),
    ), topology=tensor_parallel(2), workload=recorded("eight-mixed")))

Promises: each case is a scenario like any other, for pytest and for the catalogue; its name is the one that results
know it by. A case with `each` is as many scenarios, called `test_xxx[value]`, and its plan is made from the value.
What a case declares `broken` must be found so, or the lab cannot see red.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from faults.plan import Fault, Plan, corrupt, delay, drop, duplicate, plan, reorder, truncate, until
from scenarios.guarantees.base import Guarantee
from scenarios.history.verdicts import Verdict
from scenarios.lab.catalogue import Only, only
from scenarios.worlds.base import World

#: By a word: what becomes of a message.
FATES: dict[str, Callable[..., Fault]] = {
    "lost": drop, "doubled": duplicate, "overtaken": reorder, "cut short": truncate, "changed": corrupt,
    "late": lambda edge, **named: delay(edge, until=until(seconds=0.4), **named)}


class Case(NamedTuple):
    """One row. `play` is what it asks of the world beside, or instead of, what its whole family asks."""

    name: str
    sentence: str
    plan: Plan | Callable[[Any], Plan]
    promises: tuple[Guarantee, ...]
    each: tuple[Any, ...] = ()
    play: Mapping[str, Any] = {}
    only: Only | None = None  # the one world that can play it
    broken: tuple[Guarantee, ...] = ()


def fated(edge: str, **named: Any) -> Callable[[str], Plan]:
    """Of such a word, the plan for a message of this edge."""
    return lambda value: plan(FATES[value](edge, **named))


def family(module: str, cases: Iterable[Case], **shared: Any) -> dict[str, Callable[..., None]]:
    """Scenarios by their names, for the module that they belong to. `shared`: what each play is asked for.

    Raises ValueError for two of one name: only one of them would be played.
    """
    found: dict[str, Callable[..., None]] = {}
    for case in cases:
        if case.name in found:
            raise ValueError(f"{module}: two scenarios are called {case.name}")
        found[case.name] = _scenario(module, case, {**shared, **case.play})
    return found


def _scenario(module: str, case: Case, asked: Mapping[str, Any]) -> Callable[..., None]:
    def plan(*value: Any) -> Plan:
        return case.plan if isinstance(case.plan, Plan) else case.plan(*value)

    red = {guarantee.name: Verdict.BROKEN for guarantee in case.broken}

    def alone(world: World) -> None:
        world.play(plan=plan(), **asked).holds(*case.promises, **red)

    def of_a_value(world: World, value: Any) -> None:
        world.play(plan=plan(value), **asked).holds(*case.promises, **red)

    function: Callable[..., None] = of_a_value if case.each else alone
    function.__name__ = function.__qualname__ = case.name
    function.__module__ = module
    function.__doc__ = case.sentence
    function.broken = tuple(guarantee.id for guarantee in case.broken)  # type: ignore[attr-defined]
    if case.only is not None:
        function = only(case.only.world, reason=case.only.reason)(function)
    return pytest.mark.parametrize("value", case.each)(function) if case.each else function
