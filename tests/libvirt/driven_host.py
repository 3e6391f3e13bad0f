"""A host whose driver a test drives itself: what it orders, what becomes of that, and what happens at any step of the work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from bus.messages.cell import DestroyInstance, ReceiveInstance, RespawnInstance, SpawnInstance, StopInstance
from compute_sim.core.attempts import WELL, AttemptRecord, HostOrder, Work, begun, looked_at
from compute_sim.libvirt.driver import LibvirtDriver
from compute_sim.libvirt.images import CachedImages
from compute_sim.libvirt.settings import LibvirtRules
from engine.flavors import Flavor, Image
from engine.inventories import ConsumerId, ResourceAmount, Share
from tests.libvirt.libvirt_cloud import files, libvirt_settings, write_image
from tests.waiting import PATIENCE_S, wait_for

# Libvirt's test machine lives in its connection, and with it in the process.
URI = "test:///default"
SMALLEST = Flavor(vcpus=1, ram_mb=32)
FIRST = UUID(int=1)
T = TypeVar("T")


class Host:
    """A host on libvirt's test driver, and orders to it."""

    def __init__(self, folder: Path, uri: str = URI, **settings: Any) -> None:
        self.folder = folder
        self.settings = libvirt_settings(folder, uri, **{"domain_type": "test", **settings})
        write_image(self.settings.images_folder / "tiny")
        self.interrupts: dict[str, Callable[[], object]] = {}
        self.steps: list[str] = []
        self.driver = open_driver(self.settings, self.at_step)

    def restart(self) -> None:
        """Another process takes over: what the last one knew is gone."""
        self.driver.close()
        self.driver = open_driver(self.settings, self.at_step)

    def at_step(self, step: str) -> None:
        self.steps.append(step)
        if step in self.interrupts:
            self.interrupts.pop(step)()

    def share(self, flavor: Flavor, **other: int) -> Share:
        """The claim of an instance of this flavor, but for `other` amounts."""
        disk_gb = flavor.root_gb + flavor.ephemeral_gb + -(-flavor.swap_mb // 1024)
        amounts = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.ram_mb, "DISK_GB": disk_gb, **other}
        root = self.driver.root
        return Share(
            host=root,
            amounts=tuple(
                ResourceAmount(provider=root, resource=resource, amount=amount)
                for resource, amount in amounts.items()
                if amount
            ),
        )

    def _order(self, kind: Callable[..., T], instance: int, **fields: Any) -> T:
        about = {"cell": "c1", "instance": ConsumerId(UUID(int=instance)), "host": self.driver.root}
        return kind(**{**about, "attempt": 1, **fields})

    def _build(self, kind: Callable[..., T], instance: int, flavor: Flavor, **fields: Any) -> T:
        return self._order(kind, instance, **{"flavor": flavor, "share": self.share(flavor), **fields})

    def spawn(self, number: int = 1, flavor: Flavor = SMALLEST, **fields: Any) -> SpawnInstance:
        return self._build(SpawnInstance, number, flavor, **{"image": Image(source="tiny"), **fields})

    def respawn(self, rebuild: int, flavor: Flavor = SMALLEST, **fields: Any) -> RespawnInstance:
        """The order to rebuild the first instance."""
        usual = {"number": rebuild, "image": Image(source="tiny")}
        return self._build(RespawnInstance, 1, flavor, **{**usual, **fields})

    def stop(self, number: int = 1, instance: int = 1, **fields: Any) -> StopInstance:
        """The order to stop an instance for the move with this number."""
        return self._order(StopInstance, instance, number=number, **fields)

    def receive(self, flavor: Flavor = SMALLEST, **fields: Any) -> ReceiveInstance:
        """The order to move the first instance, which is stopped, to its own host."""
        moved = {"attempt": 2, "source": self.driver.root, "source_attempt": 1}
        return self._build(ReceiveInstance, 1, flavor, **moved, **fields)

    def begun(self, order: HostOrder) -> AttemptRecord:
        return begun(order, self.driver.begin(order, 0.0), 0.0)

    def built(self) -> AttemptRecord:
        """The attempt of an instance that runs."""
        attempt = self.begun(self.spawn())
        assert self.end_of_attempt(attempt) == ""
        return looked_at(attempt, WELL, self.driver.look_at(attempt, 0.0), 0.0)[0]

    def libvirt(self) -> Any:
        """A connection to libvirt for as long as a `with` has it."""
        return self.driver._hypervisor.connected()  # noqa: SLF001 - libvirt's test machine lives in its connection

    def end_of(self, order: HostOrder) -> str:
        """Why the work of this order failed; empty if it did not."""
        return self.end_of_attempt(self.begun(order))

    def end_of_attempt(self, attempt: AttemptRecord) -> str:
        return self.end_of_work(attempt).failure

    def end_of_work(self, attempt: AttemptRecord) -> Work:
        return wait_for(
            lambda: self.driver.look_at(attempt, 0.0), "the work ends", lambda work: not work.left_ms
        )

    def work_of(self, order: HostOrder) -> Work:
        return self.end_of_work(self.begun(order))

    def destroy(self, number: int = 1, attempt: int = 1, **fields: Any) -> str:
        return self.end_of(self._order(DestroyInstance, number, attempt=attempt, **fields))

    def destroy_both(self) -> None:
        """Destroy both attempts of the first instance."""
        assert self.destroy() == ""
        assert self.destroy(attempt=2) == ""
        for each in (self.folder / "cache").iterdir():
            each.unlink()

    def close(self) -> None:
        """Leave the test machine as it was: it lives as long as the test process."""
        with self.libvirt() as connection:
            for each in connection.listAllDomains():
                if each.name() != "test":
                    if each.isActive():
                        each.destroy()
                    each.undefine()
        self.driver.close()

    @property
    def running(self) -> list[str]:
        with self.libvirt() as connection:
            domains = connection.listAllDomains()
            return [each.name() for each in domains if each.isActive() and each.name() != "test"]

    @property
    def domains(self) -> list[str]:
        """The domains but the one that the test machine has."""
        with self.libvirt() as connection:
            return [each.name() for each in connection.listAllDomains() if each.name() != "test"]

    @property
    def left(self) -> list[str]:
        return [
            *self.domains,
            *files(self.folder),
            *(each.name for each in (self.folder / "cache").glob("*.part")),
        ]


def driver_of(settings: LibvirtRules, at_step: Callable[[str], None] = lambda _: None) -> LibvirtDriver:
    """The driver of the first of these hosts. It is not open."""
    return LibvirtDriver(settings.all_hosts()[0], settings, CachedImages(settings), at_step=at_step)


def open_driver(settings: LibvirtRules, at_step: Callable[[str], None] = lambda _: None) -> LibvirtDriver:
    """The driver of the first of these hosts, which knows its machine."""
    driver = driver_of(settings, at_step)
    driver.open()
    assert driver.wait_until_known(PATIENCE_S), driver.why_not_seen
    return driver


def which(file: Path) -> tuple[int, int]:
    """The file itself: another one with the same content is not the same."""
    of = file.stat()
    return (of.st_ino, of.st_mtime_ns)
