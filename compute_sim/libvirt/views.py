"""What a driver knows of its host without asking: the last look at the machine and its domains.

A look takes time, and work on guests goes on meanwhile. So each attempt has the number of its last change, and a look that began
before says nothing about it.
"""

import threading
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import libvirt

from compute_sim.core.hosts import Host
from compute_sim.core.trees import ProviderTree
from compute_sim.libvirt import disks
from compute_sim.libvirt.core.layout import HostLayout
from compute_sim.libvirt.core.plans import ForeignGuest, GuestPlan
from compute_sim.libvirt.core.trees import tree_of
from compute_sim.libvirt.guest_folders import domain_name
from compute_sim.libvirt.hypervisor import GONE, SeenDomain, see_domains, see_machine
from compute_sim.libvirt.settings import LibvirtHost, LibvirtSettings
from engine.flavors import InstanceId
from engine.inventories import ConsumerId

if TYPE_CHECKING:
    from collections.abc import Mapping

AttemptName = tuple[int, int]


class HostView:
    """The last look at a host. Threads look, and the event loop reads."""

    def __init__(self, host: LibvirtHost, settings: LibvirtSettings, cell: str) -> None:
        self.root = host.root
        self._named = host
        self._settings = settings
        self._cell = cell
        self._lock = threading.Lock()
        self._layout: HostLayout | None = None
        self._host = Host(name=host.name)
        self._foreign: tuple[ForeignGuest, ...] = ()
        # By instance and attempt, as integers: whether it runs, and else why not.
        self._off: Mapping[AttemptName, str] = {}
        self._running: frozenset[AttemptName] = frozenset()
        self._celled: frozenset[int] = frozenset()
        # As of the last look: the domains of the host's guests, and why a guest could not be started again.
        self._plans: Mapping[AttemptName, GuestPlan] = {}
        self._broken: Mapping[AttemptName, str] = {}
        self._warned: set[AttemptName] = set()
        self._files_seen_in = 0
        self._look = 0
        self._seen_in = 0
        self._changed_in: dict[AttemptName, int] = {}
        # The tree that was reported last, with what placement has beside it: a device that vanished is there by its name.
        self.known: ProviderTree | None = None
        self.warnings: tuple[str, ...] = ()
        # What the domains on the machine hold, by the last look.
        self.held: tuple[GuestPlan | ForeignGuest, ...] = ()

    @property
    def layout(self) -> HostLayout:
        assert self._layout is not None, "a host is looked at before anything is built there"
        return self._layout

    @property
    def is_known(self) -> bool:
        return self._layout is not None

    @property
    def host(self) -> Host:
        return self._host

    def look_at_machine(self, connection: libvirt.virConnect) -> None:
        layout, host = see_machine(connection, self._named, self._settings, self._cell)
        self._layout, self._host = layout, host

    def look(self, connection: libvirt.virConnect) -> None:
        """Look at the machine and at all domains."""
        with self._lock:
            self._look += 1
            number = self._look
        self.look_at_machine(connection)
        seen = list(see_domains(connection, self.root))
        domains = [each for each in seen if isinstance(each, SeenDomain)]
        with self._lock:
            self.warnings = tuple(each for each in seen if isinstance(each, str))
            self.held = tuple(each.held for each in domains)
            self._foreign = tuple(each.held for each in domains if isinstance(each.held, ForeignGuest))
            self._celled = frozenset(
                each.held.instance.int
                for each in domains
                if isinstance(each.held, GuestPlan) and each.held.cells
            )
            ours = {(each.instance.int, each.attempt): each for each in domains if each.instance is not None}
            self._running = frozenset(name for name, each in ours.items() if each.runs)
            self._off = {name: each.why_off for name, each in ours.items() if not each.runs}
            self._plans = {name: each.held for name, each in ours.items() if isinstance(each.held, GuestPlan)}
            self._seen_in = number

    def look_at_files(self) -> list[str]:
        """See whether the files are there that the domains of the last look need: libvirt misses one only at the next start. Returns
        what the log is to say.
        """
        with self._lock:
            number, plans = self._seen_in, self._plans
        found = {name: why for name, plan in plans.items() if (why := _why_broken(plan))}
        with self._lock:
            # A guest that is just being destroyed loses its domain and its files between two looks.
            twice = {name for name, why in found.items() if self._broken.get(name) == why}
            new = sorted(twice - self._warned)
            self._broken, self._files_seen_in, self._warned = found, number, twice
        return [f"{plans[name].domain} cannot be started again: {found[name]}" for name in new]

    def why_broken(self, name: AttemptName) -> str:
        """Why the guest of this attempt cannot be started again; empty if no look since its last change has seen a reason."""
        with self._lock:
            is_old = self._files_seen_in <= self._changed_in.get(name, 0)
            return "" if is_old else self._broken.get(name, "")

    def changed(self, name: AttemptName) -> None:
        """Work on this attempt begins or ends now: only a look that begins later counts for it."""
        with self._lock:
            self._changed_in[name] = self._look

    def why_off(self, name: AttemptName) -> str:
        """Why the guest of this attempt does not run; empty if it runs, or if no look has seen it since its last change."""
        with self._lock:
            if self._seen_in <= self._changed_in.get(name, 0) or name in self._running:
                return ""
            return self._off.get(name, GONE)

    def runs(self, name: AttemptName) -> bool:
        with self._lock:
            return name in self._running

    def ours(self) -> list[tuple[InstanceId, int]]:
        """The attempts of the host's own domains."""
        with self._lock:
            names = (*self._running, *self._off)
        return [(ConsumerId(UUID(int=instance)), attempt) for instance, attempt in names]

    def celled(self) -> frozenset[int]:
        """The instances, as integers, whose guests have NUMA cells of their own."""
        with self._lock:
            return self._celled

    def forget(self, name: AttemptName) -> None:
        with self._lock:
            self._changed_in.pop(name, None)

    def tree(self, known: ProviderTree) -> ProviderTree:
        if self._layout is None:
            return known
        with self._lock:
            foreign = self._foreign
        tree = tree_of(self._layout, foreign)
        self.known = ProviderTree(tree.root, {**known.providers, **tree.providers})
        return tree


def _why_broken(plan: GuestPlan) -> str:
    """Which file of this guest is gone, or is an overlay of one that is gone. A guest that was adopted may have its disks where only
    its hypervisor is. Only qcow2 disks are followed: tenants write what they like into all other files.
    """
    is_adopted = plan.domain != domain_name(plan.instance, plan.attempt)
    overlays = {each.path for each in plan.disks if each.format == "qcow2"}
    for path in (*(each.path for each in plan.disks), plan.kernel, plan.ramdisk):
        file = Path(path)
        if not path or (is_adopted and not file.exists()):
            continue
        try:
            gone = disks.missing_of(file) if path in overlays or not file.exists() else None
        except PermissionError:
            # The hypervisor may read what the compute may not.
            continue
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        if gone is not None:
            return f"{path} is gone" if str(gone) == path else f"{path} has lost its backing file {gone}"
    return ""
