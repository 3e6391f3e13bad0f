"""The route table of the API: which handler serves which method and path, from which version on, and what it reads."""

from placement_worker.api import (
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
from placement_worker.api.endpoint_inputs import Records, View, Writer
from placement_worker.api.routing import Route
from placement_worker.core.candidates.budget import DEFAULT_LIMITS, SearchLimits
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.known_names import KnownNames
from placement_worker.searching import Searcher

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
    writer: Writer,
    view: View,
    records: Records,
    standard: Vocabulary,
    limits: SearchLimits = DEFAULT_LIMITS,
) -> tuple[Route, ...]:
    names = KnownNames(standard, records)
    return (
        *_of_providers(providers.Providers(writer, view, names)),
        *_of_inventories(inventories.Inventories(writer, view)),
        *_of_aggregates(aggregates.Aggregates(writer, view)),
        *_of_traits(traits.Traits(writer, view, names)),
        *_of_classes(classes.ResourceClasses(writer, names)),
        *_of_allocations(allocations.Allocations(writer, view, records)),
        *_of_usages(usages.Usages(view, records)),
        Route(
            "GET",
            "/allocation_candidates",
            candidates.Candidates(view, names, Searcher(limits)).show,
            "placement:allocation_candidates:list",
            (1, 10),
            query=candidates.QUERY,
        ),
        Route(
            "POST",
            "/reshaper",
            reshaper.Reshaper(writer).reshape,
            "placement:reshaper:reshape",
            (1, 30),
            body=reshaper.RESHAPE,
        ),
    )


def _of_providers(them: providers.Providers) -> tuple[Route, ...]:
    rule = "placement:resource_providers"
    return (
        Route("GET", _PROVIDERS, them.show_all, f"{rule}:list", query=providers.LISTED),
        Route("POST", _PROVIDERS, them.create, f"{rule}:create", body=providers.NEW),
        Route("GET", _PROVIDER, them.show, f"{rule}:show"),
        Route("PUT", _PROVIDER, them.update, f"{rule}:update", body=providers.CHANGED),
        Route("DELETE", _PROVIDER, them.delete, f"{rule}:delete"),
    )


def _of_inventories(them: inventories.Inventories) -> tuple[Route, ...]:
    rule = "placement:resource_providers:inventories"
    return (
        Route("GET", _INVENTORIES, them.show_all, f"{rule}:list"),
        Route("POST", _INVENTORIES, them.create, f"{rule}:create", body=inventories.NEW),
        Route("PUT", _INVENTORIES, them.set_all, f"{rule}:update", body=inventories.ALL),
        Route("DELETE", _INVENTORIES, them.delete_all, f"{rule}:delete", (1, 5)),
        Route("GET", _INVENTORY, them.show, f"{rule}:show"),
        Route("PUT", _INVENTORY, them.set_one, f"{rule}:update", body=inventories.ONE),
        Route("DELETE", _INVENTORY, them.delete, f"{rule}:delete"),
    )


def _of_aggregates(them: aggregates.Aggregates) -> tuple[Route, ...]:
    rule = "placement:resource_providers:aggregates"
    return (
        Route("GET", _ITS_AGGREGATES, them.show, f"{rule}:list", (1, 1)),
        Route("PUT", _ITS_AGGREGATES, them.set, f"{rule}:update", (1, 1), body=aggregates.SET),
    )


def _of_traits(them: traits.Traits) -> tuple[Route, ...]:
    rule, of_provider = "placement:traits", "placement:resource_providers:traits"
    return (
        Route("GET", _ITS_TRAITS, them.show_of, f"{of_provider}:list", (1, 6)),
        Route("PUT", _ITS_TRAITS, them.set_of, f"{of_provider}:update", (1, 6), body=traits.OF_PROVIDER),
        Route("DELETE", _ITS_TRAITS, them.delete_of, f"{of_provider}:delete", (1, 6)),
        Route("GET", "/traits", them.show_all, f"{rule}:list", (1, 6), query=traits.LISTED),
        Route("GET", _TRAIT, them.show, f"{rule}:show", (1, 6), tells_json=False),
        Route("PUT", _TRAIT, them.create, f"{rule}:update", (1, 6)),
        Route("DELETE", _TRAIT, them.delete, f"{rule}:delete", (1, 6)),
    )


def _of_classes(them: classes.ResourceClasses) -> tuple[Route, ...]:
    rule = "placement:resource_classes"
    return (
        Route("GET", _CLASSES, them.show_all, f"{rule}:list", (1, 2)),
        Route("POST", _CLASSES, them.create, f"{rule}:create", (1, 2), body=classes.NAMED),
        Route("GET", _CLASS, them.show, f"{rule}:show", (1, 2)),
        Route("PUT", _CLASS, them.rename, f"{rule}:update", (1, 2), (1, 6), body=classes.NAMED),
        Route("PUT", _CLASS, them.ensure, f"{rule}:update", (1, 7)),
        Route("DELETE", _CLASS, them.delete, f"{rule}:delete", (1, 2)),
    )


def _of_allocations(them: allocations.Allocations) -> tuple[Route, ...]:
    rule = "placement:allocations"
    of_provider = "placement:resource_providers:allocations:list"
    return (
        Route("GET", f"{_PROVIDER}/allocations", them.show_of, of_provider),
        Route(
            "POST", "/allocations", them.set_several, f"{rule}:manage", (1, 13), body=allocations.OF_SEVERAL
        ),
        Route("GET", _CONSUMER, them.show, f"{rule}:list"),
        Route("PUT", _CONSUMER, them.set, f"{rule}:update", body=allocations.OF_ONE),
        Route("DELETE", _CONSUMER, them.delete, f"{rule}:delete"),
    )


def _of_usages(them: usages.Usages) -> tuple[Route, ...]:
    return (
        Route("GET", f"{_PROVIDER}/usages", them.show_of, "placement:resource_providers:usages"),
        Route("GET", "/usages", them.show_all, "placement:usages", (1, 9), query=usages.OF_PROJECT),
    )
