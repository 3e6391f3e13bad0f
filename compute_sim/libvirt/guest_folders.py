"""The folders of the attempts on a host: each has the attempt's order, its disks, its domain and its console.

The order is noted when it comes, before anything is built, so a process that comes after a crash finds what was begun.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec
from msgspec import Struct

from bus.message import ConsumerId
from bus.messages.build import Image, InstanceId
from bus.messages.cell import AdoptGuest, ReceiveInstance, RespawnInstance, SpawnInstance
from compute_sim.libvirt import disks
from compute_sim.libvirt.failures import WorkFailed

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

    def disk_at(self, name: str) -> Path:
        """Where this disk is: here, or in a storage pool, to which a link here leads."""
        path = self.path / name
        return path.readlink() if path.is_symlink() else path

    @property
    def disk(self) -> Path:
        return self.disk_at("disk")

    @property
    def ephemeral(self) -> Path:
        return self.disk_at("ephemeral")

    @property
    def swap(self) -> Path:
        return self.disk_at("swap")

    @property
    def config_drive(self) -> Path:
        return self.path / "config.iso"

    @property
    def console(self) -> Path:
        return self.path / "console.log"

    @property
    def domain(self) -> Path:
        return self.path / "domain.xml"

    @property
    def domain_name(self) -> str:
        known = self.adopted()
        return domain_name(self.instance, self.attempt) if known is None else known.name

    @property
    def trial_drive(self) -> Path:
        """A config drive that is only made to see whether it can be."""
        return self.path / "trial.iso"

    @property
    def is_there(self) -> bool:
        return self.path.exists()

    def kept(self) -> KeptOrder | None:
        """The order that was last begun; None if none was."""
        try:
            return msgspec.json.decode((self.path / _KEPT).read_bytes(), type=KeptOrder)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as wrong:
            raise WorkFailed(f"{self.path / _KEPT} cannot be read: {wrong}") from wrong

    def note(self, order: NotedOrder) -> None:
        """Note an order that is to be obeyed, for a compute that has lost its database."""
        self._write_here(_NOTED, order)

    def noted(self) -> NotedOrder | None:
        """The order that was last noted; None if none was."""
        return self._order_in(_NOTED)

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
        noted = self.noted()
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
            self.path.mkdir(exist_ok=True)
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
        if not self.is_there:
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
        try:
            return msgspec.json.decode((self.path / _ADOPTED).read_bytes(), type=AdoptedDomain)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.MsgspecError as wrong:
            raise WorkFailed(f"{self.path / _ADOPTED} cannot be read: {wrong}") from wrong

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
        self._path.mkdir(parents=True, exist_ok=True)

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
