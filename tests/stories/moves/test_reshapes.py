"""Hosts that come back with another shape: their instances, moves under way among them, go along under boots."""

from collections.abc import Sequence

import pytest

from engine.flavors import InstanceId
from moor.client.bus_client import hosts_of as moor_hosts
from tests.stories.moves.books_stage import BooksStage, a_site, stage_on
from tests.stories.moves.test_audit import STAGES
from tests.waiting import until

FLAT = "vcpus=60,ram_mb=60000,ram_mb_reserved=0,vcpu_ratio=1,device=pci:8086:10fb,device=pci:8086:10fb"
NESTED = f"{FLAT},numa_nodes=2"


async def providers_in_use(stage: BooksStage) -> dict[str, set[str]]:
    """The classes in use, by the kind of provider: the host itself, a cell of it, the pool."""
    page = await stage.placement.snapshot_page(0, 1000)
    found: dict[str, set[str]] = {}
    for state in page.providers:
        used = {resource for resource, each in state.inventories.items() if each.used}
        kind = "numa" if "_NUMA" in state.name else "host" if state.id == state.root else "device"
        found.setdefault("pool" if "nfs" in state.name else kind, set()).update(used)
    return {kind: used for kind, used in found.items() if used}


async def hosts_of(stage: BooksStage, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
    return {id_: state.host for id_, state in (await stage.states(ids)).items()}


async def in_shape(stage: BooksStage, kind: str) -> None:
    """All instances hold their CPUs and memory of providers of this kind, and all books agree."""
    wanted = {kind: {"VCPU", "MEMORY_MB"}, "pool": {"DISK_GB"}}
    await until(lambda: providers_in_use(stage), f"all is held of {kind}", lambda found: found == wanted)
    await stage.until_silent()


async def test_a_refused_shape_shows_at_the_host_until_it_succeeds() -> None:
    small = NESTED.replace("vcpus=60", "vcpus=1")
    async with a_site("embedded") as site:
        async with stage_on(site, FLAT, keeps_hosts=True) as stage:
            ids = await stage.boot(1, 8)
            where = await hosts_of(stage, ids)

        async with stage_on(site, small, keeps_hosts=True) as stage:
            full = {*where.values()}
            await until(
                lambda: moor_hosts(stage.client),
                f"{full} are refused",
                lambda found: {each.name for each in found if each.report_refused} == full,
            )
            await stage.until_silent()
            shown = {each.name: each.report_refused for each in await moor_hosts(stage.client)}
            reason = shown[where[ids[0]]]
            assert reason.startswith("the host cannot get its new shape: consumer")
            assert "holds MEMORY_MB 1024, VCPU 2 of" in reason
            assert (await providers_in_use(stage))["host"] == {"VCPU", "MEMORY_MB"}

            await stage.delete(ids)
            await until(
                lambda: moor_hosts(stage.client),
                "every host has its shape",
                lambda found: not any(each.report_refused for each in found),
            )
            page = await stage.placement.snapshot_page(0, 1000)
            assert len([each.name for each in page.providers if "_NUMA" in each.name]) == 8
            assert await stage.placement.audit() == ()


@pytest.mark.parametrize("kind", STAGES)
async def test_hosts_that_come_back_in_another_shape_take_their_instances_along(kind: str) -> None:
    async with a_site(kind) as site:
        async with stage_on(site, FLAT, keeps_hosts=True) as stage:
            ids = await stage.boot_in(1, [*["active"] * 6, "resized", "resized", "moved", "moved"])
            await stage.until_silent()
            assert await providers_in_use(stage) == {"host": {"VCPU", "MEMORY_MB"}, "pool": {"DISK_GB"}}
            where = await hosts_of(stage, ids)
            boots = await stage.ask_many(50, 5, 3)

        async with stage_on(site, NESTED, keeps_hosts=True) as stage:
            boots += await stage.ask_many(60, 5, 3)
            await stage.until(boots, {"active"})
            await in_shape(stage, "numa")
            assert await hosts_of(stage, ids) == where
            # Moves that were under way return to what their instance held before, and end.
            await stage.end(ids[6], "confirm")
            await stage.end(ids[7], "revert")
            await stage.end(ids[8], "confirm")
            await stage.end(ids[9], "revert")
            await stage.until_silent()
            await stage.move(ids[0], "migrate", "moved")
            boots += await stage.ask_many(70, 5, 3)

        async with stage_on(site, FLAT, keeps_hosts=True) as stage:
            boots += await stage.ask_many(80, 5, 3)
            await stage.until(boots, {"active"})
            await in_shape(stage, "host")
            page = await stage.placement.snapshot_page(0, 1000)
            assert not [each.name for each in page.providers if "_NUMA" in each.name]
            await stage.end(ids[0], "revert")
            await stage.delete([*ids, *boots])
            await stage.until_silent()
            assert not [each for each in await stage.placement.books_page(None, 500) if each.held]
            assert await stage.placement.audit() == ()
