"""A compute under the umask of its unit: the hypervisor, which has a user of its own, comes to the guests' files, and nobody to others."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from engine.flavors import Flavor
from tests.libvirt.driven_host import Host
from tests.libvirt.test_libvirt_images import cached
from tests.servers.libvirtd import COMPUTE_ID, SystemLibvirtd

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "moor-compute@.service"
PATIENCE_S = 300


def umask_of(unit: Path) -> int:
    found = re.search(r"^UMask=([0-7]+)$", unit.read_text(), re.MULTILINE)
    # As systemd has it by default.
    return int(found[1], 8) if found else 0o022


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with ExitStack() as stack:
        stack.callback(os.umask, os.umask(umask_of(UNIT)))
        yield stack.enter_context(closing(Host(tmp_path / "guests")))


def is_open(path: Path, top: Path, bit: int) -> bool:
    """May others come to this file below `top`, and do this with it?"""
    folders = [each for each in path.parents if each.is_relative_to(top) and each != top]
    return all(each.stat().st_mode & 0o001 for each in folders) and bool(path.stat().st_mode & bit)


def test_others_read_what_a_hypervisor_needs_and_nothing_else(host: Host, tmp_path: Path) -> None:
    flavor = Flavor(vcpus=1, ram_mb=32, root_gb=1, ephemeral_gb=1, swap_mb=4)
    assert host.end_of(host.spawn(flavor=flavor, config_drive='{"meta_data": {"uuid": "1"}}')) == ""

    found = {each for each in host.folder.rglob("*") if each.is_file()}
    readable = {each.name for each in found if is_open(each, tmp_path, 0o004)}
    images = cached(host.folder)
    assert readable == {"disk", "ephemeral", "swap", "config.iso", "console.log", *images}
    folders = {each for each in host.folder.rglob("*") if each.is_dir()}
    assert not any(is_open(each, tmp_path, 0o006) for each in folders)
    assert not any(is_open(each, tmp_path, 0o002) for each in found)

    assert host.work_of(host.respawn(2)).failure == ""
    assert host.destroy() == ""


@pytest.mark.skipif(
    os.getuid() != 0, reason="libvirtd gives a guest's files to a hypervisor's user if root runs it"
)
def test_a_guest_of_a_hypervisor_with_a_user_of_its_own_starts_and_its_console_is_read() -> None:
    # Others do not come to pytest's folders.
    with SystemLibvirtd() as libvirtd, tempfile.TemporaryDirectory(prefix="moorage-guests-") as folder:
        Path(folder).chmod(0o711)
        os.chown(folder, COMPUTE_ID, COMPUTE_ID)
        words = (folder, libvirtd.uri, str(COMPUTE_ID), oct(umask_of(UNIT)))
        done = subprocess.run(
            [sys.executable, "-m", "tests.libvirt.compute_of_a_user", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "built",
            "console read",
            "console read after virtlogd began another file",
            "rebuilt",
            "saved",
            "gone",
        ],
    ), done.stderr
