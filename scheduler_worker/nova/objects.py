"""Nova's versioned objects as they are in messages: a name, a namespace, a version, the data, and which fields were changed.

A newer minor version adds fields, so a reader refuses a field that it does not know, if the field has a value. Another major version
may mean anything.
"""

from collections.abc import Mapping

from scheduler_worker.nova.json_fields import Fields
from scheduler_worker.nova.oslo_envelope import version_in

NAMESPACE = "nova"
# All objects that a request to a scheduler has are of this major version, with these exceptions.
MAJOR = 1
MAJORS = {"Instance": 2, "InstanceList": 2}

_NAME, _SPACE, _VERSION = "nova_object.name", "nova_object.namespace", "nova_object.version"
_DATA, _CHANGES = "nova_object.data", "nova_object.changes"


def read_object(value: object, path: str, name: str) -> Fields:
    """The fields of an object of this name."""
    outer = Fields(value, path)
    if outer.text(_NAME) != name:
        raise outer.refuse(_NAME, f"it must be an object {name}")
    if outer.text(_SPACE) != NAMESPACE:
        raise outer.refuse(_SPACE, f"an object {name} is known in the namespace {NAMESPACE} alone")
    version = version_in(outer.text(_VERSION), outer.at(_VERSION))
    if version.major != (known := MAJORS.get(name, MAJOR)):
        raise outer.refuse(_VERSION, f"known are versions {known}.x of an object {name}")
    return Fields(outer.values.get(_DATA), path)


def object_in(fields: Fields, field: str, name: str) -> Fields | None:
    """The object in this field; None if the field is null or missing."""
    value = fields.value(field)
    return None if value is None else read_object(value, fields.at(field), name)


def objects_in(fields: Fields, field: str, name: str) -> tuple[Fields, ...]:
    """The objects in a list of them; none if the field is null or missing."""
    at = fields.at(field)
    return tuple(read_object(each, f"{at}[{number}]", name) for number, each in enumerate(fields.list(field)))


def listed_in(fields: Fields, field: str, list_name: str, name: str) -> tuple[Fields, ...]:
    """The objects in an object that is a list of them, such as a ComputeNodeList."""
    listed = object_in(fields, field, list_name)
    return () if listed is None else objects_in(listed, "objects", name)


def write_object(name: str, version: str, data: Mapping[str, object]) -> dict[str, object]:
    """An object of which every field was set."""
    return {
        _NAME: name,
        _SPACE: NAMESPACE,
        _VERSION: version,
        _DATA: dict(data),
        _CHANGES: sorted(data),
    }
