"""What a type says of a number, a text or a list is what its reader takes: as much is read, and one more is refused by the field's name.

This is the rule for each limit that stands in a `Meta` or in an option of a command: those need no row in the table.
"""

import re
from collections.abc import Iterator
from typing import Any

import click
import msgspec
import msgspec.inspect as kinds
import pytest

from bus.codec import CODEC, encode
from bus.message import Envelope, Message, type_of
from bus.unreadable import Unreadable
from kit.settings import BadSetting, Section
from moor.commands import app
from moor.worker_settings import SECTIONS
from tests.json_places import with_replaced
from tests.unit.examples import EXAMPLES
from tools.pages.golden import enveloped

# One at its limit and one beyond, and where they stand.
Place = tuple[tuple[Any, ...], Any, Any]


def places(kind: Any, value: Any) -> Iterator[Place]:
    """Each number, text or list with a limit in this value of an example, where it is set."""
    if isinstance(kind, kinds.Metadata):
        kind = kind.type
    if isinstance(kind, kinds.UnionType):
        fitting = [each for each in kind.types if fits(each, value)]
        yield from places(fitting[0], value) if len(fitting) == 1 else ()
        return
    yield from (((), most, beyond) for most, beyond in limits_of(kind, value))
    for key, inner in inside(kind, value):
        yield from (((key, *path), most, beyond) for path, most, beyond in places(inner, value[key]))


def limits_of(kind: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    match kind:
        case kinds.IntType() | kinds.FloatType():
            # Not the ends of what 64 bits can say: beyond these there is no number of a message.
            if kind.le is not None and kind.le < 2**63 - 1:
                yield kind.le, kind.le + 1
            if kind.ge is not None and kind.ge > -(2**63):
                yield kind.ge, kind.ge - 1
        case kinds.StrType(max_length=int(most), pattern=None):
            longest = (value + "x" * most)[:most]
            yield longest, f"{longest}x"
        case kinds.VarTupleType(max_length=int(most)) if value:
            yield [value[0]] * most, [value[0]] * (most + 1)
        case kinds.DictType(max_length=int(most), key_type=kinds.StrType(pattern=None)) if value:
            key, first = next(iter(value.items()))
            many = {f"{key[:200]}{number}": first for number in range(most + 1)}
            yield dict([*many.items()][1:]), many


def inside(kind: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """What a value of this type has in it: where, and the type."""
    match kind:
        case kinds.StructType(array_like=True, fields=fields):
            first = 1 if kind.tag_field else 0
            yield from list(enumerate([each.type for each in fields], first))[: len(value) - first]
        case kinds.StructType(fields=fields):
            yield from ((each.encode_name, each.type) for each in fields if each.encode_name in value)
        case kinds.VarTupleType(item_type=item) if value:
            yield 0, item
        case kinds.DictType(value_type=item) if value:
            yield next(iter(value)), item


JSON_OF: dict[Any, Any] = {
    kinds.IntType: int,
    kinds.FloatType: float,
    kinds.StrType: str,
    kinds.VarTupleType: list,
    kinds.DictType: dict,
}


def fits(kind: Any, value: Any) -> bool:
    if not isinstance(kind, kinds.StructType):
        return isinstance(value, JSON_OF.get(type(kind), ()))
    if kind.array_like:
        return isinstance(value, list)
    return isinstance(value, dict) and (not kind.tag_field or value.get(kind.tag_field) == kind.tag)


@pytest.mark.parametrize("example", EXAMPLES, ids=type_of)
def test_a_message_with_as_much_as_its_type_says_is_read_and_with_one_more_it_is_not(
    example: Message,
) -> None:
    whole = msgspec.json.decode(encode(enveloped(example)))
    wrong = {}
    for path, most, beyond in places(kinds.type_info(type(example)), whole["message"]):
        read, refused = [
            CODEC.decode(msgspec.json.encode(with_replaced(whole, ("message", *path), each)))
            for each in (most, beyond)
        ]
        if not isinstance(read, Envelope):
            wrong[path] = f"at its limit: {read}"
        elif not isinstance(refused, Unreadable) or path[0] not in refused.field:
            wrong[path] = f"beyond: {refused}"
    assert wrong == {}


@pytest.mark.parametrize("section", SECTIONS.values(), ids=lambda section: section.name)
def test_a_setting_may_be_as_high_as_its_type_says_and_no_higher(section: Section[Any]) -> None:
    """With others it may still be wrong: then that is said, and not this limit."""
    wrong = {}
    for field, setting in section.settings.items():
        for _, most, beyond in places(setting.described.type, 0):
            said = []
            for value in (most, beyond):
                try:
                    section.read({setting.variable: str(value)})
                    said.append("")
                except BadSetting as problem:
                    said.append(str(problem))
            if setting.allowed in said[0] or setting.allowed not in said[1]:
                wrong[field, most] = said
    assert wrong == {}


def options(command: click.Command, name: str = "moor") -> Iterator[tuple[str, click.Parameter]]:
    yield from ((f"{name} {each.name}", each) for each in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below_it in command.list_commands(context):
            if (found := command.get_command(context, below_it)) is not None:
                yield from options(found, f"{name} {below_it}")


def refusal(option: click.Parameter, value: object) -> str:
    try:
        option.type.convert(str(value), option, None)
    except click.BadParameter as problem:
        return problem.message
    return ""


def test_an_option_may_be_as_high_as_its_refusal_says_and_no_higher() -> None:
    limits = {
        (name, int(most[1].replace(",", ""))): option
        for name, option in options(app)
        if (most := re.search(r"at most ([\d,]+)", refusal(option, 10**30)))
    }

    assert len(limits) > 30
    assert [
        at for at, option in limits.items() if refusal(option, at[1]) or not refusal(option, at[1] + 1)
    ] == []
