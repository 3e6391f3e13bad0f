"""Two computes with one folder: that of the same cell waits until the first one has ended, and that of another cell works beside it."""

from pathlib import Path

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.workers.station import Station
from compute_sim.libvirt.running import libvirt_parts
from compute_sim.settings import ComputeSettings
from kit.errors import Unavailable
from tests.libvirt.libvirt_cloud import libvirt_settings


@pytest.mark.asyncio
async def test_a_folder_has_one_compute_of_a_cell_at_once(tmp_path: Path) -> None:
    broker = MemoryBroker().as_user()
    first, second = Station(broker, "first", asks=True), Station(broker, "second", asks=True)
    settings = libvirt_settings(tmp_path, "test:///default", domain_type="test")
    of_cell = {cell: ComputeSettings(cell=cell) for cell in ("c1", "c2")}
    async with libvirt_parts(first, of_cell["c1"], settings):
        with pytest.raises(Unavailable, match=f"first works in {tmp_path}, as the compute of cell 'c1'"):
            async with libvirt_parts(second, of_cell["c1"], settings):
                pass
        async with libvirt_parts(
            second, of_cell["c2"], structs.replace(settings, hosts=("h2=test:///default",))
        ):
            pass
    async with libvirt_parts(second, of_cell["c1"], settings):
        pass
    for each in (first, second):
        await each.close()
