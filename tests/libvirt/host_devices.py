"""Devices that no test machine has: hosts are told libvirt's own descriptions of them, as other machines have given them."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compute_sim.core.hosts import Host
from compute_sim.libvirt import hypervisor
from compute_sim.libvirt.core.layout import HostLayout
from compute_sim.libvirt.settings import LibvirtHost, LibvirtRules

_DATA = Path(__file__).parent.parent / "data" / "libvirt" / "two_cells"
See = Callable[[Any, LibvirtHost, LibvirtRules, str], tuple[HostLayout, Host]]


class HostDevices:
    """The descriptions of the devices of each host, in place of what its libvirt says. They may change while the hosts run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **of: Sequence[str]) -> None:
        """`of` has the names of the descriptions by host."""
        self.of = {
            host: [(_DATA / f"{name}.xml").read_text() for name in names] for host, names in of.items()
        }
        self._look = threading.local()
        self._see: See = hypervisor.see_machine
        monkeypatch.setattr(hypervisor, "see_machine", self._see_machine)
        monkeypatch.setattr(hypervisor, "_device_texts", lambda _: self.of[self._look.host])

    def _see_machine(
        self, connection: Any, host: LibvirtHost, settings: LibvirtRules, cell: str
    ) -> tuple[HostLayout, Host]:
        self._look.host = host.name
        return self._see(connection, host, settings, cell)


def host_at_work() -> str:
    """The host whose work has come to a step: its threads are named after it."""
    return threading.current_thread().name.removeprefix("work ").rpartition("_")[0]
