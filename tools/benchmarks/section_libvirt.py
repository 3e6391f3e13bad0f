"""Real guests: ten of 32 MiB are booted at once on a private libvirtd, from the request until all are active.

The compute is a process of its own, the broker another; placement, the scheduler, the conductor and SQLite are in this process, which is
the generator. QEMU emulates, so the guests' own CPU is mostly that of their BIOS. After each run the guests are deleted, uncounted.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bus.workers.connections import Station
from compute_sim.settings import ComputeSettings
from engine.flavors import Flavor
from kit.process import Part
from laboratory.load.kernel import process_cpu_s
from moor.client import Client
from moor.clouds.cloud import CloudPlan, cloud
from tests.libvirt.libvirt_cloud import domains, files, write_image
from tests.servers.libvirtd import PrivateLibvirtd
from tools.benchmarks.books import WrongBooksError
from tools.benchmarks.brokers import Bus, unix_bus
from tools.benchmarks.cpu import OneProcess, ProcessTree, Spender
from tools.benchmarks.measuring import BROKER, GENERATOR, Details, Effort, Result, Run, measured_once
from tools.benchmarks.messages import CELL
from tools.benchmarks.remote_role import ended

SECTION = "real guests"
GUESTS = 10
SMALL = Flavor(name="small", vcpus=1, ram_mb=32, root_gb=1)
IMAGE = "tiny.raw"
HOST = "h1"
PATIENCE_S = 120.0
LOOK_S = 0.05
_ROOT = Path(__file__).parents[2]
_SETTINGS = {
    "MOOR_LIBVIRT_DOMAIN_TYPE": "qemu",
    "MOOR_LIBVIRT_FLAT": "true",
    "MOOR_LIBVIRT_CPU_RATIO": "16",
    "MOOR_LIBVIRT_STOP_S": "0.1",
}


class GuestProcesses:
    """The QEMU processes of a libvirtd: all that it has started, and not the daemon itself."""

    def __init__(self, server: PrivateLibvirtd, daemon: int) -> None:
        self._server = server
        self._daemon = daemon

    def spent_s(self) -> float:
        spent_s = 0.0
        for pid in {*self._server.processes()} - {self._daemon}:
            # It may have ended meanwhile.
            with suppress(OSError):
                spent_s += process_cpu_s(pid)
        return spent_s


async def libvirt_section(effort: Effort) -> list[Result]:
    if not effort.servers:
        return []
    with tempfile.TemporaryDirectory(prefix="moor-") as place, PrivateLibvirtd() as server:
        folder = Path(place)
        write_image(folder / "images" / IMAGE)
        async with (
            unix_bus() as bus,
            _workers(bus, folder),
            _compute(bus, folder, server) as compute,
            Client(bus.broker, as_operator=True) as client,
        ):
            await _until_up(client)
            daemon = int((server.directory / "pid").read_text())
            spenders: Mapping[str, Spender] = {
                GENERATOR: OneProcess(os.getpid()),
                # With qemu-img, which makes the disks.
                "compute": ProcessTree(compute),
                "libvirtd": OneProcess(daemon),
                "guests": GuestProcesses(server, daemon),
                BROKER: bus.spenders[BROKER],
            }
            runs: list[Run] = []
            # The first few get the image into the cache, uncounted.
            await _boot(client, 2)
            for _ in range(effort.runs):
                await _delete_all(client, server, folder)
                runs += (await _measured(client, spenders)).runs
            await _delete_all(client, server, folder)
            return [Result(SECTION, {"guests": GUESTS, "MiB": SMALL.ram_mb}, tuple(runs))]


async def _measured(client: Client, spenders: Mapping[str, Spender]) -> Result:
    columns: dict[str, str | int] = {"guests": GUESTS, "MiB": SMALL.ram_mb}
    return await measured_once(
        SECTION, columns, spenders, operations=GUESTS, work=lambda: _boot(client, GUESTS)
    )


async def _boot(client: Client, count: int) -> Details:
    began_s = time.monotonic()
    request = await client.boot(SMALL, name="web", image=IMAGE, count=count)
    waits_ms = [
        (time.monotonic() - began_s) * 1000
        async for state in request.follow(PATIENCE_S)
        if state.state == "active"
    ]
    if len(waits_ms) != count:
        raise WrongBooksError(f"of {count} guests {len(waits_ms)} are active: {request.states}")
    return {"seconds": max(waits_ms) / 1000, "median wait ms": sorted(waits_ms)[len(waits_ms) // 2]}


async def _delete_all(client: Client, server: PrivateLibvirtd, folder: Path) -> None:
    ids = [each.id async for each in client.list_instances() if each.state != "deleted"]
    wanted = sorted(f"moor-{each}-1" for each in ids)
    if domains(server.uri) != wanted:
        raise WrongBooksError(f"libvirt has {domains(server.uri)}, and must have {wanted}")
    await (await client.delete(*ids)).until_done(PATIENCE_S)
    if left := [*domains(server.uri), *files(folder)]:
        raise WrongBooksError(f"after all guests were deleted, there are {left}")


async def _until_up(client: Client) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while HOST not in [each.name async for each in client.list_hosts(up=True)]:
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def _workers(bus: Bus, folder: Path) -> AsyncIterator[None]:
    url = f"sqlite+aiosqlite:///{folder / 'moor.db'}"
    async with cloud(CloudPlan(cells={CELL: 0}, computes={CELL: _no_compute}), bus.broker, url):
        yield


@asynccontextmanager
async def _no_compute(_: Station, __: ComputeSettings) -> AsyncIterator[Sequence[Part]]:
    """It is a process of its own."""
    yield ()


@asynccontextmanager
async def _compute(bus: Bus, folder: Path, server: PrivateLibvirtd) -> AsyncIterator[int]:
    """The id of the compute's process."""
    words = ("run", "compute", "--cell", CELL, "--driver", "libvirt", "--uri", f"{HOST}={server.uri}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moor", *words, "--folder", str(folder)),
        cwd=_ROOT,
        env={**os.environ, **_SETTINGS, "MOOR_BUS_URL": bus.url, "MOOR_LOG_LEVEL": "ERROR"},
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        await ended(process)


def guest_costs(results: Sequence[Result]) -> list[str]:
    """What a guest costs, in words: the table has microseconds."""
    return [
        f"{SECTION}: {GUESTS} guests are active {result.detail('seconds'):.1f} s after the request; a guest costs "
        + ", ".join(
            f"{result.us(kind) / 1000:.0f} ms of {kind}" for kind in ("compute", "libvirtd", "guests")
        )
        for result in results
        if result.section == SECTION
    ]
