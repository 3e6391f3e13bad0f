"""Replaces one attribute of a module or class, or a part of a function's source, within a `with` block: to watch a run from
inside, and to plant bugs.
"""

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from tests.judge.places import ROOMS, ROOT, Place, place_of

PlantedBug = Callable[[], AbstractContextManager[None]]
# The places of a bug are asked for, and nothing is replaced.
_asked_for: set[Place] | None = None

# What is real, and what stands in its place now.
now_replaced: list[tuple[Any, Any]] = []

_OF_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


# All bugs by their names; of those that the simulation finds, the world whose seeds show it: any cloud, or one of WORLDS in
# tests/simulation/drawing.py, or bare metal; and what users suffer, for which two kinds of test must see the bug.
BUGS: dict[str, PlantedBug] = {}
WORLD_OF: dict[str, str] = {}
HARM_OF: dict[str, str] = {}
HARMS = ("lost", "doubled", "overbooked", "unauthorised", "destroyed")
ANY_CLOUD, BARE_METAL = "any", "bare metal"
F = TypeVar("F", bound=Callable[..., Any])


def planted(name: str, owner: Any, attribute: str, *, world: str = "", harm: str = "") -> Callable[[F], F]:
    """The function takes the place of this attribute of a module or class, and gets the real one first. With several owners: of all
    the modules that have imported it.
    """

    def register(by: F) -> F:
        planted_by(name, owner, attribute, world=world, harm=harm)(
            functools.update_wrapper(around(by), by, ("__module__",))
        )
        return by

    return register


def planted_by(name: str, owner: Any, attribute: str, *, world: str = "", harm: str = "") -> Callable[[F], F]:
    """The function gets the real attribute, and returns its replacement."""

    def register(by: F) -> F:
        put = replaced_in if isinstance(owner, tuple) else replaced
        bug = functools.partial(put, owner, attribute, by)
        planted_as(name, world=world, harm=harm)(functools.update_wrapper(bug, by, ("__module__",)))
        return by

    return register


def planted_as(name: str, *, world: str = "", harm: str = "") -> Callable[[F], F]:
    """The bug is there within the context manager that the function makes."""

    def register(bug: F) -> F:
        assert name not in BUGS, name
        assert harm in ("", *HARMS), harm
        BUGS[name] = bug
        if world:
            WORLD_OF[name] = world
        if harm:
            HARM_OF[name] = harm
        return bug

    return register


def around(by: Callable[..., Any]) -> functools.partial[Callable[..., Any]]:
    """For `replaced`: the function is called in place of the real one, and gets that first."""
    return functools.partial(_with_the_real, by)


def _with_the_real(by: Callable[..., Any], real: Any) -> Callable[..., Any]:
    async def awaited(*values: Any, **named: Any) -> Any:
        return await by(real, *values, **named)

    def called(*values: Any, **named: Any) -> Any:
        return by(real, *values, **named)

    replacement = awaited if inspect.iscoroutinefunction(by) else called
    wanted = inspect.signature(by)
    replacement.__signature__ = wanted.replace(parameters=[*wanted.parameters.values()][1:])  # type: ignore[union-attr]
    return replacement


@contextmanager
def replaced(owner: Any, name: str, by: Callable[[Any], Any]) -> Iterator[None]:
    """`by` receives the real attribute, and returns its replacement. What a module defines is replaced in all modules that have
    imported it; what it has imported itself, in this one alone.
    """
    real = vars(owner)[name]
    if _asked_for is not None:
        _asked_for.add(_place(owner, real))
        yield
        return
    replacement = by(real)
    _check_call(real, replacement)
    known_by = _names_of(owner, name, real)
    for each, called in known_by:
        setattr(each, called, replacement)
    now_replaced.append((real, replacement))
    try:
        yield
    finally:
        now_replaced.pop()
        for each, called in known_by:
            setattr(each, called, real)


def _names_of(owner: Any, name: str, real: Any) -> list[tuple[Any, str]]:
    """Without these a bug would be planted where nobody calls it."""
    if not inspect.ismodule(owner) or getattr(real, "__module__", "") != owner.__name__:
        return [(owner, name)]
    of_product = [each for key, each in [*sys.modules.items()] if key.partition(".")[0] in ROOMS]
    return [(owner, name)] + [
        (each, called)
        for each in of_product
        for called, value in [*vars(each).items()]
        if value is real and (each, called) != (owner, name)
    ]


@contextmanager
def replaced_in(owners: Iterable[Any], name: str, by: Callable[[Any], Any]) -> Iterator[None]:
    """A function that several modules have imported is replaced in each of them."""
    with ExitStack() as stack:
        for owner in owners:
            stack.enter_context(replaced(owner, name, by))
        yield


@contextmanager
def rewritten(owner: Any, name: str, part: str, by: str) -> Iterator[None]:
    """This function of a module or class runs with a part of its source replaced, also where other modules have imported it."""
    real = inspect.unwrap(vars(owner)[name])
    assert isinstance(real, FunctionType), f"{name} is not a function"
    source = textwrap.dedent(inspect.getsource(real))
    assert source.count(part) == 1, f"{part!r} is not once in {real.__qualname__}"
    if _asked_for is not None:
        _asked_for.add(_place(owner, real))
        yield
        return
    lines = source.replace(part, by).splitlines(keepends=True)
    begins = next(number for number, line in enumerate(lines) if line.startswith(("def ", "async def ")))
    # Annotations may name types that are imported only for type checkers.
    text = "from __future__ import annotations\n" + "".join(lines[begins:])
    made: dict[str, Any] = {}
    exec(compile(text, f"<{real.__qualname__} with a planted bug>", "exec"), real.__globals__, made)  # noqa: S102
    was, real.__code__ = real.__code__, made[real.__name__].__code__
    try:
        yield
    finally:
        real.__code__ = was


def _check_call(real: object, replacement: object) -> None:
    """A function can be called as the one that it replaces. Otherwise a planted bug fails at each call, and is found by that."""
    if not (isinstance(real, FunctionType) and isinstance(replacement, FunctionType)):
        return
    parameters = inspect.signature(real).parameters.values()
    if any(each.kind in _OF_ANY_NUMBER for each in parameters):
        return
    positions = [each.name for each in parameters if each.kind in _POSITIONS and each.default is each.empty]
    names = {each.name: each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    try:
        inspect.signature(replacement).bind(*positions, **names)
    except TypeError as problem:
        problem.add_note(f"what replaces {real.__qualname__} cannot be called as it is")
        raise


def places_of(bug: PlantedBug) -> list[Place]:
    """What the bug replaces."""
    global _asked_for  # noqa: PLW0603
    _asked_for = set()
    try:
        with bug():
            return sorted(_asked_for)
    finally:
        _asked_for = None


def _place(owner: Any, real: Any) -> Place:
    """A place without a name stands for all of its file: what is replaced is no function of the product."""
    while not isinstance(real, FunctionType):
        match real:
            case staticmethod() | classmethod():
                real = real.__func__
            case property():
                real = real.fget
            case _ if hasattr(real, "__wrapped__"):
                real = real.__wrapped__
            case _:
                break
    if isinstance(real, FunctionType) and (place := place_of(inspect.unwrap(real))):
        return place
    module = owner if inspect.ismodule(owner) else sys.modules[owner.__module__]
    file = Path(str(module.__file__))
    return Place(str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name, "")
