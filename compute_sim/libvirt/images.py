"""The cache of images on a host: each image is fetched once, checked, and kept as long as a disk needs it.

An image is a file in the folder of images, named by its id, or an http or https URL. The name of a cached file is a digest of
where it is from and of its version there; so a changed image is another file, and disks of the old one go on.
"""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import httpx
import msgspec
from msgspec import Struct

from compute_sim.libvirt import disks
from compute_sim.libvirt.failures import WorkFailed
from compute_sim.libvirt.settings import LibvirtSettings

_CHUNK = 1024 * 1024
_NAME = re.compile(r"[\w.@:+-]{1,255}", re.ASCII)
_DIGESTS = {32: "md5", 40: "sha1", 56: "sha224", 64: "sha256", 96: "sha384", 128: "sha512"}
_TOLD_MAX = 64


class CachedImage(Struct, frozen=True):
    """An image in the cache. `format` is empty for what is no disk: a kernel or an initramfs."""

    source: str
    path: str
    format: Literal["", "qcow2", "raw"] = ""
    virtual_size: int = 0


class CachedImages:
    """The images of one folder. Its methods block; any number of threads may call them."""

    def __init__(self, settings: LibvirtSettings) -> None:
        self._settings = settings
        self._folder = Path(settings.folder) / "cache"
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._sources: dict[str, None] = {}

    def begin(self) -> None:
        """Remove what an earlier process has left half done, and read what is there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._settings.images_folder.mkdir(parents=True, exist_ok=True)
        for part in self._folder.glob("*.part"):
            part.unlink(missing_ok=True)
        for note in sorted(self._folder.glob("*.json"), key=lambda each: each.stat().st_mtime):
            self._note(_read(note).source)

    def sources(self) -> tuple[str, ...]:
        """The images that are cached, the last used first."""
        with self._lock:
            return tuple(reversed(self._sources))[:_TOLD_MAX]

    def image(
        self, source: str, checksum: str, give_up: Callable[[], None], *, is_disk: bool = True
    ) -> CachedImage:
        """The image in the cache; it is fetched if it is not there. Raises `WorkFailed`, which names it."""
        with self._opened(source) as (version, chunks):
            name = hashlib.sha256("\n".join((source, checksum, version, str(is_disk))).encode()).hexdigest()[
                :40
            ]
            with self._alone(name):
                note = self._folder / f"{name}.json"
                if not note.exists():
                    self._fetch(source, checksum, chunks(), self._folder / name, give_up, is_disk=is_disk)
                note.touch()
                found = _read(note)
        if is_disk:
            self._note(source)
        return found

    def forget_unused(self, used: Iterable[Path], now_s: float) -> None:
        """Remove the images that no disk needs, and that nothing has needed for a while."""
        names = {path.name for path in used}
        for note in self._folder.glob("*.json"):
            if note.stem in names or now_s - note.stat().st_mtime < self._settings.images_kept_s:
                continue
            with self._alone(note.stem):
                source = _read(note).source
                note.unlink()
                (self._folder / note.stem).unlink(missing_ok=True)
            with self._lock:
                self._sources.pop(source, None)

    def save(self, disk: Path, name: str) -> None:
        """Save a disk as the image of this name, whole or not at all."""
        target = self._named(name)
        part = target.with_name(f".{target.name}.part")
        try:
            disks.flatten(disk, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def _note(self, source: str) -> None:
        with self._lock:
            self._sources.pop(source, None)
            self._sources[source] = None

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """One download for all builds that need the image."""
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            yield

    def _named(self, source: str) -> Path:
        if not _NAME.fullmatch(source) or source.startswith("."):
            raise WorkFailed(
                f"image {source!r} is neither an http or https URL nor the name of a file in the folder of images"
            )
        return self._settings.images_folder / source

    @contextmanager
    def _opened(self, source: str) -> Iterator[tuple[str, Callable[[], Iterator[bytes]]]]:
        """The version of an image, and its content if that is asked for."""
        if source.startswith(("http://", "https://")):
            with _downloaded(source, self._settings.image_s) as found:
                yield found
            return
        path = self._named(source)
        try:
            with path.open("rb") as file:
                stat = os.fstat(file.fileno())
                yield f"{stat.st_mtime_ns} {stat.st_size}", lambda: _read_chunks(file)
        except FileNotFoundError:
            raise WorkFailed(f"image {source!r} is not in {self._settings.images_folder}") from None
        except OSError as error:
            raise WorkFailed(f"image {source!r} cannot be read: {error.strerror}") from error

    def _fetch(
        self,
        source: str,
        checksum: str,
        chunks: Iterator[bytes],
        target: Path,
        give_up: Callable[[], None],
        *,
        is_disk: bool,
    ) -> None:
        part = target.with_name(f"{target.name}.part")
        kind, _, wanted = checksum.rpartition(":")
        kind = kind or _DIGESTS.get(len(wanted), "")
        if wanted and kind not in hashlib.algorithms_available:
            raise WorkFailed(
                f"the checksum of image {source!r} is {checksum!r}, must be md5, sha1, sha256 or sha512 in hexadecimal digits"
            )
        digest = hashlib.new(kind, usedforsecurity=False) if wanted else None
        size = 0
        try:
            with part.open("wb") as file:
                for chunk in chunks:
                    give_up()
                    size += len(chunk)
                    if size > self._settings.image_bytes_max:
                        raise WorkFailed(
                            f"image {source!r} has more than {self._settings.image_bytes_max} bytes (image_bytes_max)"
                        )
                    # Holes stay holes.
                    if chunk.count(0) == len(chunk):
                        file.seek(len(chunk), os.SEEK_CUR)
                    else:
                        file.write(chunk)
                    if digest is not None:
                        digest.update(chunk)
                file.truncate(size)
                file.flush()
                os.fsync(file.fileno())
            if digest is not None and digest.hexdigest() != wanted.lower():
                raise WorkFailed(
                    f"image {source!r} is broken: its {kind} is {digest.hexdigest()}, and must be {wanted}"
                )
            format_, virtual = disks.checked_image(part, source) if is_disk else ("", 0)
            part.replace(target)
            note = CachedImage(source, str(target), format_, virtual)  # type: ignore[arg-type]
            _write(target.with_name(f"{target.name}.json"), msgspec.json.encode(note))
        except OSError as error:
            raise WorkFailed(
                f"image {source!r} cannot be cached in {self._folder}: {error.strerror}"
            ) from error
        finally:
            part.unlink(missing_ok=True)


def _read(note: Path) -> CachedImage:
    return msgspec.json.decode(note.read_bytes(), type=CachedImage)


def _write(path: Path, text: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(text)
    part.replace(path)


def _read_chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


@contextmanager
def _downloaded(url: str, patience_s: float) -> Iterator[tuple[str, Callable[[], Iterator[bytes]]]]:
    try:
        with httpx.stream("GET", url, timeout=patience_s, follow_redirects=True) as answer:
            answer.raise_for_status()
            names = ("etag", "last-modified", "content-length")
            yield " ".join(answer.headers.get(name, "") for name in names), lambda: answer.iter_bytes(_CHUNK)
    except httpx.HTTPStatusError as error:
        raise WorkFailed(f"image {url!r}: the server answered {error.response.status_code}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise WorkFailed(f"image {url!r} cannot be downloaded: {error}") from error


def now_s() -> float:
    return time.time()
