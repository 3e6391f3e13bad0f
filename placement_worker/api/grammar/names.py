"""Names of resource classes and traits: checks for queries, and their order in answers."""

from collections.abc import Iterable

import os_resource_classes

from placement_worker.api.grammar.refusals import NO_SUCH_CLASS, NO_SUCH_TRAIT
from placement_worker.api.values.problems import bad_request
from placement_worker.core.vocabulary import CUSTOM
from placement_worker.known_names import KnownNames
from placement_worker.replica import Replica

_NUMBERS = {name: number for number, name in enumerate(os_resource_classes.STANDARDS)}


def standard_first(traits: Iterable[str]) -> list[str]:
    """Placement's order: standard traits come before custom ones."""
    return sorted(traits, key=lambda name: (name.startswith(CUSTOM), name))


def classes_in_order(classes: Iterable[str]) -> list[str]:
    """Placement's order: standard classes by number, then custom ones by name."""
    return sorted(classes, key=lambda name: (_NUMBERS.get(name, len(_NUMBERS)), name))


async def check_names(
    names: KnownNames, replica: Replica, classes: Iterable[str], traits: Iterable[str]
) -> None:
    """Refuse a request that asks for names that do not exist."""
    if unknown := await names.unknown("classes", classes, replica):
        raise bad_request(
            f"Invalid resource class in resources parameter: {NO_SUCH_CLASS.format(names=', '.join(unknown))}"
        )
    if unknown := await names.unknown("traits", traits, replica):
        raise bad_request(NO_SUCH_TRAIT.format(names=", ".join(unknown)))
