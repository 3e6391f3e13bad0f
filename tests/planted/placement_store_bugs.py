"""Planted bugs in what placement stores: its statements on both databases, caches, change log, quotas, names and pruning."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from msgspec import structs

from bus.messages.placement import LogPosition
from kit.clock import now
from kit.errors import Transient
from placement_worker import store_sql
from placement_worker.settings import FEED_ENTRIES
from placement_worker.store_sql import PlacementStore, claims, log, postgres_claims, trees
from placement_worker.store_sql.log import ChangeFeed
from placement_worker.store_sql.names import VocabularyCache
from placement_worker.store_sql.rows import NO_BASE, ClaimRows
from placement_worker.tables import consumers, feed
from tests.planted.replacing import planted, planted_as, planted_by, replaced


# A page begins with the row that the page before it ended with.
@planted("a page of holders repeats the last row of the one before", PlacementStore, "holders_of")
async def holder_repeated(real: Any, self: Any, provider: Any, after: Any, limit: int) -> Any:
    page = await real(self, provider, after, limit)
    return await real(self, provider, UUID(int=after.int - 1), limit) if after and page else page


# A page of quotas begins with the row that the page before it ended with.
@planted("a page of quotas repeats the last row of the one before", PlacementStore, "quotas")
async def quota_repeated(real: Any, self: Any, project: str, after: str, limit: int) -> Any:
    return await real(self, project, after[:-1], limit)


# A page of members names as the next one a row too far.
@planted("a member of a group is lost between two pages", PlacementStore, "members_page", harm="lost")
async def member_lost_between_pages(real: Any, self: Any, after: int, limit: int) -> Any:
    page = await real(self, after, limit)
    return page if page.next is None else structs.replace(page, next=page.next + 1)


# The log forgets old entries, published or not.
@planted("the log is pruned before it is published", store_sql, "prune_log", harm="lost")
def log_pruned_before_it_is_published(real: Any, connection: Any, logged_before: Any, **_: Any) -> int:
    published = connection.scalar(sa.select(feed.c.cursor))
    connection.execute(sa.update(feed).values(cursor=log.come_to(connection)))
    pruned: int = real(connection, logged_before)
    connection.execute(sa.update(feed).values(cursor=published))
    return pruned


# An HTTP API takes the log for one that nobody publishes, beside the worker that does.
@planted("the log is pruned beside its publisher", store_sql, "prune_log", harm="lost")
def log_pruned_beside_its_publisher(real: Any, connection: Any, logged_before: Any, **_: Any) -> Any:
    return real(connection, logged_before, is_published=False)


# A reader that is far behind gets the first changes since its cursor, and takes them for all.
@planted("of many changes since a cursor only the first are told", log, "read_log", harm="lost")
async def only_first_changes_told(real: Any, transaction: Any, since: str, entries_max: Any = None) -> Any:
    read = await real(transaction, since, entries_max or vars(log)["CHANGES_MAX"])
    return read if entries_max or read is None else structs.replace(read, is_cut=False)


# A reader that is behind the pruned part of the log reads the rest as if nothing were missing.
@planted("a pruned log is read as if it were whole", store_sql, "prune_log", harm="lost")
def pruning_not_noted(real: Any, connection: Any, logged_before: Any, **how: Any) -> int:
    forgotten = connection.scalar(sa.select(feed.c.forgotten))
    pruned: int = real(connection, logged_before, **how)
    connection.execute(sa.update(feed).values(forgotten=forgotten))
    return pruned


# A process whose term is over does not notice it, and publishes beside the new leader.
@planted("a leader publishes after its term", ChangeFeed, "mark", harm="doubled")
async def old_leader_goes_on(real: Any, self: Any, position: int, cursor: str) -> None:
    try:
        await real(self, position, cursor)
    except Transient:
        self.published = LogPosition(term=self.published.term, position=position)
        self._cursor = cursor


# A reading of the log that stopped at its limit is followed by one that begins an entry too late.
@planted("an entry of the log is passed over between two readings", ChangeFeed, "read", harm="lost")
async def entry_passed_over(real: Any, self: Any, entries_max: int = FEED_ENTRIES) -> Any:
    found, further = await real(self, entries_max), await real(self, entries_max + 1)
    return structs.replace(found, cursor=further.cursor) if further.is_cut else found


# Pictures keep members that have left their group.
planted_by("a change is published without the members that leave", log, "body_of", harm="lost")(
    lambda real: lambda entry: real(structs.replace(entry, left=()))
)


# A provider's cached inventories are not read again after another process has changed them.
@planted("a claim is judged by an inventory as it was", claims.ClaimLocks, "_lock_rows", harm="overbooked")
async def inventory_as_it_was(real: Any, self: Any, numbers: Any, roots: Any) -> Any:
    rows = []
    for row in await real(self, numbers, roots):
        known = self._providers.by_number(row[0])
        base = row[2] if known is None or known.base == NO_BASE else known.base
        rows.append((*row[:2], base, *row[3:]))
    return rows


# The numbers of new names are cached although their transaction was rolled back: other names get them later.
@planted_by("the names of a rollback stay known", VocabularyCache, "begun", harm="lost")
def names_of_a_rollback_kept(real: Any) -> Any:
    @contextmanager
    def begun(self: Any) -> Iterator[Any]:
        with real(self) as vocabulary:
            try:
                yield vocabulary
            finally:
                vocabulary.classes.committed()
                vocabulary.traits.committed()

    return begun


# A name that is deleted at the moment when a provider begins to use it is in use, and does not exist.
planted_by("a name deleted while it comes into use stays deleted", trees, "revive", harm="lost")(
    lambda _real: lambda _connection, _table, _names: None
)


@planted_as("a report takes away an operator's traits", harm="destroyed")
def operators_traits_become_reported() -> AbstractContextManager[None]:
    """An operator's traits are stored as a reporter's, and the next report takes them away."""

    def reported(book: Any) -> Any:
        return structs.replace(book, traits=book.traits | book.operator_traits, operator_traits=frozenset())

    def planted(real: Any) -> Any:
        async def write_trees(transaction: Any, vocabulary: Any, changes: Any, locked: Any) -> Any:
            trees = tuple(
                structs.replace(tree, providers={one: reported(book) for one, book in tree.providers.items()})
                for tree in changes.trees
            )
            return await real(transaction, vocabulary, structs.replace(changes, trees=trees), locked)

        return write_trees

    return replaced(store_sql, "write_trees", planted)


# A recount leaves the quotas that count wrong.
planted_by("a recount leaves wrong quotas", store_sql, "recount_quotas", harm="overbooked")(
    lambda _real: lambda _connection, _vocabulary: None
)


# A process that knew no limit of a project goes on without it, and does not count what it grants.
planted_by(
    "a first limit is not noticed by other processes", claims.ClaimQuotas, "check_last", harm="overbooked"
)(lambda _real: lambda _self, _last: None)


# Groups without members stay in the table.
planted_by("groups without members are kept for ever", store_sql.consumers, "prune_groups")(
    lambda _real: lambda _connection: 0
)


# Pruning waits for consumers that a claim has locked, and may end in a deadlock with it.
@planted("pruning waits for claims that are under way", store_sql.consumers, "prune_ended")
def pruning_waits_for_locks(real: Any, connection: Any, ended_before: Any) -> int:
    over = sa.select(consumers.c.id).where(consumers.c.ended_at < ended_before)
    connection.execute(over.with_for_update())
    pruned: int = real(connection, ended_before)
    return pruned


@planted_as("the tombstone of a tree is pruned at once", harm="overbooked")
def tombstones_pruned_at_once() -> AbstractContextManager[None]:
    """A tree that is made again soon after its end counts its shapes from the start, and old claims fit them."""
    later = timedelta(hours=1)
    return replaced(
        store_sql,
        "prune_tombstones",
        lambda real: lambda connection, _before: real(connection, now() + later),
    )


# The audit does not compare the list of a provider's holders.
planted_by("the audit passes over holders", store_sql, "audit")(
    lambda real: (
        lambda connection, vocabulary: tuple(
            each for each in real(connection, vocabulary) if "as a holder" not in each
        )
    )
)


# A consumer that moves stays in the list of its old host's holders.
@planted("a consumer that moved is listed at its old host", ClaimRows, "holders")
def holder_of_the_old_host(real: Any, self: Any, kept: Any) -> Any:
    ended, begun = real(self, kept)
    moved = {self.consumer_ids[consumer] for consumer, _, after in kept.moved if after}
    return [each for each in ended if each[1] not in moved], begun


# A claim that was decided without locks is answered as granted, although another write came first and nothing was written.
@planted("a claim that was not written is granted", postgres_claims, "write_at_once", harm="overbooked")
async def lost_claim_granted(real: Any, *values: Any) -> bool:
    await real(*values)
    return True
