"""The bodies of requests at each microversion, as JSON Schema: validators.py checks them, openapi_document.py publishes them.

Clients of Placement see the constraints' names and patterns in errors, so each is written here as Placement's API has it.
"""

from collections.abc import Mapping

from bus.messages.placement import INTEGER_MAX
from placement_worker.api.grammar.validators import Schema, Schemas, Validator, VersionedValidators

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
    """The schema of a JSON object that may have these keys and no others."""
    schema: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return schema | {"required": list(required)} if required else schema


def table(key: str, row: Schema, *, at_least: int = 0, at_most: int) -> Schema:
    """The schema of a JSON object whose keys match the pattern `key`, and whose values match the schema `row`."""
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
NEW_PROVIDER = VersionedValidators(
    {
        (1, 0): record(_PROVIDER | {"uuid": UUID}, required=("name",)),
        (1, 14): record(_PROVIDER | {"uuid": UUID} | _PARENT, required=("name",)),
    }
)
PROVIDER = VersionedValidators(
    {
        (1, 0): record(_PROVIDER, required=("name",)),
        (1, 14): record(_PROVIDER | _PARENT, required=("name",)),
    }
)

_INVENTORY = {
    "resource_provider_generation": INTEGER,
    "total": whole(1),
    "reserved": whole(0),
    "min_unit": whole(1),
    "max_unit": whole(1),
    "step_size": whole(1),
    "allocation_ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": RATIO_MAX},
}
INVENTORY = VersionedValidators(
    {(1, 0): record(_INVENTORY, required=("total", "resource_provider_generation"))}
)
NEW_INVENTORY = VersionedValidators(
    {
        (1, 0): record(
            _INVENTORY | {"resource_class": {"type": "string", "pattern": NAME}},
            required=("total", "resource_class"),
        )
    }
)
_INVENTORIES = record(
    {
        "resource_provider_generation": INTEGER,
        "inventories": table(NAME, record(_INVENTORY, required=("total",)), at_most=INVENTORIES_MAX),
    },
    required=("resource_provider_generation", "inventories"),
)
INVENTORIES = VersionedValidators({(1, 0): _INVENTORIES})

_AGGREGATES: Schema = {
    "type": "array",
    "items": UUID,
    "uniqueItems": True,
    "maxItems": QUALITIES_MAX,
}
AGGREGATES = VersionedValidators(
    {
        (1, 1): _AGGREGATES,
        (1, 19): record(
            {"aggregates": _AGGREGATES, "resource_provider_generation": INTEGER},
            required=("aggregates", "resource_provider_generation"),
        ),
    }
)

CUSTOM_TRAIT = Validator({**LABEL, "pattern": CUSTOM_NAME})
TRAITS = VersionedValidators(
    {
        (1, 6): record(
            {
                "traits": {"type": "array", "items": LABEL, "maxItems": QUALITIES_MAX},
                "resource_provider_generation": INTEGER,
            },
            required=("traits", "resource_provider_generation"),
        )
    }
)

RESOURCE_CLASS = VersionedValidators(
    {
        (1, 2): record(
            {"name": {"type": "string", "pattern": CUSTOM_NAME, "maxLength": 255}}, required=("name",)
        )
    }
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

# From 1.28 on a consumer's allocations may be empty.
ALLOCATIONS = VersionedValidators(
    {
        (1, 0): record({"allocations": _LIST_OF_ALLOCATIONS}, required=("allocations",)),
        (1, 8): record({"allocations": _LIST_OF_ALLOCATIONS} | _OWNER, required=_NEEDED_1_12),
        (1, 12): record({"allocations": _BY_PROVIDER} | _OWNER, required=_NEEDED_1_12),
        (1, 28): record(_ALLOCATIONS | _OWNER | _CONSUMER_GENERATION, required=_NEEDED_1_28),
        (1, 34): record(_ALLOCATIONS | _OWNER | _CONSUMER_GENERATION | _MAPPINGS, required=_NEEDED_1_28),
        (1, 38): record(
            _ALLOCATIONS | _OWNER | _CONSUMER_GENERATION | _MAPPINGS | _CONSUMER_TYPE,
            required=(*_NEEDED_1_28, "consumer_type"),
        ),
    }
)
# In lists of several consumers they may be empty from the first version on.
_OF_ONE_OF_SEVERAL: Schemas = {
    (1, 13): record(_ALLOCATIONS | _OWNER, required=_NEEDED_1_12),
    **{since: ALLOCATIONS.at(since).schema for since in ((1, 28), (1, 34), (1, 38))},
}
SEVERAL = VersionedValidators(
    {since: table(UUID_KEY, one, at_least=1, at_most=MANY) for since, one in _OF_ONE_OF_SEVERAL.items()}
)


def _reshape(allocations: Schema) -> Schema:
    return record(
        {
            "inventories": table(UUID_KEY, _INVENTORIES, at_least=1, at_most=MANY),
            "allocations": {**allocations, "minProperties": 0},
        },
        required=("inventories", "allocations"),
    )


RESHAPE = VersionedValidators(
    {
        (1, 30): _reshape(SEVERAL.at((1, 28)).schema),
        (1, 34): _reshape(SEVERAL.at((1, 34)).schema),
        (1, 38): _reshape(SEVERAL.at((1, 38)).schema),
    }
)
