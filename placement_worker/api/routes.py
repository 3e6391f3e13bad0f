"""The route table of the API: which handler serves which method and path, from which version on, and what it reads."""

from collections.abc import Awaitable, Callable
from functools import partial

from placement_worker.api.endpoints import (
    aggregates,
    allocations,
    candidates,
    classes,
    inventories,
    providers,
    reshaper,
    traits,
    usages,
)
from placement_worker.api.grammar import query_schemas, schemas
from placement_worker.api.grammar.backend import Backend
from placement_worker.api.grammar.routing import Handler, HttpRoute
from placement_worker.api.values.request import Reply, Request
from placement_worker.classes_and_traits import KnownNames
from placement_worker.core.candidates.budget import DEFAULT_LIMITS, SearchLimits
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.searching import Searcher
from placement_worker.store import Records
from placement_worker.view import ProviderView
from placement_worker.write_batcher import WriteBatcher

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
    records: Records,
    standard: Vocabulary,
    limits: SearchLimits = DEFAULT_LIMITS,
) -> tuple[HttpRoute, ...]:
    books = Backend(writer, view, records, KnownNames(standard, records))

    def to(endpoint: Callable[[Backend, Request], Awaitable[Reply]]) -> Handler:
        return partial(endpoint, books)

    return (
        HttpRoute("GET", _PROVIDERS, to(providers.show_all), f"{_RULE}:list", query=query_schemas.PROVIDERS),
        HttpRoute("POST", _PROVIDERS, to(providers.create), f"{_RULE}:create", body=schemas.NEW_PROVIDER),
        HttpRoute("GET", _PROVIDER, to(providers.show), f"{_RULE}:show"),
        HttpRoute("PUT", _PROVIDER, to(providers.update), f"{_RULE}:update", body=schemas.PROVIDER),
        HttpRoute("DELETE", _PROVIDER, to(providers.delete), f"{_RULE}:delete"),
        # Inventories
        HttpRoute("GET", _INVENTORIES, to(inventories.show_all), f"{_RULE}:inventories:list"),
        HttpRoute(
            "POST",
            _INVENTORIES,
            to(inventories.create),
            f"{_RULE}:inventories:create",
            body=schemas.NEW_INVENTORY,
        ),
        HttpRoute(
            "PUT",
            _INVENTORIES,
            to(inventories.replace_all),
            f"{_RULE}:inventories:update",
            body=schemas.INVENTORIES,
        ),
        HttpRoute("DELETE", _INVENTORIES, to(inventories.delete_all), f"{_RULE}:inventories:delete", (1, 5)),
        HttpRoute("GET", _INVENTORY, to(inventories.show), f"{_RULE}:inventories:show"),
        HttpRoute(
            "PUT", _INVENTORY, to(inventories.replace), f"{_RULE}:inventories:update", body=schemas.INVENTORY
        ),
        HttpRoute("DELETE", _INVENTORY, to(inventories.delete), f"{_RULE}:inventories:delete"),
        # Aggregates
        HttpRoute("GET", _ITS_AGGREGATES, to(aggregates.show), f"{_RULE}:aggregates:list", (1, 1)),
        HttpRoute(
            "PUT",
            _ITS_AGGREGATES,
            to(aggregates.replace),
            f"{_RULE}:aggregates:update",
            (1, 1),
            body=schemas.AGGREGATES,
        ),
        # Traits
        HttpRoute("GET", _ITS_TRAITS, to(traits.show_of_provider), f"{_RULE}:traits:list", (1, 6)),
        HttpRoute(
            "PUT",
            _ITS_TRAITS,
            to(traits.replace_of_provider),
            f"{_RULE}:traits:update",
            (1, 6),
            body=schemas.TRAITS,
        ),
        HttpRoute("DELETE", _ITS_TRAITS, to(traits.delete_of_provider), f"{_RULE}:traits:delete", (1, 6)),
        HttpRoute(
            "GET", "/traits", to(traits.show_all), "placement:traits:list", (1, 6), query=query_schemas.TRAITS
        ),
        HttpRoute("GET", _TRAIT, to(traits.show), "placement:traits:show", (1, 6), tells_json=False),
        HttpRoute("PUT", _TRAIT, to(traits.create), "placement:traits:update", (1, 6)),
        HttpRoute("DELETE", _TRAIT, to(traits.delete), "placement:traits:delete", (1, 6)),
        # Resource classes
        HttpRoute("GET", _CLASSES, to(classes.show_all), "placement:resource_classes:list", (1, 2)),
        HttpRoute(
            "POST",
            _CLASSES,
            to(classes.create),
            "placement:resource_classes:create",
            (1, 2),
            body=schemas.RESOURCE_CLASS,
        ),
        HttpRoute("GET", _CLASS, to(classes.show), "placement:resource_classes:show", (1, 2)),
        HttpRoute(
            "PUT",
            _CLASS,
            to(classes.rename),
            "placement:resource_classes:update",
            (1, 2),
            (1, 6),
            body=schemas.RESOURCE_CLASS,
        ),
        HttpRoute("PUT", _CLASS, to(classes.ensure), "placement:resource_classes:update", (1, 7)),
        HttpRoute("DELETE", _CLASS, to(classes.delete), "placement:resource_classes:delete", (1, 2)),
        # Allocations and usages
        HttpRoute(
            "GET", f"{_PROVIDER}/allocations", to(allocations.show_of_provider), f"{_RULE}:allocations:list"
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
        HttpRoute("GET", f"{_PROVIDER}/usages", to(usages.show_of_provider), f"{_RULE}:usages"),
        HttpRoute(
            "GET",
            "/usages",
            to(usages.show_of_project),
            "placement:usages",
            (1, 9),
            query=query_schemas.USAGES,
        ),
        HttpRoute(
            "GET",
            "/allocation_candidates",
            to(candidates.CandidatesEndpoint(Searcher(limits)).show),
            "placement:allocation_candidates:list",
            (1, 10),
            query=query_schemas.CANDIDATES,
        ),
        HttpRoute(
            "POST",
            "/reshaper",
            to(reshaper.reshape),
            "placement:reshaper:reshape",
            (1, 30),
            body=schemas.RESHAPE,
        ),
    )
