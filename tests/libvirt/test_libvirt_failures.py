"""What goes wrong on a host: the attempt fails with the words of what refused it, and nothing is left there."""

import hashlib
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from compute_sim.core.attempts import WELL, AttemptState, Silent, Work
from engine.flavors import Flavor, Image
from tests.libvirt.driven_host import Host, which
from tests.libvirt.libvirt_cloud import files
from tests.waiting import PATIENCE_S, wait_for


def test_a_guest_has_its_files_and_none_is_left_after_its_end(host: Host) -> None:
    config_drive = '{"meta_data": {"uuid": "1"}, "user_data": "#cloud-config"}'
    assert (
        host.end_of(
            host.spawn(
                flavor=Flavor(vcpus=1, ram_mb=32, root_gb=1, ephemeral_gb=1, swap_mb=4),
                config_drive=config_drive,
            )
        )
        == ""
    )

    assert host.domains == ["moor-00000000-0000-0000-0000-000000000001-1"]
    names = {Path(each).name for each in files(host.folder)}
    assert {"disk", "ephemeral", "swap", "config.iso", "domain.xml"} <= names

    assert host.destroy() == ""
    assert host.left == []


def write_wrong_images(folder: Path) -> None:
    backed = ("-b", "/etc/passwd", "-F", "raw")
    for name, size, options in (
        ("backed", "1M", backed),
        ("old", "1M", ("-o", "compat=0.10", *backed)),
        ("apart", "1M", ("-o", f"data_file={folder / 'data'}")),
        ("large", "2G", ()),
        ("huge", "60T", ()),
        ("nothing", "0", ()),
    ):
        make = ("qemu-img", "create", "-q", "-f", "qcow2", *options)
        subprocess.run((*make, folder / name, size), check=True)
    # As qemu-img would guess them; it would read the file that the first names.
    (folder / "vmdk").write_text(
        '# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType="monolithicFlat"\nRW 2 FLAT "/etc/passwd" 0\n'
    )
    (folder / "broken").write_bytes(b"QFI\xfb" + bytes(1024))
    (folder / "empty").touch()


def test_a_broken_image_is_named_with_both_digests(host: Host) -> None:
    found = hashlib.sha256((host.settings.images_folder / "tiny").read_bytes()).hexdigest()

    failure = host.end_of(host.spawn(image=Image(source="tiny", checksum="0" * 64)))

    assert failure == f"image 'tiny' is broken: its sha256 is {found}, and must be {'0' * 64}"
    assert host.left == []
    for number, right in enumerate((found, found.upper(), f"sha256:{found}", f"SHA256:{found.upper()}"), 1):
        assert host.end_of(host.spawn(number, image=Image(source="tiny", checksum=right))) == ""


# What cannot be built, and words of the failure.
NOT_BUILT: list[tuple[dict[str, Any], str]] = [
    ({"image": Image(source="unknown")}, "image 'unknown' is not in "),
    ({"image": Image(source="../../etc/passwd")}, "image '../../etc/passwd' is neither"),
    ({"image": Image(source="file:///etc/passwd")}, "image 'file:///etc/passwd' is neither"),
    (
        {"image": Image(source="http://127.0.0.1:9/x")},
        "image 'http://127.0.0.1:9/x' leads to http://127.0.0.1:9, which is none of the servers that the operator allows",
    ),
    ({"image": Image(source="tiny", checksum="xyz")}, "the checksum of image 'tiny' is 'xyz', must be "),
    ({"image": Image(source="tiny", checksum="shake_128:00")}, "of image 'tiny' is 'shake_128:00', must be "),
    ({"image": Image(source="backed")}, "image 'backed' refers to another file, which no image may"),
    ({"image": Image(source="old")}, "image 'old' refers to another file, which no image may"),
    ({"image": Image(source="apart")}, "image 'apart' refers to another file, which no image may"),
    ({"image": Image(source="vmdk")}, "image 'vmdk' has the format vmdk, must be qcow2 or raw"),
    ({"image": Image(source="broken")}, "qemu-img: Could not open "),
    ({"image": Image(source="empty")}, "image 'empty' is empty"),
    ({"image": Image(source="nothing")}, "image 'nothing' is empty"),
    ({"image": Image(source="tiny", kernel="empty")}, "image 'empty' is empty"),
    (
        {"image": Image(source="large"), "flavor": Flavor(vcpus=1, ram_mb=32, root_gb=1)},
        "image 'large' has 2 GiB, ",
    ),
    (
        {"image": Image(source="huge")},
        "image 'huge' has 61440 GiB, and the flavor has no root disk (root_gb is 0): its image may have 1 GiB",
    ),
    ({"image": Image(source="large")}, "image 'large' has 2 GiB, and the flavor has no root disk"),
    (
        {"image_properties": {"hw_disk_bus": "tape"}},
        "image_properties.hw_disk_bus is 'tape'",
    ),
    ({"config_drive": "{nonsense"}, "config_drive: it begins with '{'"),
    ({"config_drive": "nonsense"}, "config_drive is no URL, no parts, and no base64"),
]


@pytest.mark.parametrize(("fields", "words"), NOT_BUILT)
def test_what_cannot_be_built_is_named_and_leaves_nothing(
    host: Host, fields: dict[str, Any], words: str
) -> None:
    write_wrong_images(host.settings.images_folder)

    assert words in host.end_of(host.spawn(**fields))
    assert host.left == []


@pytest.mark.parametrize(("fields", "words"), NOT_BUILT)
def test_a_guest_that_cannot_be_rebuilt_runs_on_as_it_was(
    host: Host, fields: dict[str, Any], words: str
) -> None:
    write_wrong_images(host.settings.images_folder)
    assert host.end_of(host.spawn()) == ""
    (disk,) = (host.folder / "instances").glob("*/*/disk")
    before, seen = which(disk), files(host.folder)

    work = host.work_of(host.respawn(2, **fields))

    assert words in work.failure
    assert work.runs_on
    host.restart()
    (found,) = host.driver.has("c1")
    assert found.state is AttemptState.BUILT
    assert host.running == host.domains == ["moor-00000000-0000-0000-0000-000000000001-1"]
    assert which(disk) == before
    assert {Path(each).name for each in files(host.folder)} - {Path(each).name for each in seen} == {
        "refused.json"
    }

    assert host.work_of(host.respawn(3)) == Work()
    assert which(disk) != before
    assert host.destroy() == ""
    assert host.left == []


def test_a_guest_gets_no_cpu_of_a_guest_of_another_cloud(tmp_path: Path) -> None:
    with closing(Host(tmp_path, cpus_dedicated="0-1")) as host, host.libvirt() as connection:
        connection.defineXML(
            "<domain type='test'><name>theirs</name><memory unit='MiB'>32</memory><vcpu cpuset='0'>1</vcpu>"
            "<cputune><vcpupin vcpu='0' cpuset='0'/></cputune><os><type>hvm</type></os></domain>"
        )
        spawn = host.spawn(flavor=Flavor(vcpus=1, ram_mb=32, extra_specs={"hw:cpu_policy": "dedicated"}))
        cpus, memory = spawn.share.amounts
        amounts = (structs.replace(cpus, resource="PCPU"), memory)

        assert host.end_of(structs.replace(spawn, share=structs.replace(spawn.share, amounts=amounts))) == ""
        assert "<vcpupin vcpu='0' cpuset='1'/>" in connection.lookupByUUID(spawn.instance.bytes).XMLDesc()


def test_a_destroy_that_overtakes_a_build_ends_it(host: Host) -> None:
    at_define = threading.Event()

    def hold() -> None:
        at_define.set()
        time.sleep(0.3)
        host.steps.append("held")

    host.interrupts["define: define"] = hold
    host.driver.begin(host.spawn(), 0.0)
    assert at_define.wait(PATIENCE_S)

    assert host.destroy() == ""
    # It has waited until the build had come to its next step.
    assert host.steps.index("held") < host.steps.index("destroy: domain")
    assert host.left == []


def test_a_libvirt_that_goes_away_in_a_build_fails_it_and_the_host_falls_silent(tmp_path: Path) -> None:
    host = Host(tmp_path, away_s=5.0)
    # Not the host itself: its libvirt is away, and has no domains to remove.
    with closing(host.driver):
        connection = host.driver._hypervisor._connection  # noqa: SLF001 - it is broken here
        host.interrupts["disks: overlay"] = lambda: host.driver._hypervisor._lose(connection, "it ended")  # noqa: SLF001
        host.driver._hypervisor.uri = "test:///nowhere"  # noqa: SLF001 - it is not there when it is looked for

        failure = host.end_of(host.spawn())

        assert failure.startswith("libvirt at test:///nowhere is away: ")
        assert files(host.folder) == []
        assert host.driver.condition(10.0) == WELL
        assert isinstance(host.driver.condition(16.0), Silent)


def test_a_build_whose_libvirt_goes_away_fails_only_when_its_domain_is_gone(host: Host) -> None:
    hypervisor = host.driver._hypervisor  # noqa: SLF001 - it is broken here
    connection, uri = hypervisor._connection, hypervisor.uri  # noqa: SLF001 - as above

    def lose() -> None:
        hypervisor._lose(connection, "it ended")  # noqa: SLF001 - as above
        hypervisor.uri = "test:///nowhere"

    host.interrupts = {"build: start": lose, "wait": lambda: None}
    attempt = host.begun(host.spawn())
    wait_for(lambda: "wait" not in host.interrupts)
    assert host.driver.look_at(attempt, 0.0).left_ms

    # Libvirt's test machine lives in its connection.
    hypervisor.uri, hypervisor._connection, hypervisor.why_away = uri, connection, ""  # noqa: SLF001 - as above
    assert host.end_of_attempt(attempt).startswith("libvirt at test:///nowhere is away: ")
    assert host.left == []


THEIRS = """<domain type='test'><name>theirs</name><memory>32768</memory><vcpu>1</vcpu>
<cputune><vcpupin vcpu='0' cpuset='0'/></cputune><os><type>hvm</type></os></domain>"""


def test_a_guest_does_not_get_the_cpu_that_a_guest_of_another_cloud_has(tmp_path: Path) -> None:
    pinned = Flavor(vcpus=1, ram_mb=32, extra_specs={"resources:PCPU": "1", "resources:VCPU": "0"})
    with closing(Host(tmp_path, cpus_dedicated="0")) as host:
        order = host.spawn(flavor=pinned, share=host.share(pinned, VCPU=0, PCPU=1))
        with host.libvirt() as connection:
            connection.defineXML(THEIRS)
        assert "0 is theirs's" in host.end_of(order)
