"""Mediated devices (vGPUs), as far as a machine without such a GPU shows them.

The GPU is one of another machine, by libvirt's own description. QEMU's libvirt takes the domain, and reads the order to make the device, but
finds no GPU to make it from. That a real one makes it, and that a guest sees it, is not tested anywhere.
"""

from pathlib import Path

import libvirt
import pytest
from msgspec import structs

from compute_sim.libvirt.core.layout import read_mediated
from compute_sim.libvirt.core.machine import attribute, child, read_xml, text_at
from compute_sim.libvirt.core.planning import plan_guest
from compute_sim.libvirt.core.plans import GuestPlan
from compute_sim.libvirt.guest_domains import make_mediated, remove_mediated
from tests.libvirt.host_devices import HostDevices
from tests.libvirt.libvirt_cloud import TINY, domains, files, libvirt_cloud, libvirt_settings
from tests.servers.libvirtd import PrivateLibvirtd
from tests.unit.compute.libvirt_machines import a_layout, an_offer, an_order

GPU, MADE = "pci_0000_5e_00_0", "mdev_0f6c5b1e_3c0b_4a57_9a5e_7f5a5f0b7a01_0000_5e_00_0"
WITH_VGPU = structs.replace(TINY, extra_specs={"resources:VGPU": "1"})


async def test_a_guest_whose_device_cannot_be_made_fails_in_libvirts_words_and_leaves_nothing(
    tmp_path: Path, libvirtd: PrivateLibvirtd, monkeypatch: pytest.MonkeyPatch
) -> None:
    HostDevices(monkeypatch, h1=[GPU, MADE])
    settings = libvirt_settings(tmp_path, libvirtd.uri, mediated_types=("nvidia-222",))
    async with libvirt_cloud(tmp_path, {"c1": settings}) as cloud:
        providers = {each.name: each for each in await cloud.providers()}
        gpu = providers["h1_0000:5e:00.0"].inventories["VGPU"]
        # A device that exists and is nobody's counts, too.
        assert gpu.total > 1
        assert gpu.reserved == 0

        (web,) = await (await cloud.client.boot(WITH_VGPU, image="tiny")).until_ended()

        (failure,) = web.failures
        assert failure.reason.startswith("libvirt: "), failure
        assert "parent" in failure.reason, failure
        assert (domains(libvirtd.uri), files(tmp_path)) == ([], [])
        await cloud.delete(web)


class NodeDevices:
    """The part of a connection that makes and removes mediated devices. It names them as libvirt does, and takes the same XML."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}

    def listAllDevices(self, flags: int) -> list["NodeDevice"]:  # noqa: N802 - libvirt's name
        assert flags == libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV
        return [NodeDevice(self, name) for name in self.made]

    def nodeDeviceCreateXML(self, text: str) -> None:  # noqa: N802 - libvirt's name
        device = read_xml(text, "device")
        capability = device.find("capability[@type='mdev']")
        assert capability is not None
        name = f"mdev_{text_at(capability, 'uuid')}_{text_at(device, 'parent').removeprefix('pci_')}"
        self.made[name.replace("-", "_")] = attribute(child(capability, "type"), "id")


class NodeDevice:
    def __init__(self, of: NodeDevices, name: str) -> None:
        self._of, self._name = of, name

    def name(self) -> str:
        return self._name

    def destroy(self) -> None:
        del self._of.made[self._name]


def test_only_what_does_not_exist_is_made_and_only_the_guests_own_is_removed() -> None:
    layout = a_layout(an_offer(mediated=read_mediated(["nvidia-222@0000:5e:*"])))
    plans = [
        plan_guest(
            an_order(
                layout, {"NUMA0": {"VCPU": 2, "MEMORY_MB": 2048}, "0000:5e:00.0": {"VGPU": 2}}, number=number
            ),
            layout,
        )
        for number in (1, 2)
    ]
    first, second = [each for each in plans if isinstance(each, GuestPlan)]
    devices = NodeDevices()
    make_mediated(devices, first)
    made = dict(devices.made)
    assert set(made.values()) == {"nvidia-222"}
    assert all(name.endswith("_0000_5e_00_0") for name in made)
    assert len(made) == 2

    # A start that is repeated makes none twice.
    make_mediated(devices, first)
    assert devices.made == made
    make_mediated(devices, second)
    assert len(devices.made) == 4
    remove_mediated(devices, second)
    remove_mediated(devices, second)
    assert devices.made == made
