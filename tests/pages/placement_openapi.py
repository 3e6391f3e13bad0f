"""Placement's route table, for the OpenAPI document."""

from datetime import UTC, datetime

from engine.capacity import Vocabulary
from placement_worker.admin_writes import WriteBatcher
from placement_worker.api.names import version_document
from placement_worker.api.routes import routes_of
from placement_worker.api.routing import HttpRoute
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.view import ProviderView


def every_route() -> tuple[HttpRoute, ...]:
    """The whole route table. Its store is never asked, so its file is never opened."""
    store, nothing = SqlPlacementStore("sqlite:///placement.sqlite"), Vocabulary(frozenset(), frozenset())
    writer = WriteBatcher(store, nothing, lambda: datetime.now(UTC))
    return (
        HttpRoute("GET", "/", version_document, rule=""),
        *routes_of(writer, ProviderView(store), store, nothing),
    )
