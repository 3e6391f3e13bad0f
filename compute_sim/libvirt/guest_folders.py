"""The folders of the attempts on a host: each has the attempt's order, its disks, its domain and its console.

The order is noted when it comes, before anything is built, so a process that comes after a crash finds what was begun.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from bus.messages.cell import AdoptGuest, ReceiveInstance, RespawnInstance, SpawnInstance
from compute_sim.libvirt import disks
from compute_sim.libvirt.disks import BYTES_MAX, make_config_drive
from compute_sim.libvirt.images import CachedImage, CachedImages, ImageUser
from compute_sim.libvirt.work import AtStep, WorkFailed
from engine.flavors import Flavor, Image, InstanceId
from engine.inventories import ConsumerId

T = TypeVar("T")
Order = SpawnInstance | ReceiveInstance | RespawnInstance
NotedOrder = Order | AdoptGuest
_NOTED = "ordered.json"
_KEPT = "order.json"
_ADOPTED = "adopted.json"
_REFUSED = "refused.json"
DISKS = ("disk", "ephemeral", "swap")
_NAME = re.compile(r"([0-9a-f-]{36})\.([0-9]{1,19})")


class KeptOrder(Struct, frozen=True):
    """The last order to build an attempt, and what it does not say itself: an order to receive has no image.

    `uses` are the cached images that the attempt needs: as long as a file of a guest names them, they stay in the cache.
    """

    order: Order
    project: str = ""
    image: Image | None = None
    image_properties: dict[str, str] = {}
    config_drive: str = ""
    uses: tuple[str, ...] = ()
    # It was built to its end.
    is_done: bool = False
    # The addresses of its network cards, so that they stay.
    macs: tuple[str, ...] = ()


class AdoptedDomain(Struct, frozen=True):
    """The domain of a guest that was adopted: its name, and its disks, which are somewhere else."""

    name: str
    disks: tuple[str, ...] = ()


class GuestFolder:
    """The folder of one attempt."""

    def __init__(self, path: Path, instance: InstanceId, attempt: int) -> None:
        self.path = path
        self.instance = instance
        self.attempt = attempt
        self.config_drive = path / "config.iso"
        self.console = path / "console.log"
        self.domain = path / "domain.xml"

    def disk_at(self, name: str = "disk") -> Path:
        """Where a disk is, one of `DISKS`: here, or in a storage pool, to which a link here leads."""
        path = self.path / name
        return path.readlink() if path.is_symlink() else path

    @property
    def domain_name(self) -> str:
        known = self.adopted()
        return domain_name(self.instance, self.attempt) if known is None else known.name

    def kept(self) -> KeptOrder | None:
        """The order that was last begun; None if none was."""
        return self._read(_KEPT, KeptOrder)

    def note(self, order: NotedOrder) -> None:
        """Note an order that is to be obeyed, for a compute that has lost its database."""
        self._write_here(_NOTED, order)

    def refuse(self, order: Order) -> None:
        """The noted order has failed before anything was changed: its work is over."""
        self.write(_REFUSED, msgspec.json.encode(order))

    def _order_in(self, name: str) -> NotedOrder | None:
        try:
            order: NotedOrder = msgspec.json.decode((self.path / name).read_bytes(), type=NotedOrder)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return order

    def unfinished(self) -> NotedOrder | None:
        """The noted order, if its work has not come to its end; None if it has."""
        noted = self._order_in(_NOTED)
        if isinstance(noted, AdoptGuest):
            return noted if self.adopted() is None else None
        if noted is None or self.has_done(noted) or noted == self._order_in(_REFUSED):
            return None
        return noted

    def has_begun(self, order: Order) -> bool:
        """Is this the order that was last begun? Then what was here before it is gone."""
        kept = self.kept()
        return kept is not None and kept.order == order

    def has_done(self, order: Order) -> bool:
        """Is this the order that was last begun, and was it obeyed to its end?"""
        kept = self.kept()
        return kept is not None and kept.is_done and kept.order == order

    @property
    def is_whole(self) -> bool:
        """Has the last order that was begun been obeyed to its end, or was its guest adopted?"""
        kept = self.kept()
        return self.adopted() is not None if kept is None else kept.is_done

    def keep(self, kept: KeptOrder) -> None:
        self._write_here(_KEPT, kept)

    def _write_here(self, name: str, what: Struct) -> None:
        try:
            # The folder above is made at the compute's start. If it is gone, its file system is not mounted any more.
            self.path.parent.stat()
            disks.make_folder(self.path)
            self.write(name, msgspec.json.encode(what))
        except OSError as error:
            raise WorkFailed(f"{self.path} cannot be written: {error.strerror}") from error

    def write(self, name: str, text: bytes) -> None:
        disks.write_whole(self.path / name, text)

    def place_disks(self, pool: Path) -> None:
        """Have the disks made in this folder of a storage pool."""
        for name in DISKS:
            (self.path / name).symlink_to(pool / f"moor-{self.instance}-{self.attempt}-{name}")

    def empty(self) -> None:
        """Remove all but the orders."""
        if not self.path.exists():
            return
        self._remove_other_disks()
        for each in self.path.iterdir():
            if each.name not in (_NOTED, _KEPT):
                each.unlink()

    def remove(self) -> None:
        self._remove_other_disks()
        disks.remove_folder(self.path)

    # A guest that was adopted

    def adopted(self) -> AdoptedDomain | None:
        """The domain that was adopted as this attempt; None if it was built here."""
        return self._read(_ADOPTED, AdoptedDomain)

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.MsgspecError as wrong:
            raise WorkFailed(f"{self.path / name} cannot be read: {wrong}") from wrong

    def keep_adopted(self, domain: AdoptedDomain) -> None:
        self.write(_ADOPTED, msgspec.json.encode(domain))

    def forget_adopted(self) -> None:
        """Remove the folder of an adopted guest, and nothing of the guest itself."""
        if self.adopted() is None:
            return
        (self.path / _ADOPTED).unlink()
        disks.remove_folder(self.path)

    def _remove_other_disks(self) -> None:
        """Remove the disks that are not in this folder: those of a guest that was adopted, and those in a storage pool."""
        known = self.adopted()
        for each in () if known is None else known.disks:
            Path(each).unlink(missing_ok=True)
        for name in DISKS:
            if (self.path / name).is_symlink():
                self.disk_at(name).unlink(missing_ok=True)


def domain_name(instance: InstanceId, attempt: int) -> str:
    """How the domain of an attempt is called that was built here."""
    return f"moor-{instance}-{attempt}"


class GuestFolders:
    """The folders of a host."""

    def __init__(self, folder: str, host: str) -> None:
        self._path = Path(folder) / "instances" / host

    def begin(self) -> None:
        for each in (self._path.parent.parent, self._path.parent, self._path):
            disks.make_folder(each)

    def check(self) -> None:
        """Raises OSError if the folder cannot be read: its file system is away, or stale."""
        with os.scandir(self._path) as found:
            next(found, None)

    def of(self, instance: InstanceId, attempt: int) -> GuestFolder:
        return GuestFolder(self._path / f"{instance}.{attempt}", instance, attempt)

    def __iter__(self) -> Iterator[GuestFolder]:
        for path in sorted(self._path.iterdir()):
            if found := _NAME.fullmatch(path.name):
                yield GuestFolder(path, ConsumerId(UUID(found[1])), int(found[2]))


# The files of a guest's disks in its folder: made of images, or copied from where the guest was before. Everything here blocks.


# The step that is come to again and again while an image is downloaded or copied, or another build does so.
DOWNLOADING = "disks: download"
# How often images are fetched that were removed before the guest's order named them.
_TRIES = 5


class GuestDisks:
    """Makes the disks of guests. `images` are those of the compute."""

    def __init__(self, images: CachedImages) -> None:
        self.images = images

    def try_out(self, kept: KeptOrder, folder: GuestFolder, at_step: AtStep) -> dict[str, CachedImage]:
        """Have all images that the order names in the cache, and see that they fit. Returns those that the guest is started with.

        Raises `WorkFailed` if one cannot be had. Nothing that the guest uses is changed.
        """
        at_step("try: image")
        _sizes(kept.order)
        if kept.image is not None:
            base = self._cached(kept.image.source, kept, at_step, kept.image.checksum)
            _disk_size(base, kept.order)
        if kept.config_drive:
            at_step("try: config drive")
            trial = folder.path / "trial.iso"
            try:
                self._make_config_drive(kept, trial, at_step)
            finally:
                trial.unlink(missing_ok=True)
        return self.boot_files(kept, at_step)

    def make(self, kept: KeptOrder, folder: GuestFolder, at_step: AtStep) -> KeptOrder:
        """Make all disks that the order names. Returns the order with the cached images that they need."""
        at_step("disks: image")
        root, ephemeral, swap = _sizes(kept.order)
        if kept.image is not None:
            image = kept.image
            base, kept = self._held(image, kept, folder, at_step)
            at_step("disks: overlay")
            if base is None:
                give_up = lambda: at_step("disks: overlay")  # noqa: E731 - it is given up at each step
                self.images.copy_saved(image.source, _user(kept), folder.disk_at(), root, give_up)
            else:
                size = _disk_size(base, kept.order)
                disks.make_overlay(folder.disk_at(), Path(base.path), base.format, size)
        elif root:
            at_step("disks: overlay")
            disks.make_empty(folder.disk_at(), root)
        for name, size in (("ephemeral", ephemeral), ("swap", swap)):
            if size:
                disks.make_empty(folder.disk_at(name), size)
        if kept.config_drive:
            at_step("disks: config drive")
            self._make_config_drive(kept, folder.config_drive, at_step)
        return kept

    def _held(
        self, image: Image, kept: KeptOrder, folder: GuestFolder, at_step: AtStep
    ) -> tuple[CachedImage | None, KeptOrder]:
        """The cached image, which is not removed any more since the order names it; and the order. None for the disk of the instance itself,
        as which it was saved: that is no other guest's, so it comes into no cache.
        """
        is_saved = isinstance(kept.order, SpawnInstance) and kept.order.from_saved
        for _ in range(_TRIES):
            base = None if is_saved else self._cached(image.source, kept, at_step, image.checksum)
            needs = [*([base] if base else []), *self.boot_files(kept, at_step).values()]
            kept = structs.replace(kept, uses=tuple([each.path for each in needs]))
            if self.keep(kept, folder):
                return base, kept
        raise WorkFailed("its images push each other out of the cache: it is too small for them (images_gb)")

    def keep(self, kept: KeptOrder, folder: GuestFolder) -> bool:
        """Note the order, and which cached images the guest needs. Returns whether they are there."""
        return self.images.keep(lambda: folder.keep(kept), kept.uses)

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
        found = self.images.image(
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
    left_gb = _held_gb(order) - _beside_root_gb(order.flavor)
    return disks.disk_size(base.source, base.virtual_size, _sizes(order)[0] // disks.GIB, left_gb)


def _held_gb(order: Order) -> int:
    return sum(each.amount for each in order.share.amounts if each.resource == "DISK_GB")


def _beside_root_gb(flavor: Flavor) -> int:
    return flavor.ephemeral_gb + -(-flavor.swap_mb // 1024)


def resize_disks(folder: GuestFolder, was: Order, order: Order) -> None:
    """Give the disks that were copied the sizes of another order. Raises `WorkFailed` if one would have to shrink; what is in swap is
    worth nothing.
    """
    sizes = _sizes(order)
    if was.flavor.swap_mb != order.flavor.swap_mb:
        folder.disk_at("swap").unlink(missing_ok=True)
    for name, size in zip(DISKS, sizes, strict=True):
        disk = folder.disk_at(name)
        # The root disk of a flavor without one has the size of its image.
        if disk.exists() and (size or name != "disk" or was.flavor.root_gb):
            disks.grow(disk, size)
        elif size and not disk.exists():
            disks.make_empty(disk, size)


def _sizes(order: Order) -> tuple[int, int, int]:
    """The sizes of the disks, in bytes, as the flavor names them and the claim holds them: if an extra spec has another amount claimed
    than the flavor's disks need, the root disk gets what the others leave. Raises `WorkFailed` if they leave nothing.
    """
    flavor, held_gb, beside_gb = order.flavor, _held_gb(order), _beside_root_gb(order.flavor)
    asked = flavor.extra_specs.get("resources:DISK_GB", "")
    # A volume may have its own part of what is held.
    asked_gb = int(asked) if asked.isdecimal() else flavor.root_gb + beside_gb
    root_gb = min(held_gb, asked_gb) - beside_gb if flavor.root_gb else 0
    if held_gb < beside_gb or (flavor.root_gb and root_gb < 1):
        raise WorkFailed(
            f"{held_gb} DISK_GB are claimed, too few for the disks of the flavor: root_gb is {flavor.root_gb}, "
            f"ephemeral_gb {flavor.ephemeral_gb}, swap_mb {flavor.swap_mb}"
        )
    return root_gb * disks.GIB, flavor.ephemeral_gb * disks.GIB, flavor.swap_mb * 1024 * 1024


def copy_disks(
    from_: GuestFolder, folder: GuestFolder, give_up: Callable[[], None], names: Sequence[str] = DISKS
) -> None:
    """Copy these disks, and the config drive."""
    pairs = [(from_.disk_at(name), folder.disk_at(name)) for name in names]
    for source, target in (*pairs, (from_.config_drive, folder.config_drive)):
        if source.exists():
            disks.copy(source, target, give_up)


def make_empty_copies(from_: GuestFolder, folder: GuestFolder, give_up: Callable[[], None]) -> None:
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
    copy_disks(from_, folder, give_up, ())
