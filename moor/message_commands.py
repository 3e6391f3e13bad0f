"""Commands that send one message and show its answer: each is a row of data.

Options, limits and help come from the message, by `with_options`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from typing import Annotated, Any
from uuid import UUID, uuid4

import typer
from msgspec import Struct, inspect, structs
from rich.markup import escape

from bus.message import Message
from moor.asking import CommandClient, ask_bus, items_of
from moor.completing import Completer
from moor.options import BusUrl, Output, Project, fail, flag_of, read_uuid
from moor.showing import print_all, print_one
from moor.tables import Columns

# The parameters of a command that are the fields of a Struct: of a group of options, or of the message that it sends.
#
# A field of a message has the same type, default, limits and description on the command line as in the message.

Command = Callable[..., None]
NO_ARGUMENTS: Mapping[str, str] = {}

# The fields of a question about its page. Commands print all pages.
PAGING = ("after", "limit")


def with_options(
    command: Command,
    arguments: Mapping[str, str] = NO_ARGUMENTS,
    fixed: Sequence[str] = PAGING,
    named: Sequence[str] = (),
    completes: Completer | None = None,
) -> Command:
    """The command for typer. In place of each parameter whose type is a Struct, it has that Struct's fields as options.

    If that Struct is a message, the fields in `arguments` are arguments, in this order, with the names that it gives them. An
    argument must be given, even if the message has a default. The fields in `fixed` keep their defaults; those in `named` get
    a text, whose id the command looks up before it sends the message. The shell completes the first argument by `completes`. The message's docstring is the help of a command that has none.
    """
    parameters = signature(command).parameters.values()
    groups: dict[str, type[Struct]] = {
        each.name: each.annotation
        for each in parameters
        if isinstance(each.annotation, type) and issubclass(each.annotation, Struct)
    }
    messages = [each for each in groups.values() if issubclass(each, Message)]

    def with_fields(**given: Any) -> None:
        for kind in messages:
            _check_choices(kind, given, arguments)
        read = {
            name: group(**{field: given.pop(field) for field in group.__struct_fields__ if field in given})
            for name, group in groups.items()
        }
        command(**given, **read)

    flat: list[Parameter] = []
    for each in parameters:
        if each.name not in groups:
            flat.append(each.replace(kind=Parameter.KEYWORD_ONLY))
        elif groups[each.name] in messages:
            fields = typed_fields(groups[each.name])
            options = [name for name in fields if name not in (*arguments, *fixed)]
            flat += [
                _parameter(
                    fields[name],
                    arguments.get(name, ""),
                    is_named=name in named,
                    completes=completes if number == 0 and arguments else None,
                )
                for number, name in enumerate((*arguments, *options))
            ]
        else:
            flat += [
                Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
                for one in structs.fields(groups[each.name])
            ]
    update_wrapper(with_fields, command)
    with_fields.__doc__ = next((each.__doc__ for each in (command, *messages) if each.__doc__), None)
    # typer reads this.
    with_fields.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    return with_fields


def typed_fields(kind: type[Struct]) -> dict[str, inspect.Field]:
    known = inspect.type_info(kind)
    assert isinstance(known, inspect.StructType), f"{kind} has fields"
    return {field.name: field for field in known.fields}


def _parameter(
    field: inspect.Field, argument: str, *, is_named: bool, completes: Completer | None
) -> Parameter:
    """The parameter for this field: the argument of this name, or an option if that is empty."""
    default = Parameter.empty if argument or field.required else field.default
    if field.name == "project" and not argument:
        return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Project)
    type_, details = (str, {}) if is_named else _on_command_line(field.type)
    details["help"] = _help(field)
    details["autocompletion"] = completes
    shown: Any
    if argument:
        shown = typer.Argument(**details | {"metavar": argument})
    elif type_ is UUID and field.required:
        # The client chooses the id of what it creates.
        shown = typer.Option(**details, default_factory=lambda: str(uuid4()), show_default=False)
    else:
        shown = typer.Option(**details)
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[type_, shown])


def _on_command_line(kind: inspect.Type) -> tuple[type, dict[str, Any]]:
    """The type of such a field for typer, and what else typer has to know about it."""
    match _bare(kind):
        case inspect.StrType():
            return str, {}
        case inspect.IntType(ge=low, le=high):
            return int, {"min": low, "max": high}
        case inspect.UUIDType():
            return UUID, {"parser": read_uuid}
        case inspect.LiteralType(values=values):
            return str, {"metavar": "|".join(map(str, values))}
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
    return escape(f"{text[0].upper()}{text[1:]}.")


def _check_choices(kind: type[Struct], given: Mapping[str, Any], arguments: Mapping[str, str]) -> None:
    """Refuse a value that is none of those its field may have. The receiver checks all else, as for any other client."""
    for name, field in typed_fields(kind).items():
        allowed = _bare(field.type)
        if isinstance(allowed, inspect.LiteralType) and given[name] not in allowed.values:
            shown = arguments.get(name) or flag_of(name)
            values = ", ".join(map(str, allowed.values))
            raise typer.BadParameter(f"{shown} is {given[name]!r}, must be one of {values}")


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
) -> Command:
    """A command for typer that sends a message of this kind, and shows the `items` of each page of its answer.

    The command shows all items, or with `is_about_one` the only one. In place of no items it prints the text `nothing`. If what
    the message names does not exist, it ends with the text `missing`: there is not the one item, or `items` returns None. Both
    texts may name fields of the message, such as {id}.

    `arguments` has the fields that are arguments, with the names that the help gives them; fields in `fixed` are no options.
    With `named`, the only argument is a text, whose id `named` finds. The shell completes the first argument by `completes`. Without `words`, the help is the message's docstring. An operator's command `operates`.
    """

    def command(message: Message, bus: BusUrl = "", *, _output: Output = None) -> None:
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

    command.__annotations__["message"] = kind
    command.__doc__ = words
    return with_options(command, arguments, (*fixed, *PAGING), [*arguments] if named else (), completes)


def _with_long_pages(message: Message) -> Message:
    """The message with the longest pages that its receiver allows, if its answer has pages."""
    match typed_fields(type(message)).get("limit"):
        case inspect.Field(type=inspect.IntType(le=int(longest))):
            return structs.replace(message, limit=longest)
    return message
