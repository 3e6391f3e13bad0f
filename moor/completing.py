"""Completes a command line in the shell, by the names and ids that are on the bus now.

A shell waits for it, so the bus gets a short time; if none answers, nothing is offered, and nothing is said.
Every command imports this module, so it imports what a completion needs only when there is one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from bus.message import Message
    from moor.asking import CommandClient

M = TypeVar("M")

TIME_S_MAX = 1.0
PAGE = 200

Completer = Callable[[typer.Context, str], list[str]]


def complete_instances(context: typer.Context, incomplete: str) -> list[str]:
    """Names and ids of living instances."""
    return _on_bus(context, incomplete, _instances)


def complete_hosts(context: typer.Context, incomplete: str) -> list[str]:
    return _on_bus(context, incomplete, _hosts)


def complete_cells(context: typer.Context, incomplete: str) -> list[str]:
    return _on_bus(context, incomplete, _cells)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    return _on_bus(context, incomplete, _groups)


def complete_aggregates(context: typer.Context, incomplete: str) -> list[str]:
    return _on_bus(context, incomplete, _aggregates)


def complete_providers(context: typer.Context, incomplete: str) -> list[str]:
    return _on_bus(context, incomplete, _providers, operates=True)


def complete_flavors(context: typer.Context, incomplete: str) -> list[str]:
    return _on_bus(context, incomplete, _flavors)


def complete_device_profiles(context: typer.Context, incomplete: str) -> list[str]:
    return _on_bus(context, incomplete, _device_profiles)


def complete_images(context: typer.Context, incomplete: str) -> list[str]:
    return _on_bus(context, incomplete, _images)


def complete_states(incomplete: str) -> list[str]:
    from moor.showing import COLOURS

    return _beginning(incomplete, COLOURS)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name and name.startswith(incomplete)})


def _settings(context: typer.Context) -> Any:
    from moor.options import command_settings

    return command_settings(bus=context.params.get("bus") or "")


def _on_bus(
    context: typer.Context,
    incomplete: str,
    names_of: Callable[["CommandClient", typer.Context, str], AsyncIterator[str]],
    *,
    operates: bool = False,
) -> list[str]:
    found: list[str] = []

    async def gather() -> None:
        from moor.asking import client

        connected = client(_settings(context), operates=operates, patience_s=TIME_S_MAX)
        async with asyncio.timeout(TIME_S_MAX), connected as asking:
            async for name in names_of(asking, context, incomplete):
                # One by one: what is found before the time is up is offered.
                found.append(name)  # noqa: PERF401

    # The shell shows whatever is printed here as a part of the command line.
    with suppress(Exception):
        asyncio.run(gather())
    return _beginning(incomplete, found)


async def _items(
    asking: "CommandClient", question: "Message", items: Callable[[Any], Iterable[M]]
) -> AsyncIterator[M]:
    from msgspec import structs

    while True:
        page = await asking.ask(question)
        for each in items(page):
            yield each
        if not (after := getattr(page, "next", None)):
            return
        question = structs.replace(question, after=after)


async def _instances(asking: "CommandClient", context: typer.Context, incomplete: str) -> AsyncIterator[str]:
    from bus.messages.build import AskInstances
    from moor.naming import prefix_in

    project = context.params.get("project") or ""
    prefix = prefix_in(incomplete)
    if prefix:
        question = AskInstances(living=True, project=project, limit=PAGE, id_prefix=prefix)
        async for each in _items(asking, question, lambda page: page.instances):
            yield str(each.id)
    every = AskInstances(living=True, project=project, limit=PAGE)
    async for each in _items(asking, every, lambda page: page.instances):
        yield each.name
        if not each.name:
            yield str(each.id)


async def _hosts(asking: "CommandClient", _: typer.Context, __: str) -> AsyncIterator[str]:
    from bus.messages.hosts import AskHosts

    async for each in _items(asking, AskHosts(limit=PAGE), lambda page: page.hosts):
        yield each.name


async def _cells(asking: "CommandClient", _: typer.Context, __: str) -> AsyncIterator[str]:
    from bus.messages.cloud import AskCells

    async for each in _items(asking, AskCells(), lambda page: page.cells):
        yield each.cell


async def _groups(asking: "CommandClient", context: typer.Context, _: str) -> AsyncIterator[str]:
    from bus.messages.stored_names import AskGroups

    question = AskGroups(project=context.params.get("project") or "", limit=PAGE)
    async for each in _items(asking, question, lambda page: page.groups):
        yield each.name or str(each.id)


async def _flavors(asking: "CommandClient", context: typer.Context, _: str) -> AsyncIterator[str]:
    from bus.messages.stored_names import AskFlavors

    question = AskFlavors(project=context.params.get("project") or "", limit=PAGE)
    async for each in _items(asking, question, lambda page: page.flavors):
        yield each.name


async def _images(asking: "CommandClient", context: typer.Context, _: str) -> AsyncIterator[str]:
    from bus.messages.stored_names import AskImages

    question = AskImages(project=context.params.get("project") or "", limit=PAGE)
    async for each in _items(asking, question, lambda page: page.images):
        yield each.name


async def _device_profiles(asking: "CommandClient", context: typer.Context, _: str) -> AsyncIterator[str]:
    from bus.messages.stored_names import AskDeviceProfiles

    question = AskDeviceProfiles(project=context.params.get("project") or "", limit=PAGE)
    async for each in _items(asking, question, lambda page: page.profiles):
        yield each.name


async def _aggregates(asking: "CommandClient", _: typer.Context, __: str) -> AsyncIterator[str]:
    from bus.messages.hosts import AskAggregates

    async for each in _items(asking, AskAggregates(limit=PAGE), lambda page: page.aggregates):
        yield each.name


async def _providers(asking: "CommandClient", _: typer.Context, __: str) -> AsyncIterator[str]:
    from bus.messages.placement import AskSnapshot

    async for each in _items(asking, AskSnapshot(limit=PAGE), lambda page: page.providers):
        yield each.name
