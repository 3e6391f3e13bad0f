"""Claims against an oracle: any orders, in any batches, end as if they had come one by one."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings

from bus.message import type_of
from bus.messages.placement import ReleaseClaim, SwapClaim
from engine.inventories import ProviderId, ProviderState, ReportedInventory, ResourceAmount, capacity_of
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    DoesNotFit,
    GroupRefused,
    NotAllowed,
    QuotaExceeded,
    Released,
    ShapeMoved,
    Superseded,
    TooOld,
)
from tests.contracts.placement_orders import HORIZON, NOON, a_release
from tests.contracts.store_client import StoreClient
from tests.properties.bounds import BOUNDED, THOROUGH
from tests.properties.oracle import Amounts, Oracle, PlainInventory, PlainProvider, Said, minus, summed
from tests.properties.worlds import CELLS, CONSUMERS, PARENTS, Restock, World, report_of, worlds
from tests.stores_in_memory import MemoryPlacementStore

Usage = dict[tuple[ProviderId, str], int]


def test_every_sequence_in_any_batches_ends_as_the_oracle_says() -> None:
    met: Counter[tuple[str, object]] = Counter()

    @settings(THOROUGH, max_examples=600)
    @given(worlds())
    def search(world: World) -> None:
        met.update(asyncio.run(compare(world)))

    search()
    # The generated worlds reach all these verdicts.
    said_of_shares = ("claimed", "already claimed", "does not fit", "moved", "superseded", "not allowed")
    assert set(met) >= {
        *itertools.product(("claim", "swap"), said_of_shares),
        *itertools.product(("release",), ("released", "superseded", "not allowed")),
        ("claim", "too old"),
        ("way back", False),
        ("way back", True),
    }


@BOUNDED
@given(worlds())
def test_what_is_promised_of_capacity_and_holdings_is_kept(world: World) -> None:
    async def scenario() -> None:
        client = await a_client(world)
        shelves = {which: dict(holds) for which, holds in world.shelves.items()}
        for batch in world.batches:
            before = usage(await client.providers())
            if isinstance(batch, Restock):
                shelves[batch.provider][batch.resource] = batch.inventory
                await client.report(report_of(batch.provider, shelves[batch.provider]))
            else:
                await client.judge(batch)
            after = await client.providers()
            assert_nothing_is_added_beyond_capacity(before, after)
            assert await client.store.audit() == ()
            await assert_everyone_holds_one_share_that_was_asked_for(client, world)

    asyncio.run(scenario())


@BOUNDED
@given(worlds())
def test_what_was_granted_once_takes_nothing_when_it_comes_again(world: World) -> None:
    async def scenario() -> None:
        client = await a_client(world)
        for batch in world.batches:
            if isinstance(batch, Restock):
                continue
            said = await client.judge(batch)
            granted = [asked for asked, verdict in zip(batch, said, strict=True) if verdict == Claimed()]
            before = await client.providers()
            assert Claimed() not in await client.judge(granted)
            assert await client.providers() == before

    asyncio.run(scenario())


async def compare(world: World) -> list[tuple[str, object]]:
    """Run a world on placement and on the oracle; returns the verdicts by kind of order."""
    client, oracle = await a_client(world), an_oracle(world)
    met: list[tuple[str, object]] = []
    async with client.store.lead_feed() as feed:
        assert feed is not None
        for batch in world.batches:
            if isinstance(batch, Restock):
                await restock(client, oracle, batch)
                continue
            said = [plainly(verdict) for verdict in await client.judge(batch)]
            assert said == [oracle.answer(asked) for asked in batch]
            await assert_same_books(client, oracle)
            met += [(type_of(asked.order), words[0]) for asked, words in zip(batch, said, strict=True)]
            met += [
                ("way back", asked.order.heir is not None)
                for asked, words in zip(batch, said, strict=True)
                if isinstance(asked.order, SwapClaim) and asked.order.returns and words == ("claimed",)
            ]
        changes = await feed.read()
    assert [(holder.consumer, holder.attempt) for holder in changes.claimed] == oracle.claimed
    assert [(holder.consumer, holder.attempt) for holder in changes.ended] == oracle.ended
    return met


async def a_client(world: World) -> StoreClient:
    client = StoreClient(MemoryPlacementStore())
    await client.report(*[report_of(which, world.shelves[which]) for which in PARENTS])
    return client


def an_oracle(world: World) -> Oracle:
    """An oracle with the same providers, all new and unused."""
    return Oracle(
        providers={
            which: PlainProvider(
                root=PARENTS[which] or which,
                cell=CELLS[which],
                stocks={resource: plain_inventory(inventory) for resource, inventory in holds.items()},
                generation=1,
            )
            for which, holds in world.shelves.items()
        },
        # The tree of two providers was reported in two parts.
        shapes={which: 1 + list(PARENTS.values()).count(which) for which in PARENTS if not PARENTS[which]},
        now=NOON,
        horizon=HORIZON,
    )


def plain_inventory(inventory: ReportedInventory) -> PlainInventory:
    return PlainInventory(
        total=inventory.total,
        reserved=inventory.reserved,
        ratio=inventory.allocation_ratio,
        min_unit=inventory.min_unit,
        max_unit=inventory.max_unit,
        step_size=inventory.step_size,
    )


async def restock(client: StoreClient, oracle: Oracle, restocked: Restock) -> None:
    standing = oracle.providers[restocked.provider]
    new = plain_inventory(restocked.inventory)
    if standing.stocks[restocked.resource] != new:
        standing.stocks[restocked.resource] = new
        standing.generation += 1
        oracle.shapes[standing.root] += 1
    holds = {
        resource: ReportedInventory(
            total=stock.total,
            reserved=stock.reserved,
            min_unit=stock.min_unit,
            max_unit=stock.max_unit,
            step_size=stock.step_size,
            allocation_ratio=stock.ratio,
        )
        for resource, stock in standing.stocks.items()
    }
    await client.report(report_of(restocked.provider, holds))


def plainly(verdict: ClaimVerdict) -> Said:  # noqa: C901, PLR0911 - one for each kind of verdict
    """A verdict in the oracle's form."""
    match verdict:
        case Claimed():
            return ("claimed",)
        case AlreadyClaimed(attempt=attempt, share=share):
            return ("already claimed", attempt, share.host, frozenset(summed(share).items()))
        case Superseded(attempt=attempt, ended=ended):
            return ("superseded", attempt, ended)
        case Released(freed=freed):
            return ("released", freed)
        case TooOld(horizon_s=horizon_s):
            return ("too old", horizon_s)
        case NotAllowed(field=field):
            return ("not allowed", field)
        case GroupRefused(group=group, host=host, members=members):
            return ("group refused", group, host, frozenset(members))
        case QuotaExceeded(over=over):
            return ("over quota", *[(each.name, each.limit, each.used, each.asked) for each in over])
        case ShapeMoved(roots=roots, gone=gone):
            return ("moved", frozenset(roots), frozenset(gone))
        case DoesNotFit(shortfalls=shortfalls):
            return (
                "does not fit",
                *[
                    (short.provider, short.resource, short.rule, short.asked, short.free, short.bound)
                    for short in shortfalls
                ],
            )


async def assert_same_books(client: StoreClient, oracle: Oracle) -> None:
    states = await client.providers()
    assert usage(states) == {
        (which, resource): oracle.used(which, resource)
        for which, standing in oracle.providers.items()
        for resource in standing.stocks
    }
    assert {which: state.generation for which, state in states.items()} == {
        which: standing.generation for which, standing in oracle.providers.items()
    }
    ledger = await client.ledger(*[a_release(who) for who in CONSUMERS])
    for who in CONSUMERS:
        row, past = ledger.consumers[who.int], oracle.pasts.get(who)
        assert total(ledger.held.get(who.int, ())) == (past.holds if past else {})
        assert (row.attempt, row.generation, row.ended_at is not None, row.host) == (
            (past.attempt, past.generation, past.ended, past.host) if past else (0, 0, False, None)
        )


def assert_nothing_is_added_beyond_capacity(before: Usage, after: dict[ProviderId, ProviderState]) -> None:
    for which, state in after.items():
        for resource, inventory in state.inventories.items():
            assert inventory.used <= max(capacity_of(inventory), before[which, resource])


async def assert_everyone_holds_one_share_that_was_asked_for(client: StoreClient, world: World) -> None:
    ledger = await client.ledger(*[a_release(who) for who in CONSUMERS])
    asked = [
        (asked.order.share.host, summed(asked.order.share))
        for batch in world.batches
        if not isinstance(batch, Restock)
        for asked in batch
        if not isinstance(asked.order, ReleaseClaim)
    ]
    for who, held in ledger.held.items():
        row = ledger.consumers[who]
        if row.type == "INSTANCE":
            assert (row.host, total(held)) in asked
        else:
            # A cleanup or a migration has at most what an instance had.
            assert any(not minus(total(held), share) for _, share in asked)


def usage(states: dict[ProviderId, ProviderState]) -> Usage:
    return {
        (which, resource): inventory.used
        for which, state in states.items()
        for resource, inventory in state.inventories.items()
    }


def total(held: Sequence[ResourceAmount]) -> Amounts:
    return {(amount.provider, amount.resource): amount.amount for amount in held}
