"""The connection to one libvirt: it is opened again when it breaks, and tells of events.

libvirt's calls block. So all of this runs in threads of its own, and nothing here may be called on the event loop but `is_away`.
Errors are told in libvirt's own words.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

import libvirt
from msgspec import Struct

from bus.messages.build import DIED
from compute_sim.core.hosts import Host, aggregate_of, pools_of, read_pools
from compute_sim.core.trees import ProviderTree
from compute_sim.libvirt import disks
from compute_sim.libvirt.core.domains import as_foreign, held_by
from compute_sim.libvirt.core.layout import (
    ADDRESS,
    DISK,
    HostLayout,
    SharedPool,
    layout_of,
    read_sharing,
    shared_network,
    shared_storage,
    shared_with,
)
from compute_sim.libvirt.core.machine import BadXmlError, Machine, read_machine, read_node_devices
from compute_sim.libvirt.core.plans import ForeignGuest, GuestPlan
from compute_sim.libvirt.core.trees import host_of, tree_of
from compute_sim.libvirt.guest_folders import domain_name
from compute_sim.libvirt.settings import LibvirtHost, LibvirtRules
from compute_sim.libvirt.work import LibvirtAway, WorkFailed
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId

log = logging.getLogger(__name__)

# The connection counts as broken after this many unanswered messages, one each KEEPALIVE_S.
KEEPALIVE_S, KEEPALIVE_COUNT = 3, 3
RETRY_S = 0.5
# How long a thread waits for another one that opens the connection.
_OTHERS_S = 5.0

_AWAY = frozenset(
    {
        libvirt.VIR_ERR_INTERNAL_ERROR,
        libvirt.VIR_ERR_RPC,
        libvirt.VIR_ERR_SYSTEM_ERROR,
        libvirt.VIR_ERR_NO_CONNECT,
        libvirt.VIR_ERR_INVALID_CONN,
    }
)
_events_lock = threading.Lock()
_events: threading.Thread | None = None


def _run_events() -> None:
    """Libvirt's own event loop, which keeps connections alive and calls back; one for the process."""
    global _events  # noqa: PLW0603 - libvirt has one event loop for a process
    with _events_lock:
        if _events is None:
            libvirt.virEventRegisterDefaultImpl()
            # It prints each error, beside raising it.
            libvirt.registerErrorHandler(lambda *_: None, None)
            _events = threading.Thread(target=_turn, name="libvirt events", daemon=True)
            _events.start()


def _turn() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            # Without this thread no connection is kept alive, and no broken one is noticed.
            log.warning("libvirt's events cannot be read, they are tried again: %s", error)
            time.sleep(RETRY_S)


class Hypervisor:
    """One libvirt. `told` is called, in some thread, after an event about a domain, and when the connection breaks or is back."""

    def __init__(self, uri: str, told: Callable[[], None]) -> None:
        _run_events()
        self.uri = uri
        self._told = told
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._connection: libvirt.virConnect | None = None
        self.why_away = "not connected yet"
        self._tried_at_s = float("-inf")

    @contextmanager
    def connected(self) -> Iterator[libvirt.virConnect]:
        """The connection, for some calls. Raises `LibvirtAway`, or `WorkFailed` if libvirt refuses a call."""
        connection = self._open()
        try:
            yield connection
        except libvirt.libvirtError as error:
            if not self._is_alive(connection, error):
                self._lose(connection, str(error))
                raise LibvirtAway(f"libvirt at {self.uri} is away: {error}") from error
            raise WorkFailed(f"libvirt: {error}") from error

    def _open(self) -> libvirt.virConnect:
        if (known := self._connection) is not None:
            return known
        # libvirt may take minutes to answer, or never do so: only one thread waits for it, and holds up nothing else.
        if not self._opening.acquire(timeout=_OTHERS_S):
            raise LibvirtAway(f"libvirt at {self.uri} is away: another thread waits for its answer")
        try:
            if self._connection is not None:
                return self._connection
            if time.monotonic() - self._tried_at_s < RETRY_S:
                raise LibvirtAway(f"libvirt at {self.uri} is away: {self.why_away}")
            self._tried_at_s = time.monotonic()
            try:
                connection = libvirt.open(self.uri)
                # The test driver has no keepalive, and no way to close.
                with suppress(libvirt.libvirtError):
                    connection.registerCloseCallback(
                        lambda ended, reason, _: self._lose(
                            ended, f"the connection has ended (reason {reason})"
                        ),
                        None,
                    )
                with suppress(libvirt.libvirtError):
                    connection.setKeepAlive(KEEPALIVE_S, KEEPALIVE_COUNT)
                # What an event says may be old by now: it only leads to a look.
                connection.domainEventRegisterAny(
                    None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, lambda *_: self._told(), None
                )
            except libvirt.libvirtError as error:
                self.why_away = str(error)
                raise LibvirtAway(f"libvirt at {self.uri} is away: {error}") from error
            with self._lock:
                self._connection, self.why_away = connection, ""
        finally:
            self._opening.release()
        self._told()
        return connection

    def _is_alive(self, connection: libvirt.virConnect, error: libvirt.libvirtError) -> bool:
        if error.get_error_code() not in _AWAY:
            return True
        try:
            return bool(connection.isAlive())
        except libvirt.libvirtError:
            return False

    def _lose(self, connection: libvirt.virConnect, why: str) -> None:
        with self._lock:
            if self._connection is not connection:
                return
            self._connection, self.why_away = None, why
        self._told()

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self.why_away = "the compute has closed the connection"
        if connection is not None:
            with suppress(libvirt.libvirtError):
                connection.close()


# What libvirt says of its machine and of the domains there, read by the rules of core/.


# Those that have died may be started again.
_STATE_WORDS = {
    libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN: "its guest has shut down",
    libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED: "its domain was destroyed in libvirt, by none of our orders",
    libvirt.VIR_DOMAIN_SHUTOFF_CRASHED: DIED + "its hypervisor process has ended",
    libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED: "its domain was migrated away in libvirt, by none of our orders",
    libvirt.VIR_DOMAIN_SHUTOFF_SAVED: "its domain was saved in libvirt, by none of our orders",
    libvirt.VIR_DOMAIN_SHUTOFF_FAILED: DIED + "its hypervisor has failed",
    libvirt.VIR_DOMAIN_SHUTOFF_DAEMON: DIED + "libvirt was restarted, and its process was gone",
    libvirt.VIR_DOMAIN_SHUTOFF_UNKNOWN: DIED + "its domain is off, for a reason that libvirt does not know",
}
GONE = "its domain does not exist any more"


class SeenDomain(Struct, frozen=True):
    """A domain as it was seen. A `GuestPlan` is held by the host's own guests alone."""

    runs: bool
    why_off: str
    held: GuestPlan | ForeignGuest


def see_machine(
    connection: libvirt.virConnect, host: LibvirtHost, settings: LibvirtRules, cell: str
) -> tuple[HostLayout, Host]:
    """What the machine is, and what the host offers of it. Raises `WorkFailed` if the settings name what it does not have."""
    capabilities = connection.getCapabilities()
    machine = read_machine(capabilities)
    domain_type = _domain_type(machine, settings)
    kind = machine.guest_kind(machine.arch, domain_type)
    domain_capabilities = ""
    # The test driver has none.
    with suppress(libvirt.libvirtError):
        domain_capabilities = connection.getDomainCapabilities(
            kind.emulator if kind is not None and kind.emulator else None, machine.arch, None, domain_type
        )
    try:
        machine = read_machine(capabilities, domain_capabilities, _expanded_cpu(connection, capabilities))
        layout = layout_of(
            host.root,
            machine,
            settings.offer(host, domain_type),
            devices=read_node_devices(_device_texts(connection)),
            shared=_shared(connection, host, settings, cell),
        )
    except ValueError as wrong:
        raise WorkFailed(f"host {host.name}: {wrong}") from wrong
    return layout, host_of(machine, layout.offer, connection.getType(), connection.getVersion())


def _shared(
    connection: libvirt.virConnect, host: LibvirtHost, settings: LibvirtRules, cell: str
) -> Iterator[SharedPool]:
    """The storage pools, the networks and other pools that the settings name. Raises ValueError for one that libvirt does not have."""
    for field, texts, look_up, read in (
        ("storage_pools", settings.storage_pools, connection.storagePoolLookupByName, shared_storage),
        ("shared_networks", settings.shared_networks, connection.networkLookupByName, shared_network),
    ):
        for offer in shared_with(read_sharing(texts, field), host.name):
            try:
                text = look_up(offer.name).XMLDesc()
            except libvirt.libvirtError as error:
                if error.get_error_code() not in (
                    libvirt.VIR_ERR_NO_STORAGE_POOL,
                    libvirt.VIR_ERR_NO_NETWORK,
                ):
                    raise
                raise ValueError(
                    f"{field} has {offer.name!r}, which its libvirt does not have: {error}"
                ) from error
            yield read(text, offer, cell)
    for pool in pools_of(read_pools(settings.pools, cell), host.name):
        if pool.resource in (DISK, ADDRESS):
            raise ValueError(
                f"pools has {pool.name!r} of {pool.resource}: a guest gets these of libvirt's own, so name them in storage_pools or shared_networks"
            )
        yield SharedPool(pool.name, pool.resource, aggregate_of(pool), pool)


def _domain_type(machine: Machine, settings: LibvirtRules) -> str:
    if settings.domain_type != "auto":
        return settings.domain_type
    kinds = ("kvm", "qemu", "test")
    return next((each for each in kinds if machine.guest_kind(machine.arch, each)), "qemu")


def _expanded_cpu(connection: libvirt.virConnect, capabilities: str) -> str:
    begin, end = capabilities.find("<cpu>"), capabilities.find("</cpu>")
    if begin < 0:
        return ""
    cpu = capabilities[begin : end + len("</cpu>")]
    with suppress(libvirt.libvirtError):
        return str(connection.baselineCPU([cpu], libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES))
    return ""


def _device_texts(connection: libvirt.virConnect) -> list[str]:
    texts = []
    with suppress(libvirt.libvirtError):
        for device in connection.listAllDevices():
            # A device may vanish meanwhile.
            with suppress(libvirt.libvirtError):
                texts.append(device.XMLDesc())
    return texts


def see_domains(connection: libvirt.virConnect, root: ProviderId) -> Iterator[SeenDomain | str]:
    """Each domain, or what is wrong with one that cannot be read."""
    for domain in connection.listAllDomains():
        name = "?"
        try:
            name = domain.name()
            yield _seen(domain, root)
        except BadXmlError as wrong:
            yield f"domain {name} cannot be read, and is not counted: {wrong}"
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise


def _seen(domain: libvirt.virDomain, root: ProviderId) -> SeenDomain:
    text = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE if not domain.isActive() else 0)
    held = held_by(text)
    state, reason = domain.state()
    runs = state not in (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_CRASHED)
    why = "" if runs else _STATE_WORDS.get(reason, "its domain is off")
    if isinstance(held, GuestPlan) and held.share.host != root:
        held = as_foreign(text)
    return SeenDomain(runs, why, held)


# What a driver knows of its host without asking: the last look at the machine and its domains.
#
# A look takes time, and work on guests goes on meanwhile. So each attempt has the number of its last change, and a look that began
# before says nothing about it.


AttemptName = tuple[int, int]


class HostView:
    """The last look at a host. Threads look, and the event loop reads."""

    def __init__(self, host: LibvirtHost, settings: LibvirtRules, cell: str) -> None:
        self.root = host.root
        self._named = host
        self._settings = settings
        self._cell = cell
        self._lock = threading.Lock()
        self._layout: HostLayout | None = None
        self.host = Host(name=host.name)
        # As of the last look: the domains of the host's guests by instance and attempt, and why a guest could not be started again.
        self._ours: Mapping[AttemptName, SeenDomain] = {}
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

    def look_at_machine(self, connection: libvirt.virConnect) -> None:
        self._layout, self.host = see_machine(connection, self._named, self._settings, self._cell)

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
            self._ours = {
                (each.held.instance.int, each.held.attempt): each
                for each in domains
                if isinstance(each.held, GuestPlan)
            }
            self._seen_in = number

    def look_at_files(self) -> list[str]:
        """See whether the files are there that the domains of the last look need: libvirt misses one only at the next start. Returns
        what the log is to say.
        """
        with self._lock:
            number, ours = self._seen_in, self._ours
        plans = {name: each.held for name, each in ours.items() if isinstance(each.held, GuestPlan)}
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
            if self._seen_in <= self._changed_in.get(name, 0):
                return ""
            seen = self._ours.get(name)
            return GONE if seen is None else seen.why_off

    def runs(self, name: AttemptName) -> bool:
        with self._lock:
            return name in self._ours and self._ours[name].runs

    def ours(self) -> list[tuple[InstanceId, int]]:
        """The attempts of the host's own domains."""
        with self._lock:
            return [(ConsumerId(UUID(int=instance)), attempt) for instance, attempt in self._ours]

    def celled(self) -> frozenset[int]:
        """The instances, as integers, whose guests have NUMA cells of their own."""
        with self._lock:
            return frozenset(
                each.instance.int for each in self.held if isinstance(each, GuestPlan) and each.cells
            )

    def forget(self, name: AttemptName) -> None:
        with self._lock:
            self._changed_in.pop(name, None)

    def tree(self, known: ProviderTree) -> ProviderTree:
        if self._layout is None:
            return known
        with self._lock:
            foreign = [each for each in self.held if isinstance(each, ForeignGuest)]
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
