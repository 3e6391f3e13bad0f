"""`moor up --host-size`: hosts with NUMA cells, dedicated processors, huge pages and devices, as docs/scheduling.md tries them."""

from pathlib import Path

import pytest

from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = pytest.mark.asyncio

SIZE = "vcpus=8,ram_mb=16384,numa_nodes=2,pcpus=8,pages=2048:8192,device=pci:10de:20b0"


async def test_guests_get_cells_pages_and_devices(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour", "--hosts", "1", "--host-size", SIZE, **environment) as up:
        await up.until_printed("ready")
        pinned = "--extra-spec", "hw:cpu_policy=dedicated"
        two = "--extra-spec", "hw:numa_nodes=2"
        paged = "--extra-spec", "hw:mem_page_size=large"
        for words in (("--vcpus", "4", *pinned, *two, *paged), ("--vcpus", "1")):
            booted = await moor_json("boot", "--ram", "2048", *words, **environment)
            assert [each["state"] for each in booted["instances"]] == ["active"]
        providers = await moor_json("provider", "list", **environment)
        used = {
            (each["name"].removeprefix("harbour-host-00001"), resource): inventory["used"]
            for each in providers
            for resource, inventory in each["inventories"].items()
            if inventory["used"]
        }
        huge = "CUSTOM_MEMORY_MB_PAGES_2048"
        assert [used[cell, resource] for cell in ("_NUMA0", "_NUMA1") for resource in ("PCPU", huge)] == [
            2,
            1024,
            2,
            1024,
        ]

        refused = await moor("boot", "--vcpus", "6", "--ram", "512", *pinned, **environment)
        assert refused.code == 1
        assert "guest cell 0: PCPU asked 6, gives at most 4 at harbour-host-00001_NUMA" in refused.out


async def test_a_wrong_size_is_refused_before_anything_starts(home: Path) -> None:
    ran = await moor("up", "--host-size", "numa_nodes=2,cores=4", XDG_STATE_HOME=str(home))
    assert ran.code == 2
    assert "host_size has 'cores', must be one of" in ran.err
