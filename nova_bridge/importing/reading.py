"""Reads from Nova's databases all that is known of a host, in one transaction of each."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from nova_bridge.databases import (
    NovaDatabase,
    NovaDatabaseError,
    NovaDatabaseKind,
    NovaReading,
    open_nova_database,
)
from nova_bridge.importing.records import (
    NovaAllocation,
    NovaDevice,
    NovaHost,
    NovaInstance,
    NovaInventory,
    NovaMigration,
    NovaNode,
    NovaService,
    id_of,
    moment_in,
    ratio_in,
    text_in,
    whole_in,
)

# All columns that an import reads, here and in shared.py.
OF_API = {
    "cell_mappings": ("uuid", "name"),
    "request_specs": ("instance_uuid", "spec"),
    "build_requests": ("instance_uuid",),
    "flavors": ("id", "name", "vcpus", "memory_mb", "root_gb", "ephemeral_gb", "swap"),
    "flavor_extra_specs": ("flavor_id", "key", "value"),
    "aggregates": ("id", "uuid", "name"),
    "aggregate_hosts": ("aggregate_id", "host"),
    "aggregate_metadata": ("aggregate_id", "key", "value"),
    "instance_groups": ("id", "uuid", "name", "project_id"),
    "instance_group_policy": ("group_id", "policy", "rules"),
    "instance_group_member": ("group_id", "instance_uuid"),
}
OF_CELL = {
    "compute_nodes": (
        *("id", "uuid", "host", "hypervisor_hostname", "hypervisor_type", "vcpus", "memory_mb", "local_gb"),
        *("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio", "deleted"),
    ),
    "services": ("host", "binary", "disabled", "forced_down", "last_seen_up", "updated_at", "deleted"),
    "instances": (
        *("uuid", "host", "vm_state", "task_state", "display_name", "project_id", "user_id", "created_at"),
        *("launch_index", "image_ref", "instance_type_id", "deleted"),
    ),
    "instance_extra": ("instance_uuid", "flavor", "numa_topology", "deleted"),
    "instance_faults": ("id", "instance_uuid", "message", "deleted"),
    "instance_actions": ("instance_uuid", "request_id", "action", "deleted"),
    "migrations": (
        *("uuid", "instance_uuid", "migration_type", "status", "source_compute", "dest_compute", "deleted"),
    ),
    "pci_devices": (
        *("address", "product_id", "vendor_id", "status", "parent_addr", "instance_uuid", "compute_node_id"),
        "deleted",
    ),
    "block_device_mapping": ("instance_uuid", "boot_index", "destination_type", "deleted"),
}
OF_PLACEMENT = {
    "resource_providers": ("id", "uuid", "name", "root_provider_id"),
    "inventories": ("resource_provider_id", "resource_class_id", "total", "reserved", "allocation_ratio"),
    "allocations": ("resource_provider_id", "resource_class_id", "consumer_id", "used"),
    "consumers": ("uuid", "project_id", "user_id"),
    "resource_classes": ("id", "name"),
    "projects": ("id", "external_id"),
    "users": ("id", "external_id"),
}
# The columns of `compute_nodes` that other tables name, too, come with the table's name.
_NODES = (
    "SELECT id, uuid, host, hypervisor_hostname, hypervisor_type, vcpus, memory_mb, local_gb, cpu_allocation_ratio,"
    " ram_allocation_ratio, disk_allocation_ratio FROM compute_nodes WHERE deleted = 0"
)
_INSTANCES = (
    "SELECT uuid, host, vm_state, task_state, display_name, project_id, user_id, created_at, launch_index, image_ref,"
    " instance_type_id FROM instances WHERE deleted = 0"
)
_ALLOCATIONS = (
    "SELECT c.uuid AS consumer, p.uuid AS provider, p.name AS provider_name, root.uuid AS root, k.name AS resource,"
    " a.used AS amount, {type} AS type, projects.external_id AS project, users.external_id AS user"
    " FROM allocations a JOIN resource_providers p ON p.id = a.resource_provider_id"
    " LEFT JOIN resource_providers root ON root.id = p.root_provider_id"
    " JOIN resource_classes k ON k.id = a.resource_class_id"
    " LEFT JOIN consumers c ON c.uuid = a.consumer_id LEFT JOIN projects ON projects.id = c.project_id"
    " LEFT JOIN users ON users.id = c.user_id {types} WHERE {condition}"
)


class HostRow(Struct, frozen=True):
    """A host that a cell names, without anything on it."""

    cell: str
    name: str
    instances: int
    is_bare_metal: bool = False
    has_node: bool = True


class NovaDatabases:
    """The API database, that of each cell, and that of Placement if it is given."""

    def __init__(
        self, api: NovaDatabase, cells: Mapping[str, NovaDatabase], placement: NovaDatabase | None
    ) -> None:
        self.api = api
        self.cells = cells
        self.placement = placement

    async def check(self) -> None:
        await self.api.check(NovaDatabaseKind.API, OF_API)
        for cell in self.cells.values():
            await cell.check(NovaDatabaseKind.CELL, OF_CELL)
        if self.placement is not None:
            await self.placement.check(NovaDatabaseKind.PLACEMENT, OF_PLACEMENT)
        await self._check_mappings()

    async def _check_mappings(self) -> None:
        async with self.api.reading() as reading:
            mapped = await reading.rows("SELECT name, uuid FROM cell_mappings")
        named = [str(row["name"]) for row in mapped if not str(row["uuid"]).startswith("00000000-")]
        if len(named) < len(self.cells):
            raise NovaDatabaseError(
                f"{self.api.name} has {len(named)} cells ({', '.join(named) or 'none'}), and --cell-db names "
                f"{len(self.cells)}: {', '.join(self.cells)}"
            )

    async def hosts(self) -> list[HostRow]:
        """Each host with a compute node, a service of nova-compute, or an instance, in each cell."""
        found: list[HostRow] = []
        for cell, database in self.cells.items():
            async with database.reading() as reading:
                nodes = await reading.rows(
                    "SELECT host, hypervisor_type FROM compute_nodes WHERE deleted = 0"
                )
                services = await reading.rows(
                    "SELECT host FROM services WHERE deleted = 0 AND `binary` = 'nova-compute'"
                )
                counted = await reading.rows(
                    "SELECT host, count(*) AS instances FROM instances WHERE deleted = 0 AND host IS NOT NULL GROUP BY host"
                )
            kinds = {str(row["host"]): str(row["hypervisor_type"]) for row in nodes if row["host"]}
            instances = {str(row["host"]): int(row["instances"]) for row in counted}
            names = {*kinds, *instances, *(str(row["host"]) for row in services if row["host"])}
            found += [
                HostRow(cell, name, instances.get(name, 0), kinds.get(name) == "ironic", name in kinds)
                for name in sorted(names)
            ]
        return found

    async def duplicates(self) -> list[str]:
        """Instances that are in several cells, and their cells."""
        seen: dict[str, str] = {}
        found = []
        for cell, database in self.cells.items():
            if len(self.cells) < 2:  # noqa: PLR2004 - one cell has each id once
                break
            async with database.reading() as reading:
                for row in await reading.rows("SELECT uuid FROM instances WHERE deleted = 0"):
                    other = seen.setdefault(str(row["uuid"]), cell)
                    if other != cell:
                        found.append(str(row["uuid"]))
        return found

    async def host(self, cell: str, name: str) -> NovaHost:
        """All that Nova knows of this host."""
        database = self.cells[cell]
        async with database.reading() as reading:
            nodes = [_node(row) for row in await reading.rows(f"{_NODES} AND host = :host", host=name)]
            services = await reading.rows(
                "SELECT host, disabled, forced_down, last_seen_up, updated_at FROM services WHERE deleted = 0"
                " AND `binary` = 'nova-compute' AND host = :host",
                host=name,
            )
            rows = await reading.rows(f"{_INSTANCES} AND host = :host ORDER BY uuid", host=name)
            extras = await _extras(reading, [str(row["uuid"]) for row in rows])
            migrations = await reading.rows(
                "SELECT uuid, instance_uuid, migration_type, status, source_compute, dest_compute FROM migrations"
                " WHERE deleted = 0 AND (source_compute = :host OR dest_compute = :host)",
                host=name,
            )
            devices = await reading.rows_of(
                "SELECT address, product_id, vendor_id, status, parent_addr, instance_uuid FROM pci_devices"
                " WHERE deleted = 0 AND instance_uuid IS NOT NULL AND compute_node_id IN :wanted",
                [node.id for node in nodes],
            )
        api = await self._of_api([str(row["uuid"]) for row in rows])
        instances = tuple(_instance(row, extras, api) for row in rows)
        allocations, inventories = await self._of_placement(nodes, instances)
        strangers = sorted({each.consumer for each in allocations or ()} - {each.id for each in instances})
        builds, elsewhere = await self._about(strangers)
        return NovaHost(
            cell=cell,
            name=name,
            nodes=tuple(nodes),
            service=_service(services[0]) if services else None,
            instances=instances,
            migrations=tuple(_migration(row) for row in migrations),
            devices=tuple(_device(row) for row in devices),
            allocations=allocations,
            inventories=inventories,
            builds=tuple(builds),
            elsewhere=elsewhere,
        )

    async def _of_api(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """By instance: its request spec and its server group."""
        found: dict[str, dict[str, Any]] = {each: {} for each in ids}
        async with self.api.reading() as reading:
            for row in await reading.rows_of(
                "SELECT instance_uuid, spec FROM request_specs WHERE instance_uuid IN :wanted", ids
            ):
                found[str(row["instance_uuid"])]["spec"] = row["spec"]
            for row in await reading.rows_of(
                "SELECT m.instance_uuid AS member, g.uuid AS grp FROM instance_group_member m"
                " JOIN instance_groups g ON g.id = m.group_id WHERE m.instance_uuid IN :wanted",
                ids,
            ):
                found[str(row["member"])]["group"] = row["grp"]
        return found

    async def _of_placement(
        self, nodes: Sequence[NovaNode], instances: Sequence[NovaInstance]
    ) -> tuple[tuple[NovaAllocation, ...] | None, tuple[NovaInventory, ...]]:
        if self.placement is None:
            return None, ()
        has_types = self.placement.has("consumers", "consumer_type_id")
        parts = {
            "type": "consumer_types.name" if has_types else "'INSTANCE'",
            "types": "LEFT JOIN consumer_types ON consumer_types.id = c.consumer_type_id"
            if has_types
            else "",
        }
        async with self.placement.reading() as reading:
            of_host = await reading.rows_of(
                _ALLOCATIONS.format(condition="root.uuid IN :wanted", **parts),
                [node.uuid for node in nodes],
            )
            of_instances = await reading.rows_of(
                _ALLOCATIONS.format(condition="a.consumer_id IN :wanted", **parts),
                [each.id for each in instances],
            )
            inventories = await reading.rows_of(
                "SELECT p.uuid AS provider, p.name AS provider_name, k.name AS resource, i.total AS total,"
                " i.reserved AS reserved, i.allocation_ratio AS ratio FROM inventories i"
                " JOIN resource_providers p ON p.id = i.resource_provider_id"
                " JOIN resource_providers root ON root.id = p.root_provider_id"
                " JOIN resource_classes k ON k.id = i.resource_class_id WHERE root.uuid IN :wanted",
                [node.uuid for node in nodes],
            )
        allocations = dict.fromkeys(_allocation(row) for row in (*of_host, *of_instances))
        return tuple(allocations), tuple(
            NovaInventory(
                str(row["provider"]),
                str(row["provider_name"]),
                str(row["resource"]),
                whole_in(row, "total", f"inventories.total of {row['resource']} of {row['provider_name']}"),
                whole_in(
                    row, "reserved", f"inventories.reserved of {row['resource']} of {row['provider_name']}"
                ),
                ratio_in(
                    row,
                    "ratio",
                    f"inventories.allocation_ratio of {row['resource']} of {row['provider_name']}",
                )
                or 0.0,
            )
            for row in inventories
        )

    async def _about(self, consumers: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Of consumers that are no instance of the host: those that are just being built; and the host of those elsewhere."""
        if not consumers:
            return [], {}
        builds: list[str] = []
        elsewhere: dict[str, str] = {}
        async with self.api.reading() as reading:
            rows = await reading.rows_of(
                "SELECT instance_uuid FROM build_requests WHERE instance_uuid IN :wanted", consumers
            )
            builds += [str(row["instance_uuid"]) for row in rows]
        for cell, database in self.cells.items():
            async with database.reading() as reading:
                for row in await reading.rows_of(
                    "SELECT uuid, host FROM instances WHERE deleted = 0 AND uuid IN :wanted", consumers
                ):
                    if row["host"]:
                        elsewhere[str(row["uuid"])] = f"{cell}/{row['host']}"
                    else:
                        builds.append(str(row["uuid"]))
        return sorted({*builds}), elsewhere


async def _extras(reading: NovaReading, ids: Sequence[str]) -> Mapping[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {each: {} for each in ids}
    for row in await reading.rows_of(
        "SELECT instance_uuid, flavor, numa_topology FROM instance_extra"
        " WHERE deleted = 0 AND instance_uuid IN :wanted",
        ids,
    ):
        found[str(row["instance_uuid"])] |= dict(row)
    for row in await reading.rows_of(
        "SELECT instance_uuid, message FROM instance_faults WHERE deleted = 0 AND instance_uuid IN :wanted ORDER BY id",
        ids,
    ):
        found[str(row["instance_uuid"])]["fault"] = row["message"]
    for row in await reading.rows_of(
        "SELECT instance_uuid, request_id FROM instance_actions WHERE deleted = 0 AND action = 'create'"
        " AND instance_uuid IN :wanted",
        ids,
    ):
        found[str(row["instance_uuid"])]["request"] = row["request_id"]
    for row in await reading.rows_of(
        "SELECT instance_uuid FROM block_device_mapping WHERE deleted = 0 AND boot_index = 0"
        " AND destination_type = 'volume' AND instance_uuid IN :wanted",
        ids,
    ):
        found[str(row["instance_uuid"])]["on_volume"] = True
    return found


def _node(row: Mapping[str, Any]) -> NovaNode:
    host = str(row["host"])

    def what(column: str) -> str:
        return f"compute_nodes.{column} of host {host}"

    return NovaNode(
        id=row["id"],
        uuid=text_in(row, "uuid", what("uuid")),
        host=host,
        name=str(row["hypervisor_hostname"]),
        hypervisor_type=str(row["hypervisor_type"]),
        **{each: whole_in(row, each, what(each)) for each in ("vcpus", "memory_mb", "local_gb")},
        cpu_ratio=ratio_in(row, "cpu_allocation_ratio", what("cpu_allocation_ratio")),
        ram_ratio=ratio_in(row, "ram_allocation_ratio", what("ram_allocation_ratio")),
        disk_ratio=ratio_in(row, "disk_allocation_ratio", what("disk_allocation_ratio")),
    )


def _service(row: Mapping[str, Any]) -> NovaService:
    host = str(row["host"])
    seen_at = moment_in(row, "last_seen_up", f"services.last_seen_up of host {host}")
    return NovaService(host, bool(row["disabled"]), bool(row["forced_down"]), seen_at)


def _instance(
    row: Mapping[str, Any],
    extras: Mapping[str, Mapping[str, Any]],
    api: Mapping[str, Mapping[str, Any]],
) -> NovaInstance:
    id_ = str(row["uuid"])
    id_of(id_, f"instances.uuid of an instance on host {row['host']}")
    extra, known = extras[id_], api[id_]
    whose = f"instance {id_}: instances"
    return NovaInstance(
        id=id_,
        host=str(row["host"]),
        state=text_in(row, "vm_state", f"{whose}.vm_state"),
        task=row["task_state"] or "",
        name=row["display_name"] or "",
        project=row["project_id"] or "",
        user=row["user_id"] or "",
        created_at=moment_in(row, "created_at", f"{whose}.created_at"),
        number=row["launch_index"] or 0,
        image=row["image_ref"] or "",
        flavor_id=row["instance_type_id"] or 0,
        flavor=extra.get("flavor"),
        numa_topology=extra.get("numa_topology"),
        spec=known.get("spec"),
        fault=extra.get("fault") or "",
        request=extra.get("request") or "",
        group=known.get("group") or "",
        on_volume=bool(extra.get("on_volume")),
    )


def _migration(row: Mapping[str, Any]) -> NovaMigration:
    return NovaMigration(
        str(row["uuid"]),
        str(row["instance_uuid"]),
        str(row["migration_type"]),
        str(row["status"]),
        str(row["source_compute"]),
        str(row["dest_compute"]),
    )


def _device(row: Mapping[str, Any]) -> NovaDevice:
    return NovaDevice(
        str(row["address"]),
        str(row["product_id"]),
        str(row["vendor_id"]),
        str(row["status"]),
        row["parent_addr"] or "",
        row["instance_uuid"] or "",
    )


def _allocation(row: Mapping[str, Any]) -> NovaAllocation:
    return NovaAllocation(
        consumer=str(row["consumer"]),
        provider=str(row["provider"]),
        provider_name=str(row["provider_name"]),
        root=str(row["root"] or row["provider"]),
        resource=str(row["resource"]),
        amount=whole_in(row, "amount", f"allocations.used of consumer {row['consumer']}"),
        type=str(row["type"] or "INSTANCE"),
        project=str(row["project"] or ""),
        user=str(row["user"] or ""),
    )


@asynccontextmanager
async def nova_databases(
    api: str, cells: Iterable[tuple[str, str]], placement: str
) -> AsyncIterator[NovaDatabases]:
    """These databases, checked."""
    opened = NovaDatabases(
        open_nova_database("--api-db", api),
        {cell: open_nova_database(f"--cell-db {cell}", url) for cell, url in cells},
        open_nova_database("--placement-db", placement) if placement else None,
    )
    try:
        await opened.check()
        yield opened
    finally:
        for each in (opened.api, *opened.cells.values(), *filter(None, (opened.placement,))):
            await each.close()
