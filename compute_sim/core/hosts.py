"""A host, its load, and the facts about it that others are told."""

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.hosts import HostFacts


class Host(Struct, frozen=True, kw_only=True):
    name: str
    availability_zone: str = ""
    hypervisor_type: str = "QEMU"
    hypervisor_version: int = 8_000_000


class Load(Struct, frozen=True):
    """The number of attempts on a host, and of those that are being built."""

    instances: int = 0
    io_ops: int = 0


def facts_of(id_: ProviderId, host: Host, load: Load) -> HostFacts:
    return HostFacts(
        id=id_,
        name=host.name,
        instances=load.instances,
        io_ops=load.io_ops,
        availability_zone=host.availability_zone,
        hypervisor_type=host.hypervisor_type,
        hypervisor_version=host.hypervisor_version,
    )
