"""A client that brings orders and reports to a store as placement's handlers do, one transaction a batch, and reads them back."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Protocol, TypeVar

from bus.messages.audit import MendConsumer
from bus.messages.books import WriteVerdict
from bus.messages.placement import ReportInventory, ReportVerdict, SnapshotPage
from engine.inventories import ConsumerId, ProviderId, ProviderState, ResourceAmount
from engine.refusals import ClaimVerdict
from kit.errors import Transient
from placement_worker.core.allocation_writes import decide_mends, keys_of_mends
from placement_worker.core.claims import decide_claims, keys_of_orders
from placement_worker.core.ledger import BatchDecision, ClaimChanges, ClaimOrder, Consumer, Ledger, Sent
from placement_worker.core.reports import decide_reports, keys_of_reports
from placement_worker.store_sql import PlacementStore
from placement_worker.store_sql.log import ChangeFeed
from tests.contracts.placement_orders import HORIZON, NOON, VOCABULARY, a_release
from tests.running import once

TRIES_MAX = 100
ClaimDecision = BatchDecision[ClaimVerdict, ClaimChanges]


class Page(Protocol):
    @property
    def next(self) -> int | None: ...


P = TypeVar("P", bound=Page)


class StoreClient:
    def __init__(self, store: PlacementStore) -> None:
        self.store = store

    async def ask(self, *orders: ClaimOrder, now: datetime = NOON) -> tuple[ClaimVerdict, ...]:
        """All in one batch, from a sender that may act for all cells."""
        return await self.judge([Sent(order) for order in orders], now)

    async def judge(
        self, asked: Sequence[Sent[ClaimOrder]], now: datetime = NOON
    ) -> tuple[ClaimVerdict, ...]:
        return (await self.decide(asked, now)).verdicts

    async def decide(self, asked: Sequence[Sent[ClaimOrder]], now: datetime = NOON) -> ClaimDecision:
        async with self.store.transaction() as tx:
            ledger = await tx.lock_claims(keys_of_orders([one.order for one in asked]))
            decision = decide_claims(ledger, asked, now, HORIZON)
            await tx.write_claims(decision.changes)
        return decision

    async def decide_among_others(self, orders: Sequence[ClaimOrder]) -> ClaimDecision:
        """A batch that met others is tried again, as a worker does."""
        for _ in range(TRIES_MAX):
            with suppress(Transient):
                return await self.decide([Sent(order) for order in orders])
        raise AssertionError(f"no success in {TRIES_MAX} tries")

    async def ask_one(self, order: ClaimOrder, now: datetime = NOON) -> ClaimVerdict:
        (verdict,) = await self.ask(order, now=now)
        return verdict

    async def report(self, *reports: ReportInventory) -> tuple[ReportVerdict, ...]:
        """All in one batch."""
        async with self.store.transaction() as tx:
            forest = await tx.lock_trees(keys_of_reports(reports))
            decision = decide_reports(forest, [Sent(report) for report in reports], VOCABULARY)
            await tx.write_trees(decision.changes)
        return decision.verdicts

    async def report_one(self, report: ReportInventory) -> ReportVerdict:
        (verdict,) = await self.report(report)
        return verdict

    async def mend(self, *mends: MendConsumer) -> tuple[WriteVerdict, ...]:
        async with self.store.transaction() as tx:
            decision = decide_mends(await tx.lock_claims(keys_of_mends(mends)), mends, VOCABULARY, NOON)
            await tx.write_claims(decision.changes)
        return decision.verdicts

    async def recount(self) -> None:
        await once(self.store.transaction, lambda tx: tx.recount())

    async def ledger(self, *orders: ClaimOrder) -> Ledger:
        """The ledger that these orders would be judged by."""
        async with self.store.transaction() as tx:
            ledger = await tx.lock_claims(keys_of_orders(orders))
            # Rows made for consumers that were only looked at are deleted again.
            await tx.write_claims(decide_claims(ledger, (), NOON, HORIZON).changes)
        return ledger

    async def row(self, who: ConsumerId) -> Consumer:
        """The consumer's row; one that was never seen is at attempt 0."""
        return (await self.ledger(a_release(who))).consumers[who.int]

    async def held(self, who: ConsumerId) -> frozenset[ResourceAmount]:
        return frozenset((await self.ledger(a_release(who))).held.get(who.int, ()))

    async def providers(self, page: int = 1000) -> dict[ProviderId, ProviderState]:
        pages = await pages_of(lambda after: self.store.snapshot_page(after, page))
        return {state.id: state for each in pages for state in each.providers}

    async def changes(self, since: str, after: int = 0, limit: int = 10) -> SnapshotPage:
        """Since a cursor that the log has not forgotten."""
        page = await self.store.changes_page(since, after, limit)
        assert page is not None
        return page

    async def provider(self, which: ProviderId) -> ProviderState:
        return (await self.providers())[which]

    async def used(self, which: ProviderId) -> dict[str, int]:
        return used(await self.provider(which))


@asynccontextmanager
async def leading(store: PlacementStore) -> AsyncIterator[ChangeFeed]:
    """The feed of the one leader, which has read everything so far."""
    async with store.lead_feed() as feed:
        assert feed is not None
        await feed.mark(1, (await feed.read()).cursor)
        yield feed


async def pages_of(read: Callable[[int], Awaitable[P]]) -> list[P]:
    """All pages, each of them read behind the one before it."""
    pages: list[P] = []
    after: int | None = 0
    while after is not None:
        pages.append(await read(after))
        after = pages[-1].next
    return pages


def used(state: ProviderState) -> dict[str, int]:
    return {resource: inventory.used for resource, inventory in state.inventories.items()}


def names(states: Iterable[ProviderState]) -> list[str]:
    return [state.name for state in states]
