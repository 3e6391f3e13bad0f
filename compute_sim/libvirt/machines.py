"""What libvirt says of its machine and of the domains there, read by the rules of core/."""

from collections.abc import Iterator
from contextlib import suppress

import libvirt
from msgspec import Struct

from bus.message import ProviderId
from bus.messages.build import InstanceId
from compute_sim.core.hosts import Host
from compute_sim.libvirt.core.held import as_foreign, held_by
from compute_sim.libvirt.core.host_facts import host_of
from compute_sim.libvirt.core.layout import HostLayout, layout_of
from compute_sim.libvirt.core.machine import Machine, read_machine
from compute_sim.libvirt.core.node_devices import read_node_devices
from compute_sim.libvirt.core.plans import ForeignGuest, GuestPlan
from compute_sim.libvirt.core.sharing import (
    SharedPool,
    read_sharing,
    shared_network,
    shared_storage,
    shared_with,
)
from compute_sim.libvirt.core.xml_reading import BadXmlError
from compute_sim.libvirt.failures import WorkFailed
from compute_sim.libvirt.settings import LibvirtHost, LibvirtSettings

_STATE_WORDS = {
    libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN: "its guest has shut down",
    libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED: "its domain was destroyed in libvirt, by none of our orders",
    libvirt.VIR_DOMAIN_SHUTOFF_CRASHED: "its hypervisor process has ended",
    libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED: "its domain was migrated away in libvirt, by none of our orders",
    libvirt.VIR_DOMAIN_SHUTOFF_SAVED: "its domain was saved in libvirt, by none of our orders",
    libvirt.VIR_DOMAIN_SHUTOFF_FAILED: "its hypervisor has failed",
    libvirt.VIR_DOMAIN_SHUTOFF_DAEMON: "libvirt was restarted, and its process was gone",
    libvirt.VIR_DOMAIN_SHUTOFF_UNKNOWN: "its domain is off, for a reason that libvirt does not know",
}
GONE = "its domain does not exist any more"


class SeenDomain(Struct, frozen=True):
    """A domain as it was seen. `plan` is None if it is none of the host's guests."""

    instance: InstanceId | None
    attempt: int
    runs: bool
    why_off: str
    held: GuestPlan | ForeignGuest


def see_machine(
    connection: libvirt.virConnect, host: LibvirtHost, settings: LibvirtSettings, cell: str
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
    connection: libvirt.virConnect, host: LibvirtHost, settings: LibvirtSettings, cell: str
) -> Iterator[SharedPool]:
    """The storage pools and the networks that the settings name. Raises ValueError for one that libvirt does not have."""
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


def _domain_type(machine: Machine, settings: LibvirtSettings) -> str:
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
    if isinstance(held, GuestPlan) and held.share.host == root:
        return SeenDomain(held.instance, held.attempt, runs, why, held)
    foreign = held if isinstance(held, ForeignGuest) else as_foreign(text)
    return SeenDomain(None, 0, runs, why, foreign)
