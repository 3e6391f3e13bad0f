"""The whole cloud at a glance: counts of hosts and of their room, the workers that were heard, and who pays for it."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from bus.codec import encode
from bus.messages.cloud import (
    AskOverview,
    AskTiles,
    CellFill,
    ClassUse,
    HostCount,
    InstanceCount,
    Overview,
    Tiles,
    WorkerAlive,
)
from bus.workers.handling import Answer, ReadOnly
from engine.inventories import InventoryState
from engine.picture.picture import Picture
from scheduler_worker import overview
from scheduler_worker.cells import REMEMBERED_FOR, WORKERS_MAX, WorkerRegistry
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.overview import Overviews, count_hosts, fill_of, tiles_of, uses_of
from scheduler_worker.registry import CellRegistry
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_state, usage_of
from tests.unit.scheduler.test_scheduler_handlers import an_ask
from tools.pages.golden import enveloped

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DOWN_AFTER = timedelta(seconds=20)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


def a_beat(
    worker: str = "scheduler-1", role: str = "scheduler", cell: str = "cell0", *, has_ended: bool = False
) -> WorkerAlive:
    return WorkerAlive(
        cell=cell,
        worker=worker,
        role=role,
        release="0.1.0",
        started_at=NOON,
        told_at=NOON,
        has_ended=has_ended,
    )


def heard(workers: WorkerRegistry) -> list[tuple[str, str]]:
    return [(each.beat.worker, each.life) for each in workers.everyone()]


def test_hosts_are_counted_by_what_keeps_them_from_being_used() -> None:
    hosts = [
        a_host("h1"),
        a_host("h2"),
        a_host("h3", up=False),
        a_host("h4", mode="draining"),
        a_host("h9", mode="draining", up=False),
        a_host("h5", mode="down"),
        a_host("h6", up=False, mode="dead"),
        structs.replace(a_host("h7"), must_clean=True),
        a_host("h8", cell="c2"),
    ]

    counted = {(each.cell, each.state): each.count for each in count_hosts(hosts)}

    assert counted == {
        ("c1", "up"): 2,
        ("c1", "silent"): 2,
        ("c1", "draining"): 1,
        ("c1", "down"): 1,
        ("c1", "dead"): 1,
        ("c1", "must clean up"): 1,
        ("c2", "up"): 1,
    }


def test_nodes_are_counted_apart_from_hypervisors() -> None:
    node = structs.replace(a_host("n1"), kind="ironic")

    assert set(count_hosts([a_host("h1"), node])) == {
        HostCount(state="up", cell="c1", count=1),
        HostCount(state="up", cell="c1", count=1, kind="ironic"),
    }


def test_uses_are_summed_by_cell_and_class_with_what_is_reserved_left_out() -> None:
    some = InventoryState(total=16, max_unit=16, reserved=4)
    states = (a_state("h1"), a_state("h2", {"VCPU": some}), a_state("h3", cell="c2"))
    picture = a_picture(*states, hosts=(a_host("h1"), a_host("h2"), a_host("h3", cell="c2")))
    picture.use([usage_of(states[0], 6, 2), usage_of(states[1], 1, 2)])

    assert set(uses_of(picture)) == {
        ClassUse(resource_class="VCPU", cell="c1", used=7, capacity=28),
        ClassUse(resource_class="VCPU", cell="c2", used=0, capacity=16),
    }


def test_each_host_is_as_full_as_its_fullest_class() -> None:
    states = (
        a_state("h1"),
        a_state("h2", {"VCPU": InventoryState(total=16, max_unit=16), "DISK_GB": InventoryState(total=1000)}),
        a_state("h3"),
        a_state("h4", cell="c2"),
    )
    picture = a_picture(*states, hosts=tuple(a_host(each.name, cell=each.cell) for each in states))
    picture.use([usage_of(states[1], 8, 2), usage_of(states[2], 16, 2)])

    assert fill_of(picture) == (
        CellFill(cell="c1", hosts=(1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1)),
        CellFill(cell="c2", hosts=(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
    )


def test_a_host_whose_capacity_shrank_below_its_use_is_full() -> None:
    state = a_state("h1")
    picture = a_picture(state, hosts=(a_host("h1"),))
    picture.use([usage_of(state, 40, 2)])

    assert [each.hosts[-1] for each in fill_of(picture)] == [1]


def test_a_worker_is_up_while_it_is_heard_and_down_when_it_is_silent() -> None:
    clock = Clock()
    workers = WorkerRegistry(DOWN_AFTER, clock)
    workers.hear(a_beat(), "moor-scheduler")
    assert heard(workers) == [("scheduler-1", "up")]

    clock.now += DOWN_AFTER
    assert heard(workers) == [("scheduler-1", "down")]


def test_a_worker_that_ends_as_it_should_is_not_missed() -> None:
    workers = WorkerRegistry(DOWN_AFTER, Clock())
    workers.hear(a_beat(), "")
    workers.hear(a_beat(has_ended=True), "")

    assert heard(workers) == []


@pytest.mark.parametrize(
    ("sender", "speaks_for"),
    [("moor-compute-c1", None), ("moor-app-shop", None), ("moor-conductor-c1", "c2")],
)
def test_a_beat_counts_only_from_a_user_of_its_role_and_cell(sender: str, speaks_for: str | None) -> None:
    workers = WorkerRegistry(DOWN_AFTER, Clock())
    workers.hear(a_beat("conductor-1", "conductor", "c1"), sender, speaks_for)

    assert heard(workers) == []


def test_on_a_broker_without_users_every_beat_counts() -> None:
    workers = WorkerRegistry(DOWN_AFTER, Clock())
    workers.hear(a_beat("conductor-1", "conductor", "c1"), "guest")

    assert heard(workers) == [("conductor-1", "up")]


def test_workers_of_long_ago_and_more_than_the_limit_are_forgotten() -> None:
    clock = Clock()
    workers = WorkerRegistry(DOWN_AFTER, clock)
    workers.hear(a_beat("old"), "")
    clock.now += REMEMBERED_FOR + timedelta(seconds=1)
    assert heard(workers) == []
    for number in range(WORKERS_MAX + 5):
        workers.hear(a_beat(f"worker-{number:04}"), "")

    names = [name for name, _ in heard(workers)]
    assert len(names) == WORKERS_MAX
    assert names[0] == "worker-0005"


def test_a_cell_cannot_hide_workers_of_others() -> None:
    workers = WorkerRegistry(DOWN_AFTER, Clock())
    workers.hear(a_beat("scheduler-1"), "moor-scheduler")
    workers.hear(a_beat("compute-2", "compute", "c2"), "moor-compute-c2")

    workers.hear(a_beat("scheduler-1", "compute", "c1", has_ended=True), "moor-compute-c1", "c1")
    workers.hear(a_beat("compute-2", "compute", "c1", has_ended=True), "moor-compute-c1", "c1")
    for number in range(2 * WORKERS_MAX):
        workers.hear(a_beat(f"worker-{number:04}", "compute", "c1"), "moor-compute-c1", "c1")

    assert {"scheduler-1", "compute-2"} <= {name for name, _ in heard(workers)}


class CountingStore(MemorySchedulerStore):
    def __init__(self) -> None:
        super().__init__()
        self.counted = 0

    async def instance_counts(self) -> list[InstanceCount]:
        self.counted += 1
        return [InstanceCount(state="active", cell="c1", count=3)]


def test_each_host_has_a_letter_in_the_order_of_names() -> None:
    states = [a_state(name) for name in ("h1", "h2", "h3", "h4")]
    picture = a_picture(*states, hosts=tuple(a_host(each.name) for each in states))
    picture.use([usage_of(states[0], 15, 2), usage_of(states[1], 16, 2)])
    hosts = [
        a_host("h4", mode="draining"),
        a_host("h3", up=False),
        a_host("h2"),
        a_host("h1"),
        a_host("h5"),
        a_host("h6", mode="down"),
        a_host("h7", mode="dead"),
        structs.replace(a_host("h8"), must_clean=True),
        a_host("other", cell="c2"),
    ]

    tiles = tiles_of(hosts, picture)

    assert "".join(tile for _, tile in tiles["c1"]) == "9fsr?dxc"
    assert [name for name, _ in tiles["c1"]] == [f"h{number}" for number in range(1, 9)]
    assert tiles["c2"] == [("other", "?")]


async def overview_from(overviews: Overviews, ask: AskOverview = AskOverview()) -> Overview:  # noqa: B008 - frozen
    handler = overviews.handlers()[AskOverview]
    assert isinstance(handler, ReadOnly)
    (said,) = await handler.handle((an_ask(ask),))
    assert isinstance(said, Answer)
    assert isinstance(said.message, Overview)
    return said.message


@pytest.mark.asyncio
async def test_who_asks_again_soon_gets_the_same_overview(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, picture, store = Clock(), Picture(), CountingStore()
    hosts = HostRegistry(picture, DOWN_AFTER, clock)
    hosts.learn((a_host("h1"), a_host("h2", up=False)))
    cells = CellRegistry(picture, DOWN_AFTER, clock)
    overviews = Overviews(
        "scheduler-1",
        store,
        picture,
        cells=cells,
        workers=WorkerRegistry(DOWN_AFTER, clock),
        hosts=hosts,
        clock=clock,
    )

    first = await overview_from(overviews)
    again = await overview_from(overviews)
    # Meanwhile it has become older, by whole milliseconds if the machine is busy.
    assert again.age_s >= first.age_s
    assert structs.replace(again, age_s=first.age_s) == first
    assert store.counted == 1
    assert [(each.cell, each.instances, each.hosts) for each in first.cells] == [("c1", 3, 2)]

    monkeypatch.setattr(overview, "KEPT_S_MIN", 0.0)
    monkeypatch.setattr(overview, "KEPT_FOR_TIMES", 0)
    overviews = Overviews(
        "scheduler-1",
        store,
        picture,
        cells=cells,
        workers=WorkerRegistry(DOWN_AFTER, clock),
        hosts=hosts,
        clock=clock,
    )
    assert await overview_from(overviews) is not await overview_from(overviews)


@pytest.mark.asyncio
async def test_pages_of_tiles_are_as_long_as_fits_and_cover_all_hosts() -> None:
    clock, picture = Clock(), Picture()
    hosts = HostRegistry(picture, DOWN_AFTER, clock)
    hosts.learn([a_host(f"{number:05}-{'x' * 200}") for number in range(6000)])
    overviews = Overviews(
        "scheduler-1",
        CountingStore(),
        picture,
        cells=CellRegistry(picture, DOWN_AFTER, clock),
        workers=WorkerRegistry(DOWN_AFTER, clock),
        hosts=hosts,
        clock=clock,
    )
    handler = overviews.handlers()[AskTiles]
    assert isinstance(handler, ReadOnly)

    async def page(**asked: object) -> Tiles:
        (said,) = await handler.handle((an_ask(AskTiles(in_cell="c1", **asked)),))  # type: ignore[arg-type]
        assert isinstance(said, Answer)
        assert isinstance(said.message, Tiles)
        return said.message

    assert (len((await page()).tiles), (await page()).hosts) == (5000, 6000)
    assert len((await page(skipped=5000)).tiles) == 1000
    assert len((await page(skipped=7000)).tiles) == 0
    names: list[str] = []
    while len(names) < 6000:
        named = await page(skipped=len(names), named=True)
        assert len(named.names) == len(named.tiles) > 0
        assert len(encode(enveloped(named))) < 256 * 1024
        names += named.names
    assert names == sorted(names)


@pytest.mark.asyncio
async def test_what_took_long_is_kept_longer_but_never_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0])
    made = []

    async def make() -> int:
        made.append(now_s[0])
        now_s[0] += takes_s
        return len(made)

    takes_s = 0.02
    short = overview.Kept(make)
    assert await short.get() == 1
    now_s[0] += 3.9
    assert await short.get() == 1
    now_s[0] += 0.2
    assert await short.get() == 2

    takes_s = 5.0
    long = overview.Kept(make)
    assert await long.get() == 3
    now_s[0] += overview.KEPT_S_MAX
    assert await long.get() == 4


@pytest.mark.asyncio
async def test_one_who_asks_once_gets_what_is_new_if_it_is_cheap_and_all_are_told_how_old_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0])
    clock, picture = Clock(), Picture()
    takes_s = 0.05

    class SlowStore(CountingStore):
        async def instance_counts(self) -> list[InstanceCount]:
            now_s[0] += takes_s
            return await super().instance_counts()

    store = SlowStore()
    overviews = Overviews(
        "scheduler-1",
        store,
        picture,
        cells=CellRegistry(picture, DOWN_AFTER, clock),
        workers=WorkerRegistry(DOWN_AFTER, clock),
        hosts=HostRegistry(picture, DOWN_AFTER, clock),
        clock=clock,
    )
    once = AskOverview(once=True)

    assert (await overview_from(overviews, once)).age_s == takes_s
    now_s[0] += 0.9
    assert ((await overview_from(overviews, once)).age_s, store.counted) == (0.95, 1)
    now_s[0] += 5
    assert ((await overview_from(overviews)).age_s, store.counted) == (5.95, 1)
    assert ((await overview_from(overviews, once)).age_s, store.counted) == (takes_s, 2)

    # What is not cheap is kept from them, too.
    takes_s = 0.4
    now_s[0] += 20
    assert ((await overview_from(overviews, once)).age_s, store.counted) == (takes_s, 3)
    now_s[0] += 7
    assert ((await overview_from(overviews, once)).age_s, store.counted) == (7.4, 3)
    now_s[0] += 1.1
    assert ((await overview_from(overviews, once)).age_s, store.counted) == (takes_s, 4)


@pytest.mark.asyncio
async def test_an_overview_fits_into_one_message_whatever_workers_tell() -> None:
    clock, picture = Clock(), Picture()
    workers = WorkerRegistry(DOWN_AFTER, clock)
    told = {f"{'x' * 240}{number}": 2**60 for number in range(100)}
    for number in range(50):
        workers.hear(structs.replace(a_beat(f"worker-{number}"), handled=told, counts=told), "")
    overviews = Overviews(
        "scheduler-1",
        CountingStore(),
        picture,
        cells=CellRegistry(picture, DOWN_AFTER, clock),
        workers=workers,
        hosts=HostRegistry(picture, DOWN_AFTER, clock),
        clock=clock,
    )

    made = await overview_from(overviews)

    assert len(encode(enveloped(made))) < 256 * 1024
    assert len(made.workers) > 0
    assert len(made.workers) + made.workers_left_out == 50
