"""Six connections claim, swap and release members of two server groups at once: no group ever has two members where its
policy allows one.

The trap is the same as for capacity: members that a transaction reads before it has the lock.
"""

import random
from collections import Counter

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from engine.inventories import GroupId, ServerGroup
from engine.refusals import Claimed, GroupRefused
from placement_worker import tables
from placement_worker.core.ledger import ClaimOrder
from placement_worker.store_sql import PlacementStore
from tests.adversity.stress import WORKERS, Stress, at_once, seen_in
from tests.contracts.placement_orders import (
    a_claim,
    a_host,
    a_release,
    a_share,
    a_swap,
    amounts,
    an_id,
    consumer,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.running import closing

pytestmark = pytest.mark.postgresql

BATCHES_PER_WORKER = 40
BATCH_SIZES = (1, 3, 8)
HOSTS = [f"host-{number}" for number in range(10)]
APART = ServerGroup(id=GroupId(an_id("apart")), policy="anti-affinity")
TOGETHER = ServerGroup(id=GroupId(an_id("together")), policy="affinity")
MEMBERS = {consumer(f"{group.policy} {number}"): group for group in (APART, TOGETHER) for number in range(12)}


async def test_groups_are_kept_while_six_connections_claim_swap_and_release(url: str) -> None:
    run = Stress(MEMBERS)
    async with closing(PlacementStore(url, pool_size=WORKERS)) as (store,):
        client = StoreClient(store)
        await client.report(*[a_host(name, VCPU=50) for name in HOSTS])

        async def work(_: int, chance: random.Random) -> None:
            for _ in range(BATCHES_PER_WORKER):
                orders = [_any_order(run, chance) for _ in range(chance.choice(BATCH_SIZES))]
                for order, verdict in zip(orders, (await run.decide(client, orders)).verdicts, strict=True):
                    run.verdicts["swapped"] += hasattr(order, "held_attempt") and isinstance(verdict, Claimed)
                    if isinstance(verdict, GroupRefused) and not verdict.members:
                        run.faults.append(f"{verdict} names no member")
            # Other workers go on meanwhile.
            run.faults += await seen_in(url, _wrong)

        await at_once(work)
        assert run.faults == []
        assert await store.audit() == ()
    run.has_met("Claimed", "GroupRefused", "Released", "AlreadyClaimed", "swapped")


HEIRS = ("cleanup", "migration")


def _any_order(run: Stress, chance: random.Random) -> ClaimOrder:
    who = chance.choice(list(MEMBERS))
    host, attempt = provider(chance.choice(HOSTS)), run.attempts[who]
    share = a_share(host, amounts(host, VCPU=1))
    match chance.random():
        case fate if fate < 0.5:
            run.attempts[who] = attempt = attempt + chance.randrange(2)
            return a_claim(share, who, attempt, group=MEMBERS[who])
        case fate if fate < 0.75:
            run.attempts[who] = attempt + 1
            beside = consumer(f"{chance.choice(HEIRS)} of {who}")
            kind = chance.random()
            return a_swap(
                share,
                who,
                attempt,
                attempt + 1,
                cleanup=beside if kind < 0.2 else None,
                migration=beside if 0.2 <= kind < 0.5 else None,
                returns=beside if kind >= 0.7 else None,
                group=MEMBERS[who],
            )
        case fate if fate < 0.85:
            return a_release(consumer(f"{chance.choice(HEIRS)} of {who}"), max(attempt - 1, 1))
        case _:
            return a_release(who, attempt)


def _wrong(connection: Connection) -> list[str]:
    columns = tables.consumers.c
    rows = connection.execute(sa.select(columns.server_group, columns.host, columns.held, columns.type)).all()
    living = [(row.server_group, row.host) for row in rows if row.server_group and row.held != "{}"]
    apart = Counter(host for group, host in living if group == APART.id)
    # A migration is where its instance may come back to.
    together = {
        row.host
        for row in rows
        if row.server_group == TOGETHER.id and row.type != "MIGRATION" and row.held != "{}"
    }
    return [
        *(f"{host} has {count} members that are kept apart" for host, count in apart.items() if count > 1),
        *([f"members that are kept together are on {together}"] if len(together) > 1 else []),
    ]
