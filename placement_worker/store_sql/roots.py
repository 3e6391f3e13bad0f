"""In which tree a provider stands, as it was when last looked: to know which rows to lock, without a look for it.

Nothing is decided by it. Whoever has locked reads the providers, and if one of them stands in a tree that is not
locked, what was known is forgotten and the batch begins anew.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

# Some 200 bytes each.
ROOTS_MAX = 200_000


class KnownRoots:
    """Internal ids of roots, by the integers of the ids of their providers."""

    def __init__(self) -> None:
        self._roots: dict[int, int] = {}

    def unknown_of(self, providers: Iterable[UUID]) -> list[UUID]:
        return [provider for provider in providers if provider.int not in self._roots]

    def learn(self, found: Sequence[tuple[UUID, int]]) -> None:
        """Ids, and the internal ids of the roots."""
        if len(self._roots) + len(found) > ROOTS_MAX:
            self._roots = {}
        self._roots |= {provider.int: root for provider, root in found}

    def of(self, providers: Iterable[UUID]) -> list[int]:
        """In the order of locks; those that are not known are left out."""
        roots = self._roots
        return sorted({root for provider in providers if (root := roots.get(provider.int)) is not None})

    def forget(self, providers: Iterable[UUID]) -> None:
        for provider in providers:
            self._roots.pop(provider.int, None)
