"""Planted bugs in computes, and in the libvirt driver."""

from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from itertools import count
from typing import Any

from msgspec import structs

from bus.messages.placement import ReportOutdated
from compute_sim import guests, handlers, reporting, wiring
from compute_sim.core import attempts, hosts, trees
from compute_sim.core.attempts import AttemptState
from compute_sim.core.trees import Accepted, ReportState
from compute_sim.handlers import BuildSlots, ComputeStore, Fleet
from compute_sim.libvirt import disks, driver, guest_domains, guest_folders, guest_work, images, running
from compute_sim.libvirt.core import domains, planning
from compute_sim.libvirt.core.plans import GuestPlan
from compute_sim.libvirt.driver import LibvirtDriver
from compute_sim.libvirt.guest_domains import GuestDomains
from compute_sim.libvirt.guest_folders import GuestFolder
from compute_sim.libvirt.guest_work import GuestWork
from compute_sim.libvirt.hypervisor import HostView
from compute_sim.libvirt.images import CachedImages
from compute_sim.libvirt.running import SharedByHosts
from compute_sim.libvirt.settings import LibvirtRules
from compute_sim.libvirt.work import WorkQueues
from compute_sim.reporting import AttemptLister, FleetAnnouncer
from compute_sim.store_sql import SqlComputeStore
from tests.planted.replacing import planted, planted_as, planted_by, replaced

# An answer that the broker did not take is not due again.
planted_by("an answer of a host that cannot be sent is lost", ComputeStore, "end_again", harm="lost")(
    lambda _real: lambda _self, _keys, _at_s: None
)


# A host begins a build while it has as many as it may have.
@planted("a host has one build more at once than it may", BuildSlots, "is_free")
def one_build_too_many(real: Any, self: Any, host: Any) -> Any:
    self._most += bool(self._most)
    try:
        return real(self, host)
    finally:
        self._most -= bool(self._most)


# Of the builds that wait on a host, the one that came last begins first.
planted_by("the build that waits longest begins last", ComputeStore, "waiting")(
    lambda real: lambda self, host: [*reversed(real(self, host))]
)


# The end of a build that fails begins no build that waits.
@planted("a build that fails lets none that waits begin", BuildSlots, "changed", harm="lost")
def failed_build_lets_none_begin(real: Any, self: Any, before: Any, after: Any) -> None:
    if after.state is not AttemptState.FAILED:
        real(self, before, after)


# A build that succeeds leaves the count of those that failed before it.
@planted("a host never forgets its failed builds", Fleet, "count_build")
def failed_builds_kept(real: Any, self: Any, before: Any, after: Any) -> None:
    if after.state is not AttemptState.BUILT:
        real(self, before, after)


# The first attempt of each page but the first is not listed.
@planted(
    "an attempt is lost between two pages of a host's attempts",
    (hosts, handlers, reporting),
    "holdings",
    harm="lost",
)
def first_of_later_pages_lost(real: Any, order: Any, *some: Any, **limit: Any) -> Any:
    page = real(order, *some, **limit)
    return page if order.after is None else structs.replace(page, attempts=page.attempts[1:])


# A question for a console is answered however long ago it was asked.
planted_by("a question for a console is answered days later", (guests, wiring), "console_handlers")(
    lambda real: lambda fleet, store, clock: real(fleet, store, lambda: clock() - timedelta(days=1))
)


# A page of an audit ends within the attempts of an instance, and the next page begins after it.
@planted("a page of an audit cuts the attempts of an instance", ComputeStore, "living")
async def instance_cut_by_a_page(real: Any, self: Any, instances: Any, after: Any, limit: int) -> Any:
    return (await real(self, instances, after, limit))[:limit]


# Heartbeats name the hosts that cannot send, too.
planted_by("a silent host sends heartbeats", FleetAnnouncer, "alive")(
    lambda _real: lambda self: {self._cell: [*self._fleet]}
)


# A host that was silent does not list its attempts when it can send again.
planted_by("a host that was silent does not list what it has", AttemptLister, "touch", harm="lost")(
    lambda _real: lambda _self, _hosts: None
)


# The facts about a host do not say why placement refuses its report.
@planted("a host does not tell why its report is refused", reporting, "facts_of")
def refusal_not_told(real: Any, *known: Any, **named: Any) -> Any:
    return structs.replace(real(*known, **named), report_refused="")


# A report does not name the providers that the tree has no more.
@planted("a provider that a host has no more stays", (trees, reporting), "report_of_changes")
def removed_not_reported(real: Any, *known: Any) -> Any:
    report = real(*known)
    return report and structs.replace(report, removed=())


# A report that is older than another reporter's counts as accepted.
@planted("the report of another reporter counts as one's own", (trees, reporting), "after_answer")
def foreign_report_taken_as_own(real: Any, report: Any, tree: Any, verdict: Any) -> Any:
    if isinstance(verdict, ReportOutdated):
        return Accepted(ReportState(tree, verdict.sequence))
    return real(report, tree, verdict)


# The tree for a reshape lacks the providers that an administrator has made.
planted_by("a reshape forgets the providers made by name", reporting, "with_made_by_name", harm="lost")(
    lambda _real: lambda tree, _states: tree
)


# The answer to a repeated order to save an instance does not name the image.
planted_by("an image that was saved is not told again", (attempts, handlers), "answered_again", harm="lost")(
    lambda real: lambda *known, **named: structs.replace(real(*known, **named), image="")
)


# What the table has counts as answered.
@planted("a restart loses the answers that are due", SqlComputeStore, "read", harm="lost")
async def answers_lost_by_a_restart(real: Any, self: Any) -> None:
    await real(self)
    known = [*self._attempts.values()]
    await ComputeStore.save(self, [structs.replace(each, ends_s=None) for each in known])


# What is forgotten in memory stays in the table.
planted_by("attempts that ended stay in the table for ever", SqlComputeStore, "forget")(
    lambda _real: ComputeStore.forget
)


# A guest that moves to another host leaves its config drive behind.
@planted(
    "a guest that moves loses its config drive", (guest_folders, guest_work), "copy_disks", harm="destroyed"
)
def config_drive_not_copied(real: Any, from_: Any, folder: Any, give_up: Any) -> None:
    real(from_, folder, give_up)
    folder.config_drive.unlink(missing_ok=True)


# The disks of a guest that is resized keep their sizes.
planted_by("a resized guest keeps its disk", guest_work, "resize_disks")(
    lambda _real: lambda _folder, _was, _order: None
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
planted_by("two guests have network cards of one address", guest_domains, "macs_of", harm="doubled")(
    lambda real: lambda instance, number, kept, _taken: real(instance, number, kept, {})
)


# A guest gets what a guest of another cloud has on the same machine.
@planted(
    "a guest gets the CPUs of another cloud's guest",
    (planning, guest_domains),
    "plan_guest",
    harm="unauthorised",
)
def foreign_guests_not_counted(
    real: Any, order: Any, layout: Any, others: Any = (), known: Any = None
) -> Any:
    return real(order, layout, [each for each in others if isinstance(each, GuestPlan)], known)


# A guest has the processors and the memory that its flavor names, however few it claims.
@planted("a guest gets more than its claim holds", (planning, guest_domains), "plan_guest", harm="overbooked")
def flavor_before_claim(real: Any, order: Any, *more: Any, **known: Any) -> Any:
    plan, flavor = real(order, *more, **known), order.flavor
    if not isinstance(plan, GuestPlan):
        return plan
    pins = (*plan.pins, *[plan.pins[0]] * (flavor.vcpus - len(plan.pins)))
    return structs.replace(plan, pins=pins, memory_mb=max(plan.memory_mb, flavor.ram_mb))


# The root disk has the size that the flavor names, however little DISK_GB is claimed.
@planted("a guest's disk is larger than its claim", guest_folders, "_sizes", harm="overbooked")
def disk_beside_the_claim(_real: Any, order: Any) -> tuple[int, int, int]:
    flavor = order.flavor
    return flavor.root_gb * disks.GIB, flavor.ephemeral_gb * disks.GIB, flavor.swap_mb * 1024**2


# The saved disk of an instance without a project is an image for all who know its name.
@planted("a saved disk is an image for all", CachedImages, "image", harm="unauthorised")
def saved_disk_for_all(
    real: Any, self: Any, source: Any, checksum: Any, user: Any, *more: Any, **limits: Any
) -> Any:
    return real(self, source, checksum, structs.replace(user, saved=source), *more, **limits)


# An image is taken as it comes.
@planted("a broken image is booted", CachedImages, "image")
def checksum_not_checked(real: Any, self: Any, source: Any, _checksum: Any, *more: Any, **limits: Any) -> Any:
    return real(self, source, "", *more, **limits)


# A name of an allowed server may lead to an address of the operator's own network.
planted_by("a tenant's URL reaches the operator's network", images, "may_connect", harm="unauthorised")(
    lambda _real: lambda _server, _address, _networks: True
)


# The cache takes whatever is asked for, until the disk is full.
planted_by("a project fills the cache of images", CachedImages, "_room")(
    lambda _real: lambda _self, _project: 2**62
)


# What a project asks for pushes out the images of all others.
planted_by("a project pushes out the images of others", images, "_owner")(lambda _real: lambda _note: "shop")


# The room of the cache is sold to guests.
@planted("the disk of the cache is sold to guests", LibvirtRules, "offer", harm="overbooked")
def cache_sold(real: Any, self: Any, *of_host: Any) -> Any:
    return structs.replace(real(self, *of_host), disk_reserved_gb=0)


# The disk of an instance is saved, and lost if the machine loses power.
@planted("a saved disk is not on stable storage", disks, "keep_as", harm="lost")
def saved_disk_not_stable(_real: Any, part: Any, path: Any) -> None:
    part.replace(path)


# An image leaves the cache when its time is over, though disks are overlays of it.
planted_by("an image that disks need is removed", images, "_named_in", harm="destroyed")(
    lambda _real: lambda _folder: set()
)


# The saved disk of an instance has what it has written itself, and not what it has of its image.
planted_by("a saved disk lacks what it has of its image", disks, "flatten", harm="destroyed")(
    lambda _real: disks.copy
)


# A file that cannot be written counts as written.
@planted("an order that a full disk did not take counts as noted", disks, "write_whole", harm="lost")
def full_disk_counts_as_written(real: Any, path: Any, text: bytes) -> None:
    with suppress(OSError):
        real(path, text)


# A guest that is given back to another cloud loses its disks.
@planted("a guest that is given back loses its disks", GuestFolder, "forget_adopted", harm="destroyed")
def given_back_with_its_disks(real: Any, self: Any) -> None:
    if self.adopted() is not None:
        self._remove_other_disks()
    real(self)


# A console is told from its beginning when its end is asked for.
planted_by("the end of a console is its beginning", driver, "read_console")(
    lambda real: lambda path, start, limit: real(path, max(0, start), limit)
)


# A config drive does not name the instance.
planted_by("a config drive does not name its instance", guest_folders, "make_config_drive")(
    lambda real: lambda text, drive, instance, _name, fetch: real(text, drive, instance, "", fetch)
)


# The console of a guest begins anew with each start.
planted_by("a start loses the console of before", (domains, guest_domains), "domain_xml")(
    lambda real: lambda plan: real(plan).replace('append="on"', 'append="off"')
)


@planted_as("a guest is built and destroyed at once", harm="destroyed")
def work_of_a_guest_at_once() -> AbstractContextManager[None]:
    """A guest is destroyed while it is still being built."""
    numbers = count()

    def planted(real: Any) -> Any:
        def add(self: Any, _instance: int, work: Any, **kind: Any) -> None:
            real(self, next(numbers), work, **kind)

        return add

    return replaced(WorkQueues, "add", planted)


# A compute that begins with an empty database does not look for the guests that its hosts have.
@planted("a lost database loses the guests of its hosts", running, "adopt", harm="lost")
async def lost_database_loses_guests(_real: Any, _store: Any, _drivers: Any, _cell: Any) -> None:
    return


# What was being built is built, whether its guest runs by now or not.
@planted("a guest that runs is built anew", GuestWork, "go_on", harm="doubled")
def built_anew(_real: Any, self: Any, order: Any, at_step: Any) -> None:
    self.spawn(order, at_step)


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
