"""Replaces one attribute of a module or class within a `with` block: to watch a run from inside, and to plant bugs."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
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
