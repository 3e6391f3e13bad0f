"""What Nova's databases say of a host, as it was read: JSON stays text, since it may be wrong."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct, ValidationError

from bus.message import Message
from engine.flavors import Flavor
from kit.errors import UNREADABLE

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
    flavor_id: int = 0
    flavor: str | None = None
    numa_topology: str | None = None
    spec: str | None = None
    fault: str = ""
    request: str = ""
    group: str = ""
    on_volume: bool = False


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


# Values of Nova's rows: columns may be NULL, SQLite keeps anything in any column, and JSON has no schema. What cannot be is named by
# table, column, row and value.


SHOWN_MAX = 40


def wrong(what: str, value: object, must_be: str) -> ContradictionError:
    shown = repr(value)
    if len(shown) > SHOWN_MAX:
        shown = f"{shown[:SHOWN_MAX]}... ({len(shown)} characters)"
    return ContradictionError(f"{what} is {shown}, and must be {must_be}")


def whole_in(row: Mapping[str, Any], column: str, what: str) -> int:
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        try:
            # MySQL has sums and counts as decimals.
            found = int(value)
        except (TypeError, ValueError, OverflowError):
            found = -1
        if found < 0 or found != value:
            raise wrong(what, value, "a whole number, at least 0")
        return found
    return value


def ratio_in(row: Mapping[str, Any], column: str, what: str) -> float | None:
    """Nova leaves it NULL where its settings say it."""
    value = row[column]
    if value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise wrong(what, value, "a number") from None
    if not 0 <= found < float("inf"):
        raise wrong(what, value, "a number, at least 0")
    return found


def text_in(row: Mapping[str, Any], column: str, what: str) -> str:
    value = row[column]
    if not isinstance(value, str) or not value:
        raise wrong(what, value, "a text")
    return value


def moment_in(row: Mapping[str, Any], column: str, what: str) -> datetime | None:
    """A time of Nova's, which are all in UTC. SQLite stores them as text."""
    value = row[column]
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, datetime):
        raise wrong(what, value, "a time")
    return found.replace(tzinfo=UTC)


def id_of(value: object, what: str) -> UUID:
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise wrong(what, value, "a uuid") from None


def check_message(message: Message, columns: Mapping[str, str], whose: str) -> None:
    """Raise `ContradictionError` if no worker could read this message. `columns` has the table and column of each of its fields."""
    plain = msgspec.to_builtins(message)
    try:
        msgspec.convert(plain, type(message))
    except ValidationError as refused:
        must_be, _, path = str(refused).partition(" - at `$.")
        path = path.rstrip("`")
        field = path.partition(".")[0].partition("[")[0]
        below = path[len(field) :].lstrip(".")
        what = columns.get(field, field)
        raise wrong(
            f"{whose}{what}{f': {below}' if below else ''}", _value_at(plain, path), f"right: {must_be}"
        ) from None


def _value_at(plain: Any, path: str) -> object:
    for step in path.split("."):
        if not isinstance(plain, dict) or step not in plain:
            break
        plain = plain[step]
    return plain


# Reads the objects that Nova stores as JSON: each has a name, a version and its data. Only versions that are known are read.


# The newest version of each object that Nova 34 writes. An older one of the same major number has fewer fields.
NEWEST = {
    "Flavor": (1, 2),
    "InstanceNUMATopology": (1, 3),
    "InstanceNUMACell": (1, 6),
    "RequestSpec": (1, 15),
    "ImageMeta": (1, 8),
    "ImageMetaProps": (1, 44),
}


class NovaGuestCell(Struct, frozen=True):
    """A NUMA cell of an instance: on which cell of the host it is, and what it has there."""

    id: int
    shared_cpus: int
    pinned_cpus: int
    memory_mb: int
    page_kib: int | None = None


def text_as_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as wrong:
        raise ContradictionError(f"{where} is not JSON ({wrong}): {text[:40]!r}") from None


def data_of(value: Any, name: str, where: str) -> dict[str, Any]:
    """The fields of an object of this name."""
    if not isinstance(value, dict) or value.get("nova_object.name") != name:
        raise ContradictionError(f"{where} is no {name}: {json.dumps(value)[:60]}")
    version = str(value.get("nova_object.version"))
    major, _, minor = version.partition(".")
    newest = NEWEST[name]
    known = f"{newest[0]}.0 to {newest[0]}.{newest[1]}"
    if not (major.isdigit() and minor.isdigit() and int(major) == newest[0] and int(minor) <= newest[1]):
        raise ContradictionError(f"{where} is a {name} of version {version}, known are {known}")
    data = value.get("nova_object.data")
    if not isinstance(data, dict):
        raise ContradictionError(f"{where} has no data: {json.dumps(value)[:60]}")
    return data


def flavor_in(text: str, where: str) -> Flavor:
    """The flavor in `instance_extra.flavor`. An instance that is being resized has the old one and the new one, too."""
    stored = text_as_json(text, where)
    if not isinstance(stored, dict) or "cur" not in stored:
        raise ContradictionError(f"{where} has no current flavor: {text[:60]!r}")
    flavor = flavor_of(data_of(stored["cur"], "Flavor", where), where)
    for field in ("vcpus", "ram_mb", "root_gb", "ephemeral_gb", "swap_mb"):
        if (amount := getattr(flavor, field)) < 0:
            raise ContradictionError(f"{where}: {field} is {amount}, and must be at least 0")
    return flavor


def flavor_of(data: dict[str, Any], where: str) -> Flavor:
    try:
        return Flavor(
            name=str(data["name"]),
            vcpus=int(data["vcpus"]),
            ram_mb=int(data["memory_mb"]),
            root_gb=int(data["root_gb"] or 0),
            ephemeral_gb=int(data["ephemeral_gb"] or 0),
            swap_mb=int(data["swap"] or 0),
            extra_specs={str(key): str(value) for key, value in (data.get("extra_specs") or {}).items()},
        )
    except UNREADABLE as wrong:
        raise ContradictionError(f"{where}: a field is missing or wrong: {wrong!r}") from None


def cells_in(text: str | None, where: str) -> tuple[NovaGuestCell, ...]:
    """The NUMA cells of an instance, from `instance_extra.numa_topology`."""
    if not text:
        return ()
    data = data_of(text_as_json(text, where), "InstanceNUMATopology", where)
    try:
        return tuple(
            [_guest_cell(data_of(each, "InstanceNUMACell", where)) for each in data.get("cells") or ()]
        )
    except UNREADABLE as wrong:
        raise ContradictionError(f"{where}: a field is missing or wrong: {wrong!r}") from None


def _guest_cell(cell: dict[str, Any]) -> NovaGuestCell:
    pinned = len(cell.get("pcpuset") or ())
    shared = len(cell.get("cpuset") or ())
    if pinned == 0 and cell.get("cpu_policy") == "dedicated":
        # Before 1.4 pinned CPUs were in the same set.
        pinned, shared = shared, 0
    return NovaGuestCell(int(cell["id"]), shared, pinned, int(cell["memory"]), cell.get("pagesize"))


def image_properties_in(text: str | None, where: str) -> dict[str, str]:
    """The properties of the image in a request spec, as a request names them."""
    if not text:
        return {}
    spec = data_of(text_as_json(text, where), "RequestSpec", where)
    image = spec.get("image")
    if not image:
        return {}
    properties = data_of(image, "ImageMeta", where).get("properties")
    if not properties:
        return {}
    found = data_of(properties, "ImageMetaProps", where)
    return {
        name: str(value)
        for name, value in sorted(found.items())
        if isinstance(value, str | int | bool) and value is not None
    }


def zone_in(text: str | None, where: str) -> str:
    """The availability zone that the request named; empty if it named none."""
    if not text:
        return ""
    return str(data_of(text_as_json(text, where), "RequestSpec", where).get("availability_zone") or "")
