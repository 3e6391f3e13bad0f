"""Which resource classes and traits exist? The standard ones, and custom ones that were created.

A name that a provider has exists. Names that no provider has are asked for rarely, so they are looked up in the database
each time: no list here has to be kept up to date.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Protocol

from bus.messages.administration import KindOfNames
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.replica import Replica

# How many names are read from the database at once.
PAGE = 500


class CustomNames(Protocol):
    async def custom_names(self, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]: ...


class KnownNames:
    def __init__(self, standard: Vocabulary, custom: CustomNames) -> None:
        self._standard = standard
        self._custom = custom

    async def classes(self) -> list[str]:
        """The standard ones first, then the custom ones."""
        return [*sorted(self._standard.classes), *await self._all_custom("classes")]

    async def traits(self) -> list[str]:
        return [*sorted(self._standard.traits), *await self._all_custom("traits")]

    async def is_class(self, name: str) -> bool:
        return not await self._unknown("classes", self._standard.classes, (name,))

    async def is_trait(self, name: str) -> bool:
        return not await self._unknown("traits", self._standard.traits, (name,))

    async def unknown_classes(self, replica: Replica, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the names in a query that do not exist."""
        unseen = (
            name for name in names if name not in self._standard.classes and not replica.has_class(name)
        )
        return await self._unknown("classes", self._standard.classes, unseen)

    async def unknown_traits(self, replica: Replica, names: Iterable[str]) -> tuple[str, ...]:
        unseen = (name for name in names if name not in self._standard.traits and not replica.has_trait(name))
        return await self._unknown("traits", self._standard.traits, unseen)

    async def _unknown(
        self, of: KindOfNames, standard: AbstractSet[str], names: Iterable[str]
    ) -> tuple[str, ...]:
        asked = sorted({name for name in names if name not in standard})
        if not asked:
            return ()
        custom = set(await self._all_custom(of))
        return tuple(name for name in asked if name not in custom)

    async def _all_custom(self, of: KindOfNames) -> list[str]:
        names: list[str] = []
        while page := await self._custom.custom_names(of, names[-1] if names else "", PAGE):
            names += page
        return names
