"""Prints the OpenAPI document of the newest version, for docs/placement-openapi.json: `python -m placement_worker.api.openapi`."""

import json
import sys
from datetime import UTC, datetime

from placement_worker.api.endpoints.root import version_document
from placement_worker.api.grammar.routing import Route
from placement_worker.api.openapi_document import openapi
from placement_worker.api.routes import routes_of
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.store_memory import MemoryPlacementStore
from placement_worker.view import View
from placement_worker.write_batcher import WriteBatcher


def every_route() -> tuple[Route, ...]:
    """The whole route table, over an empty store."""
    store, nothing = MemoryPlacementStore(), Vocabulary(frozenset(), frozenset())
    writer = WriteBatcher(store, nothing, lambda: datetime.now(UTC))
    return (Route("GET", "/", version_document, rule=""), *routes_of(writer, View(store), store, nothing))


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(openapi(every_route()), indent=2)}\n")
