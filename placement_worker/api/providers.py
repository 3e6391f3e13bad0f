"""Resource providers: create, read, list with filters, rename, move below another parent, delete."""

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID, uuid4

import numpy as np
from msgspec import UNSET, UnsetType

from bus.messages.books import (
    CreateProvider,
    DeleteProvider,
    DropInventory,
    GenerationMoved,
    InventoryAbsent,
    ProviderWritten,
    PutInventory,
    SetAggregates,
    SetInventories,
    UnknownClass,
    UnknownProvider,
    UpdateProvider,
)
from bus.messages.placement import InventoryInUse
from engine.candidates.columns import Flags
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import Group
from engine.inventories import AggregateId, InventoryState, ProviderId, ProviderState, ReportedInventory
from placement_worker.api import queries, schemas
from placement_worker.api.answers import (
    IN_USE,
    NO_SUCH_CLASS,
    HttpRefusal,
    Refusals,
    classes_in_order,
    refusal,
)
from placement_worker.api.names import MOVED_MEANWHILE
from placement_worker.api.queries import ProviderQuery, provider_query, traits_named
from placement_worker.api.routing import Backend, path_provider
from placement_worker.api.values import (
    CONCURRENT_UPDATE,
    INVENTORY_IN_USE,
    PROVIDER_IN_USE,
    Reply,
    Request,
    Version,
    bad_request,
    conflict,
    not_found,
    rows_in_turns,
)
from placement_worker.view import ProviderReplica

# Which providers have everything that a query asks for? Each is judged by itself.


def providers_that(replica: ProviderReplica, query: ProviderQuery) -> Iterator[ProviderState]:
    having = _having(replica.index, query.group)
    for state in _found(replica, query):
        row = replica.index.row_of(state.id)
        if having is None or (row is not None and having[row]):
            yield state


def _found(replica: ProviderReplica, query: ProviderQuery) -> Iterable[ProviderState]:
    """The providers with the requested id, name and tree. Few are left to which the other conditions must be applied."""
    in_tree = query.group.in_tree
    found: Iterable[ProviderState | None] = replica if in_tree is None else replica.tree_of(in_tree)
    if query.id is not None:
        found = (replica.get(query.id),)
    elif query.name:
        found = (replica.named(query.name),)
    tree = None if in_tree is None else replica.get(in_tree)
    return [
        state
        for state in found
        if state is not None
        and query.name in ("", state.name)
        and (in_tree is None or (tree is not None and state.root == tree.root))
    ]


def _having(index: ProviderIndex, group: Group) -> Flags | None:
    """For each row of the index, whether that provider has what the query asks for; None if it asks for nothing."""
    rows = index.rows
    conditions: list[Flags] = []
    for resource, amount in group.resources.items():
        stock = index.stocks.get(resource)
        conditions.append(index.members(()) if stock is None else stock.giving(amount, rows))
    conditions += [index.traits.having_any(any_of, index.everywhere) for any_of in group.required]
    conditions += [index.members(any_of) for any_of in group.member_of]
    if group.forbidden:
        conditions.append(~index.traits.having_any(group.forbidden, index.everywhere))
    if group.forbidden_aggregates:
        conditions.append(~index.members(group.forbidden_aggregates))
    return np.logical_and.reduce(conditions) if conditions else None


_TREES: Version = (1, 14)
_ANSWERED: Version = (1, 20)
_REPARENTED: Version = (1, 37)
_LINKS: tuple[tuple[Version, str], ...] = (
    ((1, 0), "inventories"),
    ((1, 0), "usages"),
    ((1, 1), "aggregates"),
    ((1, 6), "traits"),
    ((1, 11), "allocations"),
)
_DELETE_REFUSED: Final[Refusals] = {
    UnknownProvider: HttpRefusal(
        HTTPStatus.NOT_FOUND, "No resource provider with uuid {provider} found for delete"
    ),
    InventoryInUse: HttpRefusal(
        HTTPStatus.CONFLICT,
        "Unable to delete resource provider {provider}: Resource provider has allocations.",
        PROVIDER_IN_USE,
    ),
}


async def show_all(books: Backend, request: Request) -> Reply:
    queries.PROVIDERS.at(request.version).query(request.query)
    query = provider_query(request.query, request.version)
    replica = await books.view.caught_up()
    await books.check_names(replica, query.group.resources, traits_named((query.group,)))
    # All rows are of one moment: they are collected before other requests run.
    found = [*providers_that(replica, query)]
    body = await rows_in_turns(b'{"resource_providers":[', found, lambda state: _row(state, request), b"]}")
    return Reply(body=body, is_fresh=True)


async def show(books: Backend, request: Request) -> Reply:
    return Reply(body=_row(await books.provider(request), request), is_fresh=True)


async def create(books: Backend, request: Request) -> Reply:
    said = schemas.NEW_PROVIDER.at(request.version).body(request.body)
    provider = ProviderId(UUID(said["uuid"]) if said.get("uuid") else uuid4())
    name, parent = said["name"], _parent(said)
    doing = f'Unable to create resource provider "{name}", {provider}'
    if parent == provider:
        raise bad_request(f"{doing}: parent provider UUID cannot be same as UUID")
    # UNSET and None are alike here.
    order = CreateProvider(id=provider, name=name, parent=parent or None)
    written = await books.write_provider(order, doing)
    headers = {"location": _url(provider, request)}
    if request.version < _ANSWERED:
        return Reply(HTTPStatus.CREATED, headers=headers)
    return Reply(body=_row(written, request), headers=headers, is_fresh=True)


async def update(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    said = await books.body_for_provider(schemas.PROVIDER, request)
    order = UpdateProvider(
        id=provider,
        name=said["name"],
        parent=_parent(said),
        reparents=request.version >= _REPARENTED,
    )
    written = await books.write_provider(order, f"Unable to save resource provider {provider}")
    return Reply(body=_row(written, request), is_fresh=True)


async def delete(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    await books.write(
        DeleteProvider(id=provider), f"Unable to delete resource provider {provider}", _DELETE_REFUSED
    )
    return Reply(HTTPStatus.NO_CONTENT)


def _parent(said: dict[str, Any]) -> ProviderId | UnsetType | None:
    if "parent_provider_uuid" not in said:
        return UNSET
    parent = said["parent_provider_uuid"]
    return None if parent is None else ProviderId(UUID(parent))


def _url(provider: ProviderId, request: Request) -> str:
    return f"{request.prefix}/resource_providers/{provider}"


def _row(state: ProviderState | ProviderWritten, request: Request) -> dict[str, object]:
    provider = state.id if isinstance(state, ProviderState) else state.provider
    url = _url(provider, request)
    row: dict[str, object] = {
        "uuid": str(provider),
        "name": state.name,
        "generation": state.generation,
        "links": [
            {"rel": "self", "href": url},
            *[{"rel": rel, "href": f"{url}/{rel}"} for since, rel in _LINKS if since <= request.version],
        ],
    }
    if request.version >= _TREES:
        row["parent_provider_uuid"] = None if state.parent is None else str(state.parent)
        row["root_provider_uuid"] = str(state.root)
    return row


# The inventories of a provider: all of them, or that of one class.


_RESERVED_MAY_BE_ALL: Version = (1, 26)
_WHOLE = frozenset({"total", "reserved", "min_unit", "max_unit", "step_size"})

_ALL_REFUSED: Final[Refusals] = {
    UnknownClass: HttpRefusal(
        HTTPStatus.BAD_REQUEST, f"Unknown resource class in inventory of {{provider}}: {NO_SUCH_CLASS}"
    )
}
_ONE_REFUSED: Final[Refusals] = {
    InventoryAbsent: HttpRefusal(
        HTTPStatus.BAD_REQUEST,
        "No inventory record with resource class {resource}: {provider} has none to be changed",
    ),
    # The path names the class, not the body, so it is a 404.
    UnknownClass: HttpRefusal(HTTPStatus.NOT_FOUND, NO_SUCH_CLASS),
}
_DROP_REFUSED: Final[Refusals] = {
    InventoryAbsent: HttpRefusal(
        HTTPStatus.NOT_FOUND, "No inventory of class {resource} found for delete, of {provider}"
    ),
    UnknownClass: HttpRefusal(HTTPStatus.NOT_FOUND, f"{{doing}}: {NO_SUCH_CLASS}"),
    # Other writes use the code inventory.inuse; for this one clients expect the other code.
    InventoryInUse: HttpRefusal(
        HTTPStatus.CONFLICT, f"{{doing}}: {IN_USE}: {{used}} is held", CONCURRENT_UPDATE
    ),
}


async def show_inventories(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    return _inventories_reply(state.generation, state.inventories)


async def show_inventory(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    resource = request.params["resource_class"]
    if resource not in state.inventories:
        raise not_found(f"No inventory of class {resource} for {state.id}")
    return _inventory_reply(state.generation, state.inventories[resource])


async def replace_inventories(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    said = await books.body_for_provider(schemas.INVENTORIES, request)
    doing = f"Unable to update inventory for resource provider {provider}"
    generation = int(said["resource_provider_generation"])
    inventories = inventories_in(said)
    await _check_capacity(books, inventories, request, generation, doing)
    order = SetInventories(provider=provider, generation=generation, inventories=inventories)
    return _inventories_reply(await _replaced(books, order, doing), inventories)


async def create_inventory(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    said = await books.body_for_provider(schemas.NEW_INVENTORY, request)
    resource = said["resource_class"]
    doing = f"Unable to create inventory for resource provider {provider}"
    inventory = _inventory_in(said)
    await _check_capacity(books, {resource: inventory}, request, None, doing)
    # The generation is not compared: a new inventory cannot have been changed by another client.
    order = PutInventory(
        provider=provider, generation=None, resource=resource, inventory=inventory, is_new=True
    )
    written = await books.write_provider(order, doing)
    url = f"{request.prefix}/resource_providers/{provider}/inventories/{resource}"
    return _inventory_reply(written.generation, inventory, HTTPStatus.CREATED, location=url)


async def replace_inventory(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    said = await books.body_for_provider(schemas.INVENTORY, request)
    resource = request.params["resource_class"]
    doing = f"Unable to update inventory for resource provider {provider}"
    generation = int(said["resource_provider_generation"])
    inventory = _inventory_in(said)
    await _check_capacity(books, {resource: inventory}, request, generation, doing)
    order = PutInventory(provider=provider, generation=generation, resource=resource, inventory=inventory)
    written = await books.write_provider(order, doing, _ONE_REFUSED)
    return _inventory_reply(written.generation, inventory)


async def delete_inventories(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    order = SetInventories(provider=provider, generation=None, inventories={})
    await _replaced(books, order, f"Unable to delete inventory of resource provider {provider}")
    return Reply(HTTPStatus.NO_CONTENT)


async def delete_inventory(books: Backend, request: Request) -> Reply:
    resource = request.params["resource_class"]
    order = DropInventory(provider=path_provider(request), resource=resource)
    await books.write(order, f"Inventory of {resource} not deleted", _DROP_REFUSED)
    return Reply(HTTPStatus.NO_CONTENT)


async def _check_capacity(
    books: Backend,
    inventories: Mapping[str, ReportedInventory],
    request: Request,
    seen: int | None,
    doing: str,
) -> None:
    """Refuse inventories without capacity.

    A client whose provider is gone, or was changed since the client has read it, gets that error first.
    """
    wrong = _without_capacity(inventories, request.version)
    if not wrong:
        return
    state = await books.provider(request)
    if seen is not None and seen != state.generation:
        raise refusal(GenerationMoved(provider=state.id, seen=seen, current=state.generation), doing)
    raise bad_request(f"{doing}: {wrong}")


async def _replaced(books: Backend, order: SetInventories, doing: str) -> int:
    """Replace all inventories of a provider. Returns its new generation.

    If classes in use would be removed, placement's refusal names only one. The error adds the others, read after the
    refusal.
    """
    verdict = await books.writer.ask(order)
    if isinstance(verdict, ProviderWritten):
        return verdict.generation
    if not isinstance(verdict, InventoryInUse):
        raise refusal(verdict, doing, _ALL_REFUSED, provider=str(order.provider))
    state = (await books.view.caught_up()).get(verdict.provider)
    held = {one for one in _held(state) if one not in (order.inventories or {})} | {verdict.resource}
    said = IN_USE.format(resource=", ".join(classes_in_order(held)), provider=verdict.provider)
    raise conflict(f"{doing}: {said}", INVENTORY_IN_USE)


def inventories_in(said: Any) -> dict[str, ReportedInventory]:
    return {resource: _inventory_in(inventory) for resource, inventory in said["inventories"].items()}


def _inventory_in(said: dict[str, Any]) -> ReportedInventory:
    fields = {key: int(value) for key, value in said.items() if key in _WHOLE}
    return ReportedInventory(**fields, allocation_ratio=float(said.get("allocation_ratio", 1.0)))


def _without_capacity(inventories: Mapping[str, ReportedInventory], version: Version) -> str:
    """The error of the first inventory without capacity; empty if all have some."""
    may_be_empty = version >= _RESERVED_MAY_BE_ALL
    for resource, inventory in inventories.items():
        capacity = int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
        if may_be_empty and capacity < 0:
            return f"{resource} has a capacity of {capacity}: what is reserved is greater than total"
        if not may_be_empty and capacity <= 0:
            return (
                f"{resource} has a capacity of {capacity}, as if what is reserved were "
                "greater than or equal to total"
            )
    return ""


def _held(state: ProviderState | None) -> tuple[str, ...]:
    inventories = state.inventories if state else {}
    return tuple(resource for resource, inventory in inventories.items() if inventory.used)


def _inventories_reply(
    generation: int, inventories: Mapping[str, ReportedInventory | InventoryState]
) -> Reply:
    return Reply(
        body={
            "resource_provider_generation": generation,
            "inventories": {
                resource: _inventory_row(inventory) for resource, inventory in inventories.items()
            },
        },
        is_fresh=True,
    )


def _inventory_reply(
    generation: int,
    inventory: ReportedInventory | InventoryState,
    status: HTTPStatus = HTTPStatus.OK,
    **headers: str,
) -> Reply:
    body = {**_inventory_row(inventory), "resource_provider_generation": generation}
    return Reply(status, body, headers, is_fresh=True)


def _inventory_row(inventory: ReportedInventory | InventoryState) -> dict[str, object]:
    # Without the usage.
    return {name: getattr(inventory, name) for name in ReportedInventory.__struct_fields__}


# The aggregates that a provider is a member of.


_GENERATIONS: Version = (1, 19)


async def show_aggregates(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    return _aggregates_reply(state.aggregates, state.generation, request.version)


async def replace_aggregates(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    said = await books.body_for_provider(schemas.AGGREGATES, request)
    by_generation = request.version >= _GENERATIONS
    named = said["aggregates"] if by_generation else said
    aggregates = tuple(dict.fromkeys(AggregateId(UUID(one)) for one in named))
    written = await books.write_provider(
        SetAggregates(
            provider=provider,
            generation=int(said["resource_provider_generation"]) if by_generation else None,
            aggregates=aggregates,
            moves_generation=by_generation,
        ),
        f"Unable to set the aggregates of resource provider {provider}",
        MOVED_MEANWHILE,
    )
    return _aggregates_reply(aggregates, written.generation, request.version)


def _aggregates_reply(aggregates: tuple[AggregateId, ...], generation: int, version: Version) -> Reply:
    body: dict[str, object] = {"aggregates": [str(one) for one in aggregates]}
    if version >= _GENERATIONS:
        body["resource_provider_generation"] = generation
    return Reply(body=body, is_fresh=True)
