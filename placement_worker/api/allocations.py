"""Allocations: read by consumer or by provider, written for one consumer or for several at once."""

from http import HTTPStatus
from typing import Any
from uuid import UUID

from bus.messages.books import (
    ConsumerAllocations,
    ConsumerState,
    DeleteAllocations,
    ProviderInventories,
    Reshape,
    SetAllocations,
    TypeUsage,
)
from bus.messages.placement import NO_OWNER
from engine.inventories import ConsumerId, ProviderId, ResourceAmount
from placement_worker.api import queries, schemas
from placement_worker.api.providers import inventories_in
from placement_worker.api.routing import PAGE, Backend
from placement_worker.api.schemas import uuid_in
from placement_worker.api.values import Reply, Request, Version, bad_request, not_found
from placement_worker.store import Holdings

# Usage: of a provider, and by the consumers of a project.


_BY_TYPE: Version = (1, 38)
# The type of consumers that have none; "all" in a query asks for the sum of all types.
UNKNOWN = "unknown"
_ALL = "all"


async def show_provider_usages(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    used = {resource: inventory.used for resource, inventory in state.inventories.items()}
    return Reply(
        body={"resource_provider_generation": state.generation, "usages": used},
        is_fresh=True,
    )


async def show_project_usages(books: Backend, request: Request) -> Reply:
    query = queries.USAGES.at(request.version).query(request.query)
    usages = await books.store.usages(query["project_id"], query.get("user_id", ""))
    if request.version < _BY_TYPE:
        return Reply(body={"usages": _together(usages)}, is_fresh=True)
    return Reply(body={"usages": _by_type(usages, query.get("consumer_type"))}, is_fresh=True)


def _together(usages: tuple[TypeUsage, ...]) -> dict[str, int]:
    total: dict[str, int] = {}
    for usage in usages:
        for resource, amount in usage.used.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _by_type(usages: tuple[TypeUsage, ...], asked: str | None) -> dict[str, dict[str, int]]:
    if asked == _ALL:
        total = _together(usages)
        return {_ALL: {**total, "consumer_count": sum(usage.consumers for usage in usages)}} if total else {}
    return {
        (usage.type or UNKNOWN): {**usage.used, "consumer_count": usage.consumers}
        for usage in usages
        if asked in (None, usage.type or UNKNOWN)
    }


_BY_PROVIDER: Version = (1, 12)
_GENERATIONS: Version = (1, 28)
_TYPES: Version = (1, 38)


async def show(books: Backend, request: Request) -> Reply:
    """The allocations of a consumer. An unknown consumer holds nothing, and is no error."""
    found = uuid_in(request.params["consumer_uuid"])
    holdings = None if found is None else await books.store.holdings(ConsumerId(found))
    if holdings is None:
        return Reply(body={"allocations": {}}, is_fresh=True)
    return Reply(body=_of_consumer(holdings, request.version), is_fresh=True)


async def show_provider_allocations(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    allocations: dict[str, dict[str, object]] = {}
    after: ConsumerId | None = None
    is_last = False
    while not is_last:
        page = await books.store.holders_of(state.id, after, PAGE)
        for holder in page:
            row: dict[str, object] = {"resources": _held_of(holder, state.id)}
            if request.version >= _GENERATIONS:
                row["consumer_generation"] = holder.generation
            allocations[str(holder.id)] = row
        is_last = len(page) < PAGE
        after = None if is_last else page[-1].id
    return Reply(
        body={"allocations": allocations, "resource_provider_generation": state.generation},
        is_fresh=True,
    )


async def replace(books: Backend, request: Request) -> Reply:
    named = request.params["consumer_uuid"]
    found = uuid_in(named)
    if found is None:
        raise bad_request(f"Malformed consumer_uuid: {named}")
    said = schemas.ALLOCATIONS.at(request.version).body(request.body)
    if request.version < _BY_PROVIDER:
        said = {**said, "allocations": _by_provider(said["allocations"])}
    consumer = _consumer_in(found, said, request.version)
    await books.write(
        SetAllocations(consumers=(consumer,)),
        f"Unable to allocate inventory for consumer {consumer.consumer}",
    )
    return Reply(HTTPStatus.NO_CONTENT)


async def replace_several(books: Backend, request: Request) -> Reply:
    said = schemas.SEVERAL.at(request.version).body(request.body)
    consumers = consumers_in(said, request.version)
    await books.write(SetAllocations(consumers=consumers), "Unable to allocate inventory")
    return Reply(HTTPStatus.NO_CONTENT)


async def delete(books: Backend, request: Request) -> Reply:
    named = request.params["consumer_uuid"]
    consumer = uuid_in(named)
    if consumer is None:
        raise not_found(f"No allocations for consumer '{named}'")
    await books.write(
        DeleteAllocations(consumer=ConsumerId(consumer)),
        f"Unable to delete the allocations of consumer {named}",
    )
    return Reply(HTTPStatus.NO_CONTENT)


def consumers_in(said: dict[str, Any], version: Version) -> tuple[ConsumerAllocations, ...]:
    consumers = tuple(_consumer_in(uuid_key(named), body, version) for named, body in said.items())
    if len({consumer.consumer for consumer in consumers}) < len(consumers):
        raise bad_request(f"JSON does not validate: of {', '.join(said)} two are the same consumer")
    return consumers


def _consumer_in(consumer: UUID, said: dict[str, Any], version: Version) -> ConsumerAllocations:
    generation = said.get("consumer_generation")
    return ConsumerAllocations(
        consumer=ConsumerId(consumer),
        amounts=_amounts_in(said["allocations"]),
        project=said.get("project_id", NO_OWNER),
        user=said.get("user_id", NO_OWNER),
        generation=None if generation is None else int(generation),
        type=said.get("consumer_type"),
        judges_generation=version >= _GENERATIONS,
    )


def uuid_key(text: str) -> UUID:
    """Parse a key of a body that must be a UUID. The schema does not check this: its pattern allows hyphens anywhere."""
    key = uuid_in(text)
    if key is None:
        raise bad_request(f"JSON does not validate: {text!r} is not a 'uuid'")
    return key


def _amounts_in(said: dict[str, Any]) -> tuple[ResourceAmount, ...]:
    amounts: dict[tuple[ProviderId, str], ResourceAmount] = {}
    for named, allocation in said.items():
        provider = ProviderId(uuid_key(named))
        for resource, amount in allocation["resources"].items():
            if (provider, resource) in amounts:
                raise bad_request(f"JSON does not validate: provider {provider} is named twice")
            amounts[provider, resource] = ResourceAmount(
                provider=provider, resource=resource, amount=int(amount)
            )
    return tuple(amounts.values())


def _by_provider(listed: list[dict[str, Any]]) -> dict[str, Any]:
    """The list of allocations that bodies have before 1.12, in the form that they have from 1.12 on: a table by provider.

    If a provider is listed twice, the last one counts.
    """
    return {one["resource_provider"]["uuid"]: {"resources": one["resources"]} for one in listed}


def _of_consumer(holdings: Holdings, version: Version) -> dict[str, object]:
    consumer = holdings.consumer
    allocations: dict[str, dict[str, Any]] = {}
    for amount in consumer.held:
        row = allocations.setdefault(str(amount.provider), {"resources": {}})
        row["resources"][amount.resource] = amount.amount
        row["generation"] = holdings.generations[amount.provider]
    body: dict[str, object] = {"allocations": allocations}
    if version >= _BY_PROVIDER:
        body |= {"project_id": consumer.project, "user_id": consumer.user}
    if version >= _GENERATIONS:
        body["consumer_generation"] = consumer.generation
    if version >= _TYPES:
        body["consumer_type"] = consumer.type or UNKNOWN
    return body


def _held_of(consumer: ConsumerState, provider: ProviderId) -> dict[str, int]:
    return {amount.resource: amount.amount for amount in consumer.held if amount.provider == provider}


# Move inventories and allocations together, all or nothing.


async def reshape(books: Backend, request: Request) -> Reply:
    said = schemas.RESHAPE.at(request.version).body(request.body)
    order = Reshape(
        inventories=tuple(
            ProviderInventories(
                provider=ProviderId(uuid_key(named)),
                generation=int(body["resource_provider_generation"]),
                inventories=inventories_in(body),
            )
            for named, body in said["inventories"].items()
        ),
        allocations=consumers_in(said["allocations"], request.version),
    )
    await books.write(order, "Unable to allocate inventory")
    return Reply(HTTPStatus.NO_CONTENT)
