"""Placement's route table, for the OpenAPI document."""

from datetime import UTC, datetime

from placement_worker.api.endpoints.root import version_document
from placement_worker.api.grammar.routing import HttpRoute
from placement_worker.api.routes import routes_of
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.view import ProviderView
from placement_worker.write_batcher import WriteBatcher


def every_route() -> tuple[HttpRoute, ...]:
    """The whole route table. Its store is never asked, so its file is never opened."""
    store, nothing = SqlPlacementStore("sqlite:///placement.sqlite"), Vocabulary(frozenset(), frozenset())
    writer = WriteBatcher(store, nothing, lambda: datetime.now(UTC))
    return (
        HttpRoute("GET", "/", version_document, rule=""),
        *routes_of(writer, ProviderView(store), store, nothing),
    )
