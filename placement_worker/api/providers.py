"""Resource providers: create, read, list by their contents, rename, move within the forest, delete."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

from msgspec import UNSET, UnsetType

from bus.message import ProviderId
from bus.messages.administration import (
    CreateProvider,
    DeleteProvider,
    Done,
    ProviderWritten,
    UnknownProvider,
    UpdateProvider,
)
from bus.messages.placement import InventoryInUse, ProviderState
from placement_worker.api import query_schemas, schemas
from placement_worker.api.endpoint_inputs import (
    View,
    Writer,
    body_for_provider,
    path_provider,
    provider_of_path,
)
from placement_worker.api.names import check_names
from placement_worker.api.pieces import rows_in_turns
from placement_worker.api.problems import PROVIDER_IN_USE, bad_request, conflict, not_found
from placement_worker.api.provider_filter import providers_that
from placement_worker.api.queries import provider_query, traits_named
from placement_worker.api.refusals import refusal
from placement_worker.api.reply import Reply
from placement_worker.api.request import Request
from placement_worker.api.validators import VersionedValidators
from placement_worker.api.versions import Version
from placement_worker.known_names import KnownNames

NEW = VersionedValidators(((1, 0), schemas.NEW_PROVIDER_1_0), ((1, 14), schemas.NEW_PROVIDER_1_14))
CHANGED = VersionedValidators(((1, 0), schemas.PROVIDER_1_0), ((1, 14), schemas.PROVIDER_1_14))
LISTED = VersionedValidators(
    ((1, 0), query_schemas.PROVIDERS_1_0),
    ((1, 3), query_schemas.PROVIDERS_1_3),
    ((1, 4), query_schemas.PROVIDERS_1_4),
    ((1, 14), query_schemas.PROVIDERS_1_14),
    ((1, 18), query_schemas.PROVIDERS_1_18),
)
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


class Providers:
    def __init__(
        self, writer: Writer, view: View, names: KnownNames, new_id: Callable[[], UUID] = uuid4
    ) -> None:
        self._writer = writer
        self._view = view
        self._names = names
        # A client may let the server choose the id.
        self._new_id = new_id

    async def show_all(self, request: Request) -> Reply:
        LISTED.at(request.version).query(request.query)
        query = provider_query(request.query, request.version)
        replica = await self._view.caught_up()
        await check_names(self._names, replica, query.resources, traits_named(query))
        # All rows are of one moment: they are collected before other requests run.
        found = [*providers_that(replica, query)]
        body = await rows_in_turns(
            b'{"resource_providers":[', found, lambda state: _row(state, request), b"]}"
        )
        return Reply(body=body, is_fresh=True)

    async def show(self, request: Request) -> Reply:
        replica = await self._view.caught_up()
        return Reply(body=_row(provider_of_path(replica, request.params), request), is_fresh=True)

    async def create(self, request: Request) -> Reply:
        said = NEW.at(request.version).body(request.body)
        provider = ProviderId(UUID(said["uuid"]) if said.get("uuid") else self._new_id())
        name, parent = said["name"], _parent(said)
        doing = f'Unable to create resource provider "{name}", {provider}'
        if parent == provider:
            raise bad_request(f"{doing}: parent provider UUID cannot be same as UUID")
        verdict = await self._writer.ask(
            CreateProvider(id=provider, name=name, parent=parent or None)  # UNSET and None are alike here
        )
        if not isinstance(verdict, ProviderWritten):
            raise refusal(verdict, doing)
        headers = {"location": _url(provider, request)}
        if request.version < _ANSWERED:
            return Reply(HTTPStatus.CREATED, headers=headers)
        return Reply(body=_row(verdict, request), headers=headers, is_fresh=True)

    async def update(self, request: Request) -> Reply:
        provider = path_provider(request.params)
        said = await body_for_provider(CHANGED.at(request.version), request, self._view)
        verdict = await self._writer.ask(
            UpdateProvider(
                id=provider,
                name=said["name"],
                parent=_parent(said),
                reparents=request.version >= _REPARENTED,
            )
        )
        if not isinstance(verdict, ProviderWritten):
            raise refusal(verdict, f"Unable to save resource provider {provider}")
        return Reply(body=_row(verdict, request), is_fresh=True)

    async def delete(self, request: Request) -> Reply:
        verdict = await self._writer.ask(DeleteProvider(id=path_provider(request.params)))
        match verdict:
            case Done() | ProviderWritten():
                return Reply(HTTPStatus.NO_CONTENT)
            case UnknownProvider(provider=provider):
                raise not_found(f"No resource provider with uuid {provider} found for delete")
            case InventoryInUse(provider=provider):
                raise conflict(
                    f"Unable to delete resource provider {provider}: Resource provider has allocations.",
                    PROVIDER_IN_USE,
                )
            case _:
                raise refusal(verdict, f"Unable to delete resource provider {request.params['uuid']}")


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
