"""Lists of instances: in each order, by every condition, no page reads more rows than it may, and all pages together miss nothing."""

import re
from collections.abc import AsyncIterator, Callable
from functools import cache
from itertools import product
from typing import Any, get_args

import pytest
import sqlalchemy as sa
from msgspec import structs

from bus.messages.build import BuildInstance, InstanceOrder
from engine.flavors import Flavor, InstanceId
from engine.requests import InstanceSpec
from kit.sql import open_database, read_once, write_once
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.lifecycle import deleted_unseen
from scheduler_worker.core.instances.rows import DELETED, InstanceRow, accepted
from scheduler_worker.store_sql import InstanceQuery, NewRequest, SchedulerStore
from scheduler_worker.store_sql.rows import find_page
from tests.contracts.scheduler_rows import LATER, NOON, accept, instance, request_id, save
from tests.contracts.sql_stores import migrated_database
from tests.contracts.stores import STORES
from tests.narrowing import present
from tests.running import closing

NAMES = (
    "web-2",
    "web-10",
    "Web-1",
    "db-007",
    "db-8",
    "",
    "w" * 150 + "-9",
    "w" * 150 + "-10",
    "caf\u00e9-3",
    "a_b%c",
)
# The last rows of an order are read only after many others: far more than a page may read.
READ_MAX = 7
BY_CONDITION: dict[str, tuple[dict[str, Any], Callable[[InstanceRow], bool]]] = {
    "all": ({}, lambda _: True),
    "cell": ({"cell": "c2"}, lambda row: row.told.cell == "c2"),
    "state": ({"state": "error"}, lambda row: row.told.state == "error"),
    "living": ({"living": True}, lambda row: row.told.state != DELETED),
    "project": ({"project": "shop"}, lambda row: row.told.project == "shop"),
    "few of a project": ({"project": "bank"}, lambda row: row.told.project == "bank"),
    "host": ({"host": "h1"}, lambda row: row.told.host == "h1" and row.told.state != DELETED),
    "host of a cell": (
        {"host": "c2/h1"},
        lambda row: (row.told.cell, row.told.host) == ("c2", "h1") and row.told.state != DELETED,
    ),
    "name": ({"name": "web-2"}, lambda row: row.told.name == "web-2"),
    "part": ({"part": "B-1"}, lambda row: "b-1" in row.told.name.lower()),
    "a part as it is written": ({"part": "_b%"}, lambda row: "_b%" in row.told.name),
    # Only the capitals of ASCII are like small letters, whatever the database and its locale.
    "a letter beyond ASCII": ({"part": "AF\u00e9"}, lambda row: "af\u00e9" in row.told.name),
    "its capital": ({"part": "AF\u00c9"}, lambda _: False),
    "flavor": ({"flavor": "rare"}, lambda row: row.id.int % 7 == 0),
    "image": ({"image": "debian"}, lambda row: row.id.int % 5 == 0),
    "instances": (
        {"instances": (instance(3), instance(40), instance(999))},
        lambda row: row.id.int in (3, 40),
    ),
    "request": ({"request_id": request_id(2)}, lambda row: row.told.request_id == request_id(2)),
    "prefix": ({"id_prefix": "0000"}, lambda _: True),
    "request prefix": ({"request_prefix": "0000"}, lambda _: True),
}
ORDERS: tuple[InstanceOrder, ...] = get_args(InstanceOrder)


@cache
def rows() -> tuple[InstanceRow, ...]:
    """80 instances of 16 requests, those of later requests with lower ids."""
    found: list[InstanceRow] = []
    for number in range(16):
        for place in range(5):
            nth = number * 5 + place
            id_ = instance(80 - nth)
            build = BuildInstance(
                request_id=request_id(number),
                name=NAMES[nth % len(NAMES)],
                project="bank" if nth in (3, 17, 54) else "shop" if nth % 2 else "",
                image_name="debian" if id_.int % 5 == 0 else "",
                flavor=Flavor(name="rare" if id_.int % 7 == 0 else "small", vcpus=1),
            )
            (row,) = accepted(build, [id_], NOON, LATER, encoded(InstanceSpec(amounts=(("VCPU", 1),)), build))
            state = DELETED if nth % 11 == 0 else "error" if nth % 13 == 0 else "active"
            told = structs.replace(
                row.told, state=state, cell=f"c{nth % 3 + 1}", host=f"h{nth % 4}" if nth % 5 else ""
            )
            found.append(structs.replace(row, told=told))
    return tuple(found)


@pytest.fixture(params=STORES)
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with migrated_database(request.param, "scheduler_worker") as url:
        store = SchedulerStore(url)
        for number in range(16):
            await accept(store, NewRequest(request_id(number), b"same", rows()[number * 5 : number * 5 + 5]))
        # Of no request yet: no question finds it.
        await save(store, deleted_unseen(instance(500), NOON))
        await store.close()
        yield url


def natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"[0-9]+|[^0-9]", name.casefold()[:100])
    return [(0, int(part), "") if part.isdigit() else (ord(part), 0, part) for part in parts]


def place_of(order: InstanceOrder, row: InstanceRow) -> tuple[Any, ...]:
    told, id_ = row.told, row.id.int
    match order:
        case "id":
            return (id_,)
        case "age":
            return (told.request_id.int, -id_)
        case "name":
            return (natural(told.name), id_)
        case "host":
            return (told.cell, told.host, natural(told.name), id_)


async def walked(store: SchedulerStore, query: InstanceQuery) -> tuple[list[InstanceId], int]:
    """The instances on all pages, and how many pages there were."""
    found: list[InstanceId] = []
    pages, after = 0, None
    while pages == 0 or after is not None:
        page = present(await store.instance_page(structs.replace(query, after=after)))
        assert len(page.rows) <= query.limit
        found += [row.id for row in page.rows]
        pages, after = pages + 1, page.next
    return found, pages


async def test_all_pages_together_have_what_is_asked_for_in_its_order(url: str) -> None:
    async with closing(SchedulerStore(url)) as (store,):
        for order, backwards, (asked, fits) in product(ORDERS, (False, True), BY_CONDITION.values()):
            there = [row for row in rows() if fits(row) and (order != "host" or row.told.state != DELETED)]
            wanted = sorted(there, key=lambda row: place_of(order, row), reverse=backwards)

            query = InstanceQuery(order=order, backwards=backwards, limit=3, read_max=READ_MAX, **asked)

            assert (await walked(store, query))[0] == [row.id for row in wanted], query
            # A question that may read all rows counts them; any other says that there may be more.
            assert await store.counted(structs.replace(query, read_max=100)) == (len(there), False), query
            count, more_than = await store.counted(query)
            assert count == len(there) or (more_than and count <= READ_MAX), query


async def test_a_page_of_a_rare_state_ends_where_the_reading_ends_and_the_next_one_goes_on(url: str) -> None:
    async with closing(SchedulerStore(url)) as (store,):
        query = InstanceQuery(state="error", limit=100, read_max=READ_MAX)
        first = await store.instance_page(query)
        found, pages = await walked(store, query)

    assert present(first).next == instance(READ_MAX)
    assert pages == 80 // READ_MAX + 1
    assert len(found) == len([row for row in rows() if row.told.state == "error"])


async def test_a_page_behind_an_instance_that_is_gone_is_none(url: str) -> None:
    async with closing(SchedulerStore(url)) as (store,):
        assert await store.instance_page(InstanceQuery(order="name", after=instance(999))) is None
        # Ids have their place, whether there is a row or not.
        assert await store.instance_page(InstanceQuery(after=instance(999))) is not None


# Conditions that few rows fulfil, no more than one page may read: these are sorted.
FEW = ("few of a project", "host of a cell")
# So few that PostgreSQL may choose how it reads them: of a small table, it takes all.
FEWEST = ("instances", "request")


async def test_no_question_scans_the_table_or_sorts_more_rows_than_it_may_read(url: str) -> None:
    async with closing(open_database(url)) as (database,):
        for order, (name, (asked, _)) in product(ORDERS, BY_CONDITION.items()):
            if name in FEWEST:
                continue
            query = InstanceQuery(order=order, limit=3, read_max=READ_MAX, **asked)
            plans = await read_once(database, _plans_of, find_page, query)
            for steps in plans:
                assert not re.search(r"Seq Scan on requested|SCAN requested_instances(?! USING)", steps), (
                    steps
                )
                assert name in FEW or not re.search(r"\bSort\b|TEMP B-TREE", steps), (query, steps)


def _plans_of(connection: sa.Connection, work: Callable[..., Any], query: InstanceQuery) -> list[str]:
    """How the database carries out each statement of this work."""
    plans: list[str] = []
    explain = "EXPLAIN (COSTS OFF)" if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if not statement.startswith("EXPLAIN"):
            steps = connection.exec_driver_sql(f"{explain} {statement}", parameters)
            plans.append("\n".join(str(step[-1]) for step in steps))

    sa.event.listen(connection, "before_cursor_execute", note)
    try:
        work(connection, query)
    finally:
        sa.event.remove(connection, "before_cursor_execute", note)
    return plans


async def test_rows_of_release_0_1_0_are_found_by_their_names_once_these_are_in_order(url: str) -> None:
    forget = "UPDATE requested_instances SET name_order = NULL"
    async with closing(open_database(url)) as (database,):
        await write_once(database, lambda connection: connection.exec_driver_sql(forget))
    async with closing(SchedulerStore(url)) as (store,):
        assert await store.instances(InstanceQuery(name="web-2")) == []

        assert [await store.put_names_in_order(50) for _ in range(3)] == [50, 31, 0]

        assert len(await store.instances(InstanceQuery(name="web-2"))) == 8
        found, _ = await walked(store, InstanceQuery(order="name"))
        assert found == [row.id for row in sorted(rows(), key=lambda row: place_of("name", row))]
