"""A guest that another cloud has built on this host becomes one of ours: its domain stays as it is, and says from now on whose it is."""

from collections.abc import Iterator

from compute_sim.libvirt.core.cpu_ranges import cpus_in_words
from compute_sim.libvirt.core.device_layout import VIRTUAL_PORT, Gives
from compute_sim.libvirt.core.domain_metadata import GuestMetadata, metadata_xml
from compute_sim.libvirt.core.held import as_foreign, emulator_of
from compute_sim.libvirt.core.layout import HostLayout
from compute_sim.libvirt.core.orders import GuestOrder
from compute_sim.libvirt.core.planning import NoPlan
from compute_sim.libvirt.core.plans import ForeignGuest, PlannedMediated


def adopted(text: str, order: GuestOrder, layout: HostLayout) -> str | NoPlan:
    """The metadata by which this domain is the guest of the order from now on (libvirt sets it under `NAMESPACE`).

    It is refused if its claim says something else than the domain: then the host's settings differ from those that the other
    cloud had, or the claim was read wrong.
    """
    domain = as_foreign(text)
    if domain.uuid != order.instance:
        return NoPlan(
            f"domain {domain.name} has the uuid {domain.uuid}, and is not instance {order.instance}"
        )
    dedicated = _dedicated(domain, emulator_of(text), layout)
    functions = [
        each for each in domain.functions if any(each in gives.functions for gives in _all_gives(layout))
    ]
    for what, given, classes in (
        (f"dedicated CPUs ({cpus_in_words(dedicated) or 'none'})", len(dedicated), ("PCPU",)),
        (
            f"offered functions ({', '.join(functions) or 'none'})",
            len(functions),
            ("CUSTOM_PCI_", VIRTUAL_PORT),
        ),
        ("mediated devices", len(domain.mediated), ("VGPU",)),
    ):
        claimed = sum(each.amount for each in order.share.amounts if each.resource.startswith(classes))
        if claimed != given:
            return NoPlan(f"domain {domain.name} has {given} {what}, and {claimed} are claimed for it")
    exist = {each.uuid: each for each in layout.mediated}
    return metadata_xml(
        GuestMetadata(
            instance=order.instance,
            attempt=order.attempt,
            cell=order.cell,
            name=order.name,
            project=order.project,
            share=order.share,
            dedicated=dedicated,
            mediated={
                uuid: PlannedMediated(uuid, exist[uuid].type, exist[uuid].parent)
                for uuid in domain.mediated
                if uuid in exist
            },
        )
    )


def _dedicated(domain: ForeignGuest, emulator: tuple[int, ...], layout: HostLayout) -> tuple[int, ...]:
    """The dedicated CPUs of the host that this guest is pinned to, its emulator's too."""
    offered = {cpu for cell in layout.cells for cpu in cell.dedicated}
    pinned = [pins for pins in (*domain.pins, emulator) if pins and offered.issuperset(pins)]
    return tuple(sorted({cpu for pins in pinned for cpu in pins}))


def _all_gives(layout: HostLayout) -> Iterator[Gives]:
    return (devices.gives for devices in layout.devices)
