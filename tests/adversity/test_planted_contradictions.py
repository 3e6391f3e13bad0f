"""The audit finds damage that was done to the tables directly."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import Connection

from kit.sql import open_database
from placement_worker.store_sql import SqlPlacementStore
from tests.contracts.placement_orders import (
    DB,
    HOST,
    OTHER_HOST,
    WEB,
    a_claim,
    a_host,
    a_provider,
    a_report,
    a_share,
    provider,
)
from tests.contracts.sql_stores import migrated_database
from tests.contracts.store_client import StoreClient

pytestmark = pytest.mark.asyncio

KINDS = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))
NUMA = provider("numa-1")
PLANTED = {
    "UPDATE providers SET used = replace(used, ':1', ':2')": f"{HOST} has 2 of VCPU in use by its own row, but what consumers hold of it sums up to 1",
    "UPDATE consumers SET held = '{}'": f"{HOST} has 1 of VCPU in use by its own row, but what consumers hold of it sums up to 0",
    "UPDATE providers SET used = '{}'": "whose row does not say that any is in use",
    "UPDATE providers SET used = '{}' WHERE parent_id IS NOT NULL OR name = 'host-2'": f"{OTHER_HOST} has an inventory of class",
    "DELETE FROM inventories": f"{HOST} has 1 of class",
    "DELETE FROM holders": f"{WEB} holds something of provider",
    "DELETE FROM consumers": "which holds nothing of it",
    "UPDATE consumers SET held = '{}', ended_at = NULL": f"{WEB} has a live attempt, 1, and holds nothing",
    "UPDATE consumers SET ended_at = '2024-05-17T12:00:00.000000+00:00'": f"{WEB} ended with attempt 1, and still holds",
    "UPDATE consumers SET generation = 0": f"{WEB} holds something at generation 0",
    "UPDATE providers SET consumers = consumers + 1": f"provider {HOST} counts 2 consumers, but is the host of 1",
    "UPDATE consumers SET host = NULL": f"{WEB} has a live attempt, but no host",
    "UPDATE providers SET root_id = id WHERE parent_id IS NOT NULL": f"{NUMA} is in another tree than its parent {HOST}",
    "UPDATE providers SET parent_id = NULL WHERE parent_id IS NOT NULL": f"{NUMA} has the root {HOST}, but no parents lead there",
}


@pytest_asyncio.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with migrated_database(request.param) as url:
        yield url


@pytest.mark.parametrize(("statement", "sentence"), PLANTED.items())
async def test_the_audit_names_what_was_planted(url: str, statement: str, sentence: str) -> None:
    store = SqlPlacementStore(url)
    try:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"))
        await client.report(a_report(a_provider("numa-1", HOST)))
        await client.ask(a_claim(a_share(HOST, shapes={HOST: 2}), WEB))
        assert await store.audit() == ()

        await _do(url, statement)

        assert sentence in " ".join(await store.audit())
    finally:
        await store.close()


async def test_the_audit_of_two_contradictions_names_both(url: str) -> None:
    store = SqlPlacementStore(url)
    try:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"))
        await client.ask(a_claim(a_share(HOST), WEB), a_claim(a_share(OTHER_HOST), DB))

        await _do(url, "UPDATE providers SET used = replace(used, ':1', ':7')")

        found = " ".join(await store.audit())
        assert str(HOST) in found
        assert str(OTHER_HOST) in found
    finally:
        await store.close()


async def _do(url: str, statement: str) -> None:
    database = open_database(url)
    try:
        async with database.writing() as transaction:
            await transaction.run(_execute, statement)
    finally:
        await database.close()


def _execute(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement)
