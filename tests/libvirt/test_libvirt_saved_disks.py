"""The disk of an instance that is saved belongs to its project, and goes when nothing needs it any more."""

from pathlib import Path

import pytest

from bus.messages.build import InstanceState
from engine.flavors import Image
from moor.client import NotDone
from tests.libvirt.libvirt_cloud import LibvirtCloud, files, libvirt_cloud
from tests.libvirt.test_libvirt_alternates import connection, two_hosts  # noqa: F401 - a fixture: the test machine has room
from tests.waiting import until

pytestmark = pytest.mark.asyncio
NEEDS = {"VCPU": 1, "MEMORY_MB": 32}


def saved_of(folder: Path, state: InstanceState) -> list[str]:
    return sorted(each.name for each in (folder / "images").rglob(f"*{state.id}*"))


async def offloaded(cloud: LibvirtCloud, state: InstanceState, folder: Path) -> str:
    """Offload it. Returns the name of its saved disk."""
    await (await cloud.client.offload(state.id)).until_done()
    (name,) = saved_of(folder, state)
    return name


async def test_only_its_project_has_a_saved_disk_until_it_runs_again(tmp_path: Path) -> None:
    async with libvirt_cloud(tmp_path, two_hosts(tmp_path)) as cloud:
        bank = await cloud.boot(project="bank")
        saved = await offloaded(cloud, bank, tmp_path)

        for image in (Image(source=saved), Image(source="tiny", kernel=saved)):
            with pytest.raises(NotDone, match=f"image '{saved}' is not in .*, for all or for project 'shop'"):
                await cloud.boot(project="shop", image=image)
        shop = await cloud.boot(project="shop")
        with pytest.raises(NotDone, match=f"image '{saved}' is not in "):
            await (await cloud.client.rebuild(shop.id, image=Image(source=saved))).until_done()
        assert (await cloud.client.show(shop.id)).state == "active"
        other = await cloud.boot(project="bank", image=Image(source=saved))
        assert other.state == "active"

        await (await cloud.client.unshelve(bank.id)).until_done()
        await until(lambda: saved_of(tmp_path, bank) == [])
        # Each offload has an image of its own.
        again = await offloaded(cloud, bank, tmp_path)
        assert again != saved
        await (await cloud.client.unshelve(bank.id)).until_done()
        await until(lambda: saved_of(tmp_path, bank) == [])
        assert await cloud.problems(bank, shop, other, amounts=NEEDS) == []
        for each in (bank, shop, other):
            await (await cloud.client.delete(each.id)).until_done()
        await until(lambda: files(tmp_path) == [])
