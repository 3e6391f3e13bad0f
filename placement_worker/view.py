"""All providers in memory, brought up to date before each read.

A reader must see everything that any process committed before it asked. So before each answer the view reads from the
change log what was written since its last reading. Callers that ask during one reading share the next one, so the number
of callers does not matter to the database. If the log does not reach back far enough, the view reads all providers.
"""

import gc
import logging
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import accumulate, takewhile

import msgspec
from msgspec import structs

from bus.messages.books import KindOfNames
from bus.messages.cloud import VALUES_BYTES_MAX
from engine.inventories import ProviderId, ProviderState, ProviderUsage, Vocabulary
from engine.picture.columns import KnownProviders
from kit.parts import Retrying, SharedRuns
from placement_worker.store_sql import PlacementStore

log = logging.getLogger(__name__)

# How many providers are read at once.
PAGE = 1_000
# A garbage collection over ten thousand providers blocks the process for a second. Providers stay once they are read, and are
# in no reference cycle, so they are frozen: the collector skips them.
FROZEN_MIN = 1_000
TRIES_MAX = 4


class ProviderReplica(KnownProviders):
    """A copy of all providers in memory, from which reads are answered: by id, by name and by tree."""

    def __init__(self) -> None:
        super().__init__()
        self._by_name: dict[str, ProviderId] = {}

    def __iter__(self) -> Iterator[ProviderState]:
        return map(self._current, [*self._states.values()])

    def get(self, provider: ProviderId) -> ProviderState | None:
        state = self._states.get(self.internal_of(provider))
        return None if state is None else self._current(state)

    def named(self, name: str) -> ProviderState | None:
        provider = self._by_name.get(name)
        return None if provider is None else self.get(provider)

    def tree_of(self, provider: ProviderId) -> list[ProviderState]:
        """All providers of the tree that has this provider; empty if the provider does not exist."""
        state = self.get(provider)
        in_tree = self.index.states_in_tree(state.root) if state else []
        return [self._current(self._states[each.internal]) for each in in_tree]

    def has_name(self, of: KindOfNames, name: str) -> bool:
        """Does any provider have an inventory of this class, or this trait?"""
        return name in (self.index.stocks if of == "classes" else self.index.traits)

    def use(self, usages: Iterable[ProviderUsage]) -> bool:
        """Merge usages. False if a usage was written upon a state of its provider that this replica never received."""
        return self.merge_usages(usages)[1]

    def _current(self, state: ProviderState) -> ProviderState:
        """The state with the latest usage in it. Most usages are never read, so only here is a state made of one, once."""
        usage = self._usages.get(state.internal)
        if usage is None or state.revision < usage.base:
            return state
        current = self._states[state.internal] = structs.replace(
            state,
            revision=usage.revision,
            generation=usage.generation,
            consumers=usage.consumers,
            inventories={
                resource: structs.replace(inventory, used=usage.used.get(resource, 0))
                for resource, inventory in state.inventories.items()
            },
        )
        del self._usages[state.internal]
        return current

    def _changed(self, before: ProviderState | None, after: ProviderState | None) -> None:
        # Another provider may have its name by now.
        if before is not None and self._by_name.get(before.name) == before.id:
            del self._by_name[before.name]
        if after is not None:
            self._by_name[after.name] = after.id


class ProviderView:
    """Keeps a copy of all providers in memory.

    `readings` counts how often it read from the database, and `readings_of_all` how often it read all providers.
    """

    def __init__(self, books: PlacementStore, page: int = PAGE) -> None:
        self._books = books
        self._page = page
        self._replica = ProviderReplica()
        # The cursor of the last reading; empty before the first.
        self._cursor = ""
        self._shared = SharedRuns(partial(Retrying(TRIES_MAX), self._read))
        self.readings = 0
        self.readings_of_all = 0

    async def caught_up(self) -> ProviderReplica:
        """All providers, with everything committed before the call, and perhaps some of what is committed meanwhile. Raises
        Transient if the database cannot be read.
        """
        await self._shared.done()
        return self._replica

    async def close(self) -> None:
        await self._shared.close()

    async def _read(self) -> None:
        self.readings += 1
        if not (self._cursor and await self._read_changes()):
            await self._read_all()

    async def _read_changes(self) -> bool:
        """Read the changes since the last reading. False if all providers must be read again."""
        changes = await self._books.changes_since(self._cursor)
        if changes is None:
            log.debug("the change log does not reach back so far: all providers are read again")
            return False
        self._replica.delete(each.internal for each in changes.gone)
        self._replica.merge(changes.providers)
        if not self._replica.use(changes.usage):
            log.error(
                "the log has usage of providers that this reader never received: reading all providers again"
            )
            return False
        self._cursor = changes.cursor
        return True

    async def _read_all(self) -> None:
        self.readings_of_all += 1
        before = self._replica.known_now()
        there: set[int] = set()
        after: int | None = 0
        # Each page is of a later moment, so the next reading continues from the cursor of the first page.
        came_to = ""
        while after is not None:
            page = await self._books.snapshot_page(after, self._page)
            came_to = came_to or page.cursor
            self._replica.merge_read(page.providers, before)
            there.update(state.internal for state in page.providers)
            after = page.next
        self._replica.end_reading_of_all(there, before)
        self._cursor = came_to
        if len(there) >= FROZEN_MIN:
            gc.freeze()


# Which resource classes and traits exist? The standard ones, and custom ones that were created.
#
# A name that a provider has exists. Names that no provider has are asked for rarely, so they are looked up in the database
# each time: no list here has to be kept up to date.

# How many names are read from the database at once.
NAMES_PAGE = 500


class KnownNames:
    def __init__(self, standard: Vocabulary, store: PlacementStore) -> None:
        self._standard: Mapping[KindOfNames, AbstractSet[str]] = {
            "classes": standard.classes,
            "traits": standard.traits,
        }
        self._store = store

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
        while page := await self._store.custom_names(of, names[-1] if names else "", NAMES_PAGE):
            names += page
        return names


# How many providers fit into one message: no message may be larger than its readers accept.

_encode = msgspec.json.Encoder().encode


def bytes_of(value: ProviderState | ProviderUsage) -> int:
    """The size of a value in a list of a message, with the comma behind it."""
    return len(_encode(value)) + len(",")


def how_many_fit(values: Iterable[ProviderState | ProviderUsage], room: int = VALUES_BYTES_MAX) -> int:
    """How many of these values, counted from the first, fit into one message."""
    return len([*takewhile(room.__ge__, accumulate(map(bytes_of, values)))])
