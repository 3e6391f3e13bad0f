"""The inventories of a provider: all of them, or that of one class."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from bus.messages.administration import (
    DropInventory,
    GenerationMoved,
    InventoryAbsent,
    ProviderWritten,
    PutInventory,
    SetInventories,
    UnknownClass,
)
from bus.messages.placement import (
    InventoryInUse,
    InventoryState,
    ProviderState,
    ReportedInventory,
)
from placement_worker.api.grammar import schemas
from placement_worker.api.grammar.backend import Backend, path_provider
from placement_worker.api.grammar.names import classes_in_order
from placement_worker.api.grammar.refusals import IN_USE, NO_SUCH_CLASS, HttpRefusal, Refusals, refusal
from placement_worker.api.values.problems import (
    CONCURRENT_UPDATE,
    INVENTORY_IN_USE,
    bad_request,
    conflict,
    not_found,
)
from placement_worker.api.values.request import Reply, Request
from placement_worker.api.values.versions import Version

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
_DELETE_REFUSED: Final[Refusals] = {
    InventoryAbsent: HttpRefusal(
        HTTPStatus.NOT_FOUND, "No inventory of class {resource} found for delete, of {provider}"
    ),
    UnknownClass: HttpRefusal(HTTPStatus.NOT_FOUND, f"{{doing}}: {NO_SUCH_CLASS}"),
    # Other writes use the code inventory.inuse; for this one clients expect the other code.
    InventoryInUse: HttpRefusal(
        HTTPStatus.CONFLICT, f"{{doing}}: {IN_USE}: {{used}} is held", CONCURRENT_UPDATE
    ),
}


async def show_all(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    return _all(state.generation, state.inventories)


async def show(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    resource = request.params["resource_class"]
    if resource not in state.inventories:
        raise not_found(f"No inventory of class {resource} for {state.id}")
    return _one(state.generation, state.inventories[resource])


async def replace_all(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    said = await books.body_for_provider(schemas.INVENTORIES, request)
    doing = f"Unable to update inventory for resource provider {provider}"
    generation = int(said["resource_provider_generation"])
    inventories = inventories_in(said)
    await _check_capacity(books, inventories, request, generation, doing)
    order = SetInventories(provider=provider, generation=generation, inventories=inventories)
    return _all(await _replaced(books, order, doing), inventories)


async def create(books: Backend, request: Request) -> Reply:
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
    return _one(written.generation, inventory, HTTPStatus.CREATED, location=url)


async def replace(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    said = await books.body_for_provider(schemas.INVENTORY, request)
    resource = request.params["resource_class"]
    doing = f"Unable to update inventory for resource provider {provider}"
    generation = int(said["resource_provider_generation"])
    inventory = _inventory_in(said)
    await _check_capacity(books, {resource: inventory}, request, generation, doing)
    order = PutInventory(provider=provider, generation=generation, resource=resource, inventory=inventory)
    written = await books.write_provider(order, doing, _ONE_REFUSED)
    return _one(written.generation, inventory)


async def delete_all(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    order = SetInventories(provider=provider, generation=None, inventories={})
    await _replaced(books, order, f"Unable to delete inventory of resource provider {provider}")
    return Reply(HTTPStatus.NO_CONTENT)


async def delete(books: Backend, request: Request) -> Reply:
    resource = request.params["resource_class"]
    order = DropInventory(provider=path_provider(request), resource=resource)
    await books.write(order, f"Inventory of {resource} not deleted", _DELETE_REFUSED)
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


def _all(generation: int, inventories: Mapping[str, ReportedInventory | InventoryState]) -> Reply:
    return Reply(
        body={
            "resource_provider_generation": generation,
            "inventories": {resource: _row(inventory) for resource, inventory in inventories.items()},
        },
        is_fresh=True,
    )


def _one(
    generation: int,
    inventory: ReportedInventory | InventoryState,
    status: HTTPStatus = HTTPStatus.OK,
    **headers: str,
) -> Reply:
    body = {**_row(inventory), "resource_provider_generation": generation}
    return Reply(status, body, headers, is_fresh=True)


def _row(inventory: ReportedInventory | InventoryState) -> dict[str, object]:
    # Without the usage.
    return {name: getattr(inventory, name) for name in ReportedInventory.__struct_fields__}
