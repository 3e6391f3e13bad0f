"""A private libvirtd for tests. What it has learnt of QEMU takes it long to learn, so that is kept for the next one."""

import os
import tempfile
from pathlib import Path

from laboratory import private_libvirtd

CACHE = Path(tempfile.gettempdir()) / f"moorage-libvirt-cache-{os.getuid()}"


class PrivateLibvirtd(private_libvirtd.PrivateLibvirtd):
    def __init__(self) -> None:
        super().__init__(CACHE)
