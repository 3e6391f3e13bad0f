"""Commands that send one message and show its answer: each is a row of data.

Options, limits and help come from the message.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import cleandoc
from typing import Any, Literal, get_args
from uuid import UUID, uuid4

import click
from msgspec import Struct, inspect, structs

from bus.message import Message
from moor.asking import CommandClient, ask_bus, items_of
from moor.flags import REQUIRED, Completer, FlagField, Function, argument, command, fields_of, option
from moor.options import BusUrl, Output, Project, fail
from moor.showing import print_all, print_one
from moor.tables import Columns

# A field of a message has the same type, default, limits and description on the command line as in the message.

NO_ARGUMENTS: Mapping[str, str] = {}

# The fields of a question about its page. Commands print all pages.
PAGING = ("after", "limit")


def command_with(
    function: Function,
    arguments: Mapping[str, str] = NO_ARGUMENTS,
    fixed: Sequence[str] = PAGING,
    named: Sequence[str] = (),
    completes: Completer | None = None,
) -> click.Command:
    """The command that calls this function. In place of the parameter whose type is a message, it has the fields of that message.

    The fields in `arguments` are arguments, in this order, with the names that it gives them. An argument must be given, even if the
    message has a default. The fields in `fixed` keep their defaults; those in `named` get a text, whose id the function looks up
    before it sends the message. The shell completes the first argument by `completes`. The message's docstring is the help of a
    function that has none.
    """
    helps = [function.__doc__]

    def fields_as_flags(kind: type[Struct]) -> list[FlagField]:
        if not issubclass(kind, Message):
            return fields_of(kind)
        helps.append(kind.__doc__)
        fields = typed_fields(kind)
        names = (*arguments, *(name for name in fields if name not in (*arguments, *fixed)))
        return [
            _as_flag(
                fields[name],
                arguments.get(name, ""),
                is_named=name in named,
                completes=completes if number == 0 and arguments else None,
            )
            for number, name in enumerate(names)
        ]

    made = command(function, fields=fields_as_flags)
    made.help = cleandoc(next(filter(None, helps)))
    return made


def typed_fields(kind: type[Struct]) -> dict[str, inspect.Field]:
    known = inspect.type_info(kind)
    assert isinstance(known, inspect.StructType), f"{kind} has fields"
    return {field.name: field for field in known.fields}


def _as_flag(field: inspect.Field, name: str, *, is_named: bool, completes: Completer | None) -> FlagField:
    """The argument of this name for a field, or the option if that is empty."""
    default = REQUIRED if name or field.required else field.default
    if field.name == "project" and not name:
        kind, flag = get_args(Project)
        return FlagField(field.name, kind, flag, default)
    type_, limits = (str, {}) if is_named else _on_command_line(field.type)
    said: dict[str, Any] = {"help": _help(field), "completes": completes, **limits}
    if name:
        return FlagField(field.name, type_, argument(**said | {"metavar": name}), default)
    if type_ is UUID and field.required:
        # The client chooses the id of what it creates.
        return FlagField(field.name, type_, option(**said, show_default=False), uuid4)
    return FlagField(field.name, type_, option(**said), default)


def _on_command_line(kind: inspect.Type) -> tuple[Any, dict[str, Any]]:
    """The type of the values of such a field, and their limits."""
    match _bare(kind):
        case inspect.StrType():
            return str, {}
        case inspect.IntType(ge=low, le=high):
            return int, {"min": low, "max": high}
        case inspect.UUIDType():
            return UUID, {}
        case inspect.LiteralType(values=values):
            return Literal[values], {}
    raise TypeError(f"a field of type {kind} cannot be an option of a command")


def _bare(kind: inspect.Type) -> inspect.Type:
    """The type without its description, and without null."""
    match kind:
        case inspect.Metadata(type=inner) | inspect.UnionType(types=(inner, inspect.NoneType())):
            return _bare(inner)
    return kind


def _help(field: inspect.Field) -> str:
    """The description of a field, as a sentence. The bus's reference prints the same as a part of a table."""
    known = field.type.extra_json_schema if isinstance(field.type, inspect.Metadata) else None
    assert known, f"{field.name} has no description: give the message's field a Meta(description=...)"
    text = str(known["description"])
    return f"{text[0].upper()}{text[1:]}."


# Finds the id of what a text names, in a project if one is given (naming.py).
Finder = Callable[[CommandClient, str, str], Awaitable[UUID]]


def command_that_sends(
    kind: type[Message],
    *,
    answer: type[Any],
    items: Callable[[Any], Sequence[Any] | None],
    show: Columns[Any] | Callable[[Any], None],
    is_about_one: bool = False,
    missing: str = "",
    nothing: str = "",
    arguments: Mapping[str, str] = NO_ARGUMENTS,
    fixed: Sequence[str] = (),
    named: Finder | None = None,
    completes: Completer | None = None,
    words: str | None = None,
    operates: bool = False,
) -> click.Command:
    """A command that sends a message of this kind, and shows the `items` of each page of its answer.

    The command shows all items, or with `is_about_one` the only one. In place of no items it prints the text `nothing`. If what
    the message names does not exist, it ends with the text `missing`: there is not the one item, or `items` returns None. Both
    texts may name fields of the message, such as {id}.

    `arguments` has the fields that are arguments, with the names that the help gives them; fields in `fixed` are no options.
    With `named`, the only argument is a text, whose id `named` finds. The shell completes the first argument by `completes`. Without `words`, the help is the message's docstring. An operator's command `operates`.
    """

    def work_of(message: Message, bus: BusUrl = "", *, _output: Output = None) -> None:
        fields = structs.asdict(message)

        def items_on(page: Any) -> Sequence[Any]:
            found = items(page)
            if found is None or (is_about_one and not found):
                fail(missing.format_map(fields))
            return found

        async def work(asking: CommandClient) -> list[Any]:
            question = _with_long_pages(message)
            if named is not None:
                (field,) = arguments
                id_ = await named(asking, fields[field], fields.get("project", ""))
                question = structs.replace(question, **{field: id_})
            return await items_of(asking, question, answer, items_on)

        found = ask_bus(bus, work, operates=operates)
        if is_about_one:
            print_one(found[0], show)
        else:
            print_all(found, show, nothing.format_map(fields))

    work_of.__annotations__["message"] = kind
    work_of.__doc__ = words
    return command_with(work_of, arguments, (*fixed, *PAGING), [*arguments] if named else (), completes)


def _with_long_pages(message: Message) -> Message:
    """The message with the longest pages that its receiver allows, if its answer has pages."""
    match typed_fields(type(message)).get("limit"):
        case inspect.Field(type=inspect.IntType(le=int(longest))):
            return structs.replace(message, limit=longest)
    return message
