"""Values of which a test knows more than their types say."""

from typing import TypeVar

T = TypeVar("T")


def must_be(kind: type[T], value: object) -> T:
    assert isinstance(value, kind), value
    return value


def present(value: T | None) -> T:
    assert value is not None
    return value
