"""What placement asks of its database. Two implementations, one contract suite: store_memory.py and store_sql/.

Every writer takes its locks in one order: server groups, consumers (made if absent, then locked), then tree roots and
sharing providers, each in the order of their internal ids. Only after the last lock does it read what it decides on:
a statement that locks and reads at once would judge by what stood there before it waited.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol
from uuid import UUID

from msgspec import Struct

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import ConsumerState, KindOfNames, TypeUsage
from bus.messages.placement import (
    Holder,
    LogPosition,
    ProviderGone,
    ProviderState,
    ProviderUsage,
    RevisionsPage,
    SnapshotPage,
)
from placement_worker.core.ledger import (
    ClaimChanges,
    ClaimOrder,
    Forest,
    Ledger,
    NameChanges,
    Named,
    NamedNames,
    NamedShares,
    Names,
    TreeChanges,
)

# How many writes are read from the log at once, unless an operator says otherwise.
FEED_ENTRIES = 500


class PlacementTransaction(Protocol):
    """All or nothing. What is written in it appears in the change log with it."""

    async def lock_claims(self, orders: Sequence[ClaimOrder]) -> Ledger:
        """Lock all that these orders touch, then read it."""

    async def lock_shares(self, named: NamedShares) -> Ledger:
        """The same for who says by name what consumers are to hold."""

    async def write_claims(self, changes: ClaimChanges) -> None: ...

    async def lock_trees(self, named: Named) -> Forest:
        """Lock the trees of the providers that are named, then read them whole. After `lock_shares`, if both."""

    async def write_trees(self, changes: TreeChanges) -> None:
        """Of the providers that are written, all; what claims write beside it is about others."""

    async def lock_names(self, named: NamedNames) -> Names:
        """Lock these custom names of classes and traits, as far as they exist, then read who uses them."""

    async def write_names(self, changes: NameChanges) -> None: ...

    async def read_trees(self, roots: Sequence[ProviderId]) -> tuple[ProviderState, ...]:
        """All providers of these trees as they stand, by internal id."""


class Unpublished(Struct, frozen=True):
    """What was written since the feed's last mark: whole providers, and those of which claims have changed what is used.

    `cursor` is the store's own: how far this reading came. `is_cut`: it came to its limit, and there may be more.
    """

    cursor: str
    providers: tuple[ProviderState, ...] = ()
    gone: tuple[ProviderGone, ...] = ()
    usage: tuple[ProviderUsage, ...] = ()
    claimed: tuple[Holder, ...] = ()
    ended: tuple[Holder, ...] = ()
    is_cut: bool = False


class ChangeFeed(Protocol):
    """The change log, read by the one process that publishes it. A new leader starts a new term."""

    @property
    def published(self) -> LogPosition:
        """The position of the last message that is known to be published."""

    async def read(self, entries_max: int = FEED_ENTRIES) -> Unpublished:
        """What was committed and not marked: of so many writes, or a few more, so that those of one transaction, and those
        that an earlier reading had to pass over, come together. A write that commits late is found by a later reading.
        """

    async def mark(self, position: int, cursor: str) -> None:
        """Everything up to this cursor is published, the last of it at this position."""


class Records(Protocol):
    """What is asked of the books and not found in a picture of the providers: who holds what, and custom names."""

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        """None if it holds nothing."""

    async def holders_of(
        self, provider: ProviderId, after: ConsumerId | None, limit: int
    ) -> tuple[ConsumerState, ...]:
        """Those who hold something of this provider, each with all that it holds, in the order of their ids."""

    async def usages(self, project: str, user: str) -> tuple[TypeUsage, ...]:
        """What the consumers of a project hold, or with `user` those of one user of it, by their type."""

    async def custom_names(self, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]:
        """In the order of the alphabet, as bytes are compared."""


class KeptPage(Struct, frozen=True):
    """A later page of an answer that was too long for one message."""

    body: bytes
    is_last: bool


class KeptAnswers(Protocol):
    async def keep_answer(self, answer: UUID, pages: Sequence[bytes]) -> None:
        """Its later pages, numbered from 1; nothing, if they are kept already."""

    async def kept_page(self, answer: UUID, page: int) -> KeptPage | None: ...


class PlacementStore(Records, KeptAnswers, Protocol):
    def transaction(self) -> AbstractAsyncContextManager[PlacementTransaction]:
        """Commits when left in peace, rolls back on any exception. May raise `Transient` at any step: try again."""

    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage: ...

    async def changes_page(self, since: str, after: int, limit: int) -> SnapshotPage | None:
        """The same of those that were written since this cursor; None if the log does not reach back so far, or the
        cursor is none of these books.
        """

    async def changes_since(self, since: str) -> Unpublished | None:
        """All of them at once, and of what claims alone have changed only that; who claimed and what ended is not told.
        None where `changes_page` gives none.
        """

    async def revisions_page(self, after: int, limit: int) -> RevisionsPage: ...

    def lead_feed(self) -> AbstractAsyncContextManager[ChangeFeed | None]:
        """Become the one that publishes the log, for as long as this is open; None if another process is."""

    async def prune(self, ended_before: datetime, logged_before: datetime) -> int:
        """Forget consumers that ended, stumps of trees that were felled, log rows that were published, and
        answers that were kept, before these times; how many rows went.

        With its stump the shapes of a tree are forgotten, and the next one counts from the start again. What was sent
        for the old one was sent before it was felled: of a consumer that is not known it is refused as too old, and of
        one that is, mostly by its attempt. What is left: a swap, or the claim of a later attempt of a consumer that
        ended, is not asked its age; one that was under way for all this time and finds the new tree at just the shape
        it names, is judged by what is free. And a report that was under way for as long plants its tree again.
        """

    async def audit(self) -> tuple[str, ...]:
        """Every place where the books contradict themselves, as a sentence; none if they are right."""

    async def close(self) -> None: ...
