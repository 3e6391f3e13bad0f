"""One real piece replaced by another, by name, for as long as a block lasts: how a run is watched from inside, and how
bugs are planted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, by: Callable[[Any], Any]) -> Iterator[None]:
    """`by` is given the real piece, and returns what stands in its place."""
    real = vars(owner)[name]
    setattr(owner, name, by(real))
    try:
        yield
    finally:
        setattr(owner, name, real)
