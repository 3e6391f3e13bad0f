"""Reads the objects that Nova stores as JSON: each has a name, a version and its data. Only versions that are known are read."""

import json
from typing import Any

from msgspec import Struct

from bus.messages.build import Flavor
from moor.importing_nova.core.records import ContradictionError

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
    except (KeyError, TypeError, ValueError) as wrong:
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
    except (KeyError, TypeError, ValueError) as wrong:
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
