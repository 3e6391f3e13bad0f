"""The providers that a reader knows, and how their states are merged: the later state stays, and a deleted provider goes.

States arrive in any order and more than once. The higher revision of one provider is later. One provider after another
may have the same public id; then the higher internal id is later, since internal ids are never used again.

Usage, which claims change, arrives by itself and is stored beside the provider's state. A later state replaces a state,
and a later usage replaces a usage, whichever comes first. So nothing is lost when usage arrives before the state that it
belongs to.

A published state may be false: a placement worker has a bug, or somebody forged the message. By its revision such a
state would win against all true ones for a long time. And a database that was restored from a backup counts from there
again. Placement's answers are true. A provider's revision only grows, so a state that the reader had before it asked
placement, and that is later than the one in the answer, was never written.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import NamedTuple

from engine.candidates.provider_index import ProviderIndex
from engine.inventories import ProviderId, ProviderState, ProviderUsage

# Late messages about a deleted provider arrive within seconds; so many deleted providers are remembered.
GONE_MAX = 100_000


class KnownBefore(NamedTuple):
    """The reader's knowledge before it asked placement: the revisions of providers, by internal id, and the number of
    deletions that it had heard of.
    """

    revisions: Mapping[int, int]
    deletions: int


class KnownProviders:
    """The latest known state and usage of each provider.

    A subclass groups or names the providers as its readers need them: it is told of each change by `_changed`.
    """

    def __init__(self) -> None:
        self._index = ProviderIndex()
        # How many readers use the current index.
        self._readers = 0
        # Usages that the index does not have yet: nearly all are followed by a later one before the index is read.
        self._unindexed: dict[int, ProviderUsage] = {}
        # By internal id.
        self._states: dict[int, ProviderState] = {}
        # Only usages that are later than the state.
        self._usages: dict[int, ProviderUsage] = {}
        # The internal ids of deleted providers, in the order of their deletion, each with its number in that order.
        self._gone: dict[int, int] = {}
        self._deletions = 0

    def _changed(self, before: ProviderState | None, after: ProviderState | None) -> None:
        """A provider has another state. It is new if there is none `before`, and is gone if there is none `after`."""

    # Reading

    @property
    def index(self) -> ProviderIndex:
        """All providers as columns, for the search."""
        if self._unindexed:
            self._writable().use([(usage.internal, usage.used) for usage in self._unindexed.values()])
            self._unindexed.clear()
        return self._index

    @contextmanager
    def reading(self) -> Iterator[ProviderIndex]:
        """Keep the current index unchanged for a reader that lets other tasks run in between: writes during that time go
        into a copy.
        """
        index = self.index
        self._readers += 1
        try:
            yield index
        finally:
            if self._index is index:
                self._readers -= 1

    def internal_of(self, provider: ProviderId) -> int:
        """The internal id of the provider that has this id now; -1 if none is known."""
        row = self._index.row_of(provider)
        return -1 if row is None else self._index.state(row).internal

    def internals(self) -> frozenset[int]:
        """The internal ids of all known providers."""
        return frozenset(self._states)

    def gone(self) -> frozenset[int]:
        """The internal ids of providers that are known to be deleted."""
        return frozenset(self._gone)

    def behind(self, revisions: Mapping[int, int], known: Iterable[int]) -> list[int]:
        """The internal ids of providers about which a change was missed. `revisions` has all of placement's providers.
        Those that are older here are behind; so are those that were `known` before and are not in it, but still are here.
        """
        old = [internal for internal, revision in revisions.items() if self._lacks(internal, revision)]
        over = [internal for internal in known if internal not in revisions and internal in self._states]
        return old + over

    def _lacks(self, internal: int, revision: int) -> bool:
        """Is a provider, which is not known to be gone, older here than this revision?"""
        state, usage = self._states.get(internal), self._usages.get(internal)
        if state is None:
            return internal not in self._gone
        if usage is None:
            return state.revision < revision
        return usage.revision < revision or state.revision < usage.base

    # Changes, as they are published

    def merge(self, states: Iterable[ProviderState]) -> None:
        """Merge these states of providers; an older one, or one of a deleted provider, changes nothing."""
        for state in states:
            known = self._states.get(state.internal)
            if known is None:
                earlier = self.internal_of(state.id)
                if state.internal in self._gone or earlier > state.internal:
                    continue
                if earlier >= 0:
                    # The provider that had this id before is gone, though its deletion has not arrived yet.
                    self.delete((earlier,))
            # An internal id is never used again, so a message that gives it to another provider is wrong.
            elif state.revision <= known.revision or state.id.int != known.id.int:
                continue
            self._states[state.internal] = state
            self._put_in_index(state)
            self._changed(known, state)

    def merge_usages(self, usages: Iterable[ProviderUsage]) -> tuple[list[ProviderUsage], bool]:
        """Merge usages. Returns those that are new; and whether the states that all of them are based on are known, or
        their providers known to be gone.
        """
        news: list[ProviderUsage] = []
        has_all = True
        for usage in usages:
            internal, revision = usage.internal, usage.revision
            if internal in self._gone:
                continue
            known, before = self._states.get(internal), self._usages.get(internal)
            if known is None or known.revision < usage.base:
                has_all = False
            if (before is not None and revision <= before.revision) or (
                known is not None and revision <= known.revision
            ):
                continue
            self._usages[internal] = self._unindexed[internal] = usage
            news.append(usage)
        return news, has_all

    def delete(self, internals: Iterable[int]) -> None:
        """Remove providers that are deleted for good, and ignore late messages about them."""
        for internal in internals:
            self._deletions += 1
            self._gone[internal] = self._deletions
            if len(self._gone) > GONE_MAX:
                del self._gone[next(iter(self._gone))]
            self._drop(internal)

    def discard(self, internals: Iterable[int]) -> None:
        """Remove these providers. Messages about them count again: it is not certain that they existed."""
        for internal in internals:
            self._drop(internal)

    def undelete(self, internals: Iterable[int]) -> None:
        """Accept messages about these providers again: contrary to an earlier message, they are not deleted."""
        for internal in internals:
            self._gone.pop(internal, None)

    # Answers of placement, which are true

    def known_now(self) -> KnownBefore:
        """The latest known revision of each provider, also of those of which only usage is known."""
        usages = {internal: usage.revision for internal, usage in self._usages.items()}
        states = {internal: state.revision for internal, state in self._states.items()}
        return KnownBefore(states | usages, self._deletions)

    def deleted_now(self) -> KnownBefore:
        """As `known_now`, without revisions."""
        return KnownBefore({}, self._deletions)

    def merge_read(self, states: Iterable[ProviderState], before: KnownBefore) -> None:
        """Merge these states, which placement has answered. States that the reader had `before` it asked, and that
        contradict the answer, are false: they are dropped.
        """
        states = tuple(states)
        for state in states:
            self._drop_false(state, before)
        self.merge(states)

    def end_reading_of_all(self, there: AbstractSet[int], before: KnownBefore) -> None:
        """Placement has answered with all providers there are. Those that were known `before` and are not among them go."""
        last = max(there, default=0)
        over = [internal for internal in before.revisions if internal not in there]
        self.delete(internal for internal in over if internal < last)
        # Placement may never have given these numbers: the next new providers may get them.
        self.discard(internal for internal in over if internal > last)

    def _drop_false(self, read: ProviderState, before: KnownBefore) -> None:
        if self._gone.get(read.internal, before.deletions + 1) <= before.deletions:
            del self._gone[read.internal]
        known = self._states.get(read.internal)
        is_other = known is not None and (
            known.id.int != read.id.int or (known.revision == read.revision and known != read)
        )
        if is_other or before.revisions.get(read.internal, 0) > read.revision:
            self._drop(read.internal)
        namesake = self.internal_of(read.id)
        if namesake > read.internal and namesake in before.revisions:
            # Internal ids grow, so it would be the id's later provider. But placement has the earlier one.
            self._drop(namesake)

    def _drop(self, internal: int) -> None:
        self._usages.pop(internal, None)
        state = self._states.pop(internal, None)
        if state is not None:
            self._writable().drop(internal)
            self._changed(state, None)

    # The index

    def _writable(self) -> ProviderIndex:
        if self._readers:
            self._index, self._readers = self._index.copy(), 0
        return self._index

    def _put_in_index(self, state: ProviderState) -> None:
        self._writable().put(state)
        self._unindexed.pop(state.internal, None)
        usage = self._usages.get(state.internal)
        if usage is None:
            return
        if usage.revision > state.revision:
            self._unindexed[state.internal] = usage
        else:
            del self._usages[state.internal]
