"""The work of a host on its guests, step by step. Everything here blocks, and runs in the threads of the driver.

Each piece of work may be done again from its beginning, whatever of it was done before: so a process that comes after a crash
ends it. `at_step` is called before each step: it raises `GivenUp` if a later order has made the work useless.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import libvirt
from msgspec import structs

from bus.message import ProviderId
from bus.messages.build import Image, InstanceId
from bus.messages.cell import ReceiveInstance, RespawnInstance, SpawnInstance
from compute_sim.libvirt import disks
from compute_sim.libvirt.config_drives import make_config_drive
from compute_sim.libvirt.core.domain_xml import domain_xml
from compute_sim.libvirt.core.held import held_by
from compute_sim.libvirt.core.orders import GuestOrder
from compute_sim.libvirt.core.planning import NoPlan, plan_guest
from compute_sim.libvirt.core.plans import ForeignGuest, GuestDisk, GuestNic, GuestPlan
from compute_sim.libvirt.failures import WorkFailed
from compute_sim.libvirt.guest_folders import GuestFolder, GuestFolders, KeptOrder
from compute_sim.libvirt.hypervisor import Hypervisor
from compute_sim.libvirt.images import CachedImage, CachedImages
from compute_sim.libvirt.machines import SeenDomain, see_domains
from compute_sim.libvirt.mediated import make_mediated, remove_mediated
from compute_sim.libvirt.network_cards import mac_of
from compute_sim.libvirt.settings import LibvirtSettings
from compute_sim.libvirt.views import HostView

AtStep = Callable[[str], None]
_POLL_S = 0.1
_UNDEFINE = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
)


class GuestWork:
    """The work on the guests of one host. `peers` are all hosts of this compute, from which it may receive guests."""

    def __init__(
        self,
        hypervisor: Hypervisor,
        view: HostView,
        folders: GuestFolders,
        images: CachedImages,
        *,
        settings: LibvirtSettings,
        peers: Mapping[ProviderId, "GuestWork"],
    ) -> None:
        self.hypervisor = hypervisor
        self.folders = folders
        self._view = view
        self._images = images
        self._settings = settings
        self._peers = peers
        # What one guest gets is decided, and defined, before the next guest is.
        self._planning = threading.Lock()

    # Orders

    def spawn(self, order: SpawnInstance, at_step: AtStep) -> None:
        folder = self.folders.of(order.instance, order.attempt)
        kept = folder.kept()
        if kept is not None and kept.is_done and kept.order == order:
            return
        try:
            at_step("spawn: clean")
            self._empty(folder)
            at_step("spawn: note")
            kept = KeptOrder(order, order.image, order.image_properties, order.config_drive)
            folder.keep(kept)
            if not self._take_over_disk(order, folder, at_step):
                kept = self._make_disks(kept, folder, at_step)
            self._define(kept, folder, at_step)
            at_step("spawn: start")
            if not order.stopped:
                self._start(folder)
            at_step("spawn: done")
            folder.keep(structs.replace(kept, is_done=True))
        except WorkFailed:
            self._clean(folder)
            raise

    def respawn(self, order: RespawnInstance, at_step: AtStep) -> None:
        folder = self.folders.of(order.instance, order.attempt)
        kept = folder.kept()
        if kept is not None and kept.is_done and kept.order == order:
            return
        at_step("respawn: clean")
        self._empty(folder)
        at_step("respawn: note")
        kept = KeptOrder(order, order.image, order.image_properties, order.config_drive)
        folder.keep(kept)
        kept = self._make_disks(kept, folder, at_step)
        self._define(kept, folder, at_step)
        at_step("respawn: start")
        self._start(folder)
        at_step("respawn: done")
        folder.keep(structs.replace(kept, is_done=True))

    def receive(self, order: ReceiveInstance, at_step: AtStep) -> None:
        folder = self.folders.of(order.instance, order.attempt)
        kept = folder.kept()
        if kept is not None and kept.is_done and kept.order == order:
            return
        source = self._source_of(order.source)
        from_ = source.folders.of(order.instance, order.source_attempt)
        if order.live and source.runs(from_):
            self._receive_live(order, folder, source, from_, at_step)
            return
        try:
            at_step("receive: clean")
            self._empty(folder)
            at_step("receive: note")
            kept = self._inherited(order, from_)
            folder.keep(kept)
            at_step("receive: copy")
            for name in ("disk", "ephemeral", "swap", "config.iso"):
                if (from_.path / name).exists():
                    disks.copy(from_.path / name, folder.path / name)
            if folder.disk.exists() and order.flavor.root_gb:
                disks.grow(folder.disk, order.flavor.root_gb * disks.GIB)
            at_step("receive: leave")
            # Both cannot be defined in one libvirt. The source keeps its own in its folder.
            source.undefine(from_)
            self._define(kept, folder, at_step)
            at_step("receive: start")
            if not order.stopped:
                self._start(folder)
            at_step("receive: done")
            folder.keep(structs.replace(kept, is_done=True))
        except WorkFailed:
            self._clean(folder)
            raise

    def stop(self, instance: InstanceId, attempt: int, save_as: str, at_step: AtStep) -> None:
        folder = self._there(instance, attempt)
        at_step("stop: shut down")
        self._stop(folder, at_step)
        if save_as:
            at_step("stop: save")
            if not folder.disk.exists():
                raise WorkFailed("it has no disk that could be saved as an image")
            self._images.save(folder.disk, save_as)

    def start(self, instance: InstanceId, attempt: int, at_step: AtStep) -> None:
        folder = self._there(instance, attempt)
        at_step("start: start")
        self._start(folder)

    def destroy(self, instance: InstanceId, attempt: int, at_step: AtStep) -> None:
        folder = self.folders.of(instance, attempt)
        at_step("destroy: domain")
        self._remove_domain(folder)
        at_step("destroy: files")
        folder.remove()
        at_step("destroy: done")

    # Disks

    def _make_disks(self, kept: KeptOrder, folder: GuestFolder, at_step: AtStep) -> KeptOrder:
        at_step("disks: image")
        flavor, uses = kept.order.flavor, []
        if kept.image is not None:
            base = self._image(kept.image, at_step)
            uses = [base.path, *(each.path for each in self._boot_files(kept.image, at_step).values())]
            kept = structs.replace(kept, uses=tuple(uses))
            folder.keep(kept)
            at_step("disks: overlay")
            size = disks.disk_size(base.source, base.virtual_size, flavor.root_gb)
            disks.make_overlay(folder.disk, Path(base.path), base.format, size)
        elif flavor.root_gb:
            at_step("disks: overlay")
            disks.make_empty(folder.disk, flavor.root_gb * disks.GIB)
        if flavor.ephemeral_gb:
            disks.make_empty(folder.ephemeral, flavor.ephemeral_gb * disks.GIB)
        if flavor.swap_mb:
            disks.make_empty(folder.swap, flavor.swap_mb * 1024 * 1024)
        if kept.config_drive:
            at_step("disks: config drive")
            make_config_drive(kept.config_drive, folder.config_drive, lambda url: self._file(url, at_step))
        return kept

    def _take_over_disk(self, order: SpawnInstance, folder: GuestFolder, at_step: AtStep) -> bool:
        """Copy the disk of an evacuated instance, if this host reaches it. Returns whether it did."""
        source = self._peers.get(order.source) if order.source is not None else None
        if source is None:
            return False
        from_ = source.folders.of(order.instance, order.source_attempt)
        if not from_.disk.exists():
            return False
        at_step("spawn: take over")
        kept = from_.kept()
        if kept is not None:
            folder.keep(structs.replace(kept, order=order, is_done=False))
        for name in ("disk", "ephemeral", "swap", "config.iso"):
            if (from_.path / name).exists():
                disks.copy(from_.path / name, folder.path / name)
        return True

    def _image(self, image: Image, at_step: AtStep) -> CachedImage:
        return self._images.image(image.source, image.checksum, lambda: at_step("disks: download"))

    def _file(self, source: str, at_step: AtStep) -> Path:
        give_up = lambda: at_step("disks: download")  # noqa: E731 - as above
        return Path(self._images.image(source, "", give_up, is_disk=False).path)

    def _boot_files(self, image: Image, at_step: AtStep) -> dict[str, CachedImage]:
        named = {"kernel": image.kernel, "ramdisk": image.ramdisk}
        return {
            what: self._images.image(source, "", lambda: at_step("disks: download"), is_disk=False)
            for what, source in named.items()
            if source
        }

    # Domains

    def _define(self, kept: KeptOrder, folder: GuestFolder, at_step: AtStep) -> None:
        boot = self._boot_files(kept.image, at_step) if kept.image is not None else {}
        guest = self._guest_order(kept, folder, boot)
        with self._planning, self.hypervisor.connected() as connection:
            at_step("define: plan")
            self._view.look_at_machine(connection)
            others = [
                each.held
                for each in see_domains(connection, self._view.root)
                if isinstance(each, SeenDomain) and not _is_of(each.held, folder.instance)
            ]
            plan = plan_guest(guest, self._view.layout, others, self._view.known)
            if isinstance(plan, NoPlan):
                raise WorkFailed(plan.reason)
            text = domain_xml(plan)
            try:
                folder.write("domain.xml", text.encode())
            except OSError as error:
                raise WorkFailed(f"{folder.domain} cannot be written: {error.strerror}") from error
            at_step("define: define")
            connection.defineXML(text)

    def _guest_order(
        self, kept: KeptOrder, folder: GuestFolder, boot: Mapping[str, CachedImage]
    ) -> GuestOrder:
        order = kept.order
        found = [
            GuestDisk(str(each)) for each in (folder.disk, folder.ephemeral, folder.swap) if each.exists()
        ]
        if folder.config_drive.exists():
            found.append(GuestDisk(str(folder.config_drive), "raw", "cdrom"))
        network = self._settings.network
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
            nics=(GuestNic(mac_of(order.instance), network),) if network else (),
            kernel=boot["kernel"].path if "kernel" in boot else "",
            ramdisk=boot["ramdisk"].path if "ramdisk" in boot else "",
            cmdline=kept.image_properties.get("os_command_line", _CMDLINE) if "kernel" in boot else "",
            console_log=str(folder.console),
        )

    def _domain(self, connection: libvirt.virConnect, folder: GuestFolder) -> libvirt.virDomain | None:
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
            domain = self._domain(connection, folder)
            return domain is not None and bool(domain.isActive())

    def _start(self, folder: GuestFolder) -> None:
        with self.hypervisor.connected() as connection:
            domain = self._domain(connection, folder)
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
                _undefine(other)
        return connection.defineXML(text)

    def _stop(self, folder: GuestFolder, at_step: AtStep) -> None:
        """Shut the guest down, and switch it off if it does not do so in time."""
        with self.hypervisor.connected() as connection:
            domain = self._domain(connection, folder)
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
            domain = self._domain(connection, folder)
            if domain is None:
                return
            if domain.isActive():
                raise WorkFailed("it runs on its source")
            _undefine(domain)

    def _remove_domain(self, folder: GuestFolder) -> None:
        with self.hypervisor.connected() as connection:
            domain = self._domain(connection, folder)
            if domain is None:
                return
            held = held_by(domain.XMLDesc())
            if domain.isActive():
                _switch_off(domain)
            _undefine(domain)
            remove_mediated(connection, held)

    def _clean(self, folder: GuestFolder) -> None:
        """Remove all of an attempt that has failed."""
        self._remove_domain(folder)
        folder.remove()

    def _empty(self, folder: GuestFolder) -> None:
        """Remove all but the order: it is to be obeyed from its beginning."""
        self._remove_domain(folder)
        folder.empty()

    # Moves

    def _source_of(self, host: ProviderId) -> "GuestWork":
        source = self._peers.get(host)
        if source is None:
            raise WorkFailed(f"its source {host} is none of the hosts of this compute")
        return source

    def _there(self, instance: InstanceId, attempt: int) -> GuestFolder:
        folder = self.folders.of(instance, attempt)
        if not folder.is_there:
            raise WorkFailed(f"{folder.path} does not exist any more")
        return folder

    def _inherited(self, order: ReceiveInstance, from_: GuestFolder) -> KeptOrder:
        before = from_.kept()
        if before is None:
            raise WorkFailed(f"its source has no {from_.path}, or it is not reached from here")
        return structs.replace(before, order=order, is_done=False)

    def _receive_live(
        self,
        order: ReceiveInstance,
        folder: GuestFolder,
        source: "GuestWork",
        from_: GuestFolder,
        at_step: AtStep,
    ) -> None:
        if source.hypervisor.uri == self.hypervisor.uri:
            raise WorkFailed("it runs under the same libvirt, which cannot move it to itself")
        try:
            at_step("live: clean")
            self._empty(folder)
            kept = self._inherited(order, from_)
            folder.keep(kept)
            at_step("live: disks")
            self._make_empty_copies(from_, folder)
            at_step("live: migrate")
            self._migrate(kept, folder, source, from_, at_step)
            at_step("live: done")
            folder.keep(structs.replace(kept, is_done=True))
        except WorkFailed:
            self._clean(folder)
            raise

    def _make_empty_copies(self, from_: GuestFolder, folder: GuestFolder) -> None:
        """Make the files that libvirt copies the disks into: as large, and overlays of the same images."""
        for name in ("disk", "ephemeral", "swap"):
            disk = from_.path / name
            if not disk.exists():
                continue
            info = disks.info_of(disk, "qcow2")
            if info.backing_filename:
                base = Path(info.backing_filename)
                disks.make_overlay(folder.path / name, base, disks.info_of(base).format, info.virtual_size)
            else:
                disks.make_empty(folder.path / name, info.virtual_size)
        if from_.config_drive.exists():
            disks.copy(from_.config_drive, folder.config_drive)

    def _migrate(
        self,
        kept: KeptOrder,
        folder: GuestFolder,
        source: "GuestWork",
        from_: GuestFolder,
        at_step: AtStep,
    ) -> None:
        self._define(kept, folder, at_step)
        text = folder.domain.read_text()
        with self.hypervisor.connected() as here, source.hypervisor.connected() as there:
            # Its arrival defines it anew.
            domain = self._domain(here, folder)
            if domain is not None:
                _undefine(domain)
            moving = source._domain(there, from_)  # noqa: SLF001 - of the same class
            if moving is None:
                raise WorkFailed("its domain is gone on the source")
            flags = (
                libvirt.VIR_MIGRATE_LIVE
                | libvirt.VIR_MIGRATE_PERSIST_DEST
                | libvirt.VIR_MIGRATE_NON_SHARED_INC
                | libvirt.VIR_MIGRATE_AUTO_CONVERGE
            )
            moving.migrate3(
                here,
                {
                    libvirt.VIR_MIGRATE_PARAM_DEST_NAME: folder.domain_name,
                    # Its name on the way is that on the source.
                    libvirt.VIR_MIGRATE_PARAM_DEST_XML: _renamed(text, folder.domain_name, from_.domain_name),
                    libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: _renamed(
                        text, folder.domain_name, from_.domain_name
                    ),
                },
                flags,
            )


# What a kernel of the image is started with, if the image does not say it: its console is the one that is kept.
_CMDLINE = "console=ttyS0 root=/dev/vda"


def _is_of(held: GuestPlan | ForeignGuest, instance: InstanceId) -> bool:
    return held.uuid == instance if isinstance(held, ForeignGuest) else held.instance == instance


def _renamed(domain: str, name: str, other: str) -> str:
    return domain.replace(f"<name>{name}</name>", f"<name>{other}</name>", 1)


def _undefine(domain: libvirt.virDomain) -> None:
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
