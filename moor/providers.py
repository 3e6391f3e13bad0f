"""Placement's books, asked and written over the bus."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import typer
from msgspec import structs

from bus.messages.administration import (
    Done,
    GenerationMoved,
    HasChildren,
    IdTaken,
    NameTaken,
    ProviderWritten,
    UnknownClass,
    UnknownProvider,
    UnknownTrait,
    Write,
    WriteAnswered,
)
from bus.messages.placement import (
    AskSnapshot,
    InventoryInUse,
    NotAllowed,
    ProviderState,
    ReportedInventory,
    SnapshotPage,
)
from moor.client import Client
from moor.options import fail

PAGE = 500
Which = Annotated[str, typer.Argument(metavar="PROVIDER", help="By its name, or its id.")]
# Why a write was not done, of the fields of its verdict.
REASONS: dict[type, str] = {
    NotAllowed: "{field}: {reason}",
    UnknownProvider: "{field} names provider {provider}, which does not exist",
    UnknownClass: "there is no resource class {names[0]}",
    UnknownTrait: "there is no trait {names[0]}",
    GenerationMoved: "somebody else wrote provider {provider} meanwhile (generation {seen} was seen, {current} is): look"
    " again",
    NameTaken: "{name!r} is the name of provider {provider}",
    IdTaken: "there is a provider {provider} already",
    HasChildren: "provider {child} stands below it",
    InventoryInUse: "of provider {provider} {used} {resource} are held",
}
# What an inventory is written with on the command line.
FIELDS: dict[str, tuple[str, type[int] | type[float]]] = {
    "reserved": ("reserved", int),
    "ratio": ("allocation_ratio", float),
    "min": ("min_unit", int),
    "max": ("max_unit", int),
    "step": ("step_size", int),
}


async def providers_of(asking: Client) -> list[ProviderState]:
    """All of them, page by page."""
    found: list[ProviderState] = []
    after: int | None = 0
    while after is not None:
        page = await asking.ask(AskSnapshot(after=after, limit=PAGE))
        assert isinstance(page, SnapshotPage), f"a question for providers was answered by {page!r}"
        found += page.providers
        after = page.next
    return found


def found_in(providers: Iterable[ProviderState], which: str) -> ProviderState:
    """By name or id; that there is none ends the command."""
    found = next((each for each in providers if which in (each.name, str(each.id))), None)
    if found is None:
        fail(f"there is no provider {which!r}: nothing was done; `moor provider list` shows what there is")
    return found


async def write(asking: Client, order: Write) -> None:
    """Have it done; what it was refused for ends the command."""
    answer = await asking.ask(order)
    assert isinstance(answer, WriteAnswered), f"an order was answered by {answer!r}"
    verdict = answer.verdict
    if not isinstance(verdict, ProviderWritten | Done):
        why = REASONS.get(type(verdict))
        # What is not in the table these commands never meet; then it is said in the words of the bus.
        said = why.format(**structs.asdict(verdict)) if why else msgspec.json.encode(verdict).decode()
        fail(f"not done: {said}")


def amounts_from(texts: Sequence[str]) -> dict[str, ReportedInventory]:
    """CLASS=TOTAL[,reserved=N]...; what is wrong names the text and the part."""
    return dict(map(_amount_from, texts))


def _amount_from(text: str) -> tuple[str, ReportedInventory]:
    first, *rest = text.split(",")
    resource, _, total = first.partition("=")
    said: dict[str, Any] = {"total": _number(text, "the total", total, int)}
    for part in rest:
        key, _, value = part.partition("=")
        if key not in FIELDS:
            raise typer.BadParameter(f"{text!r}: {key!r} is none of {', '.join(FIELDS)}")
        field, kind = FIELDS[key]
        said[field] = _number(text, key, value, kind)
    try:
        return resource, msgspec.convert(said, ReportedInventory)
    except msgspec.ValidationError as wrong:
        raise typer.BadParameter(f"{text!r}: {wrong}") from None


def _number(text: str, what: str, value: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(value)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: {what} is {value!r}, no number") from None
