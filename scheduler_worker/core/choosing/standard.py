"""The plugins that every scheduler uses. Cheap filters come first."""

from scheduler_worker.core.choosing.filters.affinity import Affinity
from scheduler_worker.core.choosing.filters.anti_affinity import AntiAffinity
from scheduler_worker.core.choosing.filters.asked_hosts import AskedHosts
from scheduler_worker.core.choosing.filters.availability_zone import AvailabilityZone
from scheduler_worker.core.choosing.filters.bare_metal import BareMetal
from scheduler_worker.core.choosing.filters.capacity import Capacity
from scheduler_worker.core.choosing.filters.enabled import Enabled
from scheduler_worker.core.choosing.filters.instances import INSTANCES_PER_HOST_MAX, Instances
from scheduler_worker.core.choosing.filters.inventory import HasInventory
from scheduler_worker.core.choosing.filters.io_ops import IO_OPS_PER_HOST_MAX, IoOps
from scheduler_worker.core.choosing.filters.one_cell import OneCell
from scheduler_worker.core.choosing.filters.projects import Projects
from scheduler_worker.core.choosing.filters.registered import InRegistry
from scheduler_worker.core.choosing.filters.searched import Searched
from scheduler_worker.core.choosing.filters.traits import Traits
from scheduler_worker.core.choosing.filters.up import Up
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.choosing.weighers.free_amount import FreeAmount
from scheduler_worker.core.choosing.weighers.preferred import Preferred
from scheduler_worker.core.choosing.weighers.soft_group import SoftGroup


def standard_plugins(
    io_ops_max: int = IO_OPS_PER_HOST_MAX, instances_max: int = INSTANCES_PER_HOST_MAX
) -> Plugins:
    """The default plugins. With 0, builds under way or instances are not limited."""
    return Plugins(
        filters=(
            InRegistry(),
            Up(),
            Enabled(),
            HasInventory(),
            OneCell(),
            BareMetal(),
            Projects(),
            AvailabilityZone(),
            AskedHosts(),
            Affinity(),
            AntiAffinity(),
            Searched(),
            Traits(),
            *((IoOps(io_ops_max),) if io_ops_max else ()),
            *((Instances(instances_max),) if instances_max else ()),
            Capacity(),
        ),
        weighers=(
            FreeAmount("cpu", "VCPU"),
            FreeAmount("ram", "MEMORY_MB"),
            FreeAmount("disk", "DISK_GB"),
            Preferred(),
            SoftGroup("soft-affinity"),
            SoftGroup("soft-anti-affinity"),
        ),
        instances_max=instances_max,
    )
