"""The domains of a host's guests: they are defined, started, stopped and removed. Everything here blocks."""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import libvirt
from msgspec import structs

from bus.messages.build import InstanceId
from compute_sim.libvirt.core.cpu_ranges import cpus_in_words
from compute_sim.libvirt.core.domain_xml import domain_xml
from compute_sim.libvirt.core.held import held_by
from compute_sim.libvirt.core.orders import GuestOrder
from compute_sim.libvirt.core.planning import NoPlan, plan_guest
from compute_sim.libvirt.core.plans import ForeignGuest, GuestDisk, GuestNic, GuestPlan
from compute_sim.libvirt.core.processors import pinned_anew
from compute_sim.libvirt.core.sharing import ADDRESS, DISK, claimed_of
from compute_sim.libvirt.core.taken import Taken
from compute_sim.libvirt.core.xml_reading import BadXmlError
from compute_sim.libvirt.failures import LibvirtAway, WorkFailed
from compute_sim.libvirt.guest_folders import GuestFolder, KeptOrder, Order
from compute_sim.libvirt.hypervisor import Hypervisor
from compute_sim.libvirt.images import CachedImage
from compute_sim.libvirt.machines import SeenDomain, see_domains
from compute_sim.libvirt.mediated import make_mediated, remove_mediated
from compute_sim.libvirt.network_cards import macs_of, taken_macs
from compute_sim.libvirt.persisting import WAITING, AtStep
from compute_sim.libvirt.settings import LibvirtSettings
from compute_sim.libvirt.views import HostView

log = logging.getLogger(__name__)

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

    def __init__(self, hypervisor: Hypervisor, view: HostView, settings: LibvirtSettings) -> None:
        self.hypervisor = hypervisor
        self._view = view
        self._settings = settings
        # What one guest gets is decided, and defined, before the next guest is.
        self._planning = threading.Lock()

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
        self._view.look_at_machine(connection)
        others = [
            each.held
            for each in see_domains(connection, self._view.root)
            if isinstance(each, SeenDomain) and not _is_of(each.held, folder.instance)
        ]
        guest = self._guest_order(kept, folder, boot, taken_macs(others))
        plan = plan_guest(guest, self._view.layout, others, self._view.known)
        if isinstance(plan, NoPlan):
            raise WorkFailed(plan.reason)
        return plan

    def _guest_order(
        self, kept: KeptOrder, folder: GuestFolder, boot: Mapping[str, CachedImage], taken: Mapping[str, str]
    ) -> GuestOrder:
        order = kept.order
        found = [
            GuestDisk(str(each)) for each in (folder.disk, folder.ephemeral, folder.swap) if each.exists()
        ]
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
        for guest in self._view.held:
            if not isinstance(guest, GuestPlan) or guest.host != self._view.root or _is_adopted(guest):
                continue
            if self._pinned_anew(guest) == guest:
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
            count = max(self._view.layout.machine.cpus) + 1
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
        others = [each for each in self._view.held if not _is_of(each, guest.instance)]
        return pinned_anew(guest, Taken(self._view.layout, others))

    def storage_of(self, order: Order) -> Path | None:
        """The folder of the storage pool of which the guest's disks are claimed; None if they are the host's own."""
        pools = claimed_of(self._view.layout.shared, order.share, DISK)
        return Path(pools[0].path) if pools else None

    def _nics(self, kept: KeptOrder, taken: Mapping[str, str]) -> tuple[GuestNic, ...]:
        """A network card on the network of the settings, and on each of which an address is claimed."""
        claimed = claimed_of(self._view.layout.shared, kept.order.share, ADDRESS)
        names = dict.fromkeys((self._settings.network, *(each.name for each in claimed)))
        networks = [each for each in names if each]
        macs = macs_of(kept.order.instance, len(networks), kept.macs, taken)
        return tuple([GuestNic(mac, network) for mac, network in zip(macs, networks, strict=True)])

    def find(self, connection: libvirt.virConnect, folder: GuestFolder) -> libvirt.virDomain | None:
        """The domain of this attempt; None if libvirt has none, or that of another attempt of the instance."""
        try:
            domain = connection.lookupByUUIDString(str(folder.instance))
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise
        return domain if domain.name() == folder.domain_name else None

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


def _is_of(held: GuestPlan | ForeignGuest, instance: InstanceId) -> bool:
    return held.uuid == instance if isinstance(held, ForeignGuest) else held.instance == instance


def _is_adopted(guest: GuestPlan) -> bool:
    return guest.domain != f"moor-{guest.instance}-{guest.attempt}"


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
