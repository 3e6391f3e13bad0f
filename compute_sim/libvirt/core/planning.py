"""Which host CPUs, memory, pages and devices a guest gets: exactly what its claim says, or a refusal that names what is missing.

Placement's arithmetic has granted the claim. But it counts only amounts: whether a certain CPU is free, and whether a device is
still there, is seen here.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from bus.guests import GuestShape, ShareDiffersError, page_kib_of, read_guest
from bus.message import ProviderId
from compute_sim.core.tree import ProviderTree
from compute_sim.libvirt.core.device_planning import planned_devices
from compute_sim.libvirt.core.guest_hardware import arch_of, hardware_of
from compute_sim.libvirt.core.image_asks import CannotGiveError
from compute_sim.libvirt.core.layout import HostLayout
from compute_sim.libvirt.core.memory_planning import check_pages, planned_memory
from compute_sim.libvirt.core.orders import GuestOrder
from compute_sim.libvirt.core.plans import ForeignGuest, GuestPlan, by_provider
from compute_sim.libvirt.core.processors import planned_cpus
from compute_sim.libvirt.core.taken import Taken

# Classes that only the host's own providers have, and of which a guest gets a certain part. Pools outside of the tree share others.
# Shared CPUs and small pages are not among them: if their provider is gone, since the host got another shape, the guest floats.
_OWN_CLASSES = (
    "PCPU",
    "CUSTOM_MEMORY_MB_PAGES_",
    "CUSTOM_PCI_",
    "SRIOV_NET_VF",
    "VGPU",
)


class NoPlan(Struct, frozen=True):
    """The host cannot build this guest as its claim says."""

    reason: str


def plan_guest(
    order: GuestOrder,
    layout: HostLayout,
    others: Sequence[GuestPlan | ForeignGuest] = (),
    known: ProviderTree | None = None,
) -> GuestPlan | NoPlan:
    """The plan of a guest beside all `others` on the machine. `known` is the tree that was last reported; it has the names of
    providers that have vanished since.
    """
    try:
        return _plan(order, layout, Taken(layout, others), known)
    except (CannotGiveError, ShareDiffersError) as refusal:
        return NoPlan(str(refusal))


def _plan(order: GuestOrder, layout: HostLayout, taken: Taken, known: ProviderTree | None) -> GuestPlan:
    shape = _shape_of(order)
    share = by_provider(order.share)
    _check_providers(share, layout, known)
    cpus = planned_cpus(order.flavor, shape, share, taken)
    memory = planned_memory(order.flavor, shape, share, layout)
    page_kib = page_kib_of(share)
    check_pages(share, taken, page_kib)
    devices = planned_devices(order, share, taken)
    hardware = hardware_of(order, layout, len(cpus.pins))
    return GuestPlan(
        instance=order.instance,
        attempt=order.attempt,
        cell=order.cell,
        share=order.share,
        name=order.name,
        project=order.project,
        domain=order.domain,
        domain_type=layout.offer.domain_type,
        arch=arch_of(order, layout),
        machine_type=hardware.machine_type,
        cpu_mode=layout.offer.guest_cpu_mode,
        memory_mb=memory.mb,
        page_kib=page_kib,
        pins=cpus.pins,
        dedicated=cpus.dedicated,
        emulator=cpus.emulator,
        memory_cells=memory.host_cells,
        cells=memory.cells,
        topology=hardware.topology,
        functions=devices.functions,
        mediated=devices.mediated,
        disks=hardware.disks,
        nics=hardware.nics,
        kernel=order.kernel,
        ramdisk=order.ramdisk,
        cmdline=order.cmdline,
        firmware=hardware.firmware,
        video=hardware.video,
        console_log=order.console_log,
    )


def _shape_of(order: GuestOrder) -> GuestShape:
    shape = read_guest(order.flavor, order.image_properties)
    if isinstance(shape, GuestShape):
        return shape
    raise CannotGiveError("; ".join(f"{each.field} is {each.value!r}: {each.reason}" for each in shape))


def _check_providers(
    share: Mapping[ProviderId, Mapping[str, int]], layout: HostLayout, known: ProviderTree | None
) -> None:
    """Is every provider there that only this host can have?"""
    there = {
        layout.root,
        *(cell.provider for cell in layout.cells),
        *(devices.provider for devices in layout.devices),
    }
    for provider, amounts in share.items():
        if provider in there:
            continue
        for resource in sorted(amounts):
            if resource.startswith(_OWN_CLASSES):
                before = known.providers.get(provider) if known else None
                name = before.name if before else f"provider {provider}"
                raise CannotGiveError(
                    f"{name} is not on this host any more; {amounts[resource]} {resource} of it are claimed"
                )
