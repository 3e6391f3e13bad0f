"""The cache of images on a host: each image is fetched once, checked, and kept as long as a disk needs it.

An image is a file in the folder of images, named by its id, or a URL. The name of a cached file is a digest of
where it is from and of its version there; so a changed image is another file, and disks of the old one go on.

Several hosts and several processes may share the cache. So the files of the guests decide whether an image is needed, and not what
a process knows; and the lock of the cache keeps a new file that names an image from the removal of that image.

The cache is as large as the settings say, and hosts keep that much of their disk from guests. An image belongs to the project for which it
was fetched, and pushes out only unneeded images of that project. A project may have half of what all others leave: so none fills the cache.
An image of no project, such as a public one, pushes out any unneeded image.

A file in the folder of images itself is public. Those of a project are in a folder of its own below: what the operator puts there,
and the disks of its instances that were saved. A disk that was saved without a project is in the folder of
images itself, and is for its instance alone.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar
from urllib.parse import quote
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

import httpx
import msgspec
from msgspec import Struct, structs

from compute_sim.libvirt import disks
from compute_sim.libvirt.settings import LibvirtRules, may_connect, read_server_networks, read_servers
from compute_sim.libvirt.work import WorkFailed
from kit.settings import without_password
from kit.tls import client_tls

# Downloads what a URL names: from servers that the settings allow, and within the times that they set. Everything here blocks.
#
# Tenants name these URLs. So each address is checked before it is connected to, redirects are followed by hand, nothing of the
# environment counts (proxies, passwords in ~/.netrc), and nothing is unpacked. A server that sends little, or nothing, or headers
# without end, ends its own download alone: whether to give up is asked all the time, and not only when something comes.


T = TypeVar("T")

CHUNK = 1024 * 1024
# So much must come within each `image_s`.
_LEAST = 1024 * 1024
_POLL_S = 0.1
_REDIRECTS_MAX = 5
_URL_MAX = 2048
_SHOWN_MAX = 100
_OK = 200


@contextmanager
def downloaded(
    url: str, settings: LibvirtRules, give_up: Callable[[], None]
) -> Iterator[tuple[str, Callable[[], Iterator[bytes]]]]:
    """The version of what is at this URL, and its content if that is asked for. Raises `WorkFailed`, which names the URL."""
    with asyncio.Runner() as runner:
        download = _Download(url, settings, give_up)
        try:
            response = runner.run(download.within_limits(download.opened()))
            parts = response.aiter_raw(CHUNK)

            def chunks() -> Iterator[bytes]:
                while chunk := runner.run(download.within_limits(anext(parts, b""))):
                    yield chunk

            names = ("etag", "last-modified", "content-length")
            yield " ".join(response.headers.get(name, "") for name in names), chunks
        finally:
            runner.run(download.close())


class _Download:
    def __init__(self, url: str, settings: LibvirtRules, give_up: Callable[[], None]) -> None:
        if len(url) > _URL_MAX:
            raise WorkFailed(f"the URL of an image has {len(url)} characters, at most {_URL_MAX} are allowed")
        # The reason of a failure is short, and the words behind the URL matter more.
        self._name = f"image {without_password(url)[:_SHOWN_MAX]!r}"
        self._url = url
        self._settings = settings
        self._servers = read_servers(settings.image_servers)
        self._networks = read_server_networks(settings.image_networks)
        self._give_up = give_up
        self._by_s = time.monotonic() + settings.download_s
        self._response: httpx.Response | None = None
        # How long the server has been waited for since so much was there.
        self._waited_s, self._had = 0.0, 0
        self._transport = httpx.AsyncHTTPTransport(
            verify=client_tls(), trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def close(self) -> None:
        if self._response is not None:
            await self._response.aclose()
        await self._transport.aclose()

    async def within_limits(self, work: Awaitable[T]) -> T:
        """The result of this work, which ends if it takes too long, or is not wanted any more."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._give_up()
                self._check_times()
                began_s = time.monotonic()
                await asyncio.wait((task,), timeout=_POLL_S)
                self._waited_s += time.monotonic() - began_s
            return task.result()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise WorkFailed(f"{self._name} cannot be downloaded: {str(error) or repr(error)}") from error
        finally:
            task.cancel()
            await asyncio.wait((task,))

    def _check_times(self) -> None:
        if time.monotonic() > self._by_s:
            raise WorkFailed(f"{self._name} is not there within {self._settings.download_s:g} s")
        has = self._response.num_bytes_downloaded if self._response is not None else 0
        if has - self._had >= _LEAST:
            self._waited_s, self._had = 0.0, has
        elif self._waited_s > self._settings.image_s:
            raise WorkFailed(
                f"{self._name} comes too slowly: {has - self._had} bytes in the last {self._settings.image_s:g} s, and {_LEAST} must come"
            )

    async def opened(self) -> httpx.Response:
        """The answer with the content, when it begins."""
        url = httpx.URL(self._url)
        for _ in range(_REDIRECTS_MAX + 1):
            self._response = response = await self._answer(url)
            if response.has_redirect_location:
                await response.aclose()
                url = url.join(response.headers["Location"])
                continue
            if response.status_code != _OK:
                raise WorkFailed(f"{self._name}: the server answered {response.status_code}")
            if (coding := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
                # Unpacked it may be of any size.
                raise WorkFailed(f"{self._name}: the server packs it ({coding}), and was asked not to")
            self._waited_s = 0.0
            return response
        raise WorkFailed(f"{self._name}: more than {_REDIRECTS_MAX} redirects")

    async def _answer(self, url: httpx.URL) -> httpx.Response:
        addresses = await self._addresses(url)
        for number, address in enumerate(addresses, 1):
            request = httpx.Request(
                "GET",
                url.copy_with(host=address),
                headers={"Host": url.netloc.decode(), "Accept": "*/*", "Accept-Encoding": "identity"},
                extensions={
                    "sni_hostname": url.raw_host.decode(),
                    "timeout": {"connect": self._settings.image_s / len(addresses)},
                },
            )
            try:
                return await self._transport.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise AssertionError("a name without an address is an error")

    async def _addresses(self, url: httpx.URL) -> Sequence[str]:
        """The addresses of the URL's host that may be connected to."""
        shown = f"{url.scheme}://{url.netloc.decode()}"[:_SHOWN_MAX]
        if url.userinfo:
            raise WorkFailed(f"{self._name} leads to {shown}: a URL may not have a user or a password")
        host = url.raw_host.decode()
        servers = [each for each in self._servers if each.has(url.scheme, host, url.port)]
        if not servers or not host:
            raise WorkFailed(
                f"{self._name} leads to {shown}, which is none of the servers that the operator allows (image_servers)"
            )
        found = await _resolved(host, servers[0].port)
        allowed = [each for each in found if any(may_connect(by, each, self._networks) for by in servers)]
        if not allowed:
            raise WorkFailed(
                f"{self._name} leads to {shown}, whose address is neither public nor in a network that the operator allows (image_networks)"
            )
        return allowed


async def _resolved(host: str, port: int) -> Sequence[str]:
    """The addresses of a host. The event loop's own threads would have to end before the loop does, and a name server may be slow."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str] | OSError] = loop.create_future()

    def tell(answer: list[str] | OSError) -> None:
        if not found.done():
            found.set_result(answer)

    def resolve() -> None:
        try:
            answer: list[str] | OSError = [
                str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            ]
        except OSError as error:
            answer = error
        except UnicodeError as error:
            answer = OSError(f"{host!r} is no name of a host: {error}")
        with suppress(RuntimeError):
            # The loop may have ended meanwhile.
            loop.call_soon_threadsafe(tell, answer)

    threading.Thread(target=resolve, name=f"resolve {host}", daemon=True).start()
    answer = await found
    if isinstance(answer, OSError):
        raise answer
    return list(dict.fromkeys(answer))


_NAME = re.compile(r"[\w.@:+-]{1,255}", re.ASCII)
_DIGESTS = {32: "md5", 40: "sha1", 56: "sha224", 64: "sha256", 96: "sha384", 128: "sha512"}
_TOLD_MAX = 64
_CACHED = re.compile(rb"[0-9a-f]{40}")
# Guests write what they like into it, and libvirt may keep others from reading it, and its older parts (console.log.0).
_CONSOLE = "console.log"
# A download asks again for room after so much.
_GRANT = 16 * CHUNK
# The unit of `st_blocks`.
_BLOCK = 512
# So much of the file system stays free: a GiB, or a twentieth of a small one.
_FREE_MIN, _FREE_PART = 1024**3, 20
# The disk of an instance, saved by a move: the id, and the number of the move.
_SAVED = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9]{1,19})", re.ASCII | re.IGNORECASE)
_PROJECTS = "projects"
# The name leads to no file.
_NO_FILE = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR)


class CachedImage(Struct, frozen=True):
    """An image in the cache. `format` is empty for what is no disk: a kernel or an initramfs. `project` is empty if it is nobody's."""

    source: str
    path: str
    format: Literal["", "qcow2", "raw"] = ""
    virtual_size: int = 0
    project: str = ""


class ImageUser(Struct, frozen=True):
    """The project of the instance that needs an image; and `saved`, the image as which the instance itself was saved."""

    project: str = ""
    saved: str = ""


class CachedImages:
    """The images of one folder. Its methods block; any number of threads may call them."""

    def __init__(self, settings: LibvirtRules) -> None:
        self._settings = settings
        self._folder = Path(settings.folder) / "cache"
        self._lock = threading.Lock()
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._sources: dict[str, None] = {}
        self._sweep_at_s = float("-inf")
        # For each file that is being fetched: the project, and how much it may have. Only for the holder of the cache's lock.
        self._granted: dict[Path, tuple[str, int]] = {}

    def begin(self) -> None:
        """Remove what an earlier process has left half done, and read what is there."""
        disks.make_folder(self._folder)
        self._settings.images_folder.mkdir(parents=True, exist_ok=True)
        with self._locked(fcntl.LOCK_EX):
            self._remove_parts()
            notes = sorted(self._folder.glob("*.json"), key=lambda each: each.stat().st_mtime)
            known = [_read(note) for note in notes]
        for each in known:
            if each is not None:
                self._note(each.source)

    def sources(self) -> tuple[str, ...]:
        """The images that are cached, the last used first."""
        with self._lock:
            return tuple(reversed(self._sources))[:_TOLD_MAX]

    def image(
        self,
        source: str,
        checksum: str,
        user: ImageUser,
        give_up: Callable[[], None],
        *,
        is_disk: bool = True,
        bytes_max: int = 0,
    ) -> CachedImage:
        """The image in the cache; it is fetched if it is not there. Raises `WorkFailed`, which names it, also if it is not for this user.

        `give_up` is called again and again while it is fetched, and may raise. `bytes_max` is how large it may be if that is less than
        the settings say.
        """
        # What waits for another download of it has no connection open: that would end meanwhile.
        turn = self._alone(f"{source}\n{checksum}\n{is_disk}", give_up)
        with turn, self._opened(source, user, give_up) as (version, project, chunks):
            text = "\n".join((source, checksum, version, str(is_disk)))
            path = self._folder / hashlib.sha256(text.encode()).hexdigest()[:40]
            found = self._touched(path.name)
            if found is None:
                image = CachedImage(source, str(path), project=project)
                bytes_max = bytes_max or self._settings.image_bytes_max
                with self._part_of(path, project) as part:
                    found = self._fetch(
                        image, checksum, chunks(), part, give_up, bytes_max=bytes_max, is_disk=is_disk
                    )
        if is_disk:
            self._note(source)
        return found

    def keep(self, write: Callable[[], None], needs: Iterable[str]) -> bool:
        """Write a file that names the images which a guest needs; no image is removed meanwhile. Returns whether all of these are
        still there: otherwise the guest must get them again.
        """
        with self._locked(fcntl.LOCK_SH):
            write()
            return all(self._use(Path(each)) for each in needs)

    def is_sweep_due(self, now_s: float) -> bool:
        """Is it time to `forget_unused`? Any host asks, and it is once in a tenth of the time that images are kept."""
        with self._lock:
            is_due = now_s >= self._sweep_at_s
            if is_due:
                self._sweep_at_s = now_s + self._settings.images_kept_s / 10
            return is_due

    def forget_unused(self, now_s: float) -> None:
        """Remove the images that no guest has needed for a while. It may take long: the files of all guests are read.

        Raises OSError if a file cannot be read: then it is unknown which images that guest needs, and all stay.
        """
        self._remove_unneeded(lambda note: now_s - note.stat().st_mtime >= self._settings.images_kept_s)

    def _remove_unneeded(self, may_go: Callable[[Path], bool], enough: float = float("inf")) -> None:
        """Remove images that no file of a guest names, the last used last, until so many bytes are free.

        The files of guests are read without the lock, since their folders may hang. An image that is used meanwhile stays, as its note
        shows.
        """
        used_at: dict[Path, int] = {}
        for note in self._folder.glob("*.json"):
            # Another process may have removed it.
            with suppress(FileNotFoundError):
                if may_go(note):
                    used_at[note] = note.stat().st_mtime_ns
        needed = _named_in(self._folder.parent) if used_at else set()
        with self._locked(fcntl.LOCK_EX):
            self._remove_parts()
            for note in filter(Path.exists, sorted(used_at, key=used_at.__getitem__)):
                if note.stem in needed:
                    self._use(note.with_suffix(""))
                elif enough > 0 and note.stat().st_mtime_ns == used_at[note]:
                    enough -= _size(note.with_suffix(""))
                    self._remove(note)

    def _grant(self, part: Path, image: CachedImage, asked: int) -> int:
        """Let a download have at least so many bytes more, and push out what it may. Raises `WorkFailed` if there is no room."""
        if (room := self._room(image.project)) < asked:
            self._remove_unneeded(lambda note: image.project in ("", _owner(note)), asked - room)
        with self._locked(fcntl.LOCK_EX):
            if (room := self._room(image.project)) < asked:
                raise WorkFailed(
                    f"image {image.source!r} does not fit into the cache of images, and disks need the others that could go: it may have "
                    f"{self._settings.cache_bytes()} bytes (images_gb), "
                    f"project {image.project!r} half of what others leave, and the disk must not fill up"
                )
            granted = min(room, max(asked, _GRANT))
            self._granted[part] = (image.project, self._granted[part][1] + granted)
        return granted

    def _room(self, project: str) -> int:
        """How many bytes more an image of this project may have."""
        held = Counter[str]()
        for path in self._folder.iterdir():
            if path.suffix != ".json" and path not in self._granted:
                held[_owner(Path(f"{path}.json"))] += _size(path)
        for owner, granted in list(self._granted.values()):
            held[owner] += granted
        left, disk = self._settings.cache_bytes() - held.total(), shutil.disk_usage(self._folder)
        if project:
            left = (left + held[project]) // 2 - held[project]
        return min(left, disk.free - min(_FREE_MIN, disk.total // _FREE_PART))

    def _use(self, image: Path) -> bool:
        """Note that this image is used now. Returns whether it is there."""
        at_ns = time.time_ns()
        with suppress(FileNotFoundError):
            os.utime(f"{image}.json", ns=(at_ns, at_ns))
            return image.exists()
        return False

    def _remove(self, note: Path) -> None:
        known = _read(note)
        # The note goes first: without it, the image counts as not fetched.
        note.unlink()
        (self._folder / note.stem).unlink(missing_ok=True)
        if known is not None:
            with self._lock:
                self._sources.pop(known.source, None)

    def _touched(self, name: str) -> CachedImage | None:
        """The image of this name, which is used now; None if it is not in the cache, whole."""
        with self._locked(fcntl.LOCK_SH):
            return _read(self._folder / f"{name}.json") if self._use(self._folder / name) else None

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Hold the lock of the cache, which all processes share: `fcntl.LOCK_SH`, or `fcntl.LOCK_EX` for one alone."""
        with self._folder.with_name("cache.lock").open("a+") as file:
            fcntl.flock(file, how)
            yield

    def _remove_parts(self) -> None:
        """Remove what processes that have ended have left half done. What one still writes is locked (`_part_of`)."""
        for part in self._folder.glob("*.part"):
            with suppress(FileNotFoundError, BlockingIOError), part.open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()

    @contextmanager
    def _part_of(self, target: Path, project: str) -> Iterator[Path]:
        """A file of this process, to become the `target` when it is whole."""
        part = target.with_name(f"{target.name}.{uuid4().hex}.part")
        with self._locked(fcntl.LOCK_SH):
            file = part.open("xb")
            fcntl.flock(file, fcntl.LOCK_EX)
        self._granted[part] = (project, 0)
        try:
            yield part
        finally:
            del self._granted[part]
            file.close()
            part.unlink(missing_ok=True)

    def save(self, disk: Path, instance: UUID, name: str, project: str, give_up: Callable[[], None]) -> None:
        """Save the disk of an instance of this project as the image of this name, whole or not at all: when this has returned, the disk
        itself may go, and the machine lose power. `give_up` is as in `image`.
        """
        match = _SAVED.fullmatch(name)
        if match is None or UUID(match[1]) != instance:
            raise WorkFailed(
                f"save_as is {name!r}, must be the id of the instance, {instance}, with - and a number behind"
            )
        folder = self._folder_of(project)
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{name}.part"
        try:
            disks.flatten(disk, part, give_up)
            disks.keep_as(part, folder / name)
        finally:
            part.unlink(missing_ok=True)

    def copy_saved(
        self, source: str, user: ImageUser, disk: Path, size: int, give_up: Callable[[], None]
    ) -> None:
        """Copy the disk of an instance that was saved: it is this disk from now on, of this size; with 0, as large as before."""
        with self._file(source, user) as (file, _):
            disks.copy(Path(f"/proc/{os.getpid()}/fd/{file.fileno()}"), disk, give_up)
        disks.grow(disk, size or disks.checked_image(disk, source)[1])

    def forget_saved(self, instance: UUID, until: int) -> None:
        """Remove the images as which moves up to this number have saved the instance, and what is left of images that were not saved
        to the end.
        """
        images = self._settings.images_folder
        for folder in (images, *(images / _PROJECTS).glob("*")):
            for path in folder.glob(f"*{instance}-*"):
                match = _SAVED.fullmatch(path.name.removeprefix(".").removesuffix(".part"))
                if match is not None and int(match[2]) <= until:
                    path.unlink(missing_ok=True)

    def _folder_of(self, project: str) -> Path:
        images = self._settings.images_folder
        # No project leads to another folder by its name.
        return images / _PROJECTS / quote(project, safe="").replace(".", "%2E") if project else images

    def _note(self, source: str) -> None:
        with self._lock:
            self._sources.pop(source, None)
            self._sources[source] = None

    @contextmanager
    def _alone(self, name: str, give_up: Callable[[], None]) -> Iterator[None]:
        """One download for all builds that need the image."""
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        while not lock.acquire(timeout=_POLL_S):
            give_up()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _opened(
        self, source: str, user: ImageUser, give_up: Callable[[], None]
    ) -> Iterator[tuple[str, str, Callable[[], Iterator[bytes]]]]:
        """The version of an image, the project that it is fetched for, and its content if that is asked for."""
        if source.startswith(("http://", "https://")):
            with downloaded(source, self._settings, give_up) as (version, chunks):
                yield version, user.project, chunks
            return
        try:
            with self._file(source, user) as (file, owner):
                known = os.fstat(file.fileno())
                # Files of several projects may have one name.
                version = f"{known.st_mtime_ns} {known.st_size} {owner}".rstrip()
                yield version, owner, lambda: iter(partial(file.read, CHUNK), b"")
        except OSError as error:
            raise WorkFailed(f"image {source!r} cannot be read: {error.strerror}") from error

    @contextmanager
    def _file(self, source: str, user: ImageUser) -> Iterator[tuple[BinaryIO, str]]:
        """The file of this name, of the user's project or else a public one, and whose it is. All others count as not there, so that
        nobody learns of them.
        """
        if not _NAME.fullmatch(source) or source.startswith("."):
            raise WorkFailed(
                f"image {source!r} is neither an http or https URL nor the name of a file in the folder of images"
            )
        is_saved, images = _SAVED.fullmatch(source) is not None, self._settings.images_folder
        file = _open(self._folder_of(user.project) / source, os.O_NOFOLLOW) if user.project else None
        owner = "" if file is None else user.project
        if file is None and (not is_saved or source == user.saved):
            file = _open(images / source)
        if file is None:
            whose = f", for all or for project {user.project!r}" if user.project else ""
            why = "; an instance that was saved is an image for its project alone" if is_saved else ""
            raise WorkFailed(f"image {source!r} is not in {images}{whose}{why}")
        with file:
            yield file, owner

    def _fetch(
        self,
        image: CachedImage,
        checksum: str,
        chunks: Iterator[bytes],
        part: Path,
        give_up: Callable[[], None],
        *,
        bytes_max: int,
        is_disk: bool,
    ) -> CachedImage:
        source = image.source
        kind, _, wanted = checksum.rpartition(":")
        kind = kind.lower() or _DIGESTS.get(len(wanted), "")
        if wanted and kind not in _DIGESTS.values():
            raise WorkFailed(
                f"the checksum of image {source!r} is {checksum!r}, must be md5, sha1, sha256 or sha512 in hexadecimal digits"
            )
        digest = hashlib.new(kind, usedforsecurity=False) if wanted else None
        size = room = 0
        try:
            with part.open("wb") as file:
                for chunk in chunks:
                    give_up()
                    size += len(chunk)
                    if size > bytes_max:
                        raise WorkFailed(f"image {source!r} has more than {bytes_max} bytes")
                    # Holes stay holes.
                    if chunk.count(0) == len(chunk):
                        file.seek(len(chunk), os.SEEK_CUR)
                    else:
                        if room < len(chunk):
                            room += self._grant(part, image, len(chunk) - room)
                        room -= file.write(chunk)
                    if digest is not None:
                        digest.update(chunk)
                file.truncate(size)
                file.flush()
                # Here, and not only when the cache is locked: it may take long.
                os.fsync(file.fileno())
            if not size:
                raise WorkFailed(f"image {source!r} is empty")
            if digest is not None and digest.hexdigest() != wanted.lower():
                raise WorkFailed(
                    f"image {source!r} is broken: its {kind} is {digest.hexdigest()}, and must be {wanted}"
                )
            format_, virtual = disks.checked_image(part, source) if is_disk else ("", 0)
            image = structs.replace(image, format=format_, virtual_size=virtual)
            part.chmod(disks.OPEN)
            with self._locked(fcntl.LOCK_EX):
                disks.keep_as(part, Path(image.path))
                disks.write_whole(Path(f"{image.path}.json"), msgspec.json.encode(image))
        except OSError as error:
            raise WorkFailed(
                f"image {source!r} cannot be cached in {self._folder}: {error.strerror}"
            ) from error
        return image


def _read(note: Path) -> CachedImage | None:
    """What is noted of an image; None if that is not there, or was cut by a crash: then the image is fetched again."""
    try:
        return msgspec.json.decode(note.read_bytes(), type=CachedImage)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _owner(note: Path) -> str:
    return "" if (known := _read(note)) is None else known.project


def _size(path: Path) -> int:
    """How much an image takes, at least a chunk: so nobody makes the cache slow by many small ones. 0 if it is gone."""
    try:
        return max(path.stat().st_blocks * _BLOCK, CHUNK)
    except FileNotFoundError:
        return 0


def _named_in(folder: Path) -> set[str]:
    """The cached images that a file of a guest in this folder names, whoever has made it: a disk by its backing file, an order
    and a domain by their text.
    """
    found: set[bytes] = set()
    for path in _files_in(folder):
        try:
            is_text = path.suffix in (".json", ".xml")
            text = path.read_bytes() if is_text else os.fsencode(disks.backing_of(path))
        except FileNotFoundError:
            # It was removed meanwhile.
            continue
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        found.update(_CACHED.findall(text))
    return {each.decode() for each in found}


def _files_in(folder: Path) -> Iterator[Path]:
    """All files in this folder and those below, also through links, without the cache and what guests write."""
    seen = {_inode(folder / "cache")}

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for where, folders, names in os.walk(folder, onerror=note, followlinks=True):
        with suppress(FileNotFoundError):
            if (inode := _inode(Path(where))) in seen:
                folders.clear()
                continue
            seen.add(inode)
            yield from (
                path
                for name in names
                if not name.startswith(_CONSOLE) and (path := Path(where, name)).is_file()
            )


def _inode(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return (found.st_dev, found.st_ino)


def _open(path: Path, flags: int = 0) -> BinaryIO | None:
    """This file; None if there is none, or something else of that name."""
    try:
        # A pipe would wait for its other end.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        return None
    return os.fdopen(number, "rb")
