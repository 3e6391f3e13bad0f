"""The places at which the product can be changed: its functions and methods, each known by its file and its name there."""

import ast
import gc
import hashlib
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

from msgspec import Struct

ROOT = Path(__file__).parents[2]
_TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
ROOMS = tuple(_TOOLS["importlinter"]["root_packages"])
Definition = ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Place(Struct, frozen=True, order=True):
    """What is defined within a function is a part of it. If a class defines a name more than once, as properties do, the first one is meant."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


class CannotChangeError(Exception):
    """This place does not exist, or the changed function cannot take its place."""


def files_of(rooms: tuple[str, ...] = ROOMS) -> Iterator[str]:
    """The modules of these rooms, in the order of their names. Migrations run once, and stay as they are."""
    for room in rooms:
        for file in sorted((ROOT / room).rglob("*.py")):
            if "migrations" not in file.parts:
                yield str(file.relative_to(ROOT))


@cache
def source_of(file: str) -> str:
    return (ROOT / file).read_text()


def tree_of(file: str) -> ast.Module:
    """A tree of one's own, to change."""
    return ast.parse(source_of(file), str(ROOT / file))


def functions_in(tree: ast.Module) -> dict[str, Definition]:
    """The functions of a module and the methods of its classes, by their names."""
    found: dict[str, Definition] = {}
    _collect(tree.body, "", found)
    return found


def _collect(body: list[ast.stmt], before: str, found: dict[str, Definition]) -> None:
    for each in body:
        match each:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.setdefault(f"{before}{each.name}", each)
            case ast.ClassDef():
                _collect(each.body, f"{before}{each.name}.", found)
            case ast.If() | ast.Try() | ast.With():
                _collect(each.body, before, found)


def places() -> Iterator[Place]:
    for file in files_of():
        for name in functions_in(tree_of(file)):
            yield Place(file, name)


@cache
def digest_of(place: Place) -> str:
    """It changes with what the function does, and not with its lines or its docstring."""
    return _digests_in(place.file).get(place.name, "gone")


@cache
def _digests_in(file: str) -> dict[str, str]:
    return {
        name: hashlib.sha256("".join(map(ast.dump, _work_of(node))).encode()).hexdigest()[:12]
        for name, node in functions_in(tree_of(file)).items()
    }


def _work_of(node: Definition) -> list[ast.AST]:
    return [node.args, *node.decorator_list, *(each for each in node.body if not is_text(each))]


def is_text(statement: ast.stmt) -> bool:
    """Is it a docstring?"""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def place_of(function: FunctionType) -> Place | None:
    """The place of a function, if it is one of the product's."""
    code = function.__code__
    file = Path(code.co_filename)
    if not file.is_relative_to(ROOT) or file.relative_to(ROOT).parts[0] not in ROOMS:
        return None
    return Place(str(file.relative_to(ROOT)), code.co_qualname.partition(".<locals>")[0])


def replace(place: Place, tree: ast.Module) -> None:
    """From here on the function does what it does in this tree, which is its module's, changed. Whoever has a reference to it runs the new one."""
    there = functions_in(tree).get(place.name)
    if there is None:
        raise CannotChangeError(f"{place} does not exist")
    changed = _code_in(compile(tree, str(ROOT / place.file), "exec"), place.name, _first_line_of(there))
    # What tests froze is not listed otherwise.
    gc.unfreeze()
    live = [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType)
        and each.__code__.co_qualname == place.name
        and each.__code__.co_filename == changed.co_filename
        and each.__code__.co_firstlineno == changed.co_firstlineno
    ]
    if not live:
        raise CannotChangeError(f"{place} is not imported")
    for each in live:
        if each.__code__.co_freevars != changed.co_freevars:
            raise CannotChangeError(f"{place} uses other names of the function around it")
        each.__code__ = changed


def _first_line_of(node: Definition) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _code_in(code: CodeType, name: str, line: int) -> CodeType:
    inside = [each for each in code.co_consts if isinstance(each, CodeType)]
    for each in inside:
        if each.co_qualname == name and each.co_firstlineno == line:
            return each
    for each in inside:
        if name.startswith(f"{each.co_qualname}."):
            return _code_in(each, name, line)
    raise CannotChangeError(f"{name} is not in {code.co_filename}")
