"""Small changes of the product by rule: a comparison turned, a number off by one, two awaits swapped, a condition or a step left out."""

import ast
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from tests.judge.places import ROOMS, Definition, Place, files_of, functions_in, replace, tree_of

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_OTHERS = {"all": "any", "any": "all", "min": "max", "max": "min"}
# What is only said, to people who read logs, is not judged.
_SAYS = ("log", "logger", "warnings")
Change = Callable[[], None]


class Mutant(Struct, frozen=True):
    """The change of this number among those of its place: its line, and what it does in words."""

    place: Place
    number: int
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.place.file}:{self.line} {self.place.name}: {self.what}"


def mutants_of(place: Place, node: Definition) -> list[Mutant]:
    return [Mutant(place, number, line, what) for number, (line, what, _) in enumerate(_changes(node))]


def drawn(seed: int, count: int, rooms: tuple[str, ...] = ROOMS) -> list[Mutant]:
    """So many, at places over all rooms: a file with twice as many statements has twice as many."""
    of_file: dict[str, list[Mutant]] = {}
    statements: dict[str, int] = {}
    for file in files_of(rooms):
        functions = functions_in(tree_of(file))
        mutants = [each for name, node in functions.items() for each in mutants_of(Place(file, name), node)]
        if mutants:
            of_file[file] = mutants
            statements[file] = sum(
                isinstance(each, ast.stmt) for node in functions.values() for each in ast.walk(node)
            )
    chance = random.Random(seed)
    files = chance.choices([*of_file], [*statements.values()], k=count)
    return [chance.choice(of_file[file]) for file in files]


def become(mutant: str) -> None:
    """Make the change in this process."""
    asked = msgspec.json.decode(mutant, type=Mutant)
    tree = tree_of(asked.place.file)
    _, what, change = [*_changes(functions_in(tree)[asked.place.name])][asked.number]
    assert what == asked.what, f"{asked}: the change of this number is {what!r} now"
    change()
    replace(asked.place, ast.fix_missing_locations(tree))


def _changes(node: Definition) -> Iterator[tuple[int, str, Change]]:
    """What can be changed, in the order of the lines, and how."""
    for each in (node, *_judged(node)):
        for changes in (_changes_of, _changes_of_statements):
            for part, what, change in changes(each):
                yield part.lineno, what, change


def _judged(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a function that do something."""
    for each in ast.iter_child_nodes(node):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            each is node.args or each is node.returns
        ):
            continue
        if isinstance(node, ast.AnnAssign) and each is node.annotation:
            continue
        if isinstance(node, ast.Raise | ast.Assert) or _only_says(each) or isinstance(each, ast.JoinedStr):
            continue
        yield each
        yield from _judged(each)


def _only_says(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in _SAYS
    return False


def _changes_of(node: ast.AST) -> Iterator[tuple[ast.expr, str, Change]]:
    match node:
        case ast.Compare(ops=ops):
            for number, operator in enumerate(ops):
                if turned := _TURNED.get(type(operator)):
                    words = f"{ast.unparse(node)!r}: {type(operator).__name__} is {turned.__name__}"
                    yield node, words, partial(ops.__setitem__, number, turned())
        case ast.BoolOp(values=values):
            for each in values:
                if not isinstance(each, ast.JoinedStr):
                    yield (
                        node,
                        f"without the condition {ast.unparse(each)!r}",
                        partial(_leave_out, node, each),
                    )
        case ast.expr() if (other := _other_of(node)) is not None:
            words, change = other
            yield node, words, change


def _leave_out(node: ast.BoolOp, part: ast.expr) -> None:
    left = [each for each in node.values if each is not part]
    # Python compiles no condition of one part. With a constant before it, it has the same value.
    node.values = left if len(left) > 1 else [ast.Constant(isinstance(node.op, ast.And)), *left]


def _other_of(node: ast.expr) -> tuple[str, Change] | None:
    """What can stand in the place of a whole expression."""
    match node:
        case ast.BinOp(op=operator) if (sign := _SIGNS.get(type(operator))) and not _is_text(node):
            words = f"{ast.unparse(node)!r}: {type(operator).__name__} is {sign.__name__}"
            return words, partial(setattr, node, "op", sign())
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return f"{value} is {value + 1}", partial(setattr, node, "value", value + 1)
        case ast.Call(func=ast.Name(id=name) as called) if name in _OTHERS:
            return f"{ast.unparse(node)!r}: {_OTHERS[name]}", partial(setattr, called, "id", _OTHERS[name])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            turned = ast.UnaryOp(ast.Not(), operand)
            return f"{ast.unparse(node)!r} turned", partial(setattr, node, "operand", turned)
    return None


def _changes_of_statements(node: ast.AST) -> Iterator[tuple[ast.stmt, str, Change]]:
    for field in ("body", "orelse", "finalbody"):
        body = getattr(node, field, None)
        if not isinstance(body, list):
            continue
        for number, each in enumerate(body):
            if isinstance(each, ast.If) and not each.orelse:
                yield each, f"nothing is done if {ast.unparse(each.test)!r}", _put(body, number, ast.Pass())
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Call | ast.Await)
                and not _only_says(each)
            ):
                yield each, f"without {ast.unparse(each)!r}", _put(body, number, ast.Pass())
            following = body[number + 1] if number + 1 < len(body) else None
            if following is not None and _awaits(each) and _awaits(following):
                yield each, f"{ast.unparse(each)!r} after the line behind it", _swap(body, number)


def _put(body: list[Any], number: int, statement: ast.stmt) -> Change:
    return lambda: body.__setitem__(number, statement)


def _swap(body: list[Any], number: int) -> Change:
    return lambda: body.__setitem__(slice(number, number + 2), [body[number + 1], body[number]])


def _awaits(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Await)


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(each, ast.JoinedStr) or isinstance(getattr(each, "value", None), str)
        for each in ast.walk(node)
    )
