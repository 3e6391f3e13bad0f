"""Which resource classes and traits are there? The standard ones, and those that somebody made.

What a provider has exists, and what nobody has is rare enough to be asked of the books each time: so there is no list here
to be kept true.
"""

from collections.abc import Collection, Iterable

import os_resource_classes

from bus.messages.administration import KindOfNames
from placement_worker.api.problems import bad_request
from placement_worker.api.refusals import no_such_class, no_such_trait
from placement_worker.api.standing import Records, all_custom_names
from placement_worker.core.vocabulary import CUSTOM
from placement_worker.core.vocabulary import Vocabulary as Standard
from placement_worker.replica import Replica

_NUMBERS = {name: number for number, name in enumerate(os_resource_classes.STANDARDS)}


def standard_first(traits: Iterable[str]) -> list[str]:
    """As Placement orders them, which had the standard ones before anybody made another."""
    return sorted(traits, key=lambda name: (name.startswith(CUSTOM), name))


def classes_in_order(classes: Iterable[str]) -> list[str]:
    """The same of classes, of which the standard ones have numbers."""
    return sorted(classes, key=lambda name: (_NUMBERS.get(name, len(_NUMBERS)), name))


class KnownNames:
    def __init__(self, standard: Standard, records: Records) -> None:
        self._standard = standard
        self._records = records

    async def traits(self) -> list[str]:
        return [*sorted(self._standard.traits), *await all_custom_names(self._records, "traits")]

    async def classes(self) -> list[str]:
        return [*classes_in_order(self._standard.classes), *await all_custom_names(self._records, "classes")]

    async def is_trait(self, name: str) -> bool:
        return not await self._unknown("traits", (name,))

    async def is_class(self, name: str) -> bool:
        return not await self._unknown("classes", (name,))

    async def check(self, replica: Replica, classes: Iterable[str], traits: Iterable[str]) -> None:
        """End the request if it asks for what does not exist."""
        if unknown := await self._unknown(
            "classes", (name for name in classes if not replica.has_class(name))
        ):
            raise bad_request(f"Invalid resource class in resources parameter: {no_such_class(unknown)}")
        if unknown := await self._unknown("traits", (name for name in traits if not replica.has_trait(name))):
            raise bad_request(no_such_trait(unknown))

    async def _unknown(self, of: KindOfNames, names: Iterable[str]) -> tuple[str, ...]:
        standard: Collection[str] = self._standard.traits if of == "traits" else self._standard.classes
        asked = sorted({name for name in names if name not in standard})
        if not asked:
            return ()
        custom = set(await all_custom_names(self._records, of))
        return tuple(name for name in asked if name not in custom)
