"""Placement's books by name: providers with their inventories, traits and aggregates; custom traits and classes; and candidates."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec
from msgspec import structs

from bus.messages.books import (
    AlreadyThere,
    AskCandidates,
    AskHolders,
    AskNames,
    Candidates,
    CandidatesFound,
    ConsumerState,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    Done,
    GenerationMoved,
    HasChildren,
    HoldersFound,
    IdTaken,
    NameInUse,
    NamesFound,
    NameTaken,
    ProviderWritten,
    SetAggregates,
    SetInventories,
    SetQuota,
    SetTraits,
    UnknownClass,
    UnknownProvider,
    UnknownTrait,
    UpdateProvider,
    Write,
    WriteAnswered,
    WriteVerdict,
)
from bus.messages.placement import AskSnapshot, InventoryInUse, SnapshotPage
from engine.inventories import ProviderId, ProviderState, ReportedInventory
from engine.refusals import NotAllowed as NotPossible
from engine.refusals import TooCostly
from moor.client.bus_client import readable
from moor.client.errors import Rejected
from moor.client.finding import Named, aggregate_ids, id_in, provider_named, unknown_with_near
from moor.client.requests import ClientSession, Listing

PAGE = 500
# The reason for each refusing verdict, filled from its fields.
REASONS: Mapping[type, tuple[str, str]] = {
    NotPossible: ("{field}", "{reason}"),
    UnknownProvider: ("{field}", "provider {provider} does not exist"),
    GenerationMoved: (
        "provider",
        "provider {provider} was written meanwhile (generation {seen} was read, it is {current} now): do it again",
    ),
    NameTaken: ("name", "{name!r} is already the name of provider {provider}"),
    IdTaken: ("id", "provider {provider} already exists"),
    NameInUse: ("name", "{name} is in use, by provider {provider}"),
    HasChildren: ("provider", "it has a child, provider {child}"),
    InventoryInUse: ("inventories", "consumers hold {used} {resource} of provider {provider}"),
}


class PlacementSession(ClientSession):
    """A client that writes to placement's books."""

    async def _write(self, order: Write) -> WriteVerdict:
        """Send the order, and return placement's word. Raises `Rejected` if placement refuses it."""
        verdict = (await self._ask(order, WriteAnswered)).verdict
        if isinstance(verdict, UnknownClass | UnknownTrait):
            raise await self._unknown(verdict, order)
        if isinstance(verdict, ProviderWritten | Done | AlreadyThere):
            return verdict
        # No order of this client gets a verdict outside the table; if one does, it is told as it is on the bus.
        field, why = REASONS.get(type(verdict), ("verdict", msgspec.json.encode(verdict).decode()))
        fields = structs.asdict(verdict)
        field = field.format_map(fields)
        raise Rejected(field, str(_given(order, field)), why.format_map(fields))

    async def _unknown(self, verdict: UnknownClass | UnknownTrait, order: object) -> Rejected:
        what = "resource class" if isinstance(verdict, UnknownClass) else "trait"
        with self._raising():
            names = await unknown_with_near(self._bus, verdict.names)
        field = "limits" if isinstance(order, SetQuota) else what
        return Rejected(field, ", ".join(verdict.names), f"there is no {what} {names}")


def _given(order: Write, field: str) -> object:
    """The value of this field in the order; without such a field, the name or provider that the order changes."""
    return getattr(order, field, None) or getattr(order, "name", None) or getattr(order, "provider", "")


class PlacementCalls(PlacementSession):
    """The client's methods about placement's books. For operators, unless a method says else."""

    def list_providers(self) -> Listing[ProviderState, SnapshotPage]:
        """All providers, with their inventories, traits and aggregates."""
        return Listing(self, AskSnapshot(limit=PAGE), SnapshotPage, lambda page: page.providers)

    async def show_provider(self, provider: Named) -> ProviderState:
        """A provider by its id, its name, or the beginning of its id. Raises `NotFound`."""
        with self._raising():
            return await provider_named(self._bus, provider)

    async def create_provider(
        self, name: str, *, id_: UUID | None = None, parent: Named = "", cell: str = ""
    ) -> ProviderState:
        """Create a provider without inventory, traits and aggregates: a root, or a child of `parent`, which decides its cell."""
        below = (await self.show_provider(parent)).id if parent else None
        new = ProviderId(id_ or uuid4())
        await self._write(CreateProvider(id=new, name=name, parent=below, of_cell=cell))
        return await self.show_provider(new)

    async def set_provider(
        self,
        provider: Named,
        *,
        name: str | None = None,
        parent: Named | None = None,
        inventories: Mapping[str, ReportedInventory] | None = None,
        traits: Iterable[str] | None = None,
        aggregates: Sequence[Named] | None = None,
    ) -> ProviderState:
        """Change a provider; what is not named stays. `parent` is the provider below which it stands from then on, or empty: the root of a tree of its own.

        `inventories`, `traits` and `aggregates` replace all that it has. They are written one after the other: if one is refused, as
        when somebody else has changed the provider meanwhile, those before it stay. The next report of its host or daemon replaces
        what it reports.
        """
        known = await self.show_provider(provider)
        orders: list[Write] = []
        if name is not None or parent is not None:
            below: dict[str, Any] = {}
            if parent is not None:
                below["parent"] = (await self.show_provider(parent)).id if parent else None
            orders.append(UpdateProvider(id=known.id, name=name or known.name, **below))
        of: dict[str, Any] = {"provider": known.id, "generation": known.generation}
        if inventories is not None:
            orders.append(SetInventories(**of, inventories=dict(inventories)))
        if traits is not None:
            orders.append(SetTraits(**of, traits=tuple(traits)))
        if aggregates is not None:
            with self._raising():
                orders.append(
                    SetAggregates(**of, aggregates=tuple(await aggregate_ids(self._bus, aggregates)))
                )
        seen: dict[str, int] = {}
        for order in orders:
            given = order if isinstance(order, UpdateProvider) else structs.replace(order, **seen)
            verdict = await self._write(given)
            if isinstance(verdict, ProviderWritten):
                seen["generation"] = verdict.generation
        return await self.show_provider(known.id)

    async def delete_provider(self, provider: Named) -> ProviderState:
        """Delete a provider. Refused while it has children, or a consumer holds something of it. Returns it as it was."""
        known = await self.show_provider(provider)
        await self._write(DeleteProvider(id=known.id))
        return known

    def list_holders(self, provider: Named) -> Listing[ConsumerState, HoldersFound]:
        """The consumers that hold something of this provider. For admins."""

        async def question() -> AskHolders:
            id_ = id_in(provider) or (await self.show_provider(provider)).id
            return AskHolders(provider=ProviderId(id_), limit=1000)

        return Listing(self, question, HoldersFound, lambda page: page.holders)

    def list_traits(self) -> Listing[str, NamesFound]:
        """The custom traits, in the order of their names. For admins."""
        return Listing(self, AskNames(of="traits", limit=PAGE), NamesFound, lambda page: page.names)

    async def create_trait(self, name: str) -> None:
        """Create a custom trait; to repeat it is harmless."""
        await self._write(CreateTrait(name=name))

    async def delete_trait(self, name: str) -> None:
        """Delete a custom trait. Refused while a provider has it."""
        await self._write(DeleteTrait(name=name))

    def list_classes(self) -> Listing[str, NamesFound]:
        """The custom resource classes, in the order of their names. For admins."""
        return Listing(self, AskNames(of="classes", limit=PAGE), NamesFound, lambda page: page.names)

    async def create_class(self, name: str) -> None:
        """Create a custom resource class; to repeat it is harmless."""
        await self._write(CreateClass(name=name))

    async def delete_class(self, name: str) -> None:
        """Delete a custom resource class. Refused while a provider has it."""
        await self._write(DeleteClass(name=name))

    async def candidates(
        self, groups: Sequence[Mapping[str, Any]], more: Mapping[str, Any] | None = None
    ) -> Candidates:
        """What placement would give to a request of these groups, with their fields as they are on the bus (`candidates` in the
        reference); `more` are the other fields of that message. For admins.
        """
        more = more or {}
        asked = {"type": "candidates", "groups": [*groups], **more}
        question = readable(msgspec.json.encode({"message": asked}))
        assert isinstance(question, AskCandidates), f"{asked!r} was read as {question!r}"
        verdict = (await self._ask(question, CandidatesFound)).verdict
        match verdict:
            case Candidates():
                return verdict
            case NotPossible():
                raise Rejected(verdict.field, str(more.get(verdict.field, "")), verdict.reason)
            case TooCostly():
                why = (
                    f"the search took {verdict.spent} {verdict.what}, and at most {verdict.budget} are allowed: ask for fewer "
                    "groups, or for fewer candidates"
                )
                raise Rejected("limit", str(question.limit), why)
            case UnknownClass() | UnknownTrait():
                raise await self._unknown(verdict, question)
