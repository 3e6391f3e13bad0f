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
from tests.planted.replacing import PlantedBug, replaced, replaced_in


def config_drive_not_copied() -> AbstractContextManager[None]:
    """A guest that moves to another host leaves its config drive behind."""

    def planted(real: Any) -> Any:
        def copy_disks(from_: Any, folder: Any) -> None:
            real(from_, folder)
            folder.config_drive.unlink(missing_ok=True)

        return copy_disks

    return replaced(guest_work, "copy_disks", planted)


def resized_disk_as_before() -> AbstractContextManager[None]:
    """The disks of a guest that is resized keep their sizes."""
    return replaced(guest_work, "resize_disks", lambda _real: lambda _folder, _was, _flavor: None)


def smaller_disk_counts_as_made() -> AbstractContextManager[None]:
    """A disk that would have to shrink stays as it is, and nobody is told."""

    def planted(real: Any) -> Any:
        def grow(disk: Any, size: int) -> None:
            real(disk, max(size, disks.info_of(disk, "qcow2").virtual_size))

        return grow

    return replaced(disks, "grow", planted)


def pool_disks_left() -> AbstractContextManager[None]:
    """Of a guest that is destroyed, the disks stay that are in a storage pool."""
    return replaced(GuestFolder, "remove", lambda _real: lambda self: disks.remove_folder(self.path))


def failed_domain_left() -> AbstractContextManager[None]:
    """The domain of a build that fails stays."""
    return replaced(GuestDomains, "remove_if_defined", lambda _real: lambda _self, _folder: None)


def mediated_devices_left() -> AbstractContextManager[None]:
    """The mediated devices of a guest that is destroyed stay."""
    return replaced(guest_domains, "remove_mediated", lambda _real: lambda _connection, _held: None)


def addresses_given_twice() -> AbstractContextManager[None]:
    """A network card gets its address though a guest of this machine has it."""

    def planted(real: Any) -> Any:
        return lambda instance, number, kept, _taken: real(instance, number, kept, {})

    return replaced(guest_domains, "macs_of", planted)


def foreign_guests_not_counted() -> AbstractContextManager[None]:
    """A guest gets what a guest of another cloud has on the same machine."""

    def planted(real: Any) -> Any:
        def plan_guest(order: Any, layout: Any, others: Any = (), known: Any = None) -> Any:
            return real(order, layout, [each for each in others if isinstance(each, GuestPlan)], known)

        return plan_guest

    return replaced_in((planning, guest_domains), "plan_guest", planted)


def saved_disk_for_all() -> AbstractContextManager[None]:
    """The saved disk of an instance without a project is an image for all who know its name."""

    def planted(real: Any) -> Any:
        def image(self: Any, source: Any, checksum: Any, user: Any, *more: Any, **limits: Any) -> Any:
            return real(self, source, checksum, structs.replace(user, saved=source), *more, **limits)

        return image

    return replaced(CachedImages, "image", planted)


def checksum_not_checked() -> AbstractContextManager[None]:
    """An image is taken as it comes."""

    def planted(real: Any) -> Any:
        def image(self: Any, source: Any, _checksum: Any, *more: Any, **limits: Any) -> Any:
            return real(self, source, "", *more, **limits)

        return image

    return replaced(CachedImages, "image", planted)


def any_address_connected() -> AbstractContextManager[None]:
    """A name of an allowed server may lead to an address of the operator's own network."""
    return replaced(images, "may_connect", lambda _real: lambda _server, _address, _networks: True)


def needed_images_removed() -> AbstractContextManager[None]:
    """An image leaves the cache when its time is over, though disks are overlays of it."""
    return replaced(images, "_named_in", lambda _real: lambda _folder: set())


def saved_without_image() -> AbstractContextManager[None]:
    """The saved disk of an instance has what it has written itself, and not what it has of its image."""
    return replaced(disks, "flatten", lambda _real: disks.copy)


def full_disk_counts_as_written() -> AbstractContextManager[None]:
    """A file that cannot be written counts as written."""

    def planted(real: Any) -> Any:
        def write_whole(path: Any, text: bytes) -> None:
            with suppress(OSError):
                real(path, text)

        return write_whole

    return replaced(disks, "write_whole", planted)


def given_back_with_its_disks() -> AbstractContextManager[None]:
    """A guest that is given back to another cloud loses its disks."""

    def planted(real: Any) -> Any:
        def forget_adopted(self: Any) -> None:
            if self.adopted() is not None:
                self._remove_other_disks()
            real(self)

        return forget_adopted

    return replaced(GuestFolder, "forget_adopted", planted)


def end_of_console_is_its_beginning() -> AbstractContextManager[None]:
    """A console is told from its beginning when its end is asked for."""
    return replaced(
        driver, "read_console", lambda real: lambda path, start, limit: real(path, max(0, start), limit)
    )


def drive_without_name() -> AbstractContextManager[None]:
    """A config drive does not name the instance."""

    def planted(real: Any) -> Any:
        return lambda text, drive, instance, _name, fetch: real(text, drive, instance, "", fetch)

    return replaced(guest_folders, "make_config_drive", planted)


def console_lost_by_a_start() -> AbstractContextManager[None]:
    """The console of a guest begins anew with each start."""

    def planted(real: Any) -> Any:
        return lambda plan: real(plan).replace('append="on"', 'append="off"')

    return replaced_in((domains, guest_domains), "domain_xml", planted)


def work_of_a_guest_at_once() -> AbstractContextManager[None]:
    """A guest is destroyed while it is still being built."""
    numbers = count()

    def planted(real: Any) -> Any:
        def add(self: Any, _instance: int, work: Any, **kind: Any) -> None:
            real(self, next(numbers), work, **kind)

        return add

    return replaced(WorkQueues, "add", planted)


def lost_database_loses_guests() -> AbstractContextManager[None]:
    """A compute that begins with an empty database does not look for the guests that its hosts have."""

    def planted(_real: Any) -> Any:
        async def adopt(_store: Any, _drivers: Any, _cell: Any) -> None:
            return

        return adopt

    return replaced(running, "adopt", planted)


def pool_keeps_its_size() -> AbstractContextManager[None]:
    """A storage pool is reported as it was first seen."""

    def planted(real: Any) -> Any:
        def update_provider_tree(self: Any, tree: Any, at_s: float) -> Any:
            return tree if tree.providers else real(self, tree, at_s)

        return update_provider_tree

    return replaced(SharedByHosts, "update_provider_tree", planted)


def hanging_host_seems_well() -> AbstractContextManager[None]:
    """A host whose libvirt or folder hangs counts as seen."""
    return replaced(LibvirtDriver, "why_not_seen", lambda _real: property(lambda self: self._why_not_seen))


def old_look_believed() -> AbstractContextManager[None]:
    """A guest counts as off by a look from before its start."""
    return replaced(HostView, "changed", lambda _real: lambda _self, _name: None)


def half_an_image_cached() -> AbstractContextManager[None]:
    """What a killed process has left of a download stays in the cache."""
    return replaced(CachedImages, "_remove_parts", lambda _real: lambda _self: None)


BUGS: dict[str, PlantedBug] = {
    "a guest that moves loses its config drive": config_drive_not_copied,
    "a resized guest keeps its disk": resized_disk_as_before,
    "a disk that cannot shrink counts as resized": smaller_disk_counts_as_made,
    "disks in a storage pool stay when their guest goes": pool_disks_left,
    "a build that fails leaves its domain": failed_domain_left,
    "mediated devices stay when their guest goes": mediated_devices_left,
    "two guests have network cards of one address": addresses_given_twice,
    "a guest gets the CPUs of another cloud's guest": foreign_guests_not_counted,
    "a saved disk is an image for all": saved_disk_for_all,
    "a broken image is booted": checksum_not_checked,
    "a tenant's URL reaches the operator's network": any_address_connected,
    "an image that disks need is removed": needed_images_removed,
    "a saved disk lacks what it has of its image": saved_without_image,
    "an order that a full disk did not take counts as noted": full_disk_counts_as_written,
    "a guest that is given back loses its disks": given_back_with_its_disks,
    "the end of a console is its beginning": end_of_console_is_its_beginning,
    "a config drive does not name its instance": drive_without_name,
    "a start loses the console of before": console_lost_by_a_start,
    "a guest is built and destroyed at once": work_of_a_guest_at_once,
    "a lost database loses the guests of its hosts": lost_database_loses_guests,
    "a storage pool that grows keeps its size": pool_keeps_its_size,
    "a host whose libvirt hangs seems well": hanging_host_seems_well,
    "a guest that was just started counts as stopped": old_look_believed,
    "half downloads stay in the cache": half_an_image_cached,
}
