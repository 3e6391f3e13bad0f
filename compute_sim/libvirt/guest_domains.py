"""The domains of a host's guests: they are defined, started, stopped and removed. Everything here blocks."""

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import libvirt

from bus.messages.build import InstanceId
from compute_sim.libvirt.core.domain_xml import domain_xml
from compute_sim.libvirt.core.held import held_by
from compute_sim.libvirt.core.orders import GuestOrder
from compute_sim.libvirt.core.planning import NoPlan, plan_guest
from compute_sim.libvirt.core.plans import ForeignGuest, GuestDisk, GuestNic, GuestPlan
from compute_sim.libvirt.core.sharing import ADDRESS, DISK, claimed_of
from compute_sim.libvirt.failures import LibvirtAway, WorkFailed
from compute_sim.libvirt.guest_folders import GuestFolder, KeptOrder, Order
from compute_sim.libvirt.hypervisor import Hypervisor
from compute_sim.libvirt.images import CachedImage
from compute_sim.libvirt.machines import SeenDomain, see_domains
from compute_sim.libvirt.mediated import make_mediated, remove_mediated
from compute_sim.libvirt.network_cards import mac_of
from compute_sim.libvirt.persisting import AtStep
from compute_sim.libvirt.settings import LibvirtSettings
from compute_sim.libvirt.views import HostView

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
    ) -> None:
        """Decide what the guest gets, and define its domain. `boot` has the kernel and the ramdisk of its image."""
        with self._planning, self.hypervisor.connected() as connection:
            at_step("define: plan")
            text = domain_xml(self._plan(connection, kept, folder, boot))
            try:
                # Before libvirt has it: `remove` relies on that.
                folder.write("domain.xml", text.encode())
            except OSError as error:
                raise WorkFailed(f"{folder.domain} cannot be written: {error.strerror}") from error
            at_step("define: define")
            connection.defineXML(text)

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
        guest = self._guest_order(kept, folder, boot)
        plan = plan_guest(guest, self._view.layout, others, self._view.known)
        if isinstance(plan, NoPlan):
            raise WorkFailed(plan.reason)
        return plan

    def _guest_order(
        self, kept: KeptOrder, folder: GuestFolder, boot: Mapping[str, CachedImage]
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
            nics=self._nics(order),
            kernel=boot["kernel"].path if "kernel" in boot else "",
            ramdisk=boot["ramdisk"].path if "ramdisk" in boot else "",
            cmdline=kept.image_properties.get("os_command_line", _CMDLINE) if "kernel" in boot else "",
            console_log=str(folder.console),
        )

    def storage_of(self, order: Order) -> Path | None:
        """The folder of the storage pool of which the guest's disks are claimed; None if they are the host's own."""
        pools = claimed_of(self._view.layout.shared, order.share, DISK)
        return Path(pools[0].path) if pools else None

    def _nics(self, order: Order) -> tuple[GuestNic, ...]:
        """A network card on the network of the settings, and on each of which an address is claimed."""
        claimed = claimed_of(self._view.layout.shared, order.share, ADDRESS)
        networks = dict.fromkeys((self._settings.network, *(each.name for each in claimed)))
        return tuple(
            [
                GuestNic(mac_of(order.instance, number), network)
                for number, network in enumerate(name for name in networks if name)
            ]
        )

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
                    at_step("stop: wait")
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
