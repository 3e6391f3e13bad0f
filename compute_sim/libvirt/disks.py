"""The disks of guests: files of qemu-img. A guest's disk is an overlay of its cached image."""

import base64
import binascii
import gzip
import io
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from compute_sim.drivers import ConsoleText, NoConsole
from compute_sim.libvirt.work import WorkFailed
from engine.flavors import ConfigDriveParts, InstanceId, parts_of, with_names

# The consoles of guests: each is a file that the hypervisor writes to.


def read_console(path: Path, start: int, limit: int) -> ConsoleText:
    """Raises `NoConsole` if there is none, and OSError."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            begin = file.seek(first_of(start, size))
            return ConsoleText(file.read(limit), begin, size)
    except FileNotFoundError:
        raise NoConsole("its guest has written nothing yet: it has not run here") from None


def first_of(start: int, size: int) -> int:
    """Where a console is read from; a negative `start` counts from its end."""
    return max(0, size + start) if start < 0 else min(start, size)


# Runs the programs that make disks: what they print when they fail is the reason of the failure.
#
# They read what tenants have made. So each may have only so much memory, and take only so long.


PATIENCE_S = 600.0
_MEMORY_KIB = 1024 * 1024
_LIMITED = ("sh", "-c", 'ulimit -v "$0"; exec "$@"', str(_MEMORY_KIB))
_POLL_S = 0.1


def run(
    command: Sequence[str | Path], patience_s: float = PATIENCE_S, give_up: Callable[[], None] | None = None
) -> str:
    """The output of this command. Raises `WorkFailed` with the command's name and its own words.

    It may take `patience_s`. A copy may be of any size: with `give_up`, which is called again and again meanwhile and may raise, it may
    take so long since it has last read or written something.
    """
    name = Path(command[0]).name
    if shutil.which(command[0]) is None:
        raise WorkFailed(f"the program {name} is not installed on the compute")
    with subprocess.Popen(  # noqa: S603 - a program by its name, and no shell
        [*_LIMITED, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    ) as process:
        try:
            out, err = _waited_for(process, name, patience_s, give_up)
        finally:
            process.kill()
    if process.returncode:
        words = (err or out).strip().splitlines()
        raise WorkFailed(f"{name}: {words[-1] if words else f'ended with code {process.returncode}'}")
    return out


def _waited_for(
    process: "subprocess.Popen[str]", name: str, patience_s: float, give_up: Callable[[], None] | None
) -> tuple[str, str]:
    """What the process has printed when it has ended."""
    done, by_s = "", time.monotonic() + patience_s
    while True:
        try:
            return process.communicate(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            if give_up is not None:
                give_up()
                # How much it has read and written, in all; nothing is told of one that has just ended.
                with suppress(OSError):
                    if (now := Path(f"/proc/{process.pid}/io").read_text()) != done:
                        done, by_s = now, time.monotonic() + patience_s
            if time.monotonic() > by_s:
                raise WorkFailed(
                    f"{name} has not {'read or written anything' if give_up else 'ended'} within {patience_s:g} s"
                ) from None


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
    format_: Literal["qcow2", "raw"] = "qcow2" if head.startswith(_QCOW2) else "raw"
    version, backing = struct.unpack_from(">IQ", head, 4)
    (features,) = struct.unpack_from(">Q", head, 72) if version > 2 else (0,)  # noqa: PLR2004 - the second has none
    if format_ == "qcow2" and (backing or features & _DATA_FILE):
        # Its owner would read a file of the host, and so would qemu-img when it opens the image.
        raise WorkFailed(f"image {name!r} refers to another file, which no image may")
    if not (size := info_of(path, format_).virtual_size):
        raise WorkFailed(f"image {name!r} is empty: a guest could not start from it")
    return format_, size


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


def copy(source: Path, target: Path, give_up: Callable[[], None]) -> None:
    """Copy a disk; holes stay holes, and file systems that can share the blocks do so. The source may go afterwards."""
    run(
        ("cp", "--sparse=always", "--reflink=auto", "--no-preserve=ownership", source, target),
        give_up=give_up,
    )
    keep_as(target, target)


def flatten(disk: Path, target: Path, give_up: Callable[[], None]) -> None:
    """Write the disk, with all that it has of its image, as one file."""
    run(("qemu-img", "convert", "-q", "-f", "qcow2", "-O", "qcow2", disk, target), give_up=give_up)


def keep_as(part: Path, path: Path) -> None:
    """Have the whole file at this path, even if the machine loses power: its content first, then its name."""
    for each in (part, path.parent):
        number = os.open(each, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
        if each == part:
            part.replace(path)


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
    part.write_bytes(text)
    keep_as(part, path)


# The hypervisor may have a user of its own. What it needs is open to it whatever the umask of the compute is, and nothing else:
# it comes through the folders, and lists none; and it, or libvirt for it, makes files its own while a guest runs.


def make_folder(path: Path) -> None:
    missing = [each for each in path.parents if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in (*missing, path):
        # Of another owner's folder its owner has decided.
        with suppress(PermissionError):
            each.chmod(each.stat().st_mode | 0o011)


OPEN = 0o644


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


# Makes the config drive of a guest: an ISO image with the label config-2, as cloud-init reads it.


_PROGRAMS = ("genisoimage", "mkisofs", "xorrisofs")
# A drive has a few KiB. Unpacked or downloaded, it must not fill the disk.
BYTES_MAX = 64 * 1024 * 1024


def make_config_drive(
    text: str, drive: Path, instance: InstanceId, name: str, fetch: Callable[[str], Path]
) -> None:
    """Write the drive that an order names: by its parts, to which the id and names of the instance are added; by the base64 of a
    gzipped image; or by a URL that `fetch` fetches.
    """
    try:
        parts = parts_of(text)
    except ValueError as wrong:
        raise WorkFailed(f"config_drive: {wrong}") from None
    if parts is not None:
        _write_parts(with_names(parts, instance, name), drive)
    elif text.startswith(("http://", "https://")):
        fetched = fetch(text)
        # It may have been fetched before as something larger, such as a kernel.
        if fetched.stat().st_size > BYTES_MAX:
            raise WorkFailed(f"config_drive has more than {BYTES_MAX} bytes")
        shutil.copyfile(fetched, drive)
    else:
        drive.write_bytes(_unpacked(text))


def _write_parts(parts: ConfigDriveParts, drive: Path) -> None:
    program = next((each for each in _PROGRAMS if shutil.which(each)), None)
    if program is None:
        raise WorkFailed(f"a config drive needs one of the programs {', '.join(_PROGRAMS)} on the compute")
    with tempfile.TemporaryDirectory(prefix="moorage-config-") as made:
        latest = Path(made) / "openstack" / "latest"
        latest.mkdir(parents=True)
        (latest / "meta_data.json").write_bytes(msgspec.json.encode(parts.meta_data))
        (latest / "network_data.json").write_bytes(msgspec.json.encode(parts.network_data))
        if parts.user_data:
            (latest / "user_data").write_text(parts.user_data)
        run((program, "-quiet", "-o", drive, "-V", "config-2", "-r", "-J", "-ldots", made))


def _unpacked(text: str) -> bytes:
    try:
        packed = base64.b64decode(text, validate=True)
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            image = file.read(BYTES_MAX + 1)
    except (binascii.Error, OSError, EOFError) as wrong:
        raise WorkFailed(
            f"config_drive is no URL, no parts, and no base64 of a gzipped image: {wrong}"
        ) from None
    if len(image) > BYTES_MAX:
        raise WorkFailed(f"config_drive has more than {BYTES_MAX} bytes when it is unpacked")
    return image
