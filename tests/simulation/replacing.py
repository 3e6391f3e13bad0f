"""Replaces one attribute of a module or class within a `with` block: to watch a run from inside, and to plant bugs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
