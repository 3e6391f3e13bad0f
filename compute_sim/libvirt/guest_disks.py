"""The files of a guest's disks in its folder: made of images, or copied from where the guest was before. Everything here blocks."""

from pathlib import Path

from msgspec import structs

from bus.messages.build import Flavor, Image, InstanceId
from bus.messages.cell import SpawnInstance
from compute_sim.libvirt import disks
from compute_sim.libvirt.config_drives import BYTES_MAX, make_config_drive
from compute_sim.libvirt.guest_folders import DISKS, GuestFolder, KeptOrder, Order
from compute_sim.libvirt.images import CachedImage, CachedImages, ImageUser
from compute_sim.libvirt.persisting import AtStep

# The step that is come to again and again while an image is downloaded or copied, or another build does so.
DOWNLOADING = "disks: download"


class GuestDisks:
    """Makes the disks of guests. `images` are those of the compute."""

    def __init__(self, images: CachedImages) -> None:
        self._images = images

    def try_out(self, kept: KeptOrder, folder: GuestFolder, at_step: AtStep) -> dict[str, CachedImage]:
        """Have all images that the order names in the cache, and see that they fit. Returns those that the guest is started with.

        Raises `WorkFailed` if one cannot be had. Nothing that the guest uses is changed.
        """
        at_step("try: image")
        if kept.image is not None:
            base = self._cached(kept.image.source, kept, at_step, kept.image.checksum)
            _disk_size(base, kept.order)
        if kept.config_drive:
            at_step("try: config drive")
            try:
                self._make_config_drive(kept, folder.trial_drive, at_step)
            finally:
                folder.trial_drive.unlink(missing_ok=True)
        return self.boot_files(kept, at_step)

    def make(self, kept: KeptOrder, folder: GuestFolder, at_step: AtStep) -> KeptOrder:
        """Make all disks that the order names. Returns the order with the cached images that they need."""
        at_step("disks: image")
        flavor = kept.order.flavor
        if kept.image is not None:
            base, kept = self._held(kept.image, kept, folder, at_step)
            at_step("disks: overlay")
            disks.make_overlay(folder.disk, Path(base.path), base.format, _disk_size(base, kept.order))
        elif flavor.root_gb:
            at_step("disks: overlay")
            disks.make_empty(folder.disk, flavor.root_gb * disks.GIB)
        if flavor.ephemeral_gb:
            disks.make_empty(folder.ephemeral, flavor.ephemeral_gb * disks.GIB)
        if flavor.swap_mb:
            disks.make_empty(folder.swap, flavor.swap_mb * 1024 * 1024)
        if kept.config_drive:
            at_step("disks: config drive")
            self._make_config_drive(kept, folder.config_drive, at_step)
        return kept

    def _held(
        self, image: Image, kept: KeptOrder, folder: GuestFolder, at_step: AtStep
    ) -> tuple[CachedImage, KeptOrder]:
        """The cached image, which is not removed any more since the order names it; and the order."""
        while True:
            base = self._cached(image.source, kept, at_step, image.checksum)
            boot = self.boot_files(kept, at_step)
            kept = structs.replace(kept, uses=(base.path, *(each.path for each in boot.values())))
            if self.keep(kept, folder):
                return base, kept

    def keep(self, kept: KeptOrder, folder: GuestFolder) -> bool:
        """Note the order, and which cached images the guest needs. Returns whether they are there."""
        return self._images.keep(lambda: folder.keep(kept), kept.uses)

    def _make_config_drive(self, kept: KeptOrder, drive: Path, at_step: AtStep) -> None:
        def fetch(url: str) -> Path:
            return Path(self._cached(url, kept, at_step, is_disk=False, bytes_max=BYTES_MAX).path)

        make_config_drive(kept.config_drive, drive, kept.order.instance, kept.order.name, fetch)

    def boot_files(self, kept: KeptOrder, at_step: AtStep) -> dict[str, CachedImage]:
        """The kernel and the ramdisk that the guest's image names, in the cache."""
        image = kept.image
        named = {} if image is None else {"kernel": image.kernel, "ramdisk": image.ramdisk}
        return {
            what: self._cached(source, kept, at_step, is_disk=False)
            for what, source in named.items()
            if source
        }

    def save(self, folder: GuestFolder, name: str, project: str) -> None:
        self._images.save(folder.disk, folder.instance, name, project)

    def forget_saved(self, instance: InstanceId, until: int) -> None:
        self._images.forget_saved(instance, until)

    def _cached(
        self,
        source: str,
        kept: KeptOrder,
        at_step: AtStep,
        checksum: str = "",
        *,
        is_disk: bool = True,
        bytes_max: int = 0,
    ) -> CachedImage:
        found = self._images.image(
            source,
            checksum,
            _user(kept),
            lambda: at_step(DOWNLOADING),
            is_disk=is_disk,
            bytes_max=bytes_max,
        )
        # Here, where it holds no lock, it may have to wait for its turn.
        at_step("disks: downloaded")
        return found


def _user(kept: KeptOrder) -> ImageUser:
    """The user of this order's images. An instance without a project may use the image as which it was saved itself."""
    source = kept.image.source if kept.image is not None else ""
    is_own = not kept.project and source.startswith(f"{kept.order.instance}-")
    return ImageUser(kept.project, source if is_own else "")


def _disk_size(base: CachedImage, order: Order) -> int:
    flavor = order.flavor
    if isinstance(order, SpawnInstance) and order.from_saved and not flavor.root_gb:
        # It had this disk before.
        return base.virtual_size
    held_gb = sum(each.amount for each in order.share.amounts if each.resource == "DISK_GB")
    return disks.disk_size(base.source, base.virtual_size, flavor.root_gb, held_gb - _beside_root_gb(flavor))


def _beside_root_gb(flavor: Flavor) -> int:
    return flavor.ephemeral_gb + -(-flavor.swap_mb // 1024)


def resize_disks(folder: GuestFolder, was: Flavor, flavor: Flavor) -> None:
    """Give the disks that were copied the sizes of another flavor. Raises `WorkFailed` if one would have to shrink; what is in swap is
    worth nothing.
    """
    if was.swap_mb != flavor.swap_mb:
        folder.swap.unlink(missing_ok=True)
    for disk, before, size in zip(
        (folder.disk_at(each) for each in DISKS), _sizes(was), _sizes(flavor), strict=True
    ):
        # The root disk of a flavor without one has the size of its image.
        if before != size and disk.exists():
            disks.grow(disk, size)
        elif before != size and size:
            disks.make_empty(disk, size)


def _sizes(flavor: Flavor) -> tuple[int, int, int]:
    return flavor.root_gb * disks.GIB, flavor.ephemeral_gb * disks.GIB, flavor.swap_mb * 1024 * 1024


def copy_disks(from_: GuestFolder, folder: GuestFolder) -> None:
    for name in DISKS:
        if from_.disk_at(name).exists():
            disks.copy(from_.disk_at(name), folder.disk_at(name))
    if from_.config_drive.exists():
        disks.copy(from_.config_drive, folder.config_drive)


def make_empty_copies(from_: GuestFolder, folder: GuestFolder) -> None:
    """Make the files that libvirt copies the disks into: as large, and overlays of the same images."""
    for name in DISKS:
        disk, copy = from_.disk_at(name), folder.disk_at(name)
        if not disk.exists():
            continue
        info = disks.info_of(disk, "qcow2")
        if info.backing_filename:
            base, format_ = Path(info.backing_filename), info.backing_filename_format or "raw"
            disks.make_overlay(copy, base, format_, info.virtual_size)
        else:
            disks.make_empty(copy, info.virtual_size)
    if from_.config_drive.exists():
        disks.copy(from_.config_drive, folder.config_drive)
