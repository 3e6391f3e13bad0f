"""Planted bugs in what placement stores: its statements on both databases, caches, change log, quotas, names and pruning."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from msgspec import structs

from bus.messages.placement import LogPosition
from kit.errors import Transient
from kit.times import now
from placement_worker import store_sql
from placement_worker.settings import FEED_ENTRIES
from placement_worker.store_sql import SqlPlacementStore, claims, log, postgres_claims, trees
from placement_worker.store_sql.log import SqlFeed
from placement_worker.store_sql.names import VocabularyCache
from placement_worker.store_sql.rows import NO_BASE, ClaimRows
from placement_worker.tables import consumers, feed
from tests.planted.replacing import PlantedBug, replaced


def holder_repeated() -> AbstractContextManager[None]:
    """A page begins with the row that the page before it ended with."""

    def planted(real: Any) -> Any:
        async def holders_of(self: Any, provider: Any, after: Any, limit: int) -> Any:
            page = await real(self, provider, after, limit)
            return await real(self, provider, UUID(int=after.int - 1), limit) if after and page else page

        return holders_of

    return replaced(SqlPlacementStore, "holders_of", planted)


def quota_repeated() -> AbstractContextManager[None]:
    """A page of quotas begins with the row that the page before it ended with."""

    def planted(real: Any) -> Any:
        async def quotas(self: Any, project: str, after: str, limit: int) -> Any:
            return await real(self, project, after[:-1], limit)

        return quotas

    return replaced(SqlPlacementStore, "quotas", planted)


def member_lost_between_pages() -> AbstractContextManager[None]:
    """A page of members names as the next one a row too far."""

    def planted(real: Any) -> Any:
        async def members_page(self: Any, after: int, limit: int) -> Any:
            page = await real(self, after, limit)
            return page if page.next is None else structs.replace(page, next=page.next + 1)

        return members_page

    return replaced(SqlPlacementStore, "members_page", planted)


def log_pruned_before_it_is_published() -> AbstractContextManager[None]:
    """The log forgets old entries, published or not."""

    def planted(real: Any) -> Any:
        def prune_log(connection: Any, logged_before: Any) -> int:
            published = connection.scalar(sa.select(feed.c.cursor))
            connection.execute(sa.update(feed).values(cursor=log.come_to(connection)))
            pruned: int = real(connection, logged_before)
            connection.execute(sa.update(feed).values(cursor=published))
            return pruned

        return prune_log

    return replaced(store_sql, "prune_log", planted)


def pruning_not_noted() -> AbstractContextManager[None]:
    """A reader that is behind the pruned part of the log reads the rest as if nothing were missing."""

    def planted(real: Any) -> Any:
        def prune_log(connection: Any, logged_before: Any) -> int:
            forgotten = connection.scalar(sa.select(feed.c.forgotten))
            pruned: int = real(connection, logged_before)
            connection.execute(sa.update(feed).values(forgotten=forgotten))
            return pruned

        return prune_log

    return replaced(store_sql, "prune_log", planted)


def old_leader_goes_on() -> AbstractContextManager[None]:
    """A process whose term is over does not notice it, and publishes beside the new leader."""

    def planted(real: Any) -> Any:
        async def mark(self: Any, position: int, cursor: str) -> None:
            try:
                await real(self, position, cursor)
            except Transient:
                self.published = LogPosition(term=self.published.term, position=position)
                self._cursor = cursor

        return mark

    return replaced(SqlFeed, "mark", planted)


def entry_passed_over() -> AbstractContextManager[None]:
    """A reading of the log that stopped at its limit is followed by one that begins an entry too late."""

    def planted(real: Any) -> Any:
        async def read(self: Any, entries_max: int = FEED_ENTRIES) -> Any:
            found, further = await real(self, entries_max), await real(self, entries_max + 1)
            return structs.replace(found, cursor=further.cursor) if further.is_cut else found

        return read

    return replaced(SqlFeed, "read", planted)


def leaving_not_logged() -> AbstractContextManager[None]:
    """Pictures keep members that have left their group."""
    return replaced(log, "body_of", lambda real: lambda entry: real(structs.replace(entry, left=())))


def inventory_as_it_was() -> AbstractContextManager[None]:
    """A provider's cached inventories are not read again after another process has changed them."""

    def planted(real: Any) -> Any:
        async def lock_rows(self: Any, numbers: Any, roots: Any) -> Any:
            rows = []
            for row in await real(self, numbers, roots):
                known = self._providers.by_number(row[0])
                base = row[2] if known is None or known.base == NO_BASE else known.base
                rows.append((*row[:2], base, *row[3:]))
            return rows

        return lock_rows

    return replaced(claims.ClaimLocks, "_lock_rows", planted)


def names_of_a_rollback_kept() -> AbstractContextManager[None]:
    """The numbers of new names are cached although their transaction was rolled back: other names get them later."""

    def planted(real: Any) -> Any:
        @contextmanager
        def begun(self: Any) -> Iterator[Any]:
            with real(self) as vocabulary:
                try:
                    yield vocabulary
                finally:
                    vocabulary.classes.committed()
                    vocabulary.traits.committed()

        return begun

    return replaced(VocabularyCache, "begun", planted)


def used_name_stays_deleted() -> AbstractContextManager[None]:
    """A name that is deleted at the moment when a provider begins to use it is in use, and does not exist."""
    return replaced(trees, "revive", lambda _real: lambda _connection, _table, _names: None)


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


def quotas_not_recounted() -> AbstractContextManager[None]:
    """A recount leaves the quotas that count wrong."""
    return replaced(store_sql, "recount_quotas", lambda _real: lambda _connection, _vocabulary: None)


def first_limit_not_noticed() -> AbstractContextManager[None]:
    """A process that knew no limit of a project goes on without it, and does not count what it grants."""
    return replaced(claims.ClaimQuotas, "check_last", lambda _real: lambda _self, _last: None)


def empty_groups_kept() -> AbstractContextManager[None]:
    """Groups without members stay in the table."""
    return replaced(store_sql.consumers, "prune_groups", lambda _real: lambda _connection: 0)


def pruning_waits_for_locks() -> AbstractContextManager[None]:
    """Pruning waits for consumers that a claim has locked, and may end in a deadlock with it."""

    def planted(real: Any) -> Any:
        def prune_ended(connection: Any, ended_before: Any) -> int:
            over = sa.select(consumers.c.id).where(consumers.c.ended_at < ended_before)
            connection.execute(over.with_for_update())
            pruned: int = real(connection, ended_before)
            return pruned

        return prune_ended

    return replaced(store_sql.consumers, "prune_ended", planted)


def tombstones_pruned_at_once() -> AbstractContextManager[None]:
    """A tree that is made again soon after its end counts its shapes from the start, and old claims fit them."""
    later = timedelta(hours=1)
    return replaced(
        store_sql,
        "prune_tombstones",
        lambda real: lambda connection, _before: real(connection, now() + later),
    )


def holders_not_audited() -> AbstractContextManager[None]:
    """The audit does not compare the list of a provider's holders."""

    def planted(real: Any) -> Any:
        return lambda connection, vocabulary: tuple(
            each for each in real(connection, vocabulary) if "as a holder" not in each
        )

    return replaced(store_sql, "audit", planted)


def holder_of_the_old_host() -> AbstractContextManager[None]:
    """A consumer that moves stays in the list of its old host's holders."""

    def planted(real: Any) -> Any:
        def holders(self: Any, kept: Any) -> Any:
            ended, begun = real(self, kept)
            moved = {self.consumer_ids[consumer] for consumer, _, after in kept.moved if after}
            return [each for each in ended if each[1] not in moved], begun

        return holders

    return replaced(ClaimRows, "holders", planted)


def lost_claim_granted() -> AbstractContextManager[None]:
    """A claim that was decided without locks is answered as granted, although another write came first and nothing was written."""

    def planted(real: Any) -> Any:
        async def write_at_once(*values: Any) -> bool:
            await real(*values)
            return True

        return write_at_once

    return replaced(postgres_claims, "write_at_once", planted)


BUGS: dict[str, PlantedBug] = {
    "a page of holders repeats the last row of the one before": holder_repeated,
    "a page of quotas repeats the last row of the one before": quota_repeated,
    "a member of a group is lost between two pages": member_lost_between_pages,
    "the log is pruned before it is published": log_pruned_before_it_is_published,
    "a pruned log is read as if it were whole": pruning_not_noted,
    "a leader publishes after its term": old_leader_goes_on,
    "an entry of the log is passed over between two readings": entry_passed_over,
    "a change is published without the members that leave": leaving_not_logged,
    "a claim is judged by an inventory as it was": inventory_as_it_was,
    "the names of a rollback stay known": names_of_a_rollback_kept,
    "a name deleted while it comes into use stays deleted": used_name_stays_deleted,
    "a report takes away an operator's traits": operators_traits_become_reported,
    "a recount leaves wrong quotas": quotas_not_recounted,
    "a first limit is not noticed by other processes": first_limit_not_noticed,
    "groups without members are kept for ever": empty_groups_kept,
    "pruning waits for claims that are under way": pruning_waits_for_locks,
    "the tombstone of a tree is pruned at once": tombstones_pruned_at_once,
    "the audit passes over holders": holders_not_audited,
    "a consumer that moved is listed at its old host": holder_of_the_old_host,
    "a claim that was not written is granted": lost_claim_granted,
}
