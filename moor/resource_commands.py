"""The commands that follow from the table of resources, the flags that filter lists, and the completion of names in the shell.

A plain verb is a method of the client: `moor group list` calls `Client.list_groups`, and has its arguments as flags.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeVar, get_origin

import click

from bus.broker import PREFETCH_MAX
from moor.client import Client, HostKind, HostMode, Listing, MovementLife, StateName
from moor.flags import Commands, Completer, Flag, argument, option
from moor.options import ID, Form, Output, be_sure, fail, form, out, run_with, say, tell
from moor.resources import CAMPAIGN, CELL, FLAVOR, HOST, IMAGE, INSTANCE, ResourceKind
from moor.showing import grid_of, print_all, print_one

T = TypeVar("T")
R = TypeVar("R")

# Completes a command line by the names and ids that are on the bus now. A shell waits for it, so the bus gets a short time; if none
# answers, nothing is offered, and nothing is said.

TIME_S_MAX = 1.0
OFFERED_MAX = 200
PREFIX_MIN = 4

# Of things that nobody has so many of.
ALL = 10**9

NamesLike = Callable[[Any, str], AsyncIterator[str]]


def completes(resource: ResourceKind[Any], names_like: NamesLike | None = None) -> Completer:
    """Completes by the names of such things, or by these."""

    async def listed(opened: Any, _incomplete: str) -> AsyncIterator[str]:
        async for each in items_of(resource, opened):
            yield (resource.in_words or resource.called)(each)

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        found: list[str] = []

        async def gather() -> None:
            where = {each.name: context.params.get(each.name) or "" for each in _places(resource)}
            connected = resource.opened(**where, operates="list" in resource.operates, patience_s=TIME_S_MAX)
            async with asyncio.timeout(TIME_S_MAX), connected as opened:
                async for name in (names_like or listed)(opened, incomplete):
                    # One by one: what is found before the time is up is offered.
                    if name.startswith(incomplete):
                        found.append(name)
                    if len(found) == OFFERED_MAX:
                        break

        # The shell shows whatever is printed here as a part of the command line.
        with suppress(Exception):
            asyncio.run(gather())
        return sorted({*found} - {""})

    return complete


async def _instances_like(moor: Client, incomplete: str) -> AsyncIterator[str]:
    """Names and ids of living instances."""
    digits = incomplete.lower().replace("-", "")
    if len(digits) >= PREFIX_MIN and set(digits) <= set("0123456789abcdef"):
        for each in (
            await moor.list_instances(living=True, id_prefix=digits).page(size=OFFERED_MAX)
        ).instances:
            yield str(each.id)
    newest = moor.list_instances(living=True, part=incomplete, order="age", backwards=True)
    async for each in newest:
        yield each.name or str(each.id)


complete_instances = completes(INSTANCE, _instances_like)

# The flags of the arguments by which lists are filtered: by the argument, or by the word for the thing with it.
FILTERS: Mapping[str, tuple[Any, Flag]] = {
    "cell": (str, option(help="Only what is in this cell.", completes=completes(CELL))),
    "host": (str, option(help="Only what is on this host, or comes from it.", completes=completes(HOST))),
    "state": (StateName | None, option(help="Only instances in this state.", show_default=False)),
    "name": (str, option(help="Only those with exactly this name.")),
    "part": (
        str,
        option(
            "--part", metavar="TEXT", help="Only those whose names contain this text, in capitals or not."
        ),
    ),
    "flavor": (str, option(help="Only instances with this flavor.", completes=completes(FLAVOR))),
    "image": (str, option(help="Only instances from this stored image.", completes=completes(IMAGE))),
    "place": (
        str,
        option(metavar="DOMAIN", help="Only hosts in this domain, such as dc1/hall2."),
    ),
    "mode": (HostMode | None, option(help="Only hosts that are set so.", show_default=False)),
    "up": (
        bool | None,
        option(
            "--up/--down",
            help="Only those that are up, or that are down: set so, or silent.",
            show_default=False,
        ),
    ),
    "kind": (HostKind, option(help="Only hypervisors, or only bare-metal nodes.", show_default=False)),
    "ended": (bool, option("--all", help="Also those that are over.")),
    "campaign": (
        str,
        option(help="Only those of this campaign: its name or id.", completes=completes(CAMPAIGN)),
    ),
    "instance": (str, option(metavar=ID, help="Only those of this instance.", completes=complete_instances)),
    "life": (MovementLife | None, option("--state", help="Only those in this state.", show_default=False)),
    "queue": (str, option(help="Only those from this queue.")),
    "limit": (int, option(help="Read at most so many, the oldest first.", min=1, max=PREFETCH_MAX)),
    "node cell": (str, option(help="Only nodes of this cell.", completes=completes(CELL))),
    "node state": (str, option(help="Only nodes in this provision state.")),
    "daemon": (str, option(help="Only nodes that this daemon owns.")),
    "unavailable": (bool, option("--unavailable", help="Only nodes that are not offered to placement.")),
}


def flag_of(resource: ResourceKind[Any], argument: str) -> Any:
    """The flag for this argument of the resource's methods, as an annotation."""
    return Annotated[FILTERS.get(f"{resource.word} {argument}") or FILTERS[argument]]


async def first_of(resource: ResourceKind[T], opened: Any, most: int, **filters: Any) -> list[T]:
    """The first things of a list, at most so many. Raises an error if there are none since a filter is misspelt."""
    listing = resource.list(opened, **filters)
    if not isinstance(listing, Listing):
        return [*await listing][:most]
    items = resource.of_page or listing.items_on
    found = [each for page in await listing.beginning(most) for each in items(page)][:most]
    if not found and isinstance(opened, Client):
        await check_named(opened, filters)
    return found


async def items_of(resource: ResourceKind[T], opened: Any, **filters: Any) -> AsyncGenerator[T, None]:
    """The things of a list, page after page."""
    listing = resource.list(opened, **filters)
    if not isinstance(listing, Listing):
        for each in await listing:
            yield each
        return
    async for page in listing.pages():
        for each in resource.of_page(page) if resource.of_page else listing.items_on(page):
            yield each


async def check_named(moor: Client, filters: Mapping[str, Any]) -> None:
    """Raise an error if a cell, host or campaign is named that does not exist: a misspelt name would look like an empty list."""
    if filters.get("cell"):
        await moor.show_cell(filters["cell"])
    if filters.get("host"):
        await moor.show_host(filters["host"])
    if filters.get("campaign"):
        await moor.show_campaign(filters["campaign"])


def filters_of(
    resource: ResourceKind[Any], method: Callable[..., Any] | None = None
) -> list[inspect.Parameter]:
    """The flags of the filters that the method for a list has, or this one, as parameters of a command."""
    known = inspect.signature(method or resource.list).parameters
    return [
        known[name].replace(annotation=flag_of(resource, name))
        for name in resource.filters
        if name in known and known[name].kind is inspect.Parameter.KEYWORD_ONLY
    ]


def _places(resource: ResourceKind[Any]) -> list[inspect.Parameter]:
    """The flags that say where such things are, as parameters of a command."""
    return [
        each
        for each in inspect.signature(resource.opened).parameters.values()
        if get_origin(each.annotation) is Annotated and (resource.inside or each.name != "project")
    ]


def with_filters(
    resource: ResourceKind[Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command's function the filters of this resource as flags: it takes them as `**filters`."""

    def given(function: Callable[..., None]) -> Callable[..., None]:
        return _signed(function, filters_of(resource))

    return given


def _signed(
    function: Callable[..., None],
    filters: Iterable[inspect.Parameter],
    places: Sequence[inspect.Parameter] = (),
) -> Callable[..., None]:
    """The function, with these parameters in place of those that have no names."""
    own = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    first = [each for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [*first, *(each.replace(kind=kind) for each in places), *own[len(first) :], *filters]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def commands_of(resource: ResourceKind[Any], help_: str) -> Commands:
    """The group of commands about such things, with the plain verbs that the resource has."""
    made = Commands(help_)
    _add_list(made, resource)
    if resource.show is not None:
        _add_show(made, resource)
    if resource.delete is not None:
        _add_delete(made, resource)
    return made


def _run(
    resource: ResourceKind[T], verb: str, flags: dict[str, Any], work: Callable[[Any], Awaitable[R]]
) -> R:
    """Run a command's work where its flags say, and return its result. Takes those out of `flags`: the filters are left."""
    where = {each.name: flags.pop(each.name) for each in _places(resource)}

    async def with_notes(opened: Any) -> tuple[R, Sequence[str]]:
        return await work(opened), resource.told(opened)

    found, notes = run_with(resource.opened(**where, operates=verb in resource.operates), with_notes)
    for note in notes:
        tell(note, "yellow")
    return found


def _add_list(made: Commands, resource: ResourceKind[Any]) -> None:
    def listed(*, _output: Output = None, **flags: Any) -> None:
        found = _run(resource, "list", flags, lambda opened: first_of(resource, opened, ALL, **flags))
        print_all(found, resource.columns, resource.nothing)

    command = _signed(listed, filters_of(resource), _places(resource))
    made.verb("list", help=resource.lists or f"List the {resource.several}.")(command)


def _add_show(made: Commands, resource: ResourceKind[Any]) -> None:
    assert resource.show is not None, "it can be shown"
    show = resource.show

    def shown(name: Any, *, _output: Output = None, **flags: Any) -> None:
        print_thing(resource, _run(resource, "show", flags, lambda opened: show(opened, name, **flags)))

    shown.__annotations__["name"] = _named(resource)
    command = _signed(shown, filters_of(resource, show), _places(resource))
    made.verb("show", help=f"Show one of the {resource.several}.")(command)


def _named(resource: ResourceKind[Any]) -> Any:
    """What names a thing on the command line, as an annotation."""
    how = argument(metavar=resource.named_by, help=resource.named_how, completes=completes(resource))
    return Annotated[str, how]


def print_thing(resource: ResourceKind[T], thing: T) -> None:
    """Print everything about one thing."""
    print_one(thing, lambda found: out.print(grid_of(*resource.facts(found))), resource.columns)


def _add_delete(made: Commands, resource: ResourceKind[Any]) -> None:
    assert resource.delete is not None, "it can be deleted"
    delete = resource.delete

    def deleted(name: Any, *, _output: Output = None, **flags: Any) -> None:
        gone = _run(resource, "delete", flags, lambda opened: delete(opened, name))
        if form() is Form.NAME:
            say(name if gone is None else resource.called(gone))
        else:
            print_one(name if gone is None else gone, lambda _: say(f"{resource.word} {name} is deleted"))

    deleted.__annotations__["name"] = _named(resource)
    made.verb("delete", help=f"Delete one of the {resource.several}.")(
        _signed(deleted, (), _places(resource))
    )


# Verbs for many: the things that are named, or those that filters choose.

NAMES_SHOWN_MAX = 5

Yes = Annotated[bool, option("--yes", help="Do not ask, whatever the filters choose.")]


def check_not_both(named: Sequence[str] | None, **filters: Any) -> None:
    """Refuse names together with filters: which of them should count?"""
    given = [name for name, value in filters.items() if value not in ("", None)]
    if named and given:
        raise click.BadParameter(
            f"--{given[0]} chooses by itself, and {named[0]} is named: give one or the other"
        )


async def chosen(
    resource: ResourceKind[T], moor: Client, filters: Mapping[str, Any], verb: str, *, yes: bool, **more: Any
) -> list[T]:
    """The things that these filters choose. Ends the command unless the user is sure that they are meant. `more` are arguments of
    the list that are no filters.
    """
    given = {name: value for name, value in filters.items() if value not in ("", None)}
    if not given:
        flags = ", ".join(f"--{name}" for name in resource.filters)
        raise click.BadParameter(f"nothing is named: give names or ids, or choose by {flags}")
    found = await first_of(resource, moor, ALL, **given, **more)
    if not found:
        fail(f"no {resource.word} fits, so nothing was done")
    names = ", ".join(map(resource.in_words or resource.called, found[:NAMES_SHOWN_MAX]))
    others = f" and {len(found) - NAMES_SHOWN_MAX:,} more" if len(found) > NAMES_SHOWN_MAX else ""
    what = f"{verb} {len(found):,} {resource.word if len(found) == 1 else resource.several}: {names}{others}"
    be_sure(f"this will {what}", yes=yes)
    return found
