"""What a host tells of itself beside its tree: its hypervisor, its CPU, and the kinds of guests that it runs."""

from bus.messages.hosts import Supported
from compute_sim.core.hosts import Host
from compute_sim.libvirt.core.machine import Machine
from compute_sim.libvirt.core.offer import HostOffer
from compute_sim.libvirt.core.traits import features_of

# A capability's value, as messages allow it.
_VALUE_MAX = 1024
_SUPPORTS_MAX = 64


def host_of(machine: Machine, offer: HostOffer, hypervisor_type: str, hypervisor_version: int) -> Host:
    """The host's description. Type and version are what libvirt says of its hypervisor, such as QEMU and 7002000."""
    return Host(
        name=offer.name,
        availability_zone=offer.availability_zone,
        hypervisor_type=hypervisor_type,
        hypervisor_version=hypervisor_version,
        supports=tuple(
            Supported(architecture=kind.arch, hypervisor_type=offer.domain_type, vm_mode=kind.os_type)
            for kind in machine.guests
            if offer.domain_type in kind.domain_types
        )[:_SUPPORTS_MAX],
        capabilities={
            name: value
            for name, value in (
                ("cpu_info:arch", machine.arch),
                ("cpu_info:model", machine.cpu_model),
                ("cpu_info:vendor", machine.cpu_vendor),
                ("cpu_info:features", _as_words(features_of(machine, offer))),
                ("cpu_info:topology:sockets", str(machine.sockets)),
                ("cpu_info:topology:cores", str(machine.cores)),
                ("cpu_info:topology:threads", str(machine.threads)),
            )
            if value
        },
    )


def _as_words(features: tuple[str, ...]) -> str:
    """As many of them as a message may have; the root's traits have all."""
    text = " ".join(features)
    return text if len(text) <= _VALUE_MAX else text[:_VALUE_MAX].rpartition(" ")[0]
