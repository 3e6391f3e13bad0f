"""A claim that comes alone is written by one statement, without locks. It must leave the same rows as a locked claim, also while
others write.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bus.messages.books import (
    ConsumerMoved,
    Done,
    ProviderWritten,
    SetInventories,
    SetQuota,
    SetTraits,
    UpdateProvider,
    WriteVerdict,
)
from engine.inventories import ProviderId
from engine.refusals import DoesNotFit
from placement_worker.store_sql import PlacementStore, postgres_claims
from tests.contracts.admin_client import AdminClient, allocations, holding
from tests.contracts.placement_orders import amounts, consumer, inventories, provider
from tests.contracts.sql_stores import LOCKS_AWAITED, a_session, as_owner, migrated_database
from tests.running import closing
from tests.waiting import until

pytestmark = pytest.mark.postgresql

HOST, OTHER = provider("host-1"), provider("host-2")
MADE = ("id", "uuid", "revision", "written_by", "at", "position")


class Placement:
    """Two servers on one database, as administrators use them."""

    def __init__(self, driver: Any, first: AdminClient, second: AdminClient) -> None:
        self.driver = driver
        self.first, self.second = first, second

    async def claim(self, name: str, *hosts: ProviderId, by: AdminClient | None = None) -> WriteVerdict:
        wanted = [each for host in hosts or (HOST,) for each in amounts(host, VCPU=1)]
        return await (by or self.first).write(allocations(holding(consumer(name), *wanted)))

    async def known(self) -> None:
        """The first server knows the hosts, and remembers their rows as it wrote them."""
        for number in range(2):
            assert await self.claim(f"before-{number}", HOST, OTHER) == Done()

    async def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table without what is new in each."""
        found = [dict(row) for row in await self.driver.fetch(f"SELECT * FROM {table} ORDER BY 1")]  # noqa: S608
        return [{name: value for name, value in row.items() if name not in MADE} for row in found]


@asynccontextmanager
async def a_placement() -> AsyncIterator[Placement]:
    async with migrated_database("postgresql") as url:
        stores = PlacementStore(url), PlacementStore(url)
        async with a_session(as_owner(url)) as driver, closing(*stores):
            there = Placement(driver, *map(AdminClient, stores))
            for name in ("host-1", "host-2"):
                await there.second.add_provider(name, VCPU=40)
            yield there
            assert await there.first.store.audit() == ()


@pytest.fixture
async def placement() -> AsyncIterator[Placement]:
    async with a_placement() as one:
        yield one


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each claim that was begun at once was written at once."""
    results: list[bool] = []
    write_at_once = postgres_claims.write_at_once

    async def noted(*values: Any) -> bool:
        results.append(await write_at_once(*values))
        return results[-1]

    monkeypatch.setattr(postgres_claims, "write_at_once", noted)
    return results


async def test_it_is_one_statement_and_leaves_the_rows_that_a_locked_claim_leaves(
    monkeypatch: pytest.MonkeyPatch, written: list[bool]
) -> None:
    async def never(*_: object) -> None:
        return None

    left: list[dict[str, object]] = []
    revisions: list[object] = []
    for is_locked in (False, True):
        async with a_placement() as there:
            if is_locked:
                monkeypatch.setattr(postgres_claims.PostgresClaims, "decided_at_once", never)
            for number in range(4):
                assert await there.claim(f"web-{number}", HOST, OTHER) == Done()
            assert await there.claim("web-4", OTHER) == Done()
            tables = ("providers", "consumers", "holders", "change_log")
            left.append({table: await there.rows(table) for table in tables})
            revisions.append(await there.driver.fetch("SELECT revision FROM providers ORDER BY id"))

    assert (left[0], revisions[0]) == (left[1], revisions[1])
    # The first claim reads what the process does not know yet.
    assert written == [True] * 4


Interference = Callable[[Placement], Awaitable[object]]
CASES: dict[str, tuple[Interference, Callable[[WriteVerdict], bool]]] = {
    "another claim": (
        lambda there: there.claim("theirs", by=there.second),
        lambda verdict: verdict == Done(),
    ),
    "the last room": (
        lambda there: there.second.write(allocations(holding(consumer("theirs"), *amounts(HOST, VCPU=38)))),
        lambda verdict: isinstance(verdict, DoesNotFit),
    ),
    "less room": (
        lambda there: there.second.write(
            SetInventories(provider=HOST, generation=None, inventories=inventories(VCPU=2))
        ),
        lambda verdict: isinstance(verdict, DoesNotFit),
    ),
    "traits": (
        lambda there: there.second.write(
            SetTraits(provider=HOST, generation=None, traits=("HW_CPU_X86_VMX",))
        ),
        lambda verdict: verdict == Done(),
    ),
    "another parent": (
        lambda there: there.second.write(UpdateProvider(id=HOST, name="host-1", parent=OTHER)),
        lambda verdict: verdict == Done(),
    ),
    "the same consumer": (
        lambda there: there.claim("mine", by=there.second),
        lambda verdict: isinstance(verdict, ConsumerMoved),
    ),
    # It counts what the project holds from then on. A write by name is not judged by it.
    "a limit of its project": (
        lambda there: there.second.write(SetQuota(project="shop", limits={"VCPU": 4})),
        lambda verdict: verdict == Done(),
    ),
}


@pytest.mark.parametrize("when", ["before it is decided", "after it is decided"])
@pytest.mark.parametrize("case", CASES)
async def test_what_others_write_meanwhile_is_judged_as_if_it_had_waited(
    case: str, when: str, placement: Placement, monkeypatch: pytest.MonkeyPatch, written: list[bool]
) -> None:
    await placement.known()
    interfere, is_right = CASES[case]
    write_at_once = postgres_claims.write_at_once

    async def late(*values: Any) -> bool:
        assert isinstance(await interfere(placement), Done | ProviderWritten)
        return await write_at_once(*values)

    if when == "before it is decided":
        assert isinstance(await interfere(placement), Done | ProviderWritten)
    else:
        monkeypatch.setattr(postgres_claims, "write_at_once", late)
    written.clear()
    verdict = await placement.claim("mine")

    assert is_right(verdict), verdict
    (held,) = await placement.driver.fetchrow("SELECT count(*) FROM holders")
    limited = await placement.first.store.quotas("shop", "", 1)
    assert [quota.used["VCPU"] for quota in limited] == [held] * (case == "a limit of its project")
    assert written == [False]


async def test_a_writer_between_its_two_comparisons_ends_it_and_it_is_decided_anew(
    placement: Placement, written: list[bool]
) -> None:
    await placement.known()
    written.clear()
    async with placement.driver.transaction():
        await placement.driver.execute(
            "UPDATE providers SET generation = generation + 1, revision = revision + 1"
        )
        claiming = asyncio.create_task(placement.claim("mine"))
        await until(lambda: placement.driver.fetchval(LOCKS_AWAITED), "it waits for a lock")

    assert await claiming == Done()
    assert written == [False]
    generations = await placement.driver.fetch("SELECT generation FROM providers ORDER BY id")
    assert [row[0] for row in generations] == [5, 4]


async def test_it_locks_providers_in_the_order_in_which_all_others_lock_them(placement: Placement) -> None:
    await placement.known()
    first, second = [row[0] for row in await placement.driver.fetch("SELECT id FROM providers ORDER BY id")]
    async with placement.driver.transaction():
        await placement.driver.execute("SELECT id FROM providers WHERE id = $1 FOR NO KEY UPDATE", first)
        claiming = asyncio.create_task(placement.claim("mine", OTHER, HOST))
        await until(lambda: placement.driver.fetchval(LOCKS_AWAITED), "it waits for a lock")
        free = await placement.driver.fetch(
            "SELECT id FROM providers WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED", second
        )
    assert await claiming == Done()
    assert len(free) == 1


CLIENTS, CLAIMS_EACH = 5, 20


async def _claims_of_many(placement: Placement) -> Counter[type[WriteVerdict]]:
    """Five clients of each server claim of two hosts with room for 40 each, every claim alone."""
    await placement.known()

    async def client(number: int) -> list[WriteVerdict]:
        # Each has a batcher of its own, which would else gather what comes together.
        server = AdminClient((placement.first, placement.second)[number % 2].store)
        hosts = ((HOST,), (OTHER,), (HOST, OTHER))
        return [
            await placement.claim(f"of-{number}-{each}", *hosts[each % 3], by=server)
            for each in range(CLAIMS_EACH)
        ]

    verdicts = await asyncio.gather(*map(client, range(2 * CLIENTS)))
    return Counter(type(each) for some in verdicts for each in some)


async def test_two_servers_with_many_clients_fill_the_hosts_to_the_last_place(
    placement: Placement, written: list[bool]
) -> None:
    counts = await _claims_of_many(placement)

    assert counts[Done] + counts[DoesNotFit] == 2 * CLIENTS * CLAIMS_EACH
    used = await placement.driver.fetch("SELECT used FROM providers ORDER BY id")
    (vcpu,) = await placement.driver.fetchrow("SELECT id FROM resource_classes WHERE name = 'VCPU'")
    assert [row[0] for row in used] == [f'{{"{vcpu}":40}}'] * 2
    # Without both, this would prove nothing.
    assert {*written} == {True, False}
