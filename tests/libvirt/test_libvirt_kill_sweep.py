"""The compute's process, and then a libvirtd, is killed at each step of a build and of a destroy, under a whole cloud.

Afterwards each guest has its row, each row its guest, each claim both, no file is left, and the audit finds nothing.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import zip_longest
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec import structs

from bus.messages.build import InstanceState
from moor.client import SentRequest
from tests.fork_server import ForkedProcess, start_module
from tests.libvirt.killed_compute import SELF, Kill
from tests.libvirt.libvirt_cloud import (
    TINY,
    LibvirtCloud,
    cloud_of,
    domains,
    libvirt_settings,
    no_parts,
)
from tests.servers.libvirtd import PrivateLibvirtd
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.timeout(300)

# All disks that an instance may have.
BOTH_DISKS = structs.replace(TINY, root_gb=1, ephemeral_gb=1, swap_mb=4)
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 32, "DISK_GB": 3}
Libvirtds = tuple[PrivateLibvirtd, PrivateLibvirtd]


class Sweep:
    """A cloud whose compute is a process, and the folder by which the test tells it whom to kill."""

    def __init__(self, cloud: LibvirtCloud, folder: Path, libvirtds: Mapping[str, PrivateLibvirtd]) -> None:
        self.cloud = cloud
        self.folder = folder
        self._libvirtds = libvirtds
        self._compute: ForkedProcess

    async def start(self) -> None:
        with (self.folder / "compute.log").open("ab") as log:
            self._compute = await start_module(
                "tests.libvirt.killed_compute",
                str(self.folder),
                env={"PATH": os.environ["PATH"]},
                stdout=log,
                stderr=log,
            )

    async def end(self) -> None:
        self._compute.kill()
        await self._compute.wait()

    async def restart(self) -> None:
        """The next process, after one that was killed."""
        await self._compute.wait()
        await self.start()

    async def revive(self) -> None:
        """Start the libvirtd again that was killed."""
        # Its keeper may not have seen its end yet.
        for dead in await until(lambda: [each for each in self._libvirtds.values() if not each.is_alive]):
            await asyncio.to_thread(dead.start)

    def sockets(self) -> int:
        """How many connections the compute has: one to each libvirt, and others that stay."""
        return len(psutil.Process(self._compute.pid).net_connections("unix"))

    async def until_connected(self, sockets: int) -> None:
        """Wait until the compute is connected to all libvirtds again."""
        await until(self.sockets, f"{sockets} connections", lambda found: found >= sockets)

    def pids(self) -> dict[str, int]:
        """The libvirtd of each host."""
        return {name: each.pid for name, each in self._libvirtds.items()}

    def steps(self) -> list[str]:
        """The steps that the compute came to since the last call, each once."""
        path = self.folder / "steps"
        found = path.read_text().splitlines()
        path.unlink()
        return list(dict.fromkeys(found))

    def kill_at(self, step: str, pids: dict[str, int]) -> None:
        (self.folder / "killed").unlink(missing_ok=True)
        part = self.folder / "kill.part"
        part.write_bytes(msgspec.json.encode(Kill(step, pids)))
        part.rename(self.folder / "kill")

    async def until_killed(self) -> None:
        await until((self.folder / "killed").exists, "it was killed")

    async def check(self, what: str, *active: InstanceState) -> None:
        """These instances are there, whole, and nothing else is."""
        assert await self.cloud.problems(*active, amounts=AMOUNTS) == [], what
        for name, libvirtd in self._libvirtds.items():
            here = [f"{each.id}.{each.attempt}" for each in active if each.host == name]
            assert domains(libvirtd.uri) == sorted(f"moor-{each.replace('.', '-')}" for each in here), what
            folder = self.folder / "instances" / name
            assert sorted(each.name for each in folder.iterdir()) == sorted(here), what
        assert not list(self.folder.rglob("*.part")), what

    async def build(self, name: str) -> SentRequest:
        """Order a build which has all steps: nothing is cached."""
        for each in (self.folder / "cache").iterdir():
            each.unlink()
        return await self.cloud.client.boot(BOTH_DISKS, name=name, image="tiny")

    async def steps_of_work(self) -> tuple[list[str], list[str]]:
        """The steps of a build and of a destroy that nothing disturbs."""
        (web,) = await (await self.build("undisturbed")).until_done()
        built = self.steps()
        await self.cloud.delete(web)
        return built, self.steps()


@asynccontextmanager
async def sweeping(folder: Path, *libvirtds: PrivateLibvirtd) -> AsyncIterator[Sweep]:
    settings = libvirt_settings(folder, *(each.uri for each in libvirtds))
    (folder / "compute.json").write_bytes(msgspec.json.encode(settings))
    async with cloud_of(folder, {"c1": settings}, {"c1": no_parts}) as found:
        sweep = Sweep(found, folder, dict(zip(("h1", "h2"), libvirtds, strict=False)))
        await sweep.start()
        try:
            await found.until_up({"c1": settings})
            yield sweep
        finally:
            await sweep.end()


async def killed_at_each_step(
    sweep: Sweep, what: str, pids: Callable[[], dict[str, int]], revive: Callable[[], Awaitable[None]]
) -> dict[str, InstanceState]:
    """Kill these processes at each step of a build, and of a destroy. What was built, by the step at which they were killed."""
    built, destroyed = await sweep.steps_of_work()
    assert len(built) >= 10, built
    assert len(destroyed) >= 4, destroyed
    sockets = sweep.sockets()
    found: dict[str, InstanceState] = {}
    for build_step, destroy_step in zip_longest(built, destroyed):
        await sweep.until_connected(sockets)
        sweep.kill_at(build_step, pids())
        request = await sweep.build(f"killed at {build_step}")
        await sweep.until_killed()
        await revive()
        (web,) = await request.until_done(PATIENCE_S)
        await sweep.check(f"{what} killed in a build at {build_step!r}", web)
        found[build_step] = web

        if destroy_step is not None:
            await sweep.until_connected(sockets)
            sweep.kill_at(destroy_step, pids())
        deleting = await sweep.cloud.client.delete(web.id)
        if destroy_step is not None:
            await sweep.until_killed()
            await revive()
        await deleting.until_done(PATIENCE_S)
        await sweep.check(f"{what} killed in a destroy at {destroy_step!r}")
    return found


async def test_a_compute_that_is_killed_at_any_step_leaves_no_half(
    tmp_path: Path, libvirtds: Libvirtds
) -> None:
    async with sweeping(tmp_path, libvirtds[0]) as sweep:
        await killed_at_each_step(sweep, "compute", lambda: {"h1": SELF}, sweep.restart)


async def test_a_libvirtd_that_is_killed_at_any_step_leaves_no_half_and_an_alternate_is_taken(
    tmp_path: Path, libvirtds: Libvirtds
) -> None:
    async with sweeping(tmp_path, *libvirtds) as sweep:
        found = await killed_at_each_step(sweep, "libvirtd", sweep.pids, sweep.revive)
        # Where the rest of the build needs libvirt, its words are told, and the other host was taken.
        failed = {step: web for step, web in found.items() if web.failures}
        assert {"build: clean", "define: plan", "define: define", "build: start"} <= set(failed)
        for web in failed.values():
            (failure,) = web.failures
            assert failure.reason.startswith("libvirt at qemu"), failure
            assert " is away: " in failure.reason, failure
            assert failure.host != web.host
