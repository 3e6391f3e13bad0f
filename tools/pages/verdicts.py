"""The table of verdicts in the bus's reference: the values that come in several forms, with the messages that have them."""

from collections.abc import Iterator

from msgspec import inspect

from bus.message import Message, type_of
from bus.messages import ALL
from engine.inventories import Variant
from tools.pages.markdown import docstring_of, table

TEXT = "Where a message has a verdict, the key `is` says which one it is; the verdict's other fields stand beside it."


def section() -> str:
    rows = [
        (f"`{_name(kind)}`", _messages_with(kind), docstring_of(kind), _fields(kind))
        for kind in sorted(_kinds(Variant), key=_name)
    ]
    head = table(("verdict", "in", "meaning", "its fields"), rows)
    return f"## Verdicts\n\n{TEXT}\n\n{head}"


def _kinds(kind: type[Variant]) -> Iterator[type[Variant]]:
    for each in kind.__subclasses__():
        # The simulated hosts have some of their own, which are in no message.
        if each.__module__.startswith(("bus.", "engine.")):
            yield each
        yield from _kinds(each)


def _name(kind: type[Variant]) -> str:
    return str(kind.__struct_config__.tag)


def _messages_with(kind: type[Variant]) -> str:
    return ", ".join(f"`{type_of(each)}`" for each in ALL if kind in _variants_of(each))


def _variants_of(message: type[Message]) -> Iterator[type]:
    """The verdicts that stand in a field of this message itself."""
    for field in _struct(message).fields:
        match field.type:
            case inspect.StructType(cls=cls):
                yield cls
            case inspect.UnionType(types=types):
                yield from (each.cls for each in types if isinstance(each, inspect.StructType))


def _fields(kind: type[Variant]) -> str:
    return ", ".join(f"`{field.encode_name}`" for field in _struct(kind).fields)


def _struct(kind: type) -> inspect.StructType:
    known = inspect.type_info(kind)
    assert isinstance(known, inspect.StructType), f"{kind} has fields"
    return known
