"""A host, its load, and the facts about it that others are told."""

from collections.abc import Mapping

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.hosts import HostFacts, Supported

# What a field of a message takes.
LABEL_MAX = 255


class Host(Struct, frozen=True, kw_only=True):
    name: str
    availability_zone: str = ""
    hypervisor_type: str = "QEMU"
    hypervisor_version: int = 8_000_000
    # The kinds of instances that it runs, and what else requests may ask of it, by name.
    supports: tuple[Supported, ...] = ()
    capabilities: Mapping[str, str] = {}


class Load(Struct, frozen=True):
    """The number of instances on a host, stopped ones too; and of attempts that are being built or received, or wait for it."""

    instances: int = 0
    io_ops: int = 0


def facts_of(
    id_: ProviderId, host: Host, load: Load, failed_builds: int = 0, report_refused: str = ""
) -> HostFacts:
    return HostFacts(
        id=id_,
        name=host.name,
        instances=load.instances,
        io_ops=load.io_ops,
        availability_zone=host.availability_zone,
        hypervisor_type=host.hypervisor_type,
        hypervisor_version=host.hypervisor_version,
        supports=host.supports,
        capabilities=dict(host.capabilities),
        failed_builds=failed_builds,
        report_refused=report_refused[:LABEL_MAX],
    )
