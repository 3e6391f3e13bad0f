"""What placement asks of its database. store_sql/ implements it.

Each writer takes its locks in one order: quotas, in the order of projects; server groups; consumers (inserted if missing, then locked); tree roots and
sharing providers in the order of their internal ids. It reads what it decides on only after the last lock: a statement
that locks and reads at once would judge the state from before its wait.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from bus.messages.administration import ConsumerState, KindOfNames, TypeUsage, WriteVerdict
from bus.messages.audit import BookEntry
from bus.messages.placement import LogPosition, MembersPage, ProviderGone, RevisionsPage, SnapshotPage
from engine.inventories import (
    ConsumerId,
    GroupMember,
    Holder,
    ProviderId,
    ProviderState,
    ProviderUsage,
    QuotaState,
)
from placement_worker.core.ledger import (
    BatchDecision,
    ClaimChanges,
    ClaimKeys,
    Forest,
    ForestKeys,
    Ledger,
    NameChanges,
    NameKeys,
    Quota,
    QuotaBook,
    StoredNames,
    TreeChanges,
)
from placement_worker.core.limits import QuotaKeys
from placement_worker.settings import FEED_ENTRIES

# A decision about administrators' allocations, and the function that decides by the rows that a store reads.
AdminDecision = BatchDecision[WriteVerdict, ClaimChanges]
DecideAllocations = Callable[[Ledger], AdminDecision]


class PlacementTransaction(Protocol):
    """One transaction on placement's tables: all or nothing. Its writes appear in the change log when it commits."""

    async def lock_claims(self, keys: ClaimKeys) -> Ledger:
        """Lock all rows that a batch of orders, or of administrators' writes of allocations, needs, then read them."""

    async def tombstones(self, cells: Sequence[str], limit: int) -> Mapping[str, int]:
        """How many rows of consumers each of these cells has that a release left before any claim. Counting stops at `limit`."""

    async def decided_at_once(self, keys: ClaimKeys, decide: DecideAllocations) -> AdminDecision | None:
        """Decide a claim of one new consumer by rows that are not locked, then write and commit it, if it is granted and was
        decided by what is still true. None if nothing was written: these keys are of anything else, it was not granted, the rows
        have changed, or the store has no use for it. Then the transaction goes on as if this was never called. It comes first.
        """

    async def write_claims(self, changes: ClaimChanges) -> None: ...

    async def lock_quotas(self, keys: QuotaKeys) -> QuotaBook:
        """Lock the quotas of these projects, then read them. A project without limits gets a quota that counts what it uses;
        claims wait meanwhile. In a transaction this comes before all other locks.
        """

    async def write_quotas(self, changed: Sequence[Quota]) -> None:
        """Write the limits of these quotas, all of which are locked; delete those without a limit."""

    async def recount(self) -> None:
        """Correct the numbers that follow from consumers' holdings: usages of providers and of quotas, counts of consumers by
        host, and the table of holders.

        It locks the trees that have a wrong number, and must be alone in its transaction.
        """

    async def lock_trees(self, keys: ForestKeys) -> Forest:
        """Lock the trees of the named providers, then read them whole. A transaction that also needs `lock_claims`
        calls that first.
        """

    async def write_trees(self, changes: TreeChanges) -> None:
        """Write whole providers with their usage. `write_claims` in the same transaction must not write the usage of
        these again.
        """

    async def lock_names(self, keys: NameKeys) -> StoredNames:
        """Lock these custom names of classes and traits, as far as they exist, then read which providers use them."""

    async def write_names(self, changes: NameChanges) -> None: ...

    async def read_trees(self, roots: Sequence[ProviderId]) -> tuple[ProviderState, ...]:
        """All providers of these trees, ordered by internal id."""


class Unpublished(Struct, frozen=True):
    """The changes in the log since a cursor: whole providers, and the usage of those of which nothing else changed.

    `cursor` says how far this reading came, in the store's own format. `is_cut`: the reading stopped at its limit, so
    there may be more.
    """

    cursor: str
    providers: tuple[ProviderState, ...] = ()
    gone: tuple[ProviderGone, ...] = ()
    usage: tuple[ProviderUsage, ...] = ()
    claimed: tuple[Holder, ...] = ()
    ended: tuple[Holder, ...] = ()
    joined: tuple[GroupMember, ...] = ()
    left: tuple[Holder, ...] = ()
    is_cut: bool = False


class ChangeFeed(Protocol):
    """The change log, as the one process reads it that publishes it. Each process that becomes the leader starts a new
    term.
    """

    @property
    def published(self) -> LogPosition:
        """The position in the change log of the last message that is known to be published."""

    async def read(self, entries_max: int = FEED_ENTRIES) -> Unpublished:
        """Read committed entries that are not marked as published yet: as many as `entries_max`, or a few more.

        Entries of one transaction come together, and so do those that an earlier reading had to skip. An entry that
        commits late is found by a later reading.
        """

    async def mark(self, position: int, cursor: str) -> None:
        """Note that everything up to this cursor is published, the last of it at this position."""


class Holdings(Struct, frozen=True):
    """A consumer, and the generations of the providers that it holds something of, all read at one moment."""

    consumer: ConsumerState
    generations: Mapping[ProviderId, int]


class PlacementStore(Protocol):
    def transaction(self) -> AbstractAsyncContextManager[PlacementTransaction]:
        """Commits at a normal exit, rolls back on any exception. Each step may raise `Transient`: try again."""

    # What only the database has, and no copy of the providers in memory: which consumer holds what, and custom names.

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        """The state of a consumer; None if it holds nothing."""

    async def holdings(self, consumer: ConsumerId) -> Holdings | None:
        """A consumer, with the generations of the providers that it holds something of; None if it holds nothing."""

    async def holders_of(
        self, provider: ProviderId, after: ConsumerId | None, limit: int
    ) -> tuple[ConsumerState, ...]:
        """Consumers that hold something of this provider, each with everything it holds, ordered by id."""

    async def books_page(self, after: ConsumerId | None, limit: int) -> tuple[BookEntry, ...]:
        """A page of the consumers that hold something, in the order of their ids."""

    async def book_entries(
        self, consumers: Sequence[ConsumerId], new_since: datetime | None
    ) -> tuple[BookEntry, ...]:
        """The named consumers that have a row, as `BookEntry`s in the order of their ids.

        An entry `is_new` if the change log has a claim of its consumer since `new_since`.
        """

    async def usages(self, project: str, user: str) -> tuple[TypeUsage, ...]:
        """The holdings of a project's consumers, summed up by consumer type. If `user` is given, only that user's
        consumers count.
        """

    async def quotas(self, project: str, after: str, limit: int) -> tuple[QuotaState, ...]:
        """The quota of this project, if it has one; or if no project is named, a page of all that follow `after`."""

    async def custom_names(self, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]:
        """A page of the custom names of this kind that follow `after`, sorted by bytes."""

    # What readers with a copy of the providers in memory ask.

    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage: ...

    async def changes_page(self, since: str, after: int, limit: int) -> SnapshotPage | None:
        """A page of the providers that changed since this cursor, and all members of server groups that joined or left.

        None if the log does not reach back so far, if it has more entries since then than are read at once, or if the cursor comes from
        another database.
        """

    async def changes_since(self, since: str) -> Unpublished | None:
        """Everything that changed since this cursor, in one answer without pages. If only claims changed a provider,
        only its usage is included.

        None if the log does not reach back so far, if it has more entries since then than are read at once, or if the cursor comes from
        another database.
        """

    async def revisions_page(self, after: int, limit: int) -> RevisionsPage: ...

    async def members_page(self, after: int, limit: int) -> MembersPage:
        """The members of all server groups, a page at a time. `after` is the `next` of the page before."""

    def lead_feed(self) -> AbstractAsyncContextManager[ChangeFeed | None]:
        """Become the leader that publishes the change log, for as long as this context is open; None if another process
        leads.
        """

    async def prune(self, ended_before: datetime, logged_before: datetime) -> int:
        """Delete ended consumers, tombstones, published log rows older than these times.

        Server groups without members are deleted, too. Returns how many rows were deleted.

        When a tombstone is deleted, the shapes of its tree are forgotten, and a new tree with the same root counts from
        the start. Messages for the old tree were sent before that. For an unknown consumer they are refused as too old;
        for a known one, mostly by their attempt.

        Three kinds of messages are not refused if they were under way for this whole time: a swap, a claim with a later
        attempt of an ended consumer, and a report. The first two are judged by the free amounts, if the new tree happens
        to have the shape that they name. The report creates the old tree again.
        """

    async def audit(self) -> tuple[str, ...]:
        """One sentence for each place where the data contradicts itself; empty if there is none."""

    async def close(self) -> None: ...
