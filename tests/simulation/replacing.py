"""Replaces one attribute of a module or class, or a part of a function's source, within a `with` block: to watch a run from
inside, and to plant bugs.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, by: Callable[[Any], Any]) -> Iterator[None]:
    """`by` receives the real attribute, and returns its replacement."""
    real = vars(owner)[name]
    setattr(owner, name, by(real))
    try:
        yield
    finally:
        setattr(owner, name, real)


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
