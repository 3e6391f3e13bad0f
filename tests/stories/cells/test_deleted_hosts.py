"""A host that is gone for good is deleted: not while something is left on it, and then wherever it was known."""

from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from bus.messages.build import BuildRejected
from bus.messages.hosts import (
    AggregatesFound,
    AskAggregates,
    AskHosts,
    ClassAmounts,
    DeleteHost,
    HostChanged,
    HostDeleted,
    HostSet,
    HostsFound,
    HostsReported,
    SetAggregate,
    SetHost,
)
from bus.messages.placement import ReportAnswered
from engine.hosts import NODE, HostFacts, HostState
from engine.inventories import AggregateId, ProviderId, ReportedInventory, ReportedProvider
from laboratory.computes.faults import FallsSilent, FaultScript
from laboratory.computes.hosts import SimulatedHost
from scheduler_worker.host_orders import HostOrders
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.store_sql import HostQuery
from tests.contracts.placement_orders import an_id
from tests.contracts.stage import SETTINGS
from tests.stories.cloud import Cloud, a_host, cloud, filler_of
from tests.stories.layouts import STAGES
from tests.stories.scripted import host_id
from tests.waiting import Clock, until

# Longer than a host may be silent, and too short for a scheduler to read all rows of hosts again.
LONG_S = 31
SOON = structs.replace(SETTINGS, host_down_s=30.0)


async def refused(setup: Cloud, name: str) -> str:
    answer = await setup.ask(DeleteHost(host=name), BuildRejected)
    assert (answer.field, answer.value) == ("host", name)
    return answer.reason


async def hosts_of(setup: Cloud) -> set[str]:
    return {host.name for host in (await setup.ask(AskHosts(), HostsFound)).hosts}


async def report_two_levels(setup: Cloud, name: str) -> None:
    """A host with a provider below it."""
    report = a_host(name)
    below = ReportedProvider(
        id=host_id(f"{name}-numa"),
        name=f"{name}-numa",
        parent=host_id(name),
        inventories={"VCPU": ReportedInventory(total=4)},
    )
    answer = await setup.stations_in["c1"].ask(
        structs.replace(report, providers=(*report.providers, below), sequence=2)
    )
    assert isinstance(answer, ReportAnswered)


@STAGES
async def test_a_host_is_deleted_once_nothing_is_left_on_it_and_is_new_if_it_comes_back(
    bus: str, books: str
) -> None:
    clock = Clock(datetime.now(UTC))
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        setup.scheduler(clock=clock, bus=SOON),
        setup.scheduler("another", clock=clock, bus=SOON),
        setup.listening("host.changed.#") as heard,
    ):
        for name in ("h1", "h2"):
            await setup.add_host(name)
        await report_two_levels(setup, "h2")
        await setup.until_reported("h1", "h2")
        rack = AggregateId(an_id("rack"))
        await setup.client.ask(SetAggregate(aggregate=rack, name="rack", add_hosts=("h1", "h2")))
        build = await setup.boot(1, hosts=("h2",))
        await setup.fill("h2", 2)
        used = {"h1": 0, "h2": 3, "h2-numa": 0}
        await setup.until_used(**used)
        (use,) = (await setup.ask(AskHosts(name="h2"), HostsFound)).uses
        assert (use.host, use.classes["VCPU"]) == (host_id("h2"), ClassAmounts(used=3, capacity=12))

        assert (await refused(setup, "h2")).startswith("was heard 0 s ago: stop its compute")
        clock.pass_s(LONG_S)
        assert await refused(setup, "c1/h2") == "has 1 instances (vm-1): evacuate or delete them first"
        await setup.delete(build.id)
        await setup.until_used(**used | {"h2": 2})
        assert (await refused(setup, "h2")).startswith("placement has given out 2 VCPU of it")
        # Nothing of the host went with what was refused.
        assert (await setup.used()).keys() == used.keys()

        await setup.give_back(filler_of("h2"))
        await setup.until_used(**used | {"h2": 0})
        assert isinstance(await setup.client.ask(SetHost(host="h2", mode="down")), HostSet)
        (before,) = await setup.rows.hosts(HostQuery(name="h2"))
        deleted = await setup.client.ask(DeleteHost(host="h2"))
        # A slow order is repeated until it is answered that there is no such host.
        if isinstance(deleted, BuildRejected):
            assert deleted.reason.startswith("no host of this name is known")
        else:
            assert isinstance(deleted, HostDeleted)
            assert deleted.host.id == host_id("h2")
        await until(
            lambda: any(isinstance(each, HostChanged) and each.deleted for each in heard), "it is told"
        )
        assert "no host of this name is known" in await refused(setup, "h2")
        assert await hosts_of(setup) == {"h1"}
        assert (await setup.providers()).keys() == {"h1"}
        assert (await setup.ask(AskAggregates(name="rack"), AggregatesFound)).aggregates[0].hosts == ("h1",)

        await until(
            lambda: not any(picture.rows_named("h2") for picture in setup.pictures),
            "each scheduler has forgotten it",
        )
        await setup.add_hosts("h2")
        (back,) = await setup.rows.hosts(HostQuery(name="h2"))
        assert (back.setting.mode, back.setting.number > before.setting.number) == ("up", True)


async def test_a_host_that_was_deleted_while_its_compute_lived_on_is_a_whole_new_one_when_it_is_heard_again() -> (
    None
):
    """Its compute has not noticed that placement has nothing of it any more."""
    quick = structs.replace(SETTINGS, host_down_s=1.0)
    script = FaultScript(faults=(FallsSilent(hosts=("h1",), after_s=1.0, for_s=4.0),))
    hosts = [SimulatedHost(name=name) for name in ("h1", "h2")]
    async with (
        cloud("memory", "sqlite") as setup,
        setup.placement(),
        setup.scheduler(bus=quick),
        setup.computes(hosts, script, bus=quick),
    ):
        await setup.until_registered("h1", "h2")
        (id_,) = [each.id for each in await setup.rows.hosts(HostQuery(name="h1"))]
        await until(
            lambda: setup.client.ask(DeleteHost(host=str(id_))),
            "it is silent, and is deleted",
            lambda found: isinstance(found, HostDeleted),
        )
        assert (await setup.providers()).keys() == {"h2"}

        async def is_whole() -> bool:
            found = await setup.ask(AskHosts(name=str(id_), up=True), HostsFound)
            return bool(found.uses and found.uses[0].classes)

        await until(is_whole, "it is up again, and placement has its providers")


async def test_a_host_that_is_heard_while_it_is_deleted_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(datetime.now(UTC))
    async with cloud("memory", "sqlite") as setup, setup.scheduling("h1", clock=clock, bus=SOON):
        clock.pass_s(LONG_S)
        forgotten, unheard = HostOrders._forgotten, HostRegistry.unheard  # noqa: SLF001 - where its row goes
        is_heard = ContextVar("is_heard", default=False)

        # It is silent whenever the order is judged, also when it is judged again, and heard whenever its row would go.
        async def heard_meanwhile(orders: HostOrders, host: HostState) -> HostState | str:
            before = is_heard.set(True)
            answer = await forgotten(orders, host)
            is_heard.reset(before)
            return answer

        def silent_before(registry: HostRegistry, host: ProviderId) -> timedelta | None:
            return timedelta(seconds=1) if is_heard.get() else unheard(registry, host)

        monkeypatch.setattr(HostRegistry, "unheard", silent_before)
        monkeypatch.setattr(HostOrders, "_forgotten", heard_meanwhile)

        assert (await refused(setup, "h1")).startswith("was heard meanwhile, and its providers are deleted")
        assert await hosts_of(setup) == {"h1"}


@STAGES
async def test_a_node_is_deleted_in_ironic_and_a_page_has_only_the_hosts_that_are_asked_for(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        for name, cell in (("h1", "c1"), ("h2", "c2"), ("h3", "c1")):
            await setup.add_host(name, cell)
        await setup.report(a_host("n4"))
        node = HostFacts(id=host_id("n4"), name="n4", kind=NODE)
        await setup.stations_in["c1"].publisher.send(HostsReported(cell="c1", hosts=(node,)))
        twin = HostFacts(id=host_id("twin"), name="h1")
        await setup.stations_in["c2"].publisher.send(HostsReported(cell="c2", hosts=(twin,)))
        await setup.until_registered("h1", "h2", "h3", "n4")
        (picture,) = setup.pictures
        await until(lambda: picture.cells_named("h1") == ["c1", "c2"], "both hosts of this name are known")
        assert isinstance(await setup.client.ask(SetHost(host="h3", mode="down")), HostSet)

        assert "Ironic has it" in await refused(setup, "n4")
        for question, wanted in (
            (AskHosts(cell="c1"), ["h1", "h3", "n4"]),
            (AskHosts(kind="node"), ["n4"]),
            (AskHosts(kind="hypervisor", up=True), ["h1", "h1", "h2"]),
            (AskHosts(up=False), ["h3"]),
            (AskHosts(mode="down"), ["h3"]),
            # Hosts of one name are on one page.
            (AskHosts(mode="up", limit=1), ["h1", "h1", "h2", "n4"]),
            (AskHosts(name="h3", up=True), []),
        ):
            found, after = list[str](), ""
            while True:
                page = await setup.ask(structs.replace(question, after=after), HostsFound)
                assert [use.host for use in page.uses] == [host.id for host in page.hosts]
                found += [host.name for host in page.hosts]
                if not (after := page.next):
                    break
            assert found == wanted, question


@STAGES
async def test_a_host_that_another_worker_has_deleted_is_forgotten_though_the_word_of_it_was_lost(
    bus: str, books: str
) -> None:
    clock = Clock(datetime.now(UTC))
    async with cloud(bus, books) as setup, setup.scheduling("h1", clock=clock):
        (picture,) = setup.pictures
        async with setup.rows.transaction() as transaction:
            await transaction.lock_hosts((host_id("h1"),), ())
            await transaction.forget_hosts([host_id("h1")])
        assert picture.registered(picture.row_of(host_id("h1"))) is not None

        clock.pass_s(120)

        await until(
            lambda: picture.registered(picture.row_of(host_id("h1"))) is None,
            "it has read that the row is gone",
        )
