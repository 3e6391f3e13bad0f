"""The inventories of a provider: all of them, or that of one class."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from bus.messages.administration import (
    Done,
    DropInventory,
    GenerationMoved,
    InventoryAbsent,
    ProviderWritten,
    PutInventory,
    SetInventories,
    UnknownClass,
    WriteVerdict,
)
from bus.messages.placement import (
    InventoryInUse,
    InventoryState,
    ProviderState,
    ReportedInventory,
)
from placement_worker.api import schemas
from placement_worker.api.endpoint_inputs import (
    View,
    Writer,
    body_for_provider,
    path_provider,
    provider_of_path,
)
from placement_worker.api.names import classes_in_order
from placement_worker.api.problems import (
    CONCURRENT_UPDATE,
    INVENTORY_IN_USE,
    ApiError,
    bad_request,
    conflict,
    not_found,
)
from placement_worker.api.refusals import in_use, no_such_class, refusal
from placement_worker.api.reply import Reply
from placement_worker.api.request import Request
from placement_worker.api.validators import VersionedValidators
from placement_worker.api.versions import Version

ONE = VersionedValidators(((1, 0), schemas.INVENTORY))
NEW = VersionedValidators(((1, 0), schemas.NEW_INVENTORY))
ALL = VersionedValidators(((1, 0), schemas.INVENTORIES))
_RESERVED_MAY_BE_ALL: Version = (1, 26)
_WHOLE = frozenset({"total", "reserved", "min_unit", "max_unit", "step_size"})


class Inventories:
    def __init__(self, writer: Writer, view: View) -> None:
        self._writer = writer
        self._view = view

    async def show_all(self, request: Request) -> Reply:
        state = provider_of_path(await self._view.caught_up(), request.params)
        return _all(state.generation, state.inventories)

    async def show(self, request: Request) -> Reply:
        state = provider_of_path(await self._view.caught_up(), request.params)
        resource = request.params["resource_class"]
        if resource not in state.inventories:
            raise not_found(f"No inventory of class {resource} for {state.id}")
        return _one(state.generation, state.inventories[resource])

    async def set_all(self, request: Request) -> Reply:
        provider = path_provider(request.params)
        said = await body_for_provider(ALL.at(request.version), request, self._view)
        doing = f"Unable to update inventory for resource provider {provider}"
        generation = int(said["resource_provider_generation"])
        inventories = inventories_in(said)
        await self._check_capacity(inventories, request, generation, doing)
        verdict = await self._writer.ask(
            SetInventories(provider=provider, generation=generation, inventories=inventories)
        )
        match verdict:
            case ProviderWritten(generation=generation):
                return _all(generation, inventories)
            case UnknownClass(names=names):
                raise bad_request(
                    f"Unknown resource class in inventory of {provider}: {no_such_class(names)}"
                )
            case _:
                raise await self._refusal_of_use(verdict, doing, tuple(inventories))

    async def create(self, request: Request) -> Reply:
        provider = path_provider(request.params)
        said = await body_for_provider(NEW.at(request.version), request, self._view)
        resource = said["resource_class"]
        doing = f"Unable to create inventory for resource provider {provider}"
        inventory = _inventory_in(said)
        await self._check_capacity({resource: inventory}, request, None, doing)
        # The generation is not compared: a new inventory cannot have been changed by another client.
        verdict = await self._writer.ask(
            PutInventory(
                provider=provider, generation=None, resource=resource, inventory=inventory, is_new=True
            )
        )
        if not isinstance(verdict, ProviderWritten):
            raise refusal(verdict, doing)
        url = f"{request.prefix}/resource_providers/{provider}/inventories/{resource}"
        return _one(verdict.generation, inventory, HTTPStatus.CREATED, location=url)

    async def set_one(self, request: Request) -> Reply:
        provider = path_provider(request.params)
        said = await body_for_provider(ONE.at(request.version), request, self._view)
        resource = request.params["resource_class"]
        doing = f"Unable to update inventory for resource provider {provider}"
        generation = int(said["resource_provider_generation"])
        inventory = _inventory_in(said)
        await self._check_capacity({resource: inventory}, request, generation, doing)
        verdict = await self._writer.ask(
            PutInventory(provider=provider, generation=generation, resource=resource, inventory=inventory)
        )
        match verdict:
            case ProviderWritten(generation=generation):
                return _one(generation, inventory)
            case InventoryAbsent():
                raise bad_request(
                    f"No inventory record with resource class {resource}: {provider} has none to be changed"
                )
            case UnknownClass(names=names):
                # The path names the class, not the body, so it is a 404.
                raise not_found(no_such_class(names))
            case _:
                raise refusal(verdict, doing)

    async def delete_all(self, request: Request) -> Reply:
        provider = path_provider(request.params)
        verdict = await self._writer.ask(SetInventories(provider=provider, generation=None, inventories={}))
        if not isinstance(verdict, ProviderWritten):
            raise await self._refusal_of_use(
                verdict, f"Unable to delete inventory of resource provider {provider}", ()
            )
        return Reply(HTTPStatus.NO_CONTENT)

    async def delete(self, request: Request) -> Reply:
        provider = path_provider(request.params)
        resource = request.params["resource_class"]
        verdict = await self._writer.ask(DropInventory(provider=provider, resource=resource))
        doing = f"Inventory of {resource} not deleted"
        match verdict:
            case Done() | ProviderWritten():
                return Reply(HTTPStatus.NO_CONTENT)
            case InventoryAbsent():
                raise not_found(f"No inventory of class {resource} found for delete, of {provider}")
            case UnknownClass(names=names):
                raise not_found(f"{doing}: {no_such_class(names)}")
            case InventoryInUse(used=used):
                # Other writes use the code inventory.inuse; for this one clients expect the other code.
                raise conflict(
                    f"{doing}: {in_use(str(provider), (resource,))}: {used} is held", CONCURRENT_UPDATE
                )
            case _:
                raise refusal(verdict, doing)

    async def _check_capacity(
        self, inventories: Mapping[str, ReportedInventory], request: Request, seen: int | None, doing: str
    ) -> None:
        """A client whose provider is gone, or was changed since it was read, learns that first."""
        wrong = _without_capacity(inventories, request.version)
        if not wrong:
            return
        state = provider_of_path(await self._view.caught_up(), request.params)
        if seen is not None and seen != state.generation:
            raise refusal(GenerationMoved(provider=state.id, seen=seen, current=state.generation), doing)
        raise bad_request(f"{doing}: {wrong}")

    async def _refusal_of_use(self, verdict: WriteVerdict, doing: str, kept: tuple[str, ...]) -> ApiError:
        """The verdict names one class that is in use; the answer names all, as they are a moment later."""
        if isinstance(verdict, InventoryInUse):
            state = (await self._view.caught_up()).get(verdict.provider)
            held = {one for one in _held(state) if one not in kept} | {verdict.resource}
            return conflict(
                f"{doing}: {in_use(str(verdict.provider), classes_in_order(held))}", INVENTORY_IN_USE
            )
        return refusal(verdict, doing)


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
    body = {
        "resource_provider_generation": generation,
        "inventories": {resource: _row(inventory) for resource, inventory in inventories.items()},
    }
    return Reply(body=body, is_fresh=True)


def _one(
    generation: int,
    inventory: ReportedInventory | InventoryState,
    status: HTTPStatus = HTTPStatus.OK,
    **headers: str,
) -> Reply:
    body = {**_row(inventory), "resource_provider_generation": generation}
    return Reply(status, body, headers, is_fresh=True)


def _row(inventory: ReportedInventory | InventoryState) -> dict[str, object]:
    return {
        "total": inventory.total,
        "reserved": inventory.reserved,
        "min_unit": inventory.min_unit,
        "max_unit": inventory.max_unit,
        "step_size": inventory.step_size,
        "allocation_ratio": inventory.allocation_ratio,
    }
