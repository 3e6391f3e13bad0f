"""Opens hosts that have libvirt, and creates the parts of their compute: the driver `libvirt`."""

import asyncio
import fcntl
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from msgspec import structs

from bus.addresses import ADDRESSES
from bus.workers.connections import Station
from compute_sim.core.attempts import WELL, Condition
from compute_sim.core.hosts import Pool, tree_of_pool
from compute_sim.core.trees import ProviderTree
from compute_sim.handlers import ComputeStore
from compute_sim.libvirt.disks import make_folder
from compute_sim.libvirt.driver import LibvirtDriver
from compute_sim.libvirt.hypervisor import HostView
from compute_sim.libvirt.images import CachedImages
from compute_sim.libvirt.settings import LIBVIRT, LibvirtRules
from compute_sim.settings import ComputeSettings
from compute_sim.store_sql import kept_attempts
from compute_sim.wiring import OpensHosts, compute_parts
from kit.database_settings import DATABASE, DatabaseSettings
from kit.errors import Unavailable
from kit.parts import Pauses, Periodic
from kit.process import Part

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from compute_sim.libvirt.guest_work import GuestWork
    from engine.inventories import ProviderId

# The storage pools and networks that the hosts of a compute share: the compute reports each of them once.


class NotShared(Unavailable):
    """Hosts do not see the same pool by one name; the text names them."""


class SharedByHosts:
    """A pool that is reported like a host (`Reported`), as large as the first host sees it now."""

    def __init__(self, pool: Pool, views: Sequence[HostView]) -> None:
        self.root = tree_of_pool(pool).root
        self._pool = pool
        self._views = views

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:  # noqa: ARG002 - as the hosts see it
        seen = next((pool for pool, _ in _seen(self._views) if pool.name == self._pool.name), self._pool)
        return tree_of_pool(seen)

    def condition(self, at_s: float) -> Condition:  # noqa: ARG002 - it is there as long as its compute
        return WELL


def shared_pools(views: Sequence[HostView]) -> list[SharedByHosts]:
    """The pools that these hosts share, each once. Raises `NotShared` if hosts see pools of different sizes by one name."""
    found: dict[str, tuple[Pool, str]] = {}
    for pool, host in _seen(views):
        first, other = found.setdefault(pool.name, (pool, host))
        if first.total != pool.total:
            raise NotShared(
                f"{pool.name} has {first.total} {pool.resource} on host {other} and {pool.total} on host {host}, so it is not one pool: "
                "name the hosts that share it, as NAME@HOSTS"
            )
    return [SharedByHosts(pool, views) for pool, _ in found.values()]


def _seen(views: Iterable[HostView]) -> Iterable[tuple[Pool, str]]:
    for view in views:
        for each in view.layout.shared:
            if each.pool is not None:
                yield each.pool, view.host.name


# The pause between two looks whether libvirt answers, at the start.
_LOOK_S = 5.0
# The pause between two looks whether the hosts are seen.
_SEE_S = 1.0


class WrongFolder(Unavailable):
    """The folder of the guests cannot be used; the text says why."""


def from_environment(environment: Mapping[str, str]) -> OpensHosts:
    """The hosts that the settings of [libvirt] name; their attempts are in the database of the cell, if it has one."""
    return partial(
        libvirt_parts,
        libvirt=LibvirtRules.of(LIBVIRT.read(environment)),
        database_url=ADDRESSES.read(environment).db_of(environment["MOOR_CELL"]),
        database=DATABASE.read(environment),
    )


@asynccontextmanager
async def libvirt_parts(
    station: Station,
    settings: ComputeSettings,
    libvirt: LibvirtRules,
    database_url: str = "",
    database: DatabaseSettings | None = None,
    *,
    at_step: Callable[[str], None] = lambda _: None,
    waits: Callable[[Unavailable], object] = lambda why: log.warning("%s", why),
) -> AsyncIterator[tuple[Part, ...]]:
    """The parts of a compute of these hosts. It waits until the libvirt of each host has answered once, and tells `waits`.

    The attempts are stored in the database; without one, in an SQLite file in the folder.
    """
    libvirt = structs.replace(libvirt, networks=settings.networks, pools=settings.pools)
    images, peers = CachedImages(libvirt), dict["ProviderId", "GuestWork"]()
    drivers = [
        LibvirtDriver(host, libvirt, images, peers, at_step, cell=settings.cell)
        for host in libvirt.all_hosts()
    ]
    async with AsyncExitStack() as opened:
        with _used(libvirt.folder):
            opened.enter_context(await asyncio.to_thread(_lock, libvirt.folder, settings.cell, station.name))
            opened.push_async_callback(_close, drivers)
            for each in drivers:
                await asyncio.to_thread(each.open)
        for each in drivers:
            while not await asyncio.to_thread(each.wait_until_known, _LOOK_S):
                why = each.why_not_seen or "it is looked at"
                waits(Unavailable(f"host {each.host.name} is not seen yet: {why}"))
        url = database_url or f"sqlite+aiosqlite:///{libvirt.folder}/attempts-{settings.cell}.sqlite"
        store = await opened.enter_async_context(kept_attempts(url, settings.cell, database))
        with _used(libvirt.folder):
            await adopt(store, drivers, settings.cell)
        pools = shared_pools([each.view for each in drivers])
        parts = compute_parts(station, drivers, settings, store=store, pools=pools)
        yield (*parts, _seeing(drivers))


@contextmanager
def _used(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WrongFolder(f"the folder {folder} cannot be used: {error}") from error


def _lock(folder: str, cell: str, name: str) -> TextIO:
    """The lock of this cell's compute on the folder. The system takes it from a process that is killed."""
    path = Path(folder) / f"compute-{cell}.lock"
    make_folder(path.parent)
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with file:
            file.seek(0)
            raise Unavailable(
                f"{file.read()} works in {folder}, as the compute of cell {cell!r}: this one begins when it ends"
            ) from None
    file.truncate(0)
    file.write(name)
    file.flush()
    return file


async def _close(drivers: Sequence[LibvirtDriver]) -> None:
    """Close them at the same time: each may have work that hangs."""
    await asyncio.gather(*[asyncio.to_thread(each.close) for each in drivers])


def _seeing(drivers: Sequence[LibvirtDriver]) -> Periodic:
    """Fails while a host is not seen. The compute is ready as long as one of its hosts is seen."""

    async def see() -> None:
        unseen = [f"host {each.host.name}: {why}" for each in drivers if (why := each.why_not_seen)]
        seeing.status.is_beside = len(unseen) < len(drivers)
        if unseen:
            raise Unavailable("; ".join(unseen))

    seeing = Periodic("see the hosts", see, _SEE_S, pauses=Pauses(_SEE_S, _SEE_S))
    return seeing


async def adopt(store: ComputeStore, drivers: Sequence[LibvirtDriver], cell: str) -> None:
    """Store the attempts that the hosts have and the store does not know: those of a lost database, and those whose work began just
    before the process was killed.

    The conductors are told of them, as of all others, and order the hosts to destroy what does not count any more.
    """
    async with store.transaction() as tx:
        known = await tx.of_hosts([each.root for each in drivers])
        stored = {each.key for attempts in known.values() for each in attempts}
        found = [each for driver in drivers for each in await asyncio.to_thread(driver.has, cell)]
        await tx.save([each for each in found if each.key not in stored])
