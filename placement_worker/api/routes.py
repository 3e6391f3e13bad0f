"""The route table of the API: which handler serves which method and path, from which version on, and what it reads."""

from collections.abc import Awaitable, Callable
from functools import partial

from engine.candidates.budget import DEFAULT_LIMITS, SearchLimits
from engine.inventories import Vocabulary
from placement_worker.admin_writes import WriteBatcher
from placement_worker.api import allocations, candidates, names, providers, queries, schemas
from placement_worker.api.routing import Backend, Handler, HttpRoute
from placement_worker.api.values import Reply, Request
from placement_worker.candidates import Searcher
from placement_worker.store_sql import PlacementStore
from placement_worker.view import KnownNames, ProviderView

_RULE = "placement:resource_providers"
_PROVIDERS = "/resource_providers"
_PROVIDER = "/resource_providers/{uuid}"
_INVENTORIES = f"{_PROVIDER}/inventories"
_INVENTORY = f"{_INVENTORIES}/{{resource_class}}"
_ITS_AGGREGATES = f"{_PROVIDER}/aggregates"
_ITS_TRAITS = f"{_PROVIDER}/traits"
_CLASSES = "/resource_classes"
_CLASS = "/resource_classes/{name}"
_TRAIT = "/traits/{name}"
_CONSUMER = "/allocations/{consumer_uuid}"


def routes_of(
    writer: WriteBatcher,
    view: ProviderView,
    store: PlacementStore,
    standard: Vocabulary,
    limits: SearchLimits = DEFAULT_LIMITS,
) -> tuple[HttpRoute, ...]:
    books = Backend(writer, view, store, KnownNames(standard, store))

    def to(endpoint: Callable[[Backend, Request], Awaitable[Reply]]) -> Handler:
        return partial(endpoint, books)

    return (
        HttpRoute("GET", _PROVIDERS, to(providers.show_all), f"{_RULE}:list", query=queries.PROVIDERS),
        HttpRoute("POST", _PROVIDERS, to(providers.create), f"{_RULE}:create", body=schemas.NEW_PROVIDER),
        HttpRoute("GET", _PROVIDER, to(providers.show), f"{_RULE}:show"),
        HttpRoute("PUT", _PROVIDER, to(providers.update), f"{_RULE}:update", body=schemas.PROVIDER),
        HttpRoute("DELETE", _PROVIDER, to(providers.delete), f"{_RULE}:delete"),
        # Inventories
        HttpRoute("GET", _INVENTORIES, to(providers.show_inventories), f"{_RULE}:inventories:list"),
        HttpRoute(
            "POST",
            _INVENTORIES,
            to(providers.create_inventory),
            f"{_RULE}:inventories:create",
            body=schemas.NEW_INVENTORY,
        ),
        HttpRoute(
            "PUT",
            _INVENTORIES,
            to(providers.replace_inventories),
            f"{_RULE}:inventories:update",
            body=schemas.INVENTORIES,
        ),
        HttpRoute(
            "DELETE", _INVENTORIES, to(providers.delete_inventories), f"{_RULE}:inventories:delete", (1, 5)
        ),
        HttpRoute("GET", _INVENTORY, to(providers.show_inventory), f"{_RULE}:inventories:show"),
        HttpRoute(
            "PUT",
            _INVENTORY,
            to(providers.replace_inventory),
            f"{_RULE}:inventories:update",
            body=schemas.INVENTORY,
        ),
        HttpRoute("DELETE", _INVENTORY, to(providers.delete_inventory), f"{_RULE}:inventories:delete"),
        # Aggregates
        HttpRoute("GET", _ITS_AGGREGATES, to(providers.show_aggregates), f"{_RULE}:aggregates:list", (1, 1)),
        HttpRoute(
            "PUT",
            _ITS_AGGREGATES,
            to(providers.replace_aggregates),
            f"{_RULE}:aggregates:update",
            (1, 1),
            body=schemas.AGGREGATES,
        ),
        # Traits
        HttpRoute("GET", _ITS_TRAITS, to(names.show_provider_traits), f"{_RULE}:traits:list", (1, 6)),
        HttpRoute(
            "PUT",
            _ITS_TRAITS,
            to(names.replace_provider_traits),
            f"{_RULE}:traits:update",
            (1, 6),
            body=schemas.TRAITS,
        ),
        HttpRoute("DELETE", _ITS_TRAITS, to(names.delete_provider_traits), f"{_RULE}:traits:delete", (1, 6)),
        HttpRoute(
            "GET", "/traits", to(names.show_traits), "placement:traits:list", (1, 6), query=queries.TRAITS
        ),
        HttpRoute("GET", _TRAIT, to(names.show_trait), "placement:traits:show", (1, 6), tells_json=False),
        HttpRoute("PUT", _TRAIT, to(names.ensure_trait), "placement:traits:update", (1, 6)),
        HttpRoute("DELETE", _TRAIT, to(names.delete_trait), "placement:traits:delete", (1, 6)),
        # Resource classes
        HttpRoute("GET", _CLASSES, to(names.show_classes), "placement:resource_classes:list", (1, 2)),
        HttpRoute(
            "POST",
            _CLASSES,
            to(names.create_class),
            "placement:resource_classes:create",
            (1, 2),
            body=schemas.RESOURCE_CLASS,
        ),
        HttpRoute("GET", _CLASS, to(names.show_class), "placement:resource_classes:show", (1, 2)),
        HttpRoute(
            "PUT",
            _CLASS,
            to(names.rename_class),
            "placement:resource_classes:update",
            (1, 2),
            (1, 6),
            body=schemas.RESOURCE_CLASS,
        ),
        HttpRoute("PUT", _CLASS, to(names.ensure_class), "placement:resource_classes:update", (1, 7)),
        HttpRoute("DELETE", _CLASS, to(names.delete_class), "placement:resource_classes:delete", (1, 2)),
        # Allocations and usages
        HttpRoute(
            "GET",
            f"{_PROVIDER}/allocations",
            to(allocations.show_provider_allocations),
            f"{_RULE}:allocations:list",
        ),
        HttpRoute(
            "POST",
            "/allocations",
            to(allocations.replace_several),
            "placement:allocations:manage",
            (1, 13),
            body=schemas.SEVERAL,
        ),
        HttpRoute("GET", _CONSUMER, to(allocations.show), "placement:allocations:list"),
        HttpRoute(
            "PUT",
            _CONSUMER,
            to(allocations.replace),
            "placement:allocations:update",
            body=schemas.ALLOCATIONS,
        ),
        HttpRoute("DELETE", _CONSUMER, to(allocations.delete), "placement:allocations:delete"),
        HttpRoute("GET", f"{_PROVIDER}/usages", to(allocations.show_provider_usages), f"{_RULE}:usages"),
        HttpRoute(
            "GET",
            "/usages",
            to(allocations.show_project_usages),
            "placement:usages",
            (1, 9),
            query=queries.USAGES,
        ),
        HttpRoute(
            "GET",
            "/allocation_candidates",
            to(candidates.CandidatesEndpoint(Searcher(limits)).show),
            "placement:allocation_candidates:list",
            (1, 10),
            query=queries.CANDIDATES,
        ),
        HttpRoute(
            "POST",
            "/reshaper",
            to(allocations.reshape),
            "placement:reshaper:reshape",
            (1, 30),
            body=schemas.RESHAPE,
        ),
    )
