"""Commands that send one message and show its answer: each is a row of data.

Options, limits and help come from the message, by `with_options`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import inspect, structs

from bus.message import Message
from moor.asking import CommandClient, ask_bus, items_of
from moor.completing import Completer
from moor.option_structs import NO_ARGUMENTS, PAGING, Command, typed_fields, with_options
from moor.options import BusUrl, Output, fail
from moor.showing import print_all, print_one
from moor.tables import Columns

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
