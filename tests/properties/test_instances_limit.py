"""Any claims, swaps and releases, in any batches: each host counts the consumers that live on it, and no claim exceeds the
limit that it names.
"""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bus.messages.placement import ClaimResources, SwapClaim
from engine.inventories import ProviderId
from engine.refusals import Claimed, DoesNotFit
from placement_worker.core.ledger import ClaimOrder
from tests.contracts.placement_orders import a_claim, a_host, a_release, a_share, a_swap, consumer, provider
from tests.contracts.store_client import StoreClient
from tests.properties.bounds import THOROUGH
from tests.stores_in_memory import MemoryPlacementStore

HOSTS = tuple(provider(f"host-{number}") for number in (1, 2))
WHO = tuple(consumer(f"vm-{number}") for number in range(4))
HEIRS = {who: consumer(f"cleanup of {who}") for who in WHO}
MIGRATIONS = {who: consumer(f"migration of {who}") for who in WHO}

hosts, who = st.sampled_from(HOSTS), st.sampled_from(WHO)
limits = st.sampled_from((0, 1, 1, 2))
attempts = st.integers(1, 2)


@st.composite
def orders(draw: st.DrawFn) -> ClaimOrder:
    one, attempt = draw(who), draw(attempts)
    share = a_share(draw(hosts), instances_max=draw(limits))
    match draw(st.sampled_from(("claim", "claim", "swap", "move", "back", "release", "release of an heir"))):
        case "claim":
            return a_claim(share, one, attempt)
        case "swap":
            heir = HEIRS[one] if draw(st.booleans()) else None
            return a_swap(share, one, attempt, attempt + 1, cleanup=heir)
        case "move":
            return a_swap(share, one, attempt, attempt + 1, migration=MIGRATIONS[one])
        case "back":
            return a_swap(share, one, attempt, attempt + 1, returns=MIGRATIONS[one])
        case "release":
            return a_release(one, attempt)
        case _:
            return a_release(draw(st.sampled_from((HEIRS, MIGRATIONS)))[one], attempt)


def batches() -> st.SearchStrategy[list[ClaimOrder]]:
    """Mostly single orders, since their effect can be checked."""
    return st.one_of(*[st.lists(orders(), min_size=1, max_size=size) for size in (1, 1, 3)])


met: Counter[str] = Counter()


@THOROUGH
@given(st.lists(batches(), min_size=6, max_size=16))
def search(played: list[list[ClaimOrder]]) -> None:
    asyncio.run(_play(played))


def test_each_host_counts_who_lives_on_it_and_nobody_is_added_beyond_the_limit() -> None:
    met.clear()
    search()
    # The generated worlds reach all these cases.
    assert (
        min(met[what] for what in ("claimed", "swapped", "full for a claim", "full for a swap", "moved")) > 5
    )


async def _play(played: list[list[ClaimOrder]]) -> None:
    client = StoreClient(MemoryPlacementStore())
    await client.report(*[a_host(f"host-{number}", VCPU=100) for number in (1, 2)])
    for batch in played:
        before = await _living(client)
        verdicts = await client.ask(*batch)
        # The audit counts the consumers of each host anew.
        assert await client.store.audit() == ()
        after = await _living(client)
        for order, verdict in zip(batch, verdicts, strict=True):
            if len(batch) == 1:
                _judge(order, verdict, before, after)


def _judge(
    order: ClaimOrder, verdict: object, before: dict[ProviderId, int], after: dict[ProviderId, int]
) -> None:
    """Check the effect of one order."""
    if not isinstance(order, ClaimResources | SwapClaim):
        assert all(after[host] <= before[host] for host in HOSTS)
        return
    share = order.share
    kind = "claim" if isinstance(order, ClaimResources) else "swap"
    if isinstance(verdict, Claimed):
        met["claimed" if kind == "claim" else "swapped"] += 1
        limit = max(share.instances_max, before[share.host])
        assert not share.instances_max or after[share.host] <= limit
        # A move holds a place on both hosts; on one host it holds one.
        if isinstance(order, SwapClaim) and order.heir and order.heir.type == "MIGRATION":
            assert sum(after.values()) - sum(before.values()) == (0 if after == before else 1)
            met["moved"] += 1
    elif isinstance(verdict, DoesNotFit):
        met[f"full for a {kind}"] += 1
        assert verdict.full is not None
        assert verdict.full.instances == before[share.host] >= share.instances_max > 0
        assert after == before


async def _living(client: StoreClient) -> dict[ProviderId, int]:
    states = await client.providers()
    return {host: states[host].consumers for host in HOSTS}
