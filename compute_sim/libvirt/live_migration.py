"""Moves a running guest from one libvirt to another, with the blocks of its disks. It blocks, for as long as that takes."""

import libvirt

from compute_sim.libvirt.failures import WorkFailed
from compute_sim.libvirt.guest_domains import GuestDomains, undefine
from compute_sim.libvirt.guest_folders import GuestFolder

_FLAGS = (
    libvirt.VIR_MIGRATE_LIVE
    | libvirt.VIR_MIGRATE_PERSIST_DEST
    | libvirt.VIR_MIGRATE_NON_SHARED_INC
    | libvirt.VIR_MIGRATE_AUTO_CONVERGE
)


def migrate(source: GuestDomains, from_: GuestFolder, target: GuestDomains, to: GuestFolder) -> None:
    """Move the guest to the domain that was defined for it at the target."""
    text = to.domain.read_text()
    # Its name on the way is that on the source.
    arriving = text.replace(f"<name>{to.domain_name}</name>", f"<name>{from_.domain_name}</name>", 1)
    with target.hypervisor.connected() as here, source.hypervisor.connected() as there:
        # Its arrival defines it anew.
        domain = target.find(here, to)
        if domain is not None:
            undefine(domain)
        moving = source.find(there, from_)
        if moving is None:
            raise WorkFailed("its domain is gone on the source")
        moving.migrate3(
            here,
            {
                libvirt.VIR_MIGRATE_PARAM_DEST_NAME: to.domain_name,
                libvirt.VIR_MIGRATE_PARAM_DEST_XML: arriving,
                libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: arriving,
            },
            _FLAGS,
        )
