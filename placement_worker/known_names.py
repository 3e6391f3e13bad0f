"""Which resource classes and traits are there? The standard ones, and those that somebody made.

What a provider has exists, and what nobody has is rare enough to be asked of the books each time: so there is no list here
to be kept true.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Protocol

from bus.messages.administration import KindOfNames
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.replica import Replica

# As many as are read from the books at once.
PAGE = 500


class CustomNames(Protocol):
    async def custom_names(self, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]: ...


class KnownNames:
    def __init__(self, standard: Vocabulary, custom: CustomNames) -> None:
        self._standard = standard
        self._custom = custom

    async def classes(self) -> list[str]:
        """The standard ones, and then the others."""
        return [*sorted(self._standard.classes), *await self._all_custom("classes")]

    async def traits(self) -> list[str]:
        return [*sorted(self._standard.traits), *await self._all_custom("traits")]

    async def is_class(self, name: str) -> bool:
        return not await self._unknown("classes", self._standard.classes, (name,))

    async def is_trait(self, name: str) -> bool:
        return not await self._unknown("traits", self._standard.traits, (name,))

    async def unknown_classes(self, replica: Replica, names: Iterable[str]) -> tuple[str, ...]:
        """Those that do not exist, of names that somebody asks about."""
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
