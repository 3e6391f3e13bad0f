"""The disks of a guest are no larger than what it holds of its host: when it is built, and when it gets another flavor."""

import json
import subprocess

import pytest
from libvirt import VIR_DOMAIN_AFFECT_CONFIG, VIR_DOMAIN_VCPU_MAXIMUM
from msgspec import structs

from engine.flavors import Flavor, Image
from tests.libvirt.driven_host import FIRST, Host
from tests.libvirt.test_libvirt_failures import write_wrong_images

GIB, MIB = 1024**3, 1024**2
SMALL = Flavor(vcpus=1, ram_mb=32, root_gb=2, ephemeral_gb=1, swap_mb=4)


def sizes(host: Host, attempt: int = 2) -> dict[str, int]:
    """The disks of the first instance, as large as the guest sees them."""
    found = {}
    for disk in sorted((host.folder / "instances").glob(f"*/*.{attempt}/*")):
        if disk.name in ("disk", "ephemeral", "swap"):
            info = subprocess.run(
                ("qemu-img", "info", "--output=json", disk), capture_output=True, check=True
            )
            found[disk.name] = json.loads(info.stdout)["virtual-size"]
    return found


def test_a_flavor_without_a_root_disk_may_hold_one_beside_its_other_disks(host: Host) -> None:
    write_wrong_images(host.settings.images_folder)
    order = host.spawn(image=Image(source="large"), flavor=structs.replace(SMALL, root_gb=0))
    for held, is_built in ((3, False), (4, True)):
        assert (
            host.end_of(structs.replace(order, share=host.share(order.flavor, DISK_GB=held))) == ""
        ) is is_built
    assert sizes(host, 1) == {"disk": 2 * GIB, "ephemeral": GIB, "swap": 4 * MIB}


# Another flavor for a guest of SMALL: the sizes of its disks then, or words of the refusal.
RESIZES: list[tuple[Flavor, dict[str, int] | str]] = [
    (structs.replace(SMALL, root_gb=3), {"disk": 3 * GIB, "ephemeral": GIB, "swap": 4 * MIB}),
    (
        structs.replace(SMALL, ephemeral_gb=2, swap_mb=8),
        {"disk": 2 * GIB, "ephemeral": 2 * GIB, "swap": 8 * MIB},
    ),
    (structs.replace(SMALL, swap_mb=0), {"disk": 2 * GIB, "ephemeral": GIB}),
    (structs.replace(SMALL, swap_mb=2), {"disk": 2 * GIB, "ephemeral": GIB, "swap": 2 * MIB}),
    (
        structs.replace(SMALL, root_gb=0),
        "its disk has 2 GiB, and the flavor gives 0 GiB: a disk does not shrink",
    ),
    (
        structs.replace(SMALL, root_gb=1),
        "its disk has 2 GiB, and the flavor gives 1 GiB: a disk does not shrink",
    ),
    (
        structs.replace(SMALL, ephemeral_gb=0),
        "its disk has 1 GiB, and the flavor gives 0 GiB: a disk does not shrink",
    ),
]


@pytest.mark.parametrize(("flavor", "outcome"), RESIZES)
def test_a_resize_gives_the_disks_the_sizes_of_the_flavor(
    host: Host, flavor: Flavor, outcome: dict[str, int] | str
) -> None:
    assert host.end_of(host.spawn(flavor=SMALL, config_drive='{"meta_data": {"uuid": "1"}}')) == ""
    assert host.work_of(host.stop()).failure == ""

    failure = host.work_of(host.receive(flavor)).failure

    assert (failure or sizes(host)) == outcome
    assert len(list((host.folder / "instances").glob("*/*/config.iso"))) == (1 if failure else 2)
    assert sizes(host, 1) == {"disk": 2 * GIB, "ephemeral": GIB, "swap": 4 * MIB}


# A flavor whose extra spec has another amount claimed, or one with a volume beside: what is claimed, and the disks of its guest.
CLAIMS: list[tuple[Flavor, int, dict[str, int] | str]] = [
    (structs.replace(SMALL, root_gb=100), 5, {"disk": 3 * GIB, "ephemeral": GIB, "swap": 4 * MIB}),
    (structs.replace(SMALL, extra_specs={"resources:DISK_GB": "9"}), 9, {"disk": 7 * GIB}),
    (SMALL, 14, {"disk": 2 * GIB}),
    (SMALL, 2, "2 DISK_GB are claimed, too few for the disks of the flavor: root_gb is 2, "),
    (structs.replace(SMALL, root_gb=0), 1, "1 DISK_GB are claimed, too few for the disks of the flavor: "),
]


@pytest.mark.parametrize(("flavor", "held", "outcome"), CLAIMS)
def test_the_disks_are_as_large_as_the_claim_says(
    host: Host, flavor: Flavor, held: int, outcome: dict[str, int] | str
) -> None:
    share = host.share(flavor, DISK_GB=held)
    failure = host.end_of(host.spawn(flavor=flavor, share=share))

    if isinstance(outcome, str):
        assert outcome in failure
        assert host.left == []
        assert host.end_of(host.spawn(attempt=2)) == ""
        rebuild = host.work_of(host.respawn(2, attempt=2, flavor=flavor, share=share))
        assert outcome in rebuild.failure
        assert rebuild.runs_on
        return
    assert failure == ""
    assert sizes(host, 1) == {"disk": GIB, "ephemeral": GIB, "swap": 4 * MIB} | outcome
    assert host.work_of(host.respawn(2, flavor=flavor, share=share)).failure == ""
    assert sizes(host, 1) == {"disk": GIB, "ephemeral": GIB, "swap": 4 * MIB} | outcome


def test_a_guest_has_the_processors_and_the_memory_of_its_claim(host: Host) -> None:
    greedy = Flavor(vcpus=8, ram_mb=4096, extra_specs={"resources:VCPU": "1", "resources:MEMORY_MB": "64"})
    share = host.share(greedy, VCPU=1, MEMORY_MB=64)
    assert host.end_of(host.spawn(flavor=greedy, share=share)) == ""
    assert vcpus_and_mb(host) == (1, 64)

    assert host.work_of(host.respawn(2, flavor=greedy, share=share)).failure == ""
    assert vcpus_and_mb(host) == (1, 64)

    assert host.work_of(host.stop()).failure == ""
    assert host.work_of(host.receive(greedy, share=host.share(greedy, VCPU=2, MEMORY_MB=96))).failure == ""
    assert vcpus_and_mb(host) == (2, 96)


def vcpus_and_mb(host: Host) -> tuple[int, int]:
    with host.libvirt() as connection:
        domain = connection.lookupByUUID(FIRST.bytes)
        return domain.vcpusFlags(
            VIR_DOMAIN_AFFECT_CONFIG | VIR_DOMAIN_VCPU_MAXIMUM
        ), domain.maxMemory() // 1024
