"""Known names of classes and traits; and whether an inventory report is valid, whatever is stored."""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from msgspec import Struct

from bus.messages.placement import NotAllowed, ReportedInventory, ReportedProvider, ReportInventory

CUSTOM = "CUSTOM_"


class Vocabulary(Struct, frozen=True):
    """The standard names of resource classes and traits. Names with the prefix CUSTOM_ are allowed beside them."""

    classes: frozenset[str]
    traits: frozenset[str]

    def knows_class(self, name: str) -> bool:
        return name in self.classes or _is_custom(name)

    def knows_trait(self, name: str) -> bool:
        return name in self.traits or _is_custom(name)


def custom_of(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if _is_custom(name)))


def unknown_names(
    names: Iterable[str], standard: AbstractSet[str], custom: AbstractSet[str]
) -> tuple[str, ...]:
    """The names that are neither standard nor among these custom names, sorted and each once."""
    return tuple(sorted(set(names) - standard - custom))


def report_problem(report: ReportInventory, vocabulary: Vocabulary) -> NotAllowed | None:
    """The first error in an inventory report that makes it invalid, whatever is stored; None if there is none."""
    return next(_nonsense(report, vocabulary), None)


def _nonsense(report: ReportInventory, vocabulary: Vocabulary) -> Iterator[NotAllowed]:
    named = set()
    for position, provider in enumerate(report.providers):
        if provider.id in named:
            yield NotAllowed(
                field=f"providers[{position}].id", reason=f"provider {provider.id} is reported twice"
            )
        named.add(provider.id)
        yield from _nonsense_about(provider, f"providers[{position}]", vocabulary)
    for position, removed in enumerate(report.removed):
        if removed in named:
            yield NotAllowed(
                field=f"removed[{position}]",
                reason=f"provider {removed} is to be removed, but the report also names it elsewhere",
            )
        named.add(removed)


def _nonsense_about(provider: ReportedProvider, at: str, vocabulary: Vocabulary) -> Iterator[NotAllowed]:
    for resource, inventory in (provider.inventories or {}).items():
        field = f"{at}.inventories.{resource}"
        if not vocabulary.knows_class(resource):
            yield NotAllowed(
                field=field,
                reason=f"resource class {resource!r} is neither a standard one nor starts with {CUSTOM}",
            )
        if reason := _disagreement(inventory):
            yield NotAllowed(field=field, reason=reason)
    for position, trait in enumerate(provider.traits or ()):
        if not vocabulary.knows_trait(trait):
            yield NotAllowed(
                field=f"{at}.traits[{position}]",
                reason=f"trait {trait!r} is neither a standard one nor starts with {CUSTOM}",
            )


def _disagreement(inventory: ReportedInventory) -> str:
    if inventory.reserved > inventory.total:
        return f"reserved is {inventory.reserved}, more than the total of {inventory.total}"
    if inventory.min_unit > inventory.max_unit:
        return f"min_unit is {inventory.min_unit}, more than the max_unit of {inventory.max_unit}"
    return ""


def _is_custom(name: str) -> bool:
    return name.startswith(CUSTOM) and len(name) > len(CUSTOM)
