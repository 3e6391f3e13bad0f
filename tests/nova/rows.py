"""Fills Nova's databases as its services do: one call for a host, an instance, a server group and so on.

What Nova stores as JSON has the form of its objects. The columns are those of the real tables: an unknown one is an error.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from uuid import UUID, uuid5

from msgspec import Struct

from tests.nova.schema import NovaAddresses

IDS = UUID("6f1e7a52-3b0c-4a57-9d3e-000000000000")
CREATED = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
LONG_AGO = timedelta(days=1)
CELL0 = "00000000-0000-0000-0000-000000000000"


def id_of(*what: object) -> str:
    return str(uuid5(IDS, "/".join(map(str, what))))


def stored(name: str, version: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """An object as Nova stores it."""
    return {
        "nova_object.name": name,
        "nova_object.namespace": "nova",
        "nova_object.version": version,
        "nova_object.data": dict(data),
        "nova_object.changes": [],
    }


class FlavorRow(Struct, frozen=True):
    name: str = "m1.small"
    vcpus: int = 2
    ram_mb: int = 2048
    root_gb: int = 20
    ephemeral_gb: int = 0
    swap_mb: int = 0
    extra_specs: dict[str, str] = {}
    id: int = 1

    @property
    def object(self) -> dict[str, Any]:
        data = {
            "id": self.id,
            "name": self.name,
            "memory_mb": self.ram_mb,
            "vcpus": self.vcpus,
            "root_gb": self.root_gb,
            "ephemeral_gb": self.ephemeral_gb,
            "flavorid": str(self.id),
            "swap": self.swap_mb,
            "rxtx_factor": 1.0,
            "vcpu_weight": 0,
            "disabled": False,
            "is_public": True,
            "extra_specs": self.extra_specs,
        }
        return stored("Flavor", "1.2", data)

    @property
    def amounts(self) -> dict[str, int]:
        disk_gb = self.root_gb + self.ephemeral_gb + -(-self.swap_mb // 1024)
        return {"VCPU": self.vcpus, "MEMORY_MB": self.ram_mb, "DISK_GB": disk_gb}


SMALL = FlavorRow()


class NovaRows:
    """Writes rows of Nova, in files of SQLite."""

    def __init__(self, addresses: NovaAddresses, *, is_new: bool = True) -> None:
        self._files = {
            "api": addresses.api.removeprefix("sqlite:///"),
            "placement": addresses.placement.removeprefix("sqlite:///"),
            **{cell: url.removeprefix("sqlite:///") for cell, url in addresses.cells.items()},
        }
        self.has_placement = bool(addresses.placement)
        self._open = {name: sqlite3.connect(file) for name, file in self._files.items() if file}
        # Ids in placement, by table and name.
        self._known: dict[tuple[str, str], int] = {}
        self._nodes: dict[str, tuple[str, int]] = {}
        for cell in ("cell0", *addresses.cells) if is_new else ():
            uuid = CELL0 if cell == "cell0" else id_of("cell", cell)
            self.add(
                "api", "cell_mappings", uuid=uuid, name=cell, database_connection="-", transport_url="-", disabled=False
            )  # fmt: skip

    @classmethod
    def again(cls, addresses: NovaAddresses) -> Self:
        """For databases that have rows already."""
        return cls(addresses, is_new=False)

    def commit(self) -> None:
        for each in self._open.values():
            each.commit()

    def close(self) -> None:
        self.commit()
        for each in self._open.values():
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, database: str, table: str, **values: object) -> int:
        columns = ", ".join(f"`{name}`" for name in values)
        marks = ", ".join("?" * len(values))
        kept = [
            each.replace(tzinfo=None).isoformat(" ") if isinstance(each, datetime) else each
            for each in values.values()
        ]
        cursor = self._open[database].execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", kept)  # noqa: S608
        return cursor.lastrowid or 0

    def change(self, database: str, statement: str, *values: object) -> None:
        with closing(self._open[database].cursor()) as cursor:
            cursor.execute(statement, values)
            assert cursor.rowcount, statement
        self.commit()

    def service(self, cell: str, host: str, **changes: object) -> None:
        """A nova-compute that is enabled, and runs."""
        now = datetime.now(UTC)
        values = {
            "host": host,
            "binary": "nova-compute",
            "topic": "compute",
            "report_count": 7,
            "disabled": False,
            "deleted": 0,
            "forced_down": False,
            "last_seen_up": now,
            "created_at": CREATED,
            "version": 66,
            "uuid": id_of("service", cell, host),
        }
        self.add(cell, "services", **values | changes)

    def disable(self, cell: str, host: str) -> None:
        """As `openstack compute service set --disable` does; and nova-compute was stopped long ago."""
        self.change(
            cell,
            "UPDATE services SET disabled = 1, last_seen_up = ? WHERE host = ?",
            (datetime.now(UTC) - LONG_AGO).replace(tzinfo=None).isoformat(" "),
            host,
        )

    def host(
        self,
        cell: str,
        host: str,
        *,
        vcpus: int = 32,
        ram_mb: int = 131_072,
        disk_gb: int = 2_000,
        hypervisor_type: str = "QEMU",
        **changes: object,
    ) -> str:
        """A host with its service, its compute node, and its provider. Returns the uuid of the latter two."""
        uuid = id_of("node", cell, host)
        self.service(cell, host)
        values = {
            "host": host,
            "hypervisor_hostname": f"{host}.example.org",
            "uuid": uuid,
            "vcpus": vcpus,
            "memory_mb": ram_mb,
            "local_gb": disk_gb,
            "vcpus_used": 0,
            "memory_mb_used": 512,
            "local_gb_used": 0,
            "hypervisor_type": hypervisor_type,
            "hypervisor_version": 8_002_000,
            "cpu_info": '{"arch": "x86_64", "vendor": "Intel"}',
            "cpu_allocation_ratio": 4.0,
            "ram_allocation_ratio": 1.0,
            "disk_allocation_ratio": 1.0,
            "deleted": 0,
            "created_at": CREATED,
            "mapped": 1,
        }
        node = self.add(cell, "compute_nodes", **values | changes)
        # A host of this name may be in another cell.
        with suppress(sqlite3.IntegrityError):
            self.add("api", "host_mappings", cell_id=2, host=host)
        if self.has_placement:
            provider = self.provider(str((values | changes)["hypervisor_hostname"]), uuid=uuid)
            for resource, total, reserved, ratio in (
                ("VCPU", vcpus, 0, 4.0),
                ("MEMORY_MB", ram_mb, 512, 1.0),
                ("DISK_GB", disk_gb, 0, 1.0),
            ):
                self.inventory(provider, resource, total, reserved=reserved, ratio=ratio)
        self._nodes[uuid] = (host, node)
        return uuid

    def provider(
        self, name: str, *, uuid: str = "", parent: int | None = None, root: int | None = None
    ) -> int:
        number = self.add(
            "placement", "resource_providers", uuid=uuid or id_of("provider", name), name=name, generation=1,
            parent_provider_id=parent, root_provider_id=root,
        )  # fmt: skip
        if root is None:
            self._open["placement"].execute(
                "UPDATE resource_providers SET root_provider_id = ? WHERE id = ?", (number, number)
            )
        return number

    def inventory(
        self, provider: int, resource: str, total: int, *, reserved: int = 0, ratio: float = 1.0
    ) -> None:
        self.add(
            "placement", "inventories", resource_provider_id=provider, resource_class_id=self.class_of(resource),
            total=total, reserved=reserved, min_unit=1, max_unit=total, step_size=1, allocation_ratio=ratio,
        )  # fmt: skip

    def provider_of(self, uuid: str) -> int:
        return self.known("resource_providers", uuid=uuid)

    def class_of(self, resource: str) -> int:
        return self.known("resource_classes", name=resource)

    def known(self, table: str, **named: str) -> int:
        """The row of placement's that has this name, which is added if it is not there."""
        ((column, name),) = named.items()
        if (table, name) not in self._known:
            statement = f"SELECT id FROM {table} WHERE {column} = ?"  # noqa: S608 - one of four tables
            row = self._open["placement"].execute(statement, (name,)).fetchone()
            self._known[table, name] = int(row[0]) if row else self.add("placement", table, **named)
        return self._known[table, name]

    def allocations(
        self,
        consumer: str,
        amounts: Iterable[tuple[int, str, int]],
        *,
        project: str = "shop",
        user: str = "ann",
        type_: str = "INSTANCE",
    ) -> None:
        """What a consumer holds: provider, class and amount."""
        self.add(
            "placement", "consumers", uuid=consumer, project_id=self.known("projects", external_id=project),
            user_id=self.known("users", external_id=user), generation=1,
            consumer_type_id=self.known("consumer_types", name=type_),
        )  # fmt: skip
        for provider, resource, amount in amounts:
            self.add(
                "placement", "allocations", resource_provider_id=provider, consumer_id=consumer,
                resource_class_id=self.class_of(resource), used=amount,
            )  # fmt: skip

    def instance(
        self,
        cell: str,
        host: str | None,
        number: int,
        *,
        flavor: FlavorRow = SMALL,
        node: str = "",
        extra: Mapping[str, object] | None = None,
        holds: bool = True,
        image_properties: Mapping[str, object] | None = None,
        **changes: object,
    ) -> str:
        """An active instance, with all that Nova has of it. `node` is the provider from which it holds its flavor's amounts."""
        id_ = str(changes.pop("uuid", id_of("instance", number)))
        values: dict[str, object] = {
            "uuid": id_,
            "host": host,
            "node": f"{host}.example.org",
            "launched_on": host,
            "vm_state": "active",
            "power_state": 1,
            "display_name": f"vm-{number}",
            "hostname": f"vm-{number}",
            "project_id": "shop",
            "user_id": "ann",
            "created_at": CREATED + timedelta(seconds=number),
            "launched_at": CREATED + timedelta(seconds=number + 30),
            "launch_index": 0,
            "image_ref": id_of("image"),
            "vcpus": flavor.vcpus,
            "memory_mb": flavor.ram_mb,
            "root_gb": flavor.root_gb,
            "instance_type_id": flavor.id,
            "deleted": 0,
            "reservation_id": f"r-{number}",
        }
        values |= changes
        self.add(cell, "instances", **values)
        whole = {"cur": flavor.object, "old": None, "new": None}
        extras: dict[str, object] = {
            "instance_uuid": id_,
            "deleted": 0,
            "flavor": json.dumps(whole),
            "pci_requests": "[]",
            "numa_topology": None,
        }
        self.add(cell, "instance_extra", **extras | dict(extra or {}))
        self.add(
            cell, "instance_actions", action="create", instance_uuid=id_, request_id=f"req-{id_of('request', number)}",
            user_id="ann", project_id="shop", start_time=CREATED, deleted=0,
        )  # fmt: skip
        self.add(
            "api",
            "instance_mappings",
            instance_uuid=id_,
            cell_id=2,
            project_id="shop",
            queued_for_delete=False,
        )
        properties = {"hw_architecture": "x86_64"} | dict(image_properties or {})
        image = stored(
            "ImageMeta",
            "1.8",
            {"id": id_of("image"), "properties": stored("ImageMetaProps", "1.36", properties)},
        )
        spec = stored(
            "RequestSpec",
            "1.14",
            {
                "image": image,
                "flavor": flavor.object,
                "availability_zone": None,
                "instance_uuid": id_,
                "num_instances": 1,
                "project_id": "shop",
            },
        )
        self.add("api", "request_specs", instance_uuid=id_, spec=json.dumps(spec))
        if holds and self.has_placement:
            provider = self.provider_of(node or id_of("node", cell, host))
            amounts = [(provider, name, amount) for name, amount in flavor.amounts.items() if amount]
            self.allocations(id_, amounts, project=str(values["project_id"]), user=str(values["user_id"]))
        return id_

    def flavor(self, flavor: FlavorRow) -> None:
        number = self.add(
            "api", "flavors", name=flavor.name, memory_mb=flavor.ram_mb, vcpus=flavor.vcpus, swap=flavor.swap_mb,
            flavorid=str(flavor.id), root_gb=flavor.root_gb, ephemeral_gb=flavor.ephemeral_gb, id=flavor.id,
            is_public=True, disabled=False,
        )  # fmt: skip
        for key, value in flavor.extra_specs.items():
            self.add("api", "flavor_extra_specs", flavor_id=number, key=key, value=value)

    def group(
        self, name: str, policy: str, members: Iterable[str], *, max_per_host: int = 0, project: str = "shop"
    ) -> str:
        uuid = id_of("group", name)
        number = self.add("api", "instance_groups", uuid=uuid, name=name, project_id=project, user_id="ann")
        rules = json.dumps({"max_server_per_host": max_per_host}) if max_per_host else None
        self.add("api", "instance_group_policy", group_id=number, policy=policy, rules=rules)
        for member in members:
            self.add("api", "instance_group_member", instance_uuid=member, group_id=number)
        return uuid

    def aggregate(self, name: str, hosts: Iterable[str], **metadata: str) -> str:
        uuid = id_of("aggregate", name)
        number = self.add("api", "aggregates", uuid=uuid, name=name)
        for host in hosts:
            self.add("api", "aggregate_hosts", host=host, aggregate_id=number)
        for key, value in metadata.items():
            self.add("api", "aggregate_metadata", aggregate_id=number, key=key, value=value)
        return uuid

    def migration(
        self, cell: str, source: str, destination: str, instance: str, status: str, *, kind: str = "resize"
    ) -> str:
        uuid = id_of("migration", instance, status)
        self.add(
            cell, "migrations", uuid=uuid, instance_uuid=instance, source_compute=source, dest_compute=destination,
            status=status, migration_type=kind, deleted=0, created_at=CREATED,
        )  # fmt: skip
        return uuid

    def device(self, cell: str, node: str, address: str, instance: str = "", **changes: object) -> None:
        values = {
            "compute_node_id": self._nodes[node][1],
            "address": address,
            "product_id": "10ed",
            "vendor_id": "8086",
            "dev_type": "type-PCI",
            "label": "label_8086_10ed",
            "status": "allocated" if instance else "available",
            "instance_uuid": instance or None,
            "deleted": 0,
        }
        self.add(cell, "pci_devices", **values | changes)
