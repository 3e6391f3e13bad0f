"""Which resource classes and traits exist? The standard ones, and custom ones that were created.

A name that a provider has exists. Names that no provider has are asked for rarely, so they are looked up in the database
each time: no list here has to be kept up to date.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from bus.messages.administration import KindOfNames
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.replica import ProviderReplica
from placement_worker.store import Records

# How many names are read from the database at once.
PAGE = 500


class KnownNames:
    def __init__(self, standard: Vocabulary, records: Records) -> None:
        self._standard: Mapping[KindOfNames, AbstractSet[str]] = {
            "classes": standard.classes,
            "traits": standard.traits,
        }
        self._records = records

    async def every(self, of: KindOfNames) -> list[str]:
        """All names of this kind: the standard ones first, then the custom ones."""
        return [*sorted(self._standard[of]), *await self._all_custom(of)]

    async def unknown(
        self, of: KindOfNames, names: Iterable[str], replica: ProviderReplica | None = None
    ) -> tuple[str, ...]:
        """Those of the names that do not exist. A name that the replica has is not looked up."""
        asked = {
            name
            for name in names
            if name not in self._standard[of] and not (replica and replica.has_name(of, name))
        }
        return tuple(sorted(asked.difference(await self._all_custom(of)))) if asked else ()

    async def _all_custom(self, of: KindOfNames) -> list[str]:
        names: list[str] = []
        while page := await self._records.custom_names(of, names[-1] if names else "", PAGE):
            names += page
        return names
