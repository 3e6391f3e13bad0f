"""Completes a command line in the shell, by the names and ids that are on the bus now.

A shell waits for it, so the bus gets a short time; if none answers, nothing is offered, and nothing is said.
Every command imports this module, so it imports what a completion needs only when there is one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from moor.flags import Completer

if TYPE_CHECKING:
    from bus.message import Message
    from moor.asking import CommandClient

TIME_S_MAX = 1.0
PAGE = 200


def _name_or_id(item: Any) -> str:
    return item.name or str(item.id)


def _by_question(
    module: str,
    question: str,
    items: str,
    name_of: Callable[[Any], str] = _name_or_id,
    *,
    of_project: bool = False,
    operates: bool = False,
) -> Completer:
    """Completes by the names of the `items` in the answers to this question of bus.messages. With `of_project`, the question names
    the project of the command line.
    """

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        async def names(asking: "CommandClient") -> AsyncIterator[str]:
            kind = getattr(import_module(f"bus.messages.{module}"), question)
            fields: dict[str, Any] = {"limit": PAGE} if "limit" in kind.__struct_fields__ else {}
            if of_project:
                fields["project"] = _project(context)
            async for each in _items(asking, kind(**fields), items):
                yield name_of(each)

        return _on_bus(context, incomplete, names, operates=operates)

    return complete


complete_hosts = _by_question("hosts", "AskHosts", "hosts")
complete_cells = _by_question("cloud", "AskCells", "cells", lambda each: each.cell)
complete_groups = _by_question("stored_names", "AskGroups", "groups", of_project=True)
complete_aggregates = _by_question("hosts", "AskAggregates", "aggregates")
complete_providers = _by_question("placement", "AskSnapshot", "providers", operates=True)
complete_flavors = _by_question("stored_names", "AskFlavors", "flavors", of_project=True)
complete_images = _by_question("stored_names", "AskImages", "images", of_project=True)
complete_device_profiles = _by_question("stored_names", "AskDeviceProfiles", "profiles", of_project=True)


def complete_instances(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names and ids of living instances."""

    async def names(asking: "CommandClient") -> AsyncIterator[str]:
        from bus.messages.build import AskInstances
        from moor.naming import prefix_in

        if prefix := prefix_in(incomplete):
            question = AskInstances(living=True, limit=PAGE, id_prefix=prefix, project=_project(context))
            async for each in _items(asking, question, "instances"):
                yield str(each.id)
        async for each in _items(
            asking, AskInstances(living=True, limit=PAGE, project=_project(context)), "instances"
        ):
            yield _name_or_id(each)

    return _on_bus(context, incomplete, names)


def complete_states(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from moor.showing import COLOURS

    return _beginning(incomplete, COLOURS)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name and name.startswith(incomplete)})


def _project(context: click.Context) -> str:
    return context.params.get("project") or ""


def _on_bus(
    context: click.Context,
    incomplete: str,
    names_of: Callable[["CommandClient"], AsyncIterator[str]],
    *,
    operates: bool = False,
) -> list[str]:
    found: list[str] = []

    async def gather() -> None:
        from moor.asking import client
        from moor.options import command_settings

        settings = command_settings(bus=context.params.get("bus") or "")
        connected = client(settings, operates=operates, patience_s=TIME_S_MAX)
        async with asyncio.timeout(TIME_S_MAX), connected as asking:
            async for name in names_of(asking):
                # One by one: what is found before the time is up is offered.
                found.append(name)  # noqa: PERF401

    # The shell shows whatever is printed here as a part of the command line.
    with suppress(Exception):
        asyncio.run(gather())
    return _beginning(incomplete, found)


async def _items(asking: "CommandClient", question: "Message", items: str) -> AsyncIterator[Any]:
    from moor.asking import pages_of

    async with aclosing(pages_of(asking, question, object)) as pages:
        async for page in pages:
            for each in getattr(page, items):
                yield each
