"""Reads and writes placement's providers over the bus."""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import typer
from msgspec import structs

from bus.messages.administration import (
    AlreadyThere,
    Done,
    GenerationMoved,
    HasChildren,
    IdTaken,
    NameInUse,
    NameTaken,
    ProviderWritten,
    UnknownClass,
    UnknownProvider,
    UnknownTrait,
    Write,
    WriteAnswered,
)
from bus.messages.placement import InventoryInUse
from engine.inventories import ProviderState, ReportedInventory
from engine.refusals import NotAllowed
from moor.asking import CommandClient, answer_of
from moor.completing import complete_providers
from moor.naming import NamedKind, one_of
from moor.nearest_names import unknown_with_near
from moor.options import fail, put_once, wrong_value

ProviderName = Annotated[
    str,
    typer.Argument(metavar="PROVIDER", help="A provider's name or id.", autocompletion=complete_providers),
]
PROVIDERS = NamedKind[ProviderState](
    "provider",
    "`moor provider list` shows all providers",
    lambda each: each.id,
    lambda each: each.name,
    lambda each: each.cell,
)
# The reason for each refusing verdict, filled from its fields.
REASONS: dict[type, str] = {
    NotAllowed: "{field}: {reason}",
    UnknownProvider: "{field} names provider {provider}, which does not exist",
    GenerationMoved: "provider {provider} was written meanwhile (generation {seen} was read, it is {current} now): run the"
    " command again",
    NameTaken: "{name!r} is already the name of provider {provider}",
    IdTaken: "provider {provider} already exists",
    NameInUse: "{name} is in use, by provider {provider}",
    HasChildren: "it has a child, provider {child}",
    InventoryInUse: "consumers hold {used} {resource} of provider {provider}",
}
# The keys of an inventory on the command line.
FIELDS: dict[str, tuple[str, type[int] | type[float]]] = {
    "reserved": ("reserved", int),
    "ratio": ("allocation_ratio", float),
    "min": ("min_unit", int),
    "max": ("max_unit", int),
    "step": ("step_size", int),
}


def found_in(providers: Iterable[ProviderState], name: str) -> ProviderState:
    """The provider with this id or name, or whose id begins like this. If there is none, end the command."""
    return one_of(PROVIDERS, name, providers)


async def write(asking: CommandClient, order: Write) -> None:
    """Send the order. If placement refuses it, end the command with the reason."""
    verdict = (await answer_of(asking, order, WriteAnswered)).verdict
    if isinstance(verdict, UnknownClass | UnknownTrait):
        what = "resource class" if isinstance(verdict, UnknownClass) else "trait"
        fail(f"not done: there is no {what} {await unknown_with_near(asking, verdict.names)}")
    if not isinstance(verdict, ProviderWritten | Done | AlreadyThere):
        why = REASONS.get(type(verdict))
        # No order of these commands gets a verdict outside the table; if one does, print it as it is on the bus.
        reason = why.format(**structs.asdict(verdict)) if why else msgspec.json.encode(verdict).decode()
        fail(f"not done: {reason}")


def amount_from(text: str) -> tuple[str, ReportedInventory]:
    """Parse the inventory of a class, CLASS=TOTAL[,reserved=N]... An error names the text and its wrong part."""
    first, *rest = text.split(",")
    resource, _, total = first.partition("=")
    written: dict[str, Any] = {"total": _number(text, "the total", total, int)}
    for part in rest:
        key, _, value = part.partition("=")
        if key not in FIELDS:
            raise typer.BadParameter(f"{text!r}: {key!r} must be one of {', '.join(FIELDS)}")
        field, kind = FIELDS[key]
        put_once(written, field, _number(text, key, value, kind), repr(text))
    with wrong_value(f"{text!r}: "):
        return resource, msgspec.convert(written, ReportedInventory)


def _number(text: str, what: str, value: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(value)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: {what} is {value!r}, must be a number") from None
