"""A change of one function of vLLM's, named and made without a line of its text (pure).

A function is changed as the tree that Python has of it, when it is played. Who names a function that is not there, or
would change nothing in it, is told: a release that has moved on is never taken for one that was edited.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence

import msgspec

from engine.errors import RingtwinError

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Changes the function in place. -> how many places of it
Change = Callable[[Function], int]


class EditError(RingtwinError):
    """What is to be edited is not there, or the edit finds nothing in it to change. The message names it."""


class Edit(msgspec.Struct, frozen=True):
    """`module`: as it is imported; `function`: of that module, with its class, as in `Executor.shutdown`."""

    module: str
    function: str
    change: Change

    @property
    def path(self) -> str:
        """Of its file, from the folder in which the package lies."""
        return self.module.replace(".", "/") + ".py"


def edited(source: str, edits: Iterable[Edit]) -> str:
    """The module's text with all of them made, one after the other. Raises EditError."""
    tree = ast.parse(source)
    for edit in edits:
        if not edit.change(_found(tree, edit)):
            raise EditError(f"{edit.module}: {edit.function} has nothing that the edit would change")
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _found(tree: ast.Module, edit: Edit) -> Function:
    *classes, name = edit.function.split(".")
    body: Sequence[ast.stmt] = tree.body
    for one in classes:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == one), ())
    found = [node for node in body if isinstance(node, Function) and node.name == name]
    if not found:
        raise EditError(f"{edit.module}: no function {edit.function}")
    return found[-1]  # the ones before it are overloads


# -- changes


def does(code: str) -> Change:
    """Nothing but this."""
    def change(function: Function) -> int:
        function.body = ast.parse(code).body
        return 1

    return change


def begins(code: str) -> Change:
    """With this, and goes on as before."""
    def change(function: Function) -> int:
        place = int(ast.get_docstring(function, clean=False) is not None)
        function.body[place:place] = ast.parse(code).body
        return 1

    return change


def reads(name: str, instead: str) -> Change:
    """One attribute instead of another, wherever it reads it."""
    return _walked(lambda node: _set(node, "attr", instead) if isinstance(node, ast.Attribute) and node.attr == name
                   else 0)


def passes(argument: str, value: str) -> Change:
    """This expression for that named argument, in every call that has one."""
    def of(node: ast.AST) -> int:
        if isinstance(node, ast.keyword) and node.arg == argument:
            node.value = ast.parse(value, mode="eval").body
            return 1
        return 0

    return _walked(of)


def rescues(called: str, handler: str) -> Change:
    """Each statement that calls this, named as it is called: where it raises, what is done then."""
    class Rescue(ast.NodeTransformer):
        count = 0

        def visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)) and _calls(node, called):
                self.count += 1
                caught = ast.ExceptHandler(ast.Name("Exception"), "_error", ast.parse(handler).body)
                return ast.Try([node], [caught], [], [])
            return super().generic_visit(node)

    def change(function: Function) -> int:
        rescue = Rescue()
        rescue.visit(function)
        return rescue.count

    return change


def _calls(node: ast.AST, called: str) -> bool:
    return any(isinstance(one, ast.Call) and ast.unparse(one.func) == called for one in ast.walk(node))


def called_by(name: str, instead: str) -> Change:
    """Another function for the one that is called by this name, which is handed the object that it is called of."""
    def of(node: ast.AST) -> int:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == name:
            node.args.insert(0, node.func.value)
            node.func = ast.Name(instead)
            return 1
        return 0

    return _walked(of)


def both(*changes: Change) -> Change:
    """All of these, in this order; each has to find something."""
    return lambda function: min(change(function) for change in changes)


def _walked(of: Callable[[ast.AST], int]) -> Change:
    return lambda function: sum(of(node) for node in ast.walk(function))


def _set(node: ast.AST, name: str, value: str) -> int:
    setattr(node, name, value)
    return 1
