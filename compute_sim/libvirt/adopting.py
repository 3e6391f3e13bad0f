"""Guests that another cloud has built on this machine: they are adopted as they are, and left as they are.

The domain keeps its name and its disks. It says by its metadata that it is ours, and the attempt's folder says where its disks are.
"""

import contextlib

import libvirt

from bus.messages.build import InstanceId
from bus.messages.cell import AdoptGuest
from compute_sim.libvirt.core.adoption import adopted
from compute_sim.libvirt.core.domain_metadata import NAMESPACE
from compute_sim.libvirt.core.held import held_by
from compute_sim.libvirt.core.orders import GuestOrder
from compute_sim.libvirt.core.planning import NoPlan
from compute_sim.libvirt.core.plans import GuestPlan
from compute_sim.libvirt.failures import WorkFailed
from compute_sim.libvirt.guest_folders import AdoptedDomain, GuestFolder, GuestFolders
from compute_sim.libvirt.hypervisor import Hypervisor
from compute_sim.libvirt.views import HostView

_PREFIX = "moorage"


class Adopting:
    """Adopts and leaves guests of one host. It blocks, and runs in the threads of the driver."""

    def __init__(self, hypervisor: Hypervisor, view: HostView, folders: GuestFolders) -> None:
        self._hypervisor = hypervisor
        self._view = view
        self._folders = folders

    def adopt(self, order: AdoptGuest) -> None:
        self._folders.of(order.instance, order.attempt).note(order)
        with self._hypervisor.connected() as connection:
            self._view.look_at_machine(connection)
            domain = _domain_of(connection, order.instance)
            if domain is None:
                raise WorkFailed(f"this libvirt has no domain with the uuid {order.instance}")
            metadata = adopted(_written(domain), self._guest_order(order, domain.name()), self._view.layout)
            if isinstance(metadata, NoPlan):
                raise WorkFailed(metadata.reason)
            _set_metadata(domain, metadata)
            try:
                self._keep(self._folders.of(order.instance, order.attempt), domain)
            except OSError as error:
                # The guest must not look as if it were ours: what failed is destroyed.
                _set_metadata(domain, None)
                raise WorkFailed(f"its folder cannot be written: {error.strerror}") from error

    def leave(self, instance: InstanceId, attempt: int) -> None:
        """Forget the guest. A guest that was built here keeps its files, since its domain needs them."""
        folder = self._folders.of(instance, attempt)
        with self._hypervisor.connected() as connection:
            domain = _domain_of(connection, instance)
            if domain is not None and domain.name() == folder.domain_name:
                _set_metadata(domain, None)
        folder.forget_adopted()

    def _keep(self, folder: GuestFolder, domain: libvirt.virDomain) -> None:
        text = _written(domain)
        plan = held_by(text)
        disks = [disk.path for disk in plan.disks if disk.path] if isinstance(plan, GuestPlan) else []
        folder.write("domain.xml", text.encode())
        # Last: from now on the guest is destroyed with its attempt.
        folder.keep_adopted(AdoptedDomain(domain.name(), tuple(disks)))

    def _guest_order(self, order: AdoptGuest, name: str) -> GuestOrder:
        return GuestOrder(
            instance=order.instance,
            attempt=order.attempt,
            cell=order.cell,
            flavor=order.flavor,
            share=order.share,
            domain=name,
            name=order.name,
        )


def _domain_of(connection: libvirt.virConnect, instance: InstanceId) -> libvirt.virDomain | None:
    try:
        return connection.lookupByUUIDString(str(instance))
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


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
        domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, metadata, _PREFIX, NAMESPACE, flags)
