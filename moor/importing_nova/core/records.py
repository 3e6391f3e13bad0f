"""What Nova's databases say of a host, as it was read: JSON stays text, since it may be wrong."""

from datetime import datetime

from msgspec import Struct

IRONIC = "ironic"
INSTANCE, MIGRATION = "INSTANCE", "MIGRATION"


class NovaNode(Struct, frozen=True):
    """A row of `compute_nodes`. `uuid` is that of its provider in Nova's placement."""

    id: int
    uuid: str
    host: str
    name: str
    hypervisor_type: str
    vcpus: int
    memory_mb: int
    local_gb: int
    cpu_ratio: float | None = None
    ram_ratio: float | None = None
    disk_ratio: float | None = None
    numa_topology: str | None = None
    pci_stats: str | None = None


class NovaService(Struct, frozen=True):
    """The row of a `nova-compute`. `seen_at` is when it was last heard."""

    host: str
    disabled: bool
    forced_down: bool = False
    seen_at: datetime | None = None


class NovaInstance(Struct, frozen=True):
    """An instance with what other tables say of it. `flavor` and the others up to `spec` are JSON."""

    id: str
    host: str
    state: str
    task: str = ""
    name: str = ""
    project: str = ""
    user: str = ""
    created_at: datetime | None = None
    number: int = 0
    image: str = ""
    zone: str = ""
    node: str = ""
    flavor_id: int = 0
    flavor: str | None = None
    numa_topology: str | None = None
    pci_requests: str | None = None
    spec: str | None = None
    fault: str = ""
    request: str = ""
    group: str = ""
    on_volume: bool = False
    image_properties: dict[str, str] = {}


class NovaMigration(Struct, frozen=True):
    id: str
    instance: str
    kind: str
    status: str
    source: str
    destination: str


class NovaDevice(Struct, frozen=True):
    """A row of `pci_devices`."""

    address: str
    product: str
    vendor: str
    status: str
    parent: str = ""
    instance: str = ""


class NovaAllocation(Struct, frozen=True):
    """An amount that a consumer holds of a provider, in Nova's placement. `root` is the provider's root."""

    consumer: str
    provider: str
    provider_name: str
    root: str
    resource: str
    amount: int
    type: str = INSTANCE
    project: str = ""
    user: str = ""


class NovaInventory(Struct, frozen=True):
    provider: str
    provider_name: str
    resource: str
    total: int
    reserved: int
    ratio: float


class NovaHost(Struct, frozen=True):
    """A host as Nova knows it. `builds` are consumers that hold something of it, and are just being built.

    `allocations` has everything that is held of the host, and everything that its instances hold elsewhere; None if there
    is no placement database.
    """

    cell: str
    name: str
    nodes: tuple[NovaNode, ...]
    service: NovaService | None
    instances: tuple[NovaInstance, ...]
    migrations: tuple[NovaMigration, ...] = ()
    devices: tuple[NovaDevice, ...] = ()
    allocations: tuple[NovaAllocation, ...] | None = None
    inventories: tuple[NovaInventory, ...] = ()
    builds: tuple[str, ...] = ()
    # Other hosts of instances that hold something here.
    elsewhere: dict[str, str] = {}

    @property
    def is_bare_metal(self) -> bool:
        return any(node.hypervisor_type == IRONIC for node in self.nodes)

    @property
    def held(self) -> dict[str, list[NovaAllocation]]:
        """The allocations by consumer."""
        found: dict[str, list[NovaAllocation]] = {}
        for each in self.allocations or ():
            found.setdefault(each.consumer, []).append(each)
        return found


class ContradictionError(Exception):
    """Rows of Nova that cannot both be true, or that cannot be read. The message names them."""
