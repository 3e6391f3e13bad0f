"""A whole cloud in one process whose hosts have a real libvirt, for stories."""

import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bus.broker import Broker
from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.books import Done, ProviderWritten, WriteAnswered
from bus.messages.build import InstanceState
from bus.messages.cell import AskConsole, ConsoleFound
from bus.messages.cloud import AskOverview, Overview
from bus.settings import BusSettings
from bus.unix_socket.server import serve_unix
from bus.workers.connections import Station
from cell_conductor.settings import ConductorSettings
from compute_sim.libvirt.running import libvirt_parts
from compute_sim.libvirt.settings import LibvirtRules
from compute_sim.settings import ComputeSettings
from compute_sim.wiring import OpensHosts
from engine.flavors import Flavor, Image
from engine.inventories import ProviderState
from kit.process import Part
from laboratory.at_rest import Asked, problems_of
from laboratory.demo_guests import bootable_image
from moor.client import Client
from moor.client.bus_client import hosts_of, providers_of, station_on
from moor.clouds.cloud import CloudPlan, cloud
from moor.worker_settings import CloudSettings
from scheduler_worker.settings import SchedulerSettings
from tests.asking import until_state
from tests.narrowing import must_be
from tests.running import closing
from tests.waiting import until

# In the cloud's folder: computes of other processes connect here.
SOCKET = "bus"
TINY = Flavor(name="tiny", vcpus=1, ram_mb=32)
# Guests of the image of tests write it to their serial port, again and again.
TEXT = "guest is up\r\n"
SETTINGS = CloudSettings(
    conductor=ConductorSettings(),
    scheduler=SchedulerSettings(),
    compute=ComputeSettings(beat_s=0.5, facts_every_s=0.2),
    bus=BusSettings(),
)


def libvirt_settings(folder: Path, *uris: str, first: int = 1, **more: Any) -> LibvirtRules:
    """Of a host for each URI: `h1`, if that is the first number, `h2` and so on."""
    usual = {
        "hosts": tuple(f"h{number}={uri}" for number, uri in enumerate(uris, first)),
        "flat": True,
        "stop_s": 0.2,
        "memory_reserved_mb": 0,
        "disk_gb": 100,
        "domain_type": "qemu",
        "look_every_s": 2.0,
    }
    return LibvirtRules(folder=str(folder), **{**usual, **more})


def write_image(path: Path, text: str = TEXT) -> None:
    """Write a raw image that boots."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bootable_image(text))


class LibvirtCloud:
    """The cloud, its client, and a look behind its back."""

    def __init__(self, client: Client, broker: Broker, station: Station, connection: Any) -> None:
        self.client = client
        self.broker = broker
        self._station = station
        self._connection = connection

    async def boot(
        self, name: str = "web", flavor: Flavor = TINY, image: str | Image = "tiny", **fields: Any
    ) -> InstanceState:
        (state,) = await (await self.client.boot(flavor, name=name, image=image, **fields)).until_done()
        return state

    async def delete(self, *instances: InstanceState) -> None:
        """An audit finds nothing when they are gone: no instance is left."""
        for each in instances:
            await (await self.client.delete(each.id)).until_done()
        assert await self.problems() == []

    async def until(self, instance: InstanceState, state: str) -> InstanceState:
        return await until_state(self._station, instance.id, state)

    async def until_up(self, hosts: Mapping[str, LibvirtRules]) -> None:
        names = {host.name for each in hosts.values() for host in each.all_hosts()}
        await until(
            lambda: hosts_of(self._station),
            f"{names} are up",
            lambda found: {each.name for each in found if each.up} == names,
        )

    async def providers(self) -> list[ProviderState]:
        return await providers_of(self._station)

    async def overview(self) -> Overview:
        return must_be(Overview, await self._station.ask(AskOverview(once=True)))

    async def write(self, order: Message) -> None:
        """Write to placement by name, as an operator does over its API."""
        answer = must_be(WriteAnswered, await self._station.ask(order))
        assert isinstance(answer.verdict, Done | ProviderWritten), answer

    async def console(self, instance: InstanceState, start: int = -4096) -> ConsoleFound:
        return must_be(
            ConsoleFound, await self._station.ask(AskConsole(instance=instance.id, start=start, limit=200))
        )

    async def problems(
        self, *active: InstanceState, amounts: Mapping[str, int] | None = None, words: str = ""
    ) -> list[str]:
        """What an audit finds when these instances are active, each of which needs these amounts: when all is at rest, or one of the
        faults has these words.
        """
        asked = {each.id: Asked("active", amounts or {}) for each in active}
        return await until(
            lambda: problems_of(self._station, self._connection, asked),
            words or "all is at rest",
            lambda found: words in str(found) if words else not found,
        )


def virsh(uri: str, *words: str) -> str:
    done = subprocess.run(
        ("virsh", "-c", uri, *words), capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def domains(uri: str) -> list[str]:
    """The names of all domains, running or not."""
    return sorted(virsh(uri, "list", "--all", "--name").split())


def files(folder: Path) -> list[str]:
    """What is left of guests in the folder of a host."""
    return sorted(str(each.relative_to(folder)) for each in folder.glob("instances/*/**/*"))


@asynccontextmanager
async def libvirt_cloud(
    folder: Path,
    hosts: Mapping[str, LibvirtRules],
    *,
    at_step: Callable[[str], None] = lambda _: None,
    settings: CloudSettings = SETTINGS,
) -> AsyncIterator[LibvirtCloud]:
    """The cloud, with these hosts by cell. There is an image `tiny`. It returns when all hosts are known."""
    computes = {cell: partial(libvirt_parts, libvirt=each, at_step=at_step) for cell, each in hosts.items()}
    async with cloud_of(folder, hosts, computes, settings) as found:
        await found.until_up(hosts)
        yield found


@asynccontextmanager
async def cloud_of(
    folder: Path,
    hosts: Mapping[str, LibvirtRules],
    computes: Mapping[str, OpensHosts],
    settings: CloudSettings = SETTINGS,
) -> AsyncIterator[LibvirtCloud]:
    """The cloud, with the computes of these cells. There is an image `tiny`."""
    for each in hosts.values():
        write_image(each.images_folder / "tiny")
    memory = MemoryBroker()
    broker = memory.as_user()
    url = f"sqlite+aiosqlite:///{folder / 'moor.db'}"
    plan = CloudPlan(cells=dict.fromkeys(hosts, 0), computes=computes, settings=settings)
    async with (
        serve_unix(memory, folder / SOCKET),
        cloud(plan, broker, url),
        Client(broker, as_operator=True) as client,
        station_on(broker, "test") as (station, _),
        closing(await broker.connect()) as (connection,),
    ):
        yield LibvirtCloud(client, broker, station, connection)


@asynccontextmanager
async def no_parts(station: Station, settings: ComputeSettings) -> AsyncIterator[tuple[Part, ...]]:  # noqa: ARG001 - as computes are made
    """The compute of a cell is a process of its own, which connects by the socket."""
    yield ()
