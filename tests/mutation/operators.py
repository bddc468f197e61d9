"""Small changes that make a bug of a line: all mutants of one file, as text (pure).

Promises: each is one span of the file and what stands there instead; the changed file still compiles; the same file
gives the same mutants in the same order. Only what stands inside of a function is changed, and no docstring.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

#: Effects and calls that end at a deadline, and where it stands among their arguments.
_DEADLINES = {"WaitBell": 1, "Receive": 1, "Take": 1, "AwaitEnds": 1, "HearChildren": 1, "JoinThread": 1, "dequeue": 0,
              "enqueue": 1, "wait_for_readers": 1, "wait_for_writer": 1}
#: Effects that send something.
_SENT = frozenset({"Send", "Put", "RingBell", "TellChild", "TellParent"})
_COMPARED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
             ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
_WORDS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
          ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes `begin` to `end` of a file become `new`. `function`: the qualified name of what holds them."""

    file: str
    line: int
    operator: str
    function: str
    begin: int
    end: int
    old: str
    new: str

    @property
    def id(self) -> str:
        return f"{self.file}:{self.line}:{self.operator}:{self.begin}-{self.end}:{self.new[:40]}"


@cache
def mutants_of(file: str, root: Path) -> tuple[Mutant, ...]:
    """All mutants of `root / file`, in the order of their lines; of the file as it was when it was first asked for."""
    source = source_of(file, root)
    found = {}
    for mutant, function in _Finder(file, source).found():
        place = (mutant.begin, mutant.end, mutant.new)
        if mutant.old != mutant.new and place not in found and _compiles(source, mutant, function):
            found[place] = mutant
    return tuple(sorted(found.values(), key=lambda one: (one.line, one.begin, one.operator, one.new)))


@lru_cache(maxsize=256)
def source_of(file: str, root: Path) -> bytes:
    """As it was when it was first asked for, which is what this process has imported."""
    return (root / file).read_bytes()


def mutated(source: bytes, mutant: Mutant) -> bytes:
    return source[:mutant.begin] + mutant.new.encode() + source[mutant.end:]


def _compiles(source: bytes, mutant: Mutant, function: tuple[int, int]) -> bool:
    """Its function alone, at its depth: what compiles there compiles in the file, which costs ten times as much."""
    begin, end = function
    lines = source[begin:mutant.begin] + mutant.new.encode() + source[mutant.end:end]
    try:
        compile(b"if 1:\n" + lines if lines.startswith((b" ", b"\t")) else lines, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def functions_of(node: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each with its qualified name; a function inside of a function belongs to the outer one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield outer + child.name, child
        else:
            yield from functions_of(child, f"{outer}{child.name}." if isinstance(child, ast.ClassDef) else outer)


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts

    def found(self) -> Iterator[tuple[Mutant, tuple[int, int]]]:
        """Each with where the lines of its function begin and end, decorators excepted."""
        for name, function in functions_of(ast.parse(self._source)):
            place = self._starts[function.lineno - 1], self._span(function)[1]
            yield from ((mutant, place) for mutant in self._function(function, name))

    def _function(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[Mutant]:
        for statement in function.body:  # these first: where two make the same change, the narrower name is kept
            for node in ast.walk(statement):
                yield from self._of_node(node, name)
        for body in _bodies(function):
            yield from self._of_body(body, name)

    # -- statements

    def _of_body(self, body: list[ast.stmt], name: str) -> Iterator[Mutant]:
        for statement in body:
            if _is_worth_leaving_out(statement):
                yield self._change(statement, "pass", "statement-gone", name)
            sent = _effect(statement)
            if sent in _SENT:
                text = self._text(statement)
                yield self._change(statement, f"{text}; {text}", "sent-twice", name)
            if isinstance(statement, ast.Return) and statement.value is not None and not (
                    isinstance(statement.value, ast.Constant) and statement.value.value is None):
                yield self._change(statement, "return None", "statement-gone", name)
        for one, other in pairwise(body):
            if _effect(one) and _effect(other):
                first, second = self._text(one), self._text(other)
                if "\n" not in first + second:
                    yield self._between(one, other, f"{second}; {first}", "effects-swapped", name)

    def _of_node(self, node: ast.AST, name: str) -> Iterator[Mutant]:
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield self._change(node.test, f"not ({self._text(node.test)})", "condition-turned", name)
        if isinstance(node, ast.If):
            yield self._change(node.test, "False", "branch-never-taken", name)
        if isinstance(node, ast.BoolOp):
            yield from self._of_bool(node, name)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from self._of_compare(node, name)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield self._change(node, str(node.value + 1), "off-by-one", name)
        if isinstance(node, ast.Call):
            yield from self._of_call(node, name)
        if isinstance(node, ast.ExceptHandler) and not isinstance(node.body[0], ast.Pass):
            yield self._whole(node.body, "pass", "exception-swallowed", name)
        if isinstance(node, ast.Try) and node.finalbody:
            yield self._whole(node.finalbody, "pass", "clean-up-left-out", name)

    def _of_bool(self, node: ast.BoolOp, name: str) -> Iterator[Mutant]:
        word = "or" if isinstance(node.op, ast.And) else "and"
        parts = [f"({self._text(value)})" for value in node.values]
        yield self._change(node, f"({f' {word} '.join(parts)})", "condition-turned", name)

    def _of_compare(self, node: ast.Compare, name: str) -> Iterator[Mutant]:
        kind = type(node.ops[0])
        operator = "off-by-one" if kind in (ast.Lt, ast.LtE, ast.Gt, ast.GtE) else "condition-turned"
        left, right = self._text(node.left), self._text(node.comparators[0])
        yield self._change(node, f"{left} {_COMPARED[kind]} {right}", operator, name)

    def _of_call(self, node: ast.Call, name: str) -> Iterator[Mutant]:
        called = node.func.id if isinstance(node.func, ast.Name) else \
            node.func.attr if isinstance(node.func, ast.Attribute) else ""
        place = _DEADLINES.get(called)
        if place is not None and len(node.args) > place and self._text(node.args[place]) != "None":
            yield self._change(node.args[place], "None", "no-deadline", name)
        if called in ("min", "max") and isinstance(node.func, ast.Name):
            yield self._change(node.func, "max" if called == "min" else "min", "off-by-one", name)

    # -- spans

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: Any) -> tuple[int, int]:
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.AST) -> str:
        begin, end = self._span(node)
        return self._source[begin:end].decode()

    def _mutant(self, begin: int, end: int, line: int, new: str, operator: str, name: str) -> Mutant:
        return Mutant(file=self._file, line=line, operator=operator, function=name, begin=begin, end=end,
                      old=self._source[begin:end].decode(), new=new)

    def _change(self, node: Any, new: str, operator: str, name: str) -> Mutant:
        begin, end = self._span(node)
        return self._mutant(begin, end, node.lineno, new, operator, name)

    def _between(self, one: Any, other: Any, new: str, operator: str, name: str) -> Mutant:
        return self._mutant(self._span(one)[0], self._span(other)[1], one.lineno, new, operator, name)

    def _whole(self, body: list[ast.stmt], new: str, operator: str, name: str) -> Mutant:
        return self._between(body[0], body[-1], new, operator, name)


def _bodies(function: ast.AST) -> Iterator[list[ast.stmt]]:
    """All lists of statements in a function, those of functions inside of it among them."""
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


def _is_worth_leaving_out(statement: ast.stmt) -> bool:
    """Not a docstring, and nothing whose absence is only an unknown name."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    return isinstance(statement, ast.AugAssign | ast.Delete | ast.Raise | ast.Continue | ast.Break)


def _effect(statement: ast.stmt) -> str:
    """The name of the effect that a statement yields, and does not ask an answer of; empty for any other one."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Yield):
        return ""
    asked = statement.value.value
    return asked.func.id if isinstance(asked, ast.Call) and isinstance(asked.func, ast.Name) else ""
