"""The policy rules that endpoints use all exist, and all existing rules are used."""

from datetime import UTC, datetime

from placement_worker.admin_writes import WriteBatcher
from placement_worker.api.policy import DOCUMENTED, ENDPOINT, LEGACY, OPEN, SECURE
from placement_worker.api.routes import routes_of
from placement_worker.api.routing import HttpRoute
from placement_worker.view import ProviderView
from placement_worker.wiring import STANDARD
from tests.stores_in_memory import MemoryPlacementStore


def routes() -> tuple[HttpRoute, ...]:
    store = MemoryPlacementStore()
    batcher = WriteBatcher(store, STANDARD, lambda: datetime.now(UTC))
    return routes_of(batcher, ProviderView(store), store, STANDARD)


def test_each_endpoint_asks_a_rule_that_there_is_and_no_rule_is_there_in_vain() -> None:
    asked = {route.rule for route in routes()}

    for policy in (LEGACY, SECURE, OPEN):
        assert asked == {rule for rule in policy if rule.startswith(ENDPOINT)}


def test_each_rule_is_documented_with_the_requests_that_ask_it() -> None:
    asked: dict[str, set[str]] = {}
    for route in routes():
        asked.setdefault(route.rule, set()).add(f"{route.method} {route.path}")

    documented = {
        rule: set(requests) for rule, (_, *requests) in DOCUMENTED.items() if rule.startswith(ENDPOINT)
    }
    assert documented == asked
