"""The commands that follow from the table of resources, the flags that filter lists, and the completion of names in the shell.

A plain verb is a method of the client: `moor group list` calls `Client.list_groups`, and has its arguments as flags.
"""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import click
from rich.markup import escape

from moor.client import Client, HostKind, HostMode, StateName
from moor.flags import Commands, Completer, Flag, argument, option
from moor.options import BusUrl, Output, Project, client, command_settings, fail, out, tell, with_client
from moor.resources import (
    AGGREGATE,
    CELL,
    FLAVOR,
    GROUP,
    HOST,
    IMAGE,
    PROVIDER,
    ResourceKind,
)
from moor.showing import grid_of, print_all, print_one

T = TypeVar("T")

# Completes a command line by the names and ids that are on the bus now. A shell waits for it, so the bus gets a short time; if none
# answers, nothing is offered, and nothing is said.

TIME_S_MAX = 1.0
OFFERED_MAX = 200
PREFIX_MIN = 4

# Of things that nobody has so many of.
ALL = 10**9

NamesLike = Callable[[Client, str], AsyncIterator[str]]


def completes(names_like: NamesLike, *, operates: bool = False, inside: bool = False) -> Completer:
    """Completes by these names. `inside`: they are those of the project of the command line."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        found: list[str] = []

        async def gather() -> None:
            settings = command_settings(bus=context.params.get("bus") or "")
            project = (context.params.get("project") or "") if inside else ""
            opened = client(settings, operates=operates, project=project, patience_s=TIME_S_MAX)
            async with asyncio.timeout(TIME_S_MAX), opened as moor:
                async for name in names_like(moor, incomplete):
                    # One by one: what is found before the time is up is offered.
                    found.append(name)  # noqa: PERF401

        # The shell shows whatever is printed here as a part of the command line.
        with suppress(Exception):
            asyncio.run(gather())
        return sorted({name for name in found if name and name.startswith(incomplete)})

    return complete


def _completes(resource: ResourceKind[Any]) -> Completer:
    async def names_like(moor: Client, _incomplete: str) -> AsyncIterator[str]:
        for each in await first_of(resource, moor, OFFERED_MAX):
            yield (resource.in_words or resource.called)(each)

    return completes(names_like, operates="list" in resource.operates, inside=resource.inside)


async def _instances_like(moor: Client, incomplete: str) -> AsyncIterator[str]:
    """Names and ids of living instances."""
    digits = incomplete.lower().replace("-", "")
    if len(digits) >= PREFIX_MIN and set(digits) <= set("0123456789abcdef"):
        for each in (
            await moor.list_instances(living=True, id_prefix=digits).page(size=OFFERED_MAX)
        ).instances:
            yield str(each.id)
    for each in (await moor.list_instances(living=True).page(size=OFFERED_MAX)).instances:
        yield each.name or str(each.id)


complete_hosts = _completes(HOST)
complete_cells = _completes(CELL)
complete_groups = _completes(GROUP)
complete_aggregates = _completes(AGGREGATE)
complete_providers = _completes(PROVIDER)
complete_flavors = _completes(FLAVOR)
complete_images = _completes(IMAGE)
complete_instances = completes(_instances_like, inside=True)

# The flags of the arguments by which lists are filtered.
FILTERS: Mapping[str, tuple[Any, Flag]] = {
    "cell": (str, option(help="Only what is in this cell.", completes=complete_cells)),
    "host": (str, option(help="Only what is on this host, or comes from it.", completes=complete_hosts)),
    "state": (StateName | None, option(help="Only instances in this state.", show_default=False)),
    "name": (str, option(help="Only those with exactly this name.")),
    "part": (
        str,
        option(
            "--part", metavar="TEXT", help="Only those whose names contain this text, in capitals or not."
        ),
    ),
    "flavor": (str, option(help="Only instances with this flavor.", completes=complete_flavors)),
    "image": (str, option(help="Only instances from this stored image.", completes=complete_images)),
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
}


async def first_of(resource: ResourceKind[T], moor: Client, most: int, **filters: Any) -> list[T]:
    """The first things of a list, at most so many."""
    found: list[T] = []
    listing = resource.list(moor, **filters)
    async for page in listing.pages():
        found += resource.of_page(page) if resource.of_page else listing.items_on(page)
        if len(found) >= most:
            break
    return found[:most]


async def check_named(moor: Client, filters: Mapping[str, Any]) -> None:
    """Raise an error if a cell or host is named that does not exist: a misspelt name would look like an empty list."""
    if filters.get("cell"):
        await moor.show_cell(filters["cell"])
    if filters.get("host"):
        await moor.show_host(filters["host"])


def filters_of(resource: ResourceKind[Any]) -> list[inspect.Parameter]:
    """The flags of the filters of a list, as parameters of a command."""
    known = inspect.signature(resource.list).parameters
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=known[name].default,
            annotation=Annotated[FILTERS[name]],
        )
        for name in resource.filters
    ]


def with_filters(
    resource: ResourceKind[Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command's function the filters of this resource as flags: it takes them as `**filters`."""

    def given(function: Callable[..., None]) -> Callable[..., None]:
        return _signed(function, resource, filters_of(resource))

    return given


def _signed(
    function: Callable[..., None], resource: ResourceKind[Any], more: Sequence[inspect.Parameter] = ()
) -> Callable[..., None]:
    """The function with these parameters more; without that of the project, if such things belong to none."""
    own = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD and (resource.inside or each.name != "project")
    ]
    function.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
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


def _add_list(made: Commands, resource: ResourceKind[Any]) -> None:
    @made.verb("list", help=f"List the {resource.several}.")
    @with_filters(resource)
    def listed(bus: BusUrl = "", *, project: Project = "", _output: Output = None, **filters: Any) -> None:
        async def work(moor: Client) -> list[Any]:
            found = await first_of(resource, moor, ALL, **filters)
            if not found:
                await check_named(moor, filters)
            return found

        found = with_client(bus, work, operates="list" in resource.operates, project=project)
        print_all(found, resource.columns, resource.nothing)


def _name(resource: ResourceKind[Any]) -> Any:
    return Annotated[str, argument(metavar=resource.named_by, completes=_completes(resource))]


def _add_show(made: Commands, resource: ResourceKind[Any]) -> None:
    assert resource.show is not None, "it can be shown"
    show = resource.show

    def shown(name: Any, bus: BusUrl = "", *, project: Project = "", _output: Output = None) -> None:
        found = with_client(
            bus, lambda moor: show(moor, name), operates="show" in resource.operates, project=project
        )
        print_thing(resource, found)

    shown.__annotations__["name"] = _name(resource)
    made.verb("show", help=f"Show one of the {resource.several}.")(_signed(shown, resource))


def print_thing(resource: ResourceKind[T], thing: T) -> None:
    """Print everything about one thing."""
    print_one(thing, lambda found: out.print(grid_of(*resource.facts(found))), resource.columns)


def _add_delete(made: Commands, resource: ResourceKind[Any]) -> None:
    assert resource.delete is not None, "it can be deleted"
    delete = resource.delete

    def deleted(name: Any, bus: BusUrl = "", *, project: Project = "", _output: Output = None) -> None:
        gone = with_client(
            bus, lambda moor: delete(moor, name), operates="delete" in resource.operates, project=project
        )
        print_one(
            name if gone is None else gone, lambda _: out.print(f"{resource.word} {escape(name)} is deleted")
        )

    deleted.__annotations__["name"] = _name(resource)
    made.verb("delete", help=f"Delete one of the {resource.several}.")(_signed(deleted, resource))


# Verbs for many: the things that are named, or those that filters choose.

NAMES_SHOWN_MAX = 5

Yes = Annotated[bool, option("--yes", help="Do not ask, whatever the filters choose.")]


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
        await check_named(moor, given)
        fail(f"no {resource.word} fits, so nothing was done")
    names = ", ".join(map(resource.in_words or resource.called, found[:NAMES_SHOWN_MAX]))
    others = f" and {len(found) - NAMES_SHOWN_MAX:,} more" if len(found) > NAMES_SHOWN_MAX else ""
    what = f"{verb} {len(found):,} {resource.word if len(found) == 1 else resource.several}: {names}{others}"
    if not yes:
        if not sys.stdin.isatty():
            fail(f"nothing was done: this would {what}. Say so with --yes")
        if not click.confirm(f"This will {what}. Go on?", err=True):
            fail("nothing was done")
    else:
        tell(what, "dim")
    return found
