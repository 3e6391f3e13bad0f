"""Six connections claim for one project on PostgreSQL while an operator gives it a limit, changes it, and takes it away.

Whatever they meet, the limit holds at every commit, and the quota counts what is held. One test plants a fault that would break
this, to show that it is noticed.
"""

import asyncio
import random

import pytest
import sqlalchemy as sa

from bus.messages.books import SetQuota
from engine.inventories import INSTANCES
from engine.refusals import QuotaExceeded
from kit.errors import Transient
from placement_worker.admin_writes import write_quotas
from placement_worker.core.ledger import ClaimOrder
from placement_worker.store_sql import PlacementStore, consumers
from tests.adversity.stress import WORKERS, Stress, at_once
from tests.contracts.placement_orders import (
    NOON,
    VOCABULARY,
    a_claim,
    a_host,
    a_release,
    a_share,
    a_swap,
    amounts,
    consumer,
    provider,
)
from tests.contracts.sql_stores import administer, as_owner, rows_of
from tests.contracts.store_client import StoreClient
from tests.running import closing

pytestmark = pytest.mark.postgresql

BATCHES, BATCH_SIZES = 60, (1, 5, 20)
HOSTS = [f"host-{number}" for number in range(6)]
CONSUMERS = [consumer(f"web-{number}") for number in range(120)]
LIMIT = 40
# How often a claim must be under way just when the first limit comes.
TRIES = 6

# At each commit that brings the project an instance: how many it has, and its limit then. Transactions look one after another.
# A row that was inserted for a claim, and deleted again when that was refused, brings nothing.
_WATCH = """
CREATE TABLE looks (instances bigint, allowed bigint);
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF (TG_OP = 'INSERT' OR OLD.held = '{}') AND EXISTS (SELECT 1 FROM consumers WHERE id = NEW.id AND held <> '{}') THEN
        PERFORM pg_advisory_xact_lock(1);
        INSERT INTO looks SELECT count(*), (SELECT (limits::json ->> 'instances')::bigint FROM quotas)
            FROM consumers WHERE type = 'INSTANCE' AND held <> '{}';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER watched AFTER INSERT OR UPDATE ON consumers DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION look();
"""


class Run(Stress):
    has_its_limits = False


async def test_a_limit_that_comes_while_six_connections_claim_holds_and_counts_right(url: str) -> None:
    run = await stressed(url)

    assert run.faults == []
    run.has_met("Claimed", "QuotaExceeded", "Released")


async def test_a_first_limit_that_waits_for_no_claims_would_be_noticed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "_COUNTING", (sa.text("SELECT 1"),))

    for _ in range(TRIES):
        if (await stressed(url)).faults:
            return
    pytest.fail(f"not noticed in {TRIES} runs")


async def stressed(url: str) -> Run:
    run = Run(CONSUMERS)
    stores = [PlacementStore(url, pool_size=2) for _ in range(WORKERS)]
    await administer(
        "TRUNCATE consumers, holders, quotas; DROP TABLE IF EXISTS looks CASCADE",
        "DROP FUNCTION IF EXISTS look CASCADE",
        "UPDATE providers SET used = '{}', consumers = 0",
        _WATCH,
        url=as_owner(url),
    )
    async with closing(*stores):
        await StoreClient(stores[0]).report(*[a_host(name, VCPU=10_000) for name in HOSTS])
        await at_once(
            lambda number, chance: work(StoreClient(stores[number]), run, chance), operate(stores[0], run)
        )
        over = "SELECT max(instances), count(*) FROM looks WHERE instances > allowed"
        ((most, count),) = await rows_of(as_owner(url), over)
        if count:
            run.faults.append(f"{count} commits have up to {most} instances, of {LIMIT}")
        run.faults += [each for each in await stores[0].audit() if "quota" in each]
    return run


async def operate(store: PlacementStore, run: Run) -> None:
    for limit in (LIMIT, LIMIT, None, LIMIT, None, LIMIT):
        await asyncio.sleep(0.15)
        order = SetQuota(project="shop", limits={INSTANCES: limit})
        while True:
            try:
                async with store.transaction() as tx:
                    await write_quotas(tx, [order], VOCABULARY, NOON)
            except Transient:
                continue
            break
    run.has_its_limits = True


async def work(client: StoreClient, run: Run, chance: random.Random) -> None:
    # The last limit counts anew what is used. So on a fast machine, too, much must be claimed after it.
    left = BATCHES
    while left:
        left -= run.has_its_limits
        orders = [an_order(run, chance) for _ in range(chance.choice(BATCH_SIZES))]
        decision = await run.decide(client, orders)
        assert all(
            verdict.project == "shop" for verdict in decision.verdicts if isinstance(verdict, QuotaExceeded)
        )


def an_order(run: Run, chance: random.Random) -> ClaimOrder:
    who, host = chance.choice(CONSUMERS), provider(chance.choice(HOSTS))
    share = a_share(host, amounts(host, VCPU=chance.randint(1, 4)), {host: 1})
    attempt = run.attempts[who]
    match chance.random():
        case fate if fate < 0.5:
            run.attempts[who] = attempt + 1
            return a_claim(share, who, attempt + 1)
        case fate if fate < 0.65:
            run.attempts[who] = attempt + 1
            return a_swap(share, who, attempt, attempt + 1)
        case _:
            return a_release(who, attempt)
