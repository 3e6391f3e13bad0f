"""The policy rules that endpoints use all exist, and all existing rules are used."""

from datetime import UTC, datetime

from placement_worker.api.policy.defaults import ENDPOINT, LEGACY, OPEN, SECURE
from placement_worker.api.routes import routes_of
from placement_worker.store_memory import MemoryPlacementStore
from placement_worker.view import View
from placement_worker.wiring import STANDARD
from placement_worker.write_batcher import WriteBatcher


def test_each_endpoint_asks_a_rule_that_there_is_and_no_rule_is_there_in_vain() -> None:
    store = MemoryPlacementStore()
    desk = WriteBatcher(store, STANDARD, lambda: datetime.now(UTC))
    routes = routes_of(desk, View(store), store, STANDARD)

    asked = {route.rule for route in routes}

    for policy in (LEGACY, SECURE, OPEN):
        assert asked == {rule for rule in policy if rule.startswith(ENDPOINT)}
