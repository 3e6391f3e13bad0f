"""Resource providers: create, read, list with filters, rename, move below another parent, delete."""

from http import HTTPStatus
from typing import Any, Final
from uuid import UUID, uuid4

from msgspec import UNSET, UnsetType

from bus.message import ProviderId
from bus.messages.administration import (
    CreateProvider,
    DeleteProvider,
    ProviderWritten,
    UnknownProvider,
    UpdateProvider,
)
from bus.messages.placement import InventoryInUse, ProviderState
from placement_worker.api.endpoints.provider_filter import providers_that
from placement_worker.api.grammar import query_schemas, schemas
from placement_worker.api.grammar.backend import Backend, path_provider
from placement_worker.api.grammar.queries import provider_query, traits_named
from placement_worker.api.grammar.refusals import HttpRefusal, Refusals
from placement_worker.api.values.pieces import rows_in_turns
from placement_worker.api.values.problems import PROVIDER_IN_USE, bad_request
from placement_worker.api.values.request import Reply, Request
from placement_worker.api.values.versions import Version

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
    query_schemas.PROVIDERS.at(request.version).query(request.query)
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
