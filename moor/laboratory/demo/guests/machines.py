"""The libvirtds of the demo, one for each host, and what is seen of them without Moorage: domains, processes and files.

Its calls block, so the demo makes them in threads.
"""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import psutil

from bus.messages.build import InstanceState
from compute_sim.libvirt.settings import LibvirtSettings
from moor.laboratory.demo.guests.boot_sector import bootable_image
from moor.laboratory.private_servers.keeper import Keeper
from moor.laboratory.private_servers.libvirtd import PrivateLibvirtd, check_installed, copy_learnt

CELLS = ("harbour", "island")
HOSTS_PER_CELL = 2
IMAGE = "tiny.raw"
GUEST_LINE = "a guest of Moorage is up\r\n"
# What each host offers of the machine: memory for all guests, in case the others are away.
HOST_MEMORY_MB = 2048
# So many guests share a CPU.
CPU_RATIO = 64.0
DomainType = Literal["qemu", "kvm"]
_QEMU_NAME = re.compile(r"guest=([^,]+)")


def domain_of(guest: InstanceState) -> str:
    return f"moor-{guest.id}-{guest.attempt}"


class Machines:
    """Four hosts on this machine. All that they are is below some folders and processes, which `close` removes and ends."""

    def __init__(self, domain_type: DomainType) -> None:
        check_installed()
        self._domain_type = domain_type
        self._keeper = Keeper()
        # A socket's path may not be long.
        self.folder = self._keeper.directory
        cache = self.folder / "cache"
        names = [f"{cell}-{number}" for cell in CELLS for number in range(1, HOSTS_PER_CELL + 1)]
        self.hosts = {name: PrivateLibvirtd(cache) for name in names}
        self._made = {self.folder}
        self._begun: set[int] = set()
        self._is_closed = False

    def start(self) -> None:
        """Start all libvirtds: first one alone, which learns what QEMU can do, and then those that read it."""
        copy_learnt(self.folder / "cache")
        first, *others = self.hosts.values()
        first.start()
        # A demo that was stopped meanwhile starts no others.
        with ThreadPoolExecutor(len(others)) as threads:
            for _ in threads.map(PrivateLibvirtd.start, () if self._is_closed else others):
                pass
        if self._is_closed:
            return
        self._made |= {each.directory for each in self.hosts.values()}
        for cell in CELLS:
            images = self.settings(cell).images_folder
            images.mkdir(parents=True)
            (images / IMAGE).write_bytes(bootable_image(GUEST_LINE))

    def close(self) -> None:
        """End all processes and remove all files. `start` may go on in its thread, and then fails."""
        self._is_closed = True
        for host in self.hosts.values():
            self._begun |= {*host.processes()}
            host.stop()
        self._keeper.close()

    def left(self) -> list[str]:
        """What there is still after `close`."""
        return [
            *[f"{each} is there" for each in sorted(self._made) if each.exists()],
            *[f"process {pid} runs" for pid in sorted(self._begun) if psutil.pid_exists(pid)],
        ]

    def settings(self, cell: str) -> LibvirtSettings:
        """The settings of the compute that controls the hosts of this cell."""
        return LibvirtSettings(
            hosts=tuple([f"{name}={each.uri}" for name, each in self.hosts.items() if name.startswith(cell)]),
            folder=str(self.folder / cell),
            domain_type=self._domain_type,
            flat=True,
            memory_mb=HOST_MEMORY_MB,
            memory_reserved_mb=0,
            cpu_ratio=CPU_RATIO,
            disk_gb=100,
            # The guests have nothing that shuts them down.
            stop_s=0.1,
            away_s=1.0,
            look_every_s=2.0,
        )

    def domains(self, *, running: bool) -> dict[str, list[str]]:
        """The names of the domains of each host: those that run, or all that are defined. As `virsh` lists them."""
        which = () if running else ("--all",)
        return {
            name: sorted(each.virsh("list", "--name", *which).split()) for name, each in self.hosts.items()
        }

    def memory_kib(self, host: str, domain: str) -> int:
        """How much memory libvirt says that the domain has."""
        found = re.search(r"Max memory:\s+(\d+) KiB", self.hosts[host].virsh("dominfo", domain))
        return int(found[1]) if found else 0

    def guests(self, host: str) -> dict[str, int]:
        """The QEMU processes of a host: their ids, by the names of their domains. Also while its libvirtd is away."""
        found = {}
        for pid in self.hosts[host].processes():
            try:
                line = " ".join(psutil.Process(pid).cmdline())
            except psutil.Error:
                # It has ended meanwhile.
                continue
            if named := _QEMU_NAME.search(line):
                found[named[1]] = pid
        return found

    def kill_guest(self, host: str, domain: str) -> int:
        """Kill the QEMU process of a domain."""
        pid = self.guests(host)[domain]
        os.kill(pid, signal.SIGKILL)
        return pid

    def files(self) -> list[str]:
        """What is left of guests in the folders of the hosts."""
        return sorted(str(each.relative_to(self.folder)) for each in self.folder.glob("*/instances/*/*"))
