"""Which lines a play runs: while probes are in, every statement of the functions concerned says first that it is run.

A tracer sees the same, and is called so often that a play takes five times as long.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutation.operators import Mutant, functions_of, source_of
from tests.mutation.plant import NotPlantableError, forget, implant

#: What a probe calls, with the number of its place.
RAN = "__ran__"


class Probes:
    """A statement's lines are all of its own, those of its conditions and handlers among them."""

    def __init__(self) -> None:
        self._places: list[tuple[str, set[int]]] = []
        self._ran: set[int] = set()

    def ran(self) -> dict[str, set[int]]:
        """The lines of each file that ran since this was last asked for."""
        found: dict[str, set[int]] = {}
        for number in self._ran:
            file, lines = self._places[number]
            found.setdefault(file, set()).update(lines)
        self._ran.clear()
        forget()  # what is answered from memory next time runs nothing
        return found

    @contextmanager
    def within(self, mutants: Iterable[Mutant], root: Path) -> Iterator[None]:
        """In all functions that have one of these."""
        before = []
        setattr(builtins, RAN, self._ran.add)
        for file, names in _functions(mutants).items():
            tree = ast.parse(source_of(file, root))
            for name, function in functions_of(tree):
                if name in names:
                    self._probe(function, file)
            module = compile(ast.fix_missing_locations(tree), str(root / file), "exec")
            for name in names:
                try:
                    before.append(implant(module, file, name))
                except NotPlantableError:  # nor can its mutants be
                    continue
        forget()
        try:
            yield
        finally:
            for function, code in before:
                function.__code__ = code
            delattr(builtins, RAN)
            forget()

    def _probe(self, node: ast.AST, file: str) -> None:
        for child in ast.iter_child_nodes(node):
            self._probe(child, file)
        for name in ("body", "orelse", "finalbody"):
            if isinstance(body := getattr(node, name, None), list):
                setattr(node, name, [each for statement in body for each in (self._says(statement, file), statement)])

    def _says(self, statement: ast.stmt, file: str) -> ast.stmt:
        self._places.append((file, _own_lines(statement)))
        call = ast.Call(ast.Name(RAN, ast.Load()), [ast.Constant(len(self._places) - 1)], [])
        return ast.copy_location(ast.Expr(call), statement)


def _own_lines(statement: ast.stmt) -> set[int]:
    """Without those of the statements inside of it."""
    inside = {line for node in ast.walk(statement) if isinstance(node, ast.stmt) and node is not statement
              for line in _lines(node)}
    return {statement.lineno} | set(_lines(statement)) - inside


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _functions(mutants: Iterable[Mutant]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for mutant in mutants:
        found.setdefault(mutant.file, set()).add(mutant.function)
    return found
