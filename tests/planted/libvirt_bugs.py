"""Planted bugs in the libvirt driver: guests' domains, disks and images, and what is left of guests that are gone."""

from contextlib import AbstractContextManager, suppress
from itertools import count
from typing import Any

from msgspec import structs

from compute_sim.libvirt import disks, driver, guest_domains, guest_folders, guest_work, images, running
from compute_sim.libvirt.core import domains, planning
from compute_sim.libvirt.core.plans import GuestPlan
from compute_sim.libvirt.driver import LibvirtDriver
from compute_sim.libvirt.guest_domains import GuestDomains
from compute_sim.libvirt.guest_folders import GuestFolder
from compute_sim.libvirt.hypervisor import HostView
from compute_sim.libvirt.images import CachedImages
from compute_sim.libvirt.running import SharedByHosts
from compute_sim.libvirt.work import WorkQueues
from tests.planted.replacing import planted, planted_as, planted_by, replaced


# A guest that moves to another host leaves its config drive behind.
@planted("a guest that moves loses its config drive", guest_work, "copy_disks")
def config_drive_not_copied(real: Any, from_: Any, folder: Any) -> None:
    real(from_, folder)
    folder.config_drive.unlink(missing_ok=True)


# The disks of a guest that is resized keep their sizes.
planted_by("a resized guest keeps its disk", guest_work, "resize_disks")(
    lambda _real: lambda _folder, _was, _flavor: None
)


# A disk that would have to shrink stays as it is, and nobody is told.
@planted("a disk that cannot shrink counts as resized", disks, "grow")
def smaller_disk_counts_as_made(real: Any, disk: Any, size: int) -> None:
    real(disk, max(size, disks.info_of(disk, "qcow2").virtual_size))


# Of a guest that is destroyed, the disks stay that are in a storage pool.
planted_by("disks in a storage pool stay when their guest goes", GuestFolder, "remove")(
    lambda _real: lambda self: disks.remove_folder(self.path)
)


# The domain of a build that fails stays.
planted_by("a build that fails leaves its domain", GuestDomains, "remove_if_defined")(
    lambda _real: lambda _self, _folder: None
)


# The mediated devices of a guest that is destroyed stay.
planted_by("mediated devices stay when their guest goes", guest_domains, "remove_mediated")(
    lambda _real: lambda _connection, _held: None
)


# A network card gets its address though a guest of this machine has it.
@planted_by("two guests have network cards of one address", guest_domains, "macs_of")
def addresses_given_twice(real: Any) -> Any:
    return lambda instance, number, kept, _taken: real(instance, number, kept, {})


# A guest gets what a guest of another cloud has on the same machine.
@planted("a guest gets the CPUs of another cloud's guest", (planning, guest_domains), "plan_guest")
def foreign_guests_not_counted(
    real: Any, order: Any, layout: Any, others: Any = (), known: Any = None
) -> Any:
    return real(order, layout, [each for each in others if isinstance(each, GuestPlan)], known)


# The saved disk of an instance without a project is an image for all who know its name.
@planted("a saved disk is an image for all", CachedImages, "image")
def saved_disk_for_all(
    real: Any, self: Any, source: Any, checksum: Any, user: Any, *more: Any, **limits: Any
) -> Any:
    return real(self, source, checksum, structs.replace(user, saved=source), *more, **limits)


# An image is taken as it comes.
@planted("a broken image is booted", CachedImages, "image")
def checksum_not_checked(real: Any, self: Any, source: Any, _checksum: Any, *more: Any, **limits: Any) -> Any:
    return real(self, source, "", *more, **limits)


# A name of an allowed server may lead to an address of the operator's own network.
planted_by("a tenant's URL reaches the operator's network", images, "may_connect")(
    lambda _real: lambda _server, _address, _networks: True
)


# An image leaves the cache when its time is over, though disks are overlays of it.
planted_by("an image that disks need is removed", images, "_named_in")(lambda _real: lambda _folder: set())


# The saved disk of an instance has what it has written itself, and not what it has of its image.
planted_by("a saved disk lacks what it has of its image", disks, "flatten")(lambda _real: disks.copy)


# A file that cannot be written counts as written.
@planted("an order that a full disk did not take counts as noted", disks, "write_whole")
def full_disk_counts_as_written(real: Any, path: Any, text: bytes) -> None:
    with suppress(OSError):
        real(path, text)


# A guest that is given back to another cloud loses its disks.
@planted("a guest that is given back loses its disks", GuestFolder, "forget_adopted")
def given_back_with_its_disks(real: Any, self: Any) -> None:
    if self.adopted() is not None:
        self._remove_other_disks()
    real(self)


# A console is told from its beginning when its end is asked for.
planted_by("the end of a console is its beginning", driver, "read_console")(
    lambda real: lambda path, start, limit: real(path, max(0, start), limit)
)


# A config drive does not name the instance.
@planted_by("a config drive does not name its instance", guest_folders, "make_config_drive")
def drive_without_name(real: Any) -> Any:
    return lambda text, drive, instance, _name, fetch: real(text, drive, instance, "", fetch)


# The console of a guest begins anew with each start.
@planted_by("a start loses the console of before", (domains, guest_domains), "domain_xml")
def console_lost_by_a_start(real: Any) -> Any:
    return lambda plan: real(plan).replace('append="on"', 'append="off"')


@planted_as("a guest is built and destroyed at once")
def work_of_a_guest_at_once() -> AbstractContextManager[None]:
    """A guest is destroyed while it is still being built."""
    numbers = count()

    def planted(real: Any) -> Any:
        def add(self: Any, _instance: int, work: Any, **kind: Any) -> None:
            real(self, next(numbers), work, **kind)

        return add

    return replaced(WorkQueues, "add", planted)


# A compute that begins with an empty database does not look for the guests that its hosts have.
@planted("a lost database loses the guests of its hosts", running, "adopt")
async def lost_database_loses_guests(_real: Any, _store: Any, _drivers: Any, _cell: Any) -> None:
    return


# A storage pool is reported as it was first seen.
@planted("a storage pool that grows keeps its size", SharedByHosts, "update_provider_tree")
def pool_keeps_its_size(real: Any, self: Any, tree: Any, at_s: float) -> Any:
    return tree if tree.providers else real(self, tree, at_s)


# A host whose libvirt or folder hangs counts as seen.
planted_by("a host whose libvirt hangs seems well", LibvirtDriver, "why_not_seen")(
    lambda _real: property(lambda self: self._why_not_seen)
)


# A guest counts as off by a look from before its start.
planted_by("a guest that was just started counts as stopped", HostView, "changed")(
    lambda _real: lambda _self, _name: None
)


# What a killed process has left of a download stays in the cache.
planted_by("half downloads stay in the cache", CachedImages, "_remove_parts")(
    lambda _real: lambda _self: None
)
