"""The order of names in answers: of resource classes, and of traits."""

from collections.abc import Iterable

import os_resource_classes

from placement_worker.core.vocabulary import CUSTOM

_NUMBERS = {name: number for number, name in enumerate(os_resource_classes.STANDARDS)}


def standard_first(traits: Iterable[str]) -> list[str]:
    """Sort traits in Placement's order: standard traits come before custom ones."""
    return sorted(traits, key=lambda name: (name.startswith(CUSTOM), name))


def classes_in_order(classes: Iterable[str]) -> list[str]:
    """Sort resource classes in Placement's order: standard classes by number, then custom ones by name."""
    return sorted(classes, key=lambda name: (_NUMBERS.get(name, len(_NUMBERS)), name))
