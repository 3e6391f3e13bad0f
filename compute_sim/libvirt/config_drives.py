"""Makes the config drive of a guest: an ISO image with the label config-2, as cloud-init reads it."""

import base64
import binascii
import gzip
import io
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from bus.messages.build import InstanceId
from bus.messages.config_drive import ConfigDriveParts, parts_of, with_names
from compute_sim.libvirt.failures import WorkFailed
from compute_sim.libvirt.programs import run

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
