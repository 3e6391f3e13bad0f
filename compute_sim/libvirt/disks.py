"""The disks of guests: files of qemu-img. A guest's disk is an overlay of its cached image."""

import os
import shutil
import struct
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from compute_sim.libvirt.failures import WorkFailed
from compute_sim.libvirt.programs import run

GIB = 1024**3
# A disk of this size at most may be held by nobody.
UNCOUNTED_GB_MAX = 1
# The longest name of a backing file that qcow2 allows; it is in the first cluster, which has so much at most.
_BACKING_MAX = 1023
_CLUSTER_MAX = 2 * 1024 * 1024
# Overlays of overlays may lead in a circle.
_OVERLAYS_MAX = 200
# How qcow2 begins: magic and version, then where the name of the backing file is, and its length.
_QCOW2 = b"QFI\xfb"
_QCOW = struct.Struct(">QQI")
# A look at a file reads little of it.
_LOOK_S = 60.0
# How files of formats begin that no image may have.
_OTHERS = {
    b"KDMV": "vmdk",
    b"COWD": "vmdk",
    b"# Disk DescriptorFile": "vmdk",
    b"vhdxfile": "vhdx",
    b"conectix": "vpc",
    b"QED\0": "qed",
    b"LUKS\xba\xbe": "luks",
    b"<<< ": "vdi",
}
# In the header of a qcow2 image: this feature says that its content is in another file.
_DATA_FILE = 1 << 2


class DiskInfo(Struct, rename="kebab"):
    """What qemu-img says of a file."""

    virtual_size: Annotated[int, Meta(ge=0)]
    backing_filename: str = ""
    backing_filename_format: str = ""


def info_of(path: Path, format_: str) -> DiskInfo:
    """What qemu-img says of a file of this format. It never guesses: a tenant's file could look like any, and name files of the host."""
    text = run(("qemu-img", "info", "--force-share", "--output=json", "-f", format_, path), _LOOK_S)
    return msgspec.json.decode(text, type=DiskInfo)


def backing_of(disk: Path) -> str:
    """The backing file that a disk names; empty if it names none, or is no qcow2 image. Many disks are asked, so no program is run."""
    with disk.open("rb") as file:
        head = file.read(_QCOW.size)
        if len(head) < _QCOW.size or not head.startswith(_QCOW2):
            return ""
        _, offset, size = _QCOW.unpack(head)
        if not 0 < offset < _CLUSTER_MAX:
            return ""
        file.seek(offset)
        return os.fsdecode(file.read(min(size, _BACKING_MAX)))


def missing_of(disk: Path) -> Path | None:
    """Which file is not there: this one, or the first that it is an overlay of; None if all are, or are no files."""
    for _ in range(_OVERLAYS_MAX):
        if not disk.is_file():
            # To open something else may wait for its other end, or do more.
            return None if disk.exists() else disk
        backing = backing_of(disk)
        if not backing or ":" in backing.partition("/")[0]:
            return None
        disk = disk.parent / backing
    return None


def checked_image(path: Path, name: str) -> tuple[Literal["qcow2", "raw"], int]:
    """The format and the virtual size of an image. Raises `WorkFailed` if it may not be a guest's disk."""
    with path.open("rb") as file:
        head = file.read(80).ljust(80, b"\0")
    if other := next((each for begin, each in _OTHERS.items() if head.startswith(begin)), None):
        raise WorkFailed(f"image {name!r} has the format {other}, must be qcow2 or raw")
    if not head.startswith(_QCOW2):
        return "raw", info_of(path, "raw").virtual_size
    version, backing = struct.unpack_from(">IQ", head, 4)
    (features,) = struct.unpack_from(">Q", head, 72) if version > 2 else (0,)  # noqa: PLR2004 - the second has none
    if backing or features & _DATA_FILE:
        # Its owner would read a file of the host, and so would qemu-img when it opens the image.
        raise WorkFailed(f"image {name!r} refers to another file, which no image may")
    return "qcow2", info_of(path, "qcow2").virtual_size


def make_overlay(disk: Path, base: Path, format_: str, size: int) -> None:
    run(("qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", format_, disk, str(size)))


def make_empty(disk: Path, size: int) -> None:
    run(("qemu-img", "create", "-q", "-f", "qcow2", disk, str(size)))


def grow(disk: Path, size: int) -> None:
    """Make the disk larger. Raises `WorkFailed` if it is larger already: what is behind the end would be lost."""
    now = info_of(disk, "qcow2").virtual_size
    if size < now:
        raise WorkFailed(
            f"its disk has {_gib(now)} GiB, and the flavor gives {_gib(size)} GiB: a disk does not shrink"
        )
    if size > now:
        run(("qemu-img", "resize", "-q", "-f", "qcow2", disk, str(size)))


def copy(source: Path, target: Path) -> None:
    """Copy a disk; holes stay holes, and file systems that can share the blocks do so."""
    run(("cp", "--sparse=always", "--reflink=auto", "--no-preserve=ownership", source, target))


def flatten(disk: Path, target: Path) -> None:
    """Write the disk, with all that it has of its image, as one file."""
    run(("qemu-img", "convert", "-q", "-f", "qcow2", "-O", "qcow2", disk, target))


def disk_size(name: str, virtual: int, root_gb: int, held_gb: int) -> int:
    """The size of a disk of this image. Raises `WorkFailed` if the flavor's disk is too small.

    Without a root disk in the flavor, the disk has the image's own size. It may be what the guest holds for it (`held_gb`), or else
    less than what placement counts: a larger one would fill the host beside all books.
    """
    if virtual > (root_gb or max(held_gb, UNCOUNTED_GB_MAX)) * GIB:
        gives = f"'s root disk has {root_gb} GiB" if root_gb else " has no root disk (root_gb is 0)"
        most = "" if root_gb else f": its image may have {max(held_gb, UNCOUNTED_GB_MAX)} GiB"
        raise WorkFailed(f"image {name!r} has {_gib(virtual)} GiB, and the flavor{gives}{most}")
    return root_gb * GIB or virtual


def write_whole(path: Path, text: bytes) -> None:
    """Write a file whole or not at all, even if the machine loses power."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all it has. Raises `WorkFailed` if something stays."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise WorkFailed(f"{error.filename} cannot be removed: {error.strerror}") from error


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}".rstrip("0").rstrip(".")
