"""Placement's route table, for docs/placement-openapi.json."""

from datetime import UTC, datetime

from placement_worker.api.endpoints.root import version_document
from placement_worker.api.grammar.routing import Route
from placement_worker.api.routes import routes_of
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.view import View
from placement_worker.write_batcher import WriteBatcher


def every_route() -> tuple[Route, ...]:
    """The whole route table. Its store is never asked, so its file is never opened."""
    store, nothing = SqlPlacementStore("sqlite:///placement.sqlite"), Vocabulary(frozenset(), frozenset())
    writer = WriteBatcher(store, nothing, lambda: datetime.now(UTC))
    return (Route("GET", "/", version_document, rule=""), *routes_of(writer, View(store), store, nothing))
