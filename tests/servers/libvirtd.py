"""A private libvirtd for tests. What it has learnt of QEMU takes it long to learn, so that is kept for the next one."""

import os
import tempfile
from pathlib import Path

from laboratory import private_libvirtd

CACHE = Path(tempfile.gettempdir()) / f"moorage-libvirt-cache-{os.getuid()}"
# The ids that QEMU and a compute have beside a libvirtd that root runs: libvirt wants to know the user of a client, so that is `nobody`.
QEMU_ID, COMPUTE_ID = 64_055, 65_534


class PrivateLibvirtd(private_libvirtd.PrivateLibvirtd):
    def __init__(self) -> None:
        super().__init__(CACHE)


class SystemLibvirtd(PrivateLibvirtd):
    """As systems ship it, for root alone: QEMU has a user of its own, gets each file when a guest starts, and writes its console by virtlogd."""

    def _write_files(self, directory: Path) -> None:
        super()._write_files(directory)
        directory.chmod(0o711)
        (directory / "sock").chmod(0o755)
        (directory / "etc" / "qemu.conf").write_text(
            f'user = "+{QEMU_ID}"\ngroup = "+{QEMU_ID}"\nsecurity_driver = "none"\nnamespaces = []\ncgroup_controllers = []\n'
        )
        with (directory / "libvirtd.conf").open("a") as conf:
            conf.write('unix_sock_rw_perms = "0777"\n')
        (directory / "virtlogd.conf").write_text("max_size = 1024\nmax_backups = 2\n")
        start = directory / "start"
        logs = f"virtlogd --daemon --config {directory}/virtlogd.conf --pid-file {directory}/virtlogd.pid"
        start.write_text(start.read_text().replace("exec ", f"{logs}\nexec "))
