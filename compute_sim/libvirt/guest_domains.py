"""The domains of a host's guests: they are defined, started, stopped and removed. Everything here blocks."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import uuid5
from xml.etree.ElementTree import Element, SubElement, tostring

import libvirt
from msgspec import structs

from compute_sim.drivers import ConsoleText
from compute_sim.libvirt.core.domains import domain_xml, held_by
from compute_sim.libvirt.core.layout import ADDRESS, DISK, claimed_of
from compute_sim.libvirt.core.machine import BadXmlError, cpus_in_words
from compute_sim.libvirt.core.planning import NoPlan, pinned_anew, plan_guest
from compute_sim.libvirt.core.plans import (
    ForeignGuest,
    GuestDisk,
    GuestNic,
    GuestOrder,
    GuestPlan,
    PlannedMediated,
    Taken,
)
from compute_sim.libvirt.disks import OPEN, first_of
from compute_sim.libvirt.guest_folders import DISKS, GuestFolder, KeptOrder, Order, domain_name
from compute_sim.libvirt.hypervisor import HostView, Hypervisor, SeenDomain, see_domains
from compute_sim.libvirt.images import CachedImage
from compute_sim.libvirt.settings import LibvirtRules
from compute_sim.libvirt.work import WAITING, AtStep, LibvirtAway, WorkFailed
from engine.flavors import InstanceId

log = logging.getLogger(__name__)

# Makes the mediated devices of a guest before it starts, and removes them after it.


def make_mediated(connection: libvirt.virConnect, held: GuestPlan | ForeignGuest) -> None:
    """Make those devices of the guest that do not exist; libvirt's refusal is the caller's."""
    for device in _devices(held):
        if _found(connection, device) is None:
            connection.nodeDeviceCreateXML(mediated_xml(device))


def remove_mediated(connection: libvirt.virConnect, held: GuestPlan | ForeignGuest) -> None:
    for device in _devices(held):
        found = _found(connection, device)
        if found is not None:
            # Another guest's start may have failed with it; the next look finds what is left.
            with contextlib.suppress(libvirt.libvirtError):
                found.destroy()


def _devices(held: GuestPlan | ForeignGuest) -> tuple[PlannedMediated, ...]:
    return held.mediated if isinstance(held, GuestPlan) else ()


def _found(connection: libvirt.virConnect, device: PlannedMediated) -> libvirt.virNodeDevice | None:
    name = f"mdev_{str(device.uuid).replace('-', '_')}"
    for each in connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV):
        if each.name().startswith(name):
            return each
    return None


def mediated_xml(device: PlannedMediated) -> str:
    """The device as libvirt makes it."""
    top = Element("device")
    SubElement(top, "parent").text = "pci_" + device.parent.replace(":", "_").replace(".", "_")
    capability = SubElement(top, "capability", type="mdev")
    SubElement(capability, "type", id=device.type)
    SubElement(capability, "uuid").text = str(device.uuid)
    return tostring(top, encoding="unicode")


_POLL_S = 0.1
# What a kernel of the image is started with, if the image does not say it: its console is the one that is kept.
_CMDLINE = "console=ttyS0 root=/dev/vda"
_UNDEFINE = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
)


class GuestDomains:
    """The domains of one host's guests, each with its folder."""

    def __init__(self, hypervisor: Hypervisor, view: HostView, settings: LibvirtRules) -> None:
        self.hypervisor = hypervisor
        self.view = view
        self._settings = settings
        # What one guest gets is decided, and defined, before the next guest is.
        self._planning = threading.Lock()
        # Two pools of one folder may not be.
        self._reading = threading.Lock()

    def define(
        self, kept: KeptOrder, folder: GuestFolder, boot: Mapping[str, CachedImage], at_step: AtStep
    ) -> KeptOrder:
        """Decide what the guest gets, and define its domain. `boot` has the kernel and the ramdisk of its image. Returns the order with
        the addresses of the guest's cards.
        """
        with self._planning, self.hypervisor.connected() as connection:
            at_step("define: plan")
            plan = self._plan(connection, kept, folder, boot)
            macs = tuple([each.mac for each in plan.nics])
            # Of a network that is not offered now, the card may come back.
            kept = structs.replace(kept, macs=(*macs, *kept.macs[len(macs) :]))
            folder.keep(kept)
            text = domain_xml(plan)
            try:
                # Before libvirt has it: `remove` relies on that.
                folder.write("domain.xml", text.encode())
                folder.console.touch()
                for path in (*(each.path for each in plan.disks), plan.console_log):
                    Path(path).chmod(OPEN)
            except OSError as error:
                raise WorkFailed(f"{folder.domain} cannot be written: {error.strerror}") from error
            at_step("define: define")
            connection.defineXML(text)
        return kept

    def try_out(self, kept: KeptOrder, folder: GuestFolder, boot: Mapping[str, CachedImage]) -> None:
        """See whether the guest could get what it is to have. Raises `WorkFailed` if not."""
        with self._planning, self.hypervisor.connected() as connection:
            self._plan(connection, kept, folder, boot)

    def _plan(
        self,
        connection: libvirt.virConnect,
        kept: KeptOrder,
        folder: GuestFolder,
        boot: Mapping[str, CachedImage],
    ) -> GuestPlan:
        """Plan the guest, as if it had nothing now. Raises `WorkFailed` if the host cannot give it all."""
        self.view.look_at_machine(connection)
        others = [
            each.held
            for each in see_domains(connection, self.view.root)
            if isinstance(each, SeenDomain) and not _is_of(each.held, folder.instance)
        ]
        guest = self._guest_order(kept, folder, boot, taken_macs(others))
        plan = plan_guest(guest, self.view.layout, others, self.view.known)
        if isinstance(plan, NoPlan):
            raise WorkFailed(plan.reason)
        return plan

    def _guest_order(
        self, kept: KeptOrder, folder: GuestFolder, boot: Mapping[str, CachedImage], taken: Mapping[str, str]
    ) -> GuestOrder:
        order = kept.order
        found = [GuestDisk(str(each)) for each in map(folder.disk_at, DISKS) if each.exists()]
        if folder.config_drive.exists():
            found.append(GuestDisk(str(folder.config_drive), "raw", "cdrom"))
        return GuestOrder(
            instance=order.instance,
            attempt=order.attempt,
            cell=order.cell,
            flavor=order.flavor,
            share=order.share,
            domain=folder.domain_name,
            name=order.name,
            image_properties=kept.image_properties,
            disks=tuple(found),
            nics=self._nics(kept, taken),
            kernel=boot["kernel"].path if "kernel" in boot else "",
            ramdisk=boot["ramdisk"].path if "ramdisk" in boot else "",
            cmdline=kept.image_properties.get("os_command_line", _CMDLINE) if "kernel" in boot else "",
            console_log=str(folder.console),
        )

    def pin_anew(self, connection: libvirt.virConnect) -> None:
        """Have the shared CPUs of guests that were built here where the host offers shared CPUs now, while they run."""
        for guest in self.view.held:
            if not isinstance(guest, GuestPlan) or self._pinned_anew(guest) == guest:
                continue
            if guest.domain != domain_name(guest.instance, guest.attempt):
                # Adopted, and pinned by the other cloud.
                continue
            with self._planning, contextlib.suppress(BadXmlError):
                self._pin(connection, guest)

    def _pin(self, connection: libvirt.virConnect, seen: GuestPlan) -> None:
        try:
            domain = connection.lookupByUUIDString(str(seen.instance))
            guest = held_by(domain.XMLDesc())
            # It may be another attempt's by now, which has its own CPUs.
            if not isinstance(guest, GuestPlan) or (guest.domain, guest.pins) != (seen.domain, seen.pins):
                return
            plan = self._pinned_anew(guest)
            count = max(self.view.layout.machine.cpus) + 1
            flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG if domain.isPersistent() else 0
            flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE if domain.isActive() else 0
            for number, cpus in enumerate(plan.pins):
                if cpus != guest.pins[number]:
                    domain.pinVcpuFlags(number, tuple(cpu in cpus for cpu in range(count)), flags)
            if plan.emulator != guest.emulator:
                domain.pinEmulator(tuple(cpu in plan.emulator for cpu in range(count)), flags)
            log.warning(
                "%s is pinned to CPUs that the host offers now: %s, and was to %s",
                *(guest.domain, _pins_in_words(plan), _pins_in_words(guest)),
            )
        except libvirt.libvirtError as error:
            log.warning(
                "%s runs on CPUs that the host does not offer it any more, and cannot be pinned: %s",
                seen.domain,
                error,
            )

    def _pinned_anew(self, guest: GuestPlan) -> GuestPlan:
        others = [each for each in self.view.held if not _is_of(each, guest.instance)]
        return pinned_anew(guest, Taken(self.view.layout, others))

    def console(self, folder: GuestFolder, start: int, limit: int) -> ConsoleText:
        """A part of the console, read by libvirt: virtlogd begins a new file when one is full, and that is root's alone."""
        top = Element("pool", type="dir")
        SubElement(top, "name").text = f"console-{folder.domain_name}"
        SubElement(SubElement(top, "target"), "path").text = str(folder.path)
        with self._reading, self.hypervisor.connected() as connection:
            pool = connection.storagePoolCreateXML(tostring(top, encoding="unicode"))
            try:
                volume, stream = pool.storageVolLookupByName(folder.console.name), connection.newStream()
                size = volume.info()[1]
                begin = first_of(start, size)
                volume.download(stream, begin, limit)
                text = b"".join(iter(lambda: stream.recv(limit), b""))
                stream.finish()
                return ConsoleText(text, begin, size)
            finally:
                pool.destroy()

    def storage_of(self, order: Order) -> Path | None:
        """The folder of the storage pool of which the guest's disks are claimed; None if they are the host's own."""
        pools = claimed_of(self.view.layout.shared, order.share, DISK)
        return Path(pools[0].path) if pools else None

    def _nics(self, kept: KeptOrder, taken: Mapping[str, str]) -> tuple[GuestNic, ...]:
        """A network card on the network of the settings, and on each of which an address is claimed."""
        claimed = claimed_of(self.view.layout.shared, kept.order.share, ADDRESS)
        names = dict.fromkeys((self._settings.network, *(each.name for each in claimed)))
        networks = [each for each in names if each]
        macs = macs_of(kept.order.instance, len(networks), kept.macs, taken)
        return tuple([GuestNic(mac, network) for mac, network in zip(macs, networks, strict=True)])

    def find(self, connection: libvirt.virConnect, folder: GuestFolder) -> libvirt.virDomain | None:
        """The domain of this attempt; None if libvirt has none, or that of another attempt of the instance."""
        domain = domain_of(connection, folder.instance)
        return domain if domain is not None and domain.name() == folder.domain_name else None

    def runs(self, folder: GuestFolder) -> bool:
        with self.hypervisor.connected() as connection:
            domain = self.find(connection, folder)
            return domain is not None and bool(domain.isActive())

    def start(self, folder: GuestFolder) -> None:
        with self.hypervisor.connected() as connection:
            domain = self.find(connection, folder)
            if domain is None:
                domain = self._define_again(connection, folder)
            if not domain.isActive():
                make_mediated(connection, held_by(domain.XMLDesc()))
                domain.create()

    def _define_again(self, connection: libvirt.virConnect, folder: GuestFolder) -> libvirt.virDomain:
        """Define the domain of a guest that moved away and came back, or whose domain somebody has removed."""
        try:
            text = folder.domain.read_text()
        except FileNotFoundError:
            raise WorkFailed("its domain is gone, and so is the file that describes it") from None
        # In one libvirt there is one domain of an instance: an attempt to move it here may have left one.
        with contextlib.suppress(libvirt.libvirtError):
            other = connection.lookupByUUIDString(str(folder.instance))
            if not other.isActive():
                undefine(other)
        return connection.defineXML(text)

    def stop(self, folder: GuestFolder, at_step: AtStep) -> None:
        """Shut the guest down, and switch it off if it does not do so in time."""
        with self.hypervisor.connected() as connection:
            domain = self.find(connection, folder)
            if domain is None or not domain.isActive():
                return
            until_s = time.monotonic() + self._settings.stop_s
            # A driver that cannot ask guests to shut down says so: then it is switched off.
            with contextlib.suppress(libvirt.libvirtError):
                domain.shutdown()
                while domain.isActive() and time.monotonic() < until_s:
                    time.sleep(_POLL_S)
                    at_step(WAITING)
            if domain.isActive():
                at_step("stop: switch off")
                _switch_off(domain)

    def undefine(self, folder: GuestFolder) -> None:
        """Have libvirt forget the domain of a stopped guest; the folder keeps its description."""
        with self.hypervisor.connected() as connection:
            domain = self.find(connection, folder)
            if domain is None:
                return
            if domain.isActive():
                raise WorkFailed("it runs on its source")
            undefine(domain)

    def remove(self, folder: GuestFolder) -> None:
        """Switch the guest off, and remove its domain and its mediated devices."""
        with self.hypervisor.connected() as connection:
            domain = self.find(connection, folder)
            if domain is None:
                return
            held = held_by(domain.XMLDesc())
            if domain.isActive():
                _switch_off(domain)
            # The domain alone says which devices these are, so it goes last: a process may be killed in between.
            remove_mediated(connection, held)
            undefine(domain)

    def remove_if_defined(self, folder: GuestFolder) -> None:
        """As `remove`, for a domain that was defined here. Libvirt is not needed if it has never got the domain."""
        try:
            self.remove(folder)
        except LibvirtAway:
            if folder.domain.exists():
                raise


def domain_of(connection: libvirt.virConnect, instance: InstanceId) -> libvirt.virDomain | None:
    """The domain of this instance, of any attempt or another cloud's; None if libvirt has none."""
    try:
        return connection.lookupByUUIDString(str(instance))
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def _is_of(held: GuestPlan | ForeignGuest, instance: InstanceId) -> bool:
    return held.uuid == instance if isinstance(held, ForeignGuest) else held.instance == instance


def _pins_in_words(guest: GuestPlan) -> str:
    return " ".join(cpus_in_words(each) or "any" for each in guest.pins)


def undefine(domain: libvirt.virDomain) -> None:
    try:
        domain.undefineFlags(_UNDEFINE)
    except libvirt.libvirtError as error:
        match error.get_error_code():
            case libvirt.VIR_ERR_NO_DOMAIN:
                return
            case libvirt.VIR_ERR_INVALID_ARG | libvirt.VIR_ERR_NO_SUPPORT:
                # A driver that knows none of these keeps nothing of the kind.
                domain.undefine()
            case _:
                raise


def _switch_off(domain: libvirt.virDomain) -> None:
    try:
        domain.destroy()
    except libvirt.libvirtError:
        # It may have ended meanwhile.
        if domain.isActive():
            raise


# Moves a running guest from one libvirt to another, with the blocks of its disks. It blocks, for as long as that takes.


_FLAGS = (
    libvirt.VIR_MIGRATE_LIVE
    | libvirt.VIR_MIGRATE_PERSIST_DEST
    | libvirt.VIR_MIGRATE_NON_SHARED_INC
    | libvirt.VIR_MIGRATE_AUTO_CONVERGE
)


def migrate(source: GuestDomains, from_: GuestFolder, target: GuestDomains, to: GuestFolder) -> None:
    """Move the guest to the domain that was defined for it at the target."""
    text = to.domain.read_text()
    # Its name on the way is that on the source.
    arriving = text.replace(f"<name>{to.domain_name}</name>", f"<name>{from_.domain_name}</name>", 1)
    with target.hypervisor.connected() as here, source.hypervisor.connected() as there:
        # Its arrival defines it anew.
        domain = target.find(here, to)
        if domain is not None:
            undefine(domain)
        moving = source.find(there, from_)
        if moving is None:
            raise WorkFailed("its domain is gone on the source")
        moving.migrate3(
            here,
            {
                libvirt.VIR_MIGRATE_PARAM_DEST_NAME: to.domain_name,
                libvirt.VIR_MIGRATE_PARAM_DEST_XML: arriving,
                libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: arriving,
            },
            _FLAGS,
        )


# The addresses of guests' network cards: derived from the instance, and kept with its order, so that they stay when it moves.


# Locally administered, and of one card.
_FIRST = "fa"


def mac_of(instance: InstanceId, number: int = 0, tries: int = 0) -> str:
    """An address of a card: 40 bits that depend on the instance and on the card's number."""
    digest = uuid5(instance, f"card {number} {tries}").bytes
    return ":".join((_FIRST, *(f"{byte:02x}" for byte in digest[:5])))


def taken_macs(others: Iterable[GuestPlan | ForeignGuest]) -> dict[str, str]:
    """The addresses of all cards on the machine, with the domains that have them."""
    return {
        mac.lower(): each.domain if isinstance(each, GuestPlan) else each.name
        for each in others
        for mac in (
            [*(nic.mac for nic in each.nics), *(port.mac for port in each.functions)]
            if isinstance(each, GuestPlan)
            else each.macs
        )
    }


def macs_of(
    instance: InstanceId, count: int, kept: Sequence[str], taken: Mapping[str, str]
) -> tuple[str, ...]:
    """The addresses of a guest's cards, of which it keeps those that it has (`kept`). Raises `WorkFailed` if another guest on the
    machine has one of these; a new one is chosen so that none has it.
    """
    for mac in kept[:count]:
        if owner := taken.get(mac.lower()):
            raise WorkFailed(
                f"its network card has the address {mac}, which is in use here by a card of {owner}"
            )
    return (*kept[:count], *[_free(instance, number, taken) for number in range(len(kept), count)])


def _free(instance: InstanceId, number: int, taken: Mapping[str, str]) -> str:
    tries = 0
    while (mac := mac_of(instance, number, tries)) in taken:
        tries += 1
    return mac
