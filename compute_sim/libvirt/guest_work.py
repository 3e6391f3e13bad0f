"""The work of a host on its guests, step by step. Everything here blocks, and runs in the threads of the driver.

Each piece of work may be done again from its beginning, whatever of it was done before: so a process that comes after a crash
ends it. Work that builds and fails removes what it has made, and only then the failure is told: by then an alternate may run.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import libvirt
from msgspec import structs

from bus.messages.cell import AdoptGuest, ReceiveInstance, RespawnInstance, SpawnInstance
from compute_sim.libvirt.core.domains import adopted, held_by
from compute_sim.libvirt.core.planning import NoPlan
from compute_sim.libvirt.core.plans import NAMESPACE, GuestPlan
from compute_sim.libvirt.guest_domains import GuestDomains, domain_of, migrate
from compute_sim.libvirt.guest_folders import (
    AdoptedDomain,
    GuestDisks,
    GuestFolder,
    GuestFolders,
    KeptOrder,
    copy_disks,
    make_empty_copies,
    resize_disks,
)
from compute_sim.libvirt.work import AtStep, LibvirtAway, RunsOn, WorkFailed, until_done
from engine.flavors import InstanceId
from engine.inventories import ProviderId


class GuestWork:
    """The work on the guests of one host. `peers` are all hosts of this compute, from which it may receive guests."""

    def __init__(
        self,
        domains: GuestDomains,
        folders: GuestFolders,
        guest_disks: GuestDisks,
        peers: Mapping[ProviderId, "GuestWork"],
    ) -> None:
        self.domains = domains
        self.folders = folders
        self._disks = guest_disks
        self._peers = peers

    # Orders

    def spawn(self, order: SpawnInstance, at_step: AtStep) -> None:
        folder = self.folders.of(order.instance, order.attempt)
        if folder.has_done(order):
            return
        with self._or(self._remove, folder, at_step):
            folder.note(order)
            kept = self._begin(_kept(order), folder, at_step)
            if (source := self._disk_to_take_over(order)) is not None:
                at_step("build: take over")
                kept = self._take_over(kept, source, folder, at_step)
            else:
                kept = self._disks.make(kept, folder, at_step)
            self._finish(kept, folder, at_step, stopped=order.stopped)

    def respawn(self, order: RespawnInstance, at_step: AtStep) -> None:
        folder = self.folders.of(order.instance, order.attempt)
        if folder.has_done(order):
            return
        if not folder.has_begun(order):
            self._try_out(order, folder, at_step)
        with self._or(self.domains.remove_if_defined, folder, at_step):
            kept = self._begin(_rebuilt(order, folder), folder, at_step)
            kept = self._disks.make(kept, folder, at_step)
            self._finish(kept, folder, at_step)

    def go_on(self, order: SpawnInstance | RespawnInstance, at_step: AtStep) -> None:
        """Obey an order again whose guest runs. What it has begun is done: the process ended just before that was noted, or the folder
        is a restored one. A guest that runs is not built anew.
        """
        folder = self.folders.of(order.instance, order.attempt)
        kept = folder.kept()
        if isinstance(order, RespawnInstance) and not folder.has_begun(order):
            # What runs is the guest from before.
            self.respawn(order, at_step)
        elif kept is None or kept.order == order:
            at_step("build: done")
            folder.keep(structs.replace(kept or _kept(order), is_done=True))

    def receive(self, order: ReceiveInstance, at_step: AtStep) -> None:
        folder = self.folders.of(order.instance, order.attempt)
        if folder.has_done(order):
            return
        with self._or(self._remove, folder, at_step):
            folder.note(order)
            source = self._peers.get(order.source)
            if source is None:
                raise WorkFailed(f"its source {order.source} is none of the hosts of this compute")
            from_ = source.folders.of(order.instance, order.source_attempt)
            is_live = order.live and source.domains.runs(from_)
            if is_live and source.domains.hypervisor.uri == self.domains.hypervisor.uri:
                raise WorkFailed("it runs under the same libvirt, which cannot move it to itself")
            before = from_.kept()
            if before is None:
                raise WorkFailed(f"its source has no {from_.path}, or it is not reached from here")
            kept = self._begin(structs.replace(before, order=order, is_done=False), folder, at_step)
            if is_live:
                self._receive_live(kept, source, from_, folder, at_step)
                return
            at_step("receive: copy")
            copy_disks(from_, folder, lambda: at_step("receive: copy"))
            resize_disks(folder, before.order, order)
            at_step("receive: leave")
            # Both cannot be defined in one libvirt. The source keeps its own in its folder.
            source.domains.undefine(from_)
            self._finish(kept, folder, at_step, stopped=order.stopped)

    def stop(self, instance: InstanceId, attempt: int, save_as: str, project: str, at_step: AtStep) -> None:
        folder = self._there(instance, attempt)
        at_step("stop: shut down")
        self.domains.stop(folder, at_step)
        if save_as:
            at_step("stop: save")
            if not folder.disk_at().exists():
                raise WorkFailed("it has no disk that could be saved as an image")
            saves = lambda: at_step("stop: save")  # noqa: E731 - it is given up at each step
            self._disks.images.save(folder.disk_at(), folder.instance, save_as, project, saves)

    def start(self, instance: InstanceId, attempt: int, at_step: AtStep) -> None:
        folder = self._there(instance, attempt)
        at_step("start: start")
        try:
            self.domains.start(folder)
        except LibvirtAway:
            # It may have been started all the same, and what is told must be so.
            if not until_done(f"a look at {folder.path.name}", lambda: self.domains.runs(folder), at_step):
                raise

    def destroy(self, instance: InstanceId, attempt: int, at_step: AtStep, *, saved_until: int = 0) -> None:
        folder = self.folders.of(instance, attempt)
        at_step("destroy: domain")
        self.domains.remove(folder)
        at_step("destroy: files")
        folder.remove()
        if saved_until:
            at_step("destroy: saved images")
            self._disks.images.forget_saved(instance, saved_until)
        at_step("destroy: done")

    # Guests that another cloud has built on this machine: they are adopted as they are, and left as they are.
    #
    # The domain keeps its name and its disks. It says by its metadata that it is ours, and the attempt's folder says where its disks are.

    def adopt(self, order: AdoptGuest, at_step: AtStep) -> None:
        at_step("adopt")
        folder = self.folders.of(order.instance, order.attempt)
        folder.note(order)
        with self.domains.hypervisor.connected() as connection:
            self.domains.view.look_at_machine(connection)
            domain = domain_of(connection, order.instance)
            if domain is None:
                raise WorkFailed(f"this libvirt has no domain with the uuid {order.instance}")
            metadata = adopted(_written(domain), order, self.domains.view.layout)
            if isinstance(metadata, NoPlan):
                raise WorkFailed(metadata.reason)
            _set_metadata(domain, metadata)
            try:
                _keep_adopted(folder, domain)
            except OSError as error:
                # The guest must not look as if it were ours: what failed is destroyed.
                _set_metadata(domain, None)
                raise WorkFailed(f"its folder cannot be written: {error.strerror}") from error

    def leave(self, instance: InstanceId, attempt: int, at_step: AtStep) -> None:
        """Forget the guest. A guest that was built here keeps its files, since its domain needs them."""
        at_step("leave")
        folder = self.folders.of(instance, attempt)
        with self.domains.hypervisor.connected() as connection:
            if (domain := self.domains.find(connection, folder)) is not None:
                _set_metadata(domain, None)
        folder.forget_adopted()

    # Parts of them

    @contextmanager
    def _or(
        self, clean: Callable[[GuestFolder], None], folder: GuestFolder, at_step: AtStep
    ) -> Iterator[None]:
        """Work that cleans up if it fails. A domain that was defined is removed when libvirt is back, and not before."""
        try:
            yield
        except Exception:
            until_done(f"the cleaning of {folder.path.name}", lambda: clean(folder), at_step)
            raise

    def _try_out(self, order: RespawnInstance, folder: GuestFolder, at_step: AtStep) -> None:
        """See whether the guest can be rebuilt, before the old one is removed: its image may not be there, or may not fit."""
        try:
            folder.note(order)
            kept = _rebuilt(order, folder)
            boot = self._disks.try_out(kept, folder, at_step)
            at_step("try: plan")
            self.domains.try_out(kept, folder, boot)
        except (WorkFailed, LibvirtAway, OSError) as failed:
            runs = lambda: self.domains.runs(folder)  # noqa: E731 - it is tried until libvirt is there
            if not folder.is_whole or not until_done(f"a look at {folder.path.name}", runs, at_step):
                raise
            at_step("try: refuse")
            # Only a compute that has lost its rows reads it.
            with suppress(OSError):
                folder.refuse(order)
            raise RunsOn(str(failed)) from failed

    def _remove(self, folder: GuestFolder) -> None:
        """Remove all of an attempt that has failed."""
        self.domains.remove_if_defined(folder)
        folder.remove()

    def _begin(self, kept: KeptOrder, folder: GuestFolder, at_step: AtStep) -> KeptOrder:
        """Remove all but the order, which is to be obeyed from its beginning."""
        at_step("build: clean")
        self.domains.remove(folder)
        at_step("build: note")
        # Before anything is removed: it says which addresses the guest's cards have.
        self._disks.keep(kept, folder)
        folder.empty()
        if (pool := self.domains.storage_of(kept.order)) is not None:
            folder.place_disks(pool)
        return kept

    def _finish(
        self, kept: KeptOrder, folder: GuestFolder, at_step: AtStep, *, stopped: bool = False
    ) -> None:
        kept = self._define(kept, folder, at_step)
        at_step("build: start")
        if not stopped:
            self.domains.start(folder)
        at_step("build: done")
        folder.keep(structs.replace(kept, is_done=True))

    def _define(self, kept: KeptOrder, folder: GuestFolder, at_step: AtStep) -> KeptOrder:
        return self.domains.define(kept, folder, self._disks.boot_files(kept, at_step), at_step)

    def _disk_to_take_over(self, order: SpawnInstance) -> GuestFolder | None:
        """The folder of an evacuated instance, if this host reaches it, and it has a disk."""
        source = self._peers.get(order.source) if order.source is not None else None
        if source is None:
            return None
        from_ = source.folders.of(order.instance, order.source_attempt)
        return from_ if from_.disk_at().exists() else None

    def _take_over(
        self, kept: KeptOrder, from_: GuestFolder, folder: GuestFolder, at_step: AtStep
    ) -> KeptOrder:
        """Copy the disks of an evacuated instance. They are overlays of the same images, so the images are needed here, too."""
        before = from_.kept()
        if before is not None:
            kept = structs.replace(before, order=kept.order, project=kept.project, is_done=False)
            self._disks.keep(kept, folder)
        copy_disks(from_, folder, lambda: at_step("build: take over"))
        return kept

    def _receive_live(
        self,
        kept: KeptOrder,
        source: "GuestWork",
        from_: GuestFolder,
        folder: GuestFolder,
        at_step: AtStep,
    ) -> None:
        at_step("live: disks")
        make_empty_copies(from_, folder, lambda: at_step("live: disks"))
        at_step("live: migrate")
        kept = self._define(kept, folder, at_step)
        migrate(source.domains, from_, self.domains, folder)
        at_step("live: done")
        folder.keep(structs.replace(kept, is_done=True))

    def _there(self, instance: InstanceId, attempt: int) -> GuestFolder:
        folder = self.folders.of(instance, attempt)
        if not folder.path.exists():
            raise WorkFailed(f"{folder.path} does not exist any more")
        return folder


def _kept(order: SpawnInstance | RespawnInstance) -> KeptOrder:
    return KeptOrder(order, order.project, order.image, order.image_properties, order.config_drive)


def _rebuilt(order: RespawnInstance, folder: GuestFolder) -> KeptOrder:
    """The order to rebuild what is in the folder; its cards keep their addresses."""
    before = folder.kept()
    return _kept(order) if before is None else structs.replace(_kept(order), macs=before.macs)


def _keep_adopted(folder: GuestFolder, domain: libvirt.virDomain) -> None:
    text = _written(domain)
    plan = held_by(text)
    disks = [disk.path for disk in plan.disks if disk.path] if isinstance(plan, GuestPlan) else []
    folder.write("domain.xml", text.encode())
    # Last: from now on the guest is destroyed with its attempt.
    folder.keep_adopted(AdoptedDomain(domain.name(), tuple(disks)))


def _written(domain: libvirt.virDomain) -> str:
    """The description that is kept: a running guest has another one beside it."""
    return str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))


def _set_metadata(domain: libvirt.virDomain, metadata: str | None) -> None:
    """Set our element, or take it out; in the running guest's description, too."""
    flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG if domain.isPersistent() else 0
    if domain.isActive():
        flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE
    gone = contextlib.nullcontext() if metadata else contextlib.suppress(libvirt.libvirtError)
    with gone:
        domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, metadata, "moorage", NAMESPACE, flags)
