"""Claims against an oracle: any orders, in any batches, end as if they had come one by one."""

import asyncio
import itertools
from collections import Counter

import pytest
from hypothesis import given

from bus.message import type_of
from bus.messages.placement import SwapClaim
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
from tests.properties.bounds import TIMEOUT_S, not_reached, times
from tests.properties.oracle import Oracle, PlainProvider, Said
from tests.properties.worlds import CELLS, CONSUMERS, PARENTS, Restock, World, report_of, worlds
from tests.simulation.write_rules import summed
from tests.stores_in_memory import MemoryPlacementStore


@pytest.mark.timeout(TIMEOUT_S)
def test_every_sequence_in_any_batches_ends_as_the_oracle_says() -> None:
    met: Counter[tuple[str, object]] = Counter()

    @times(3)
    @given(worlds())
    def search(world: World) -> None:
        met.update(asyncio.run(compare(world)))

    search()
    said_of_shares = ("claimed", "already claimed", "does not fit", "moved", "superseded", "not allowed")
    verdicts = (
        *itertools.product(("claim", "swap"), said_of_shares),
        *itertools.product(("release",), ("released", "superseded", "not allowed")),
        ("claim", "too old"),
        ("way back", False),
        ("way back", True),
    )
    assert not_reached(verdicts, met) == []


async def compare(world: World) -> list[tuple[str, object]]:
    """Run a world on placement and on the oracle; returns the verdicts by kind of order."""
    client, oracle = StoreClient(MemoryPlacementStore()), an_oracle(world)
    await client.report(*[report_of(which, world.shelves[which]) for which in PARENTS])
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


def an_oracle(world: World) -> Oracle:
    """An oracle with the same providers, all new and unused."""
    return Oracle(
        providers={
            which: PlainProvider(
                root=PARENTS[which] or which,
                cell=CELLS[which],
                stocks=dict(holds),
                generation=1,
            )
            for which, holds in world.shelves.items()
        },
        # The tree of two providers was reported in two parts.
        shapes={which: 1 + list(PARENTS.values()).count(which) for which in PARENTS if not PARENTS[which]},
        now=NOON,
        horizon=HORIZON,
    )


async def restock(client: StoreClient, oracle: Oracle, restocked: Restock) -> None:
    standing = oracle.providers[restocked.provider]
    if standing.stocks[restocked.resource] != restocked.inventory:
        standing.stocks[restocked.resource] = restocked.inventory
        standing.generation += 1
        oracle.shapes[standing.root] += 1
    await client.report(report_of(restocked.provider, standing.stocks))


def plainly(verdict: ClaimVerdict) -> Said:  # noqa: C901, PLR0911 - one for each kind of verdict
    """A verdict in the oracle's form."""
    match verdict:
        case Claimed():
            return ("claimed",)
        case AlreadyClaimed(attempt=attempt, share=share):
            return ("already claimed", attempt, share.host, frozenset(summed(share.amounts).items()))
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
    assert {
        (which, resource): inventory.used
        for which, state in states.items()
        for resource, inventory in state.inventories.items()
    } == {
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
        assert summed(ledger.held.get(who.int, ())) == (past.holds if past else {})
        assert (row.attempt, row.generation, row.ended_at is not None, row.host) == (
            (past.attempt, past.generation, past.ended, past.host) if past else (0, 0, False, None)
        )
