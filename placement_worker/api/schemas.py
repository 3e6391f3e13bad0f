"""The bodies of requests at each microversion, as JSON Schema: validators.py checks them, openapi_document.py publishes them.

Clients of Placement see the constraints' names and patterns in errors, so each is written here as Placement's API has it.
"""

from collections.abc import Mapping
from typing import Any

from bus.messages.placement import INTEGER_MAX

Schema = dict[str, Any]

NAME = "^[A-Z0-9_]+$"
CUSTOM_NAME = "^CUSTOM_[A-Z0-9_]+$"
# Thirty-six of these characters; whether they make a UUID is checked afterwards.
UUID_KEY = "^[0-9a-fA-F-]{36}$"
SUFFIX = "[a-zA-Z0-9_-]{1,64}"
# The largest allocation ratio; a larger one would be a mistake.
RATIO_MAX = 1_000_000
# The limits that the same message has on the bus, where its size is limited.
INVENTORIES_MAX = 200
QUALITIES_MAX = 400
MANY = 1_000

UUID: Schema = {"type": "string", "format": "uuid"}
LABEL: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
INTEGER: Schema = {"type": "integer"}


def record(properties: Mapping[str, Schema], *, required: tuple[str, ...] = ()) -> Schema:
    """An object with these keys and no others."""
    schema: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return schema | {"required": list(required)} if required else schema


def table(key: str, row: Schema, *, at_least: int = 0, at_most: int) -> Schema:
    """An object whose keys match `key`, and whose values match `row`."""
    return {
        "type": "object",
        "minProperties": at_least,
        "maxProperties": at_most,
        "patternProperties": {key: row},
        "additionalProperties": False,
    }


def whole(at_least: int) -> Schema:
    return {"type": "integer", "minimum": at_least, "maximum": INTEGER_MAX}


_PROVIDER = {"name": {"type": "string", "minLength": 1, "maxLength": 200}}
_PARENT = {"parent_provider_uuid": {"anyOf": [UUID, {"type": "null"}]}}
NEW_PROVIDER_1_0 = record(_PROVIDER | {"uuid": UUID}, required=("name",))
NEW_PROVIDER_1_14 = record(_PROVIDER | {"uuid": UUID} | _PARENT, required=("name",))
PROVIDER_1_0 = record(_PROVIDER, required=("name",))
PROVIDER_1_14 = record(_PROVIDER | _PARENT, required=("name",))

_INVENTORY = {
    "resource_provider_generation": INTEGER,
    "total": whole(1),
    "reserved": whole(0),
    "min_unit": whole(1),
    "max_unit": whole(1),
    "step_size": whole(1),
    "allocation_ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": RATIO_MAX},
}
INVENTORY = record(_INVENTORY, required=("total", "resource_provider_generation"))
NEW_INVENTORY = record(
    _INVENTORY | {"resource_class": {"type": "string", "pattern": NAME}}, required=("total", "resource_class")
)
INVENTORIES = record(
    {
        "resource_provider_generation": INTEGER,
        "inventories": table(NAME, record(_INVENTORY, required=("total",)), at_most=INVENTORIES_MAX),
    },
    required=("resource_provider_generation", "inventories"),
)

AGGREGATES_1_1: Schema = {
    "type": "array",
    "items": UUID,
    "uniqueItems": True,
    "maxItems": QUALITIES_MAX,
}
AGGREGATES_1_19 = record(
    {"aggregates": AGGREGATES_1_1, "resource_provider_generation": INTEGER},
    required=("aggregates", "resource_provider_generation"),
)

CUSTOM_TRAIT: Schema = {**LABEL, "pattern": CUSTOM_NAME}
TRAITS = record(
    {
        "traits": {"type": "array", "items": LABEL, "maxItems": QUALITIES_MAX},
        "resource_provider_generation": INTEGER,
    },
    required=("traits", "resource_provider_generation"),
)

RESOURCE_CLASS = record(
    {"name": {"type": "string", "pattern": CUSTOM_NAME, "maxLength": 255}}, required=("name",)
)

_RESOURCES = table(NAME, whole(1), at_least=1, at_most=INVENTORIES_MAX)
_BY_PROVIDER = table(
    UUID_KEY,
    record({"generation": INTEGER, "resources": _RESOURCES}, required=("resources",)),
    at_least=1,
    at_most=MANY,
)
_OWNER = {"project_id": LABEL, "user_id": LABEL}
_CONSUMER_GENERATION = {"consumer_generation": {"type": ["integer", "null"]}}
_MAPPINGS = {
    "mappings": {
        "type": "object",
        "minProperties": 1,
        "patternProperties": {f"^({SUFFIX})?$": {"type": "array", "minItems": 1, "items": UUID}},
    }
}
_CONSUMER_TYPE = {"consumer_type": {**LABEL, "pattern": NAME}}

_LIST_OF_ALLOCATIONS: Schema = {
    "type": "array",
    "minItems": 1,
    "maxItems": MANY,
    "items": record(
        {"resource_provider": record({"uuid": UUID}, required=("uuid",)), "resources": _RESOURCES},
        required=("resource_provider", "resources"),
    ),
}
_NEEDED_1_12 = ("allocations", "project_id", "user_id")
_NEEDED_1_28 = (*_NEEDED_1_12, "consumer_generation")
_ALLOCATIONS = {"allocations": {**_BY_PROVIDER, "minProperties": 0}}

ALLOCATIONS_1_0 = record({"allocations": _LIST_OF_ALLOCATIONS}, required=("allocations",))
ALLOCATIONS_1_8 = record({"allocations": _LIST_OF_ALLOCATIONS} | _OWNER, required=_NEEDED_1_12)
ALLOCATIONS_1_12 = record({"allocations": _BY_PROVIDER} | _OWNER, required=_NEEDED_1_12)
# Empty allocations: allowed in lists of several consumers from the first version on, for one consumer from 1.28 on.
_EMPTIABLE_1_13 = record(_ALLOCATIONS | _OWNER, required=_NEEDED_1_12)
ALLOCATIONS_1_28 = record(_ALLOCATIONS | _OWNER | _CONSUMER_GENERATION, required=_NEEDED_1_28)
ALLOCATIONS_1_34 = record(_ALLOCATIONS | _OWNER | _CONSUMER_GENERATION | _MAPPINGS, required=_NEEDED_1_28)
ALLOCATIONS_1_38 = record(
    _ALLOCATIONS | _OWNER | _CONSUMER_GENERATION | _MAPPINGS | _CONSUMER_TYPE,
    required=(*_NEEDED_1_28, "consumer_type"),
)

SEVERAL_1_13 = table(UUID_KEY, _EMPTIABLE_1_13, at_least=1, at_most=MANY)
SEVERAL_1_28 = table(UUID_KEY, ALLOCATIONS_1_28, at_least=1, at_most=MANY)
SEVERAL_1_34 = table(UUID_KEY, ALLOCATIONS_1_34, at_least=1, at_most=MANY)
SEVERAL_1_38 = table(UUID_KEY, ALLOCATIONS_1_38, at_least=1, at_most=MANY)


def _reshape(allocations: Schema) -> Schema:
    return record(
        {
            "inventories": table(UUID_KEY, INVENTORIES, at_least=1, at_most=MANY),
            "allocations": {**allocations, "minProperties": 0},
        },
        required=("inventories", "allocations"),
    )


RESHAPE_1_30 = _reshape(SEVERAL_1_28)
RESHAPE_1_34 = _reshape(SEVERAL_1_34)
RESHAPE_1_38 = _reshape(SEVERAL_1_38)
