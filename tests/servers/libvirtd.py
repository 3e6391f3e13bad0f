"""A private libvirtd for tests. What it has learnt of QEMU takes it long to learn, so that is kept for the next one."""

import os
import tempfile
from pathlib import Path

import psutil

from moor.laboratory.private_servers import libvirtd

CACHE = Path(tempfile.gettempdir()) / f"moorage-libvirt-cache-{os.getuid()}"


class PrivateLibvirtd(libvirtd.PrivateLibvirtd):
    def __init__(self) -> None:
        super().__init__(CACHE)

    @property
    def is_connected(self) -> bool:
        """Is a client connected to the daemon?"""
        sockets = psutil.Process(self.pid).net_connections("unix")
        here = [each for each in sockets if str(each.laddr).endswith("/libvirt-sock")]
        # One of them is the one that it listens at.
        return len(here) > 1
