"""The bodies of requests at each microversion, as JSON Schema, and the validators that check them.

A body or a query that does not match its schema is a 400 that names the place and the value. Two validators read the same
schema. A compiled one decides in a few microseconds whether it matches. If it does not, a slow one says what is wrong, in
the words that Placement's clients know.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from uuid import UUID

import fastjsonschema
import jsonschema
import msgspec
from jsonschema.validators import extend

from engine.inventories import INTEGER_MAX
from placement_worker.api.values import DETAIL_CHARACTERS_MAX, ApiError, Version, bad_request

# For larger bodies the fast validator's shorter message is used: to find the best message, and to print a body for people,
# takes a thousand times as long as to decide.
LAID_OUT_BYTES_MAX = 8_192
SHOWN_CHARACTERS_MAX = 200
_BODY = "JSON does not validate"
_QUERY = "Invalid query string parameters"

Schema = dict[str, Any]
# The schemas of one kind of body or query, by the version that introduced each.
Schemas = Mapping[Version, Schema]

_Problem = fastjsonschema.JsonSchemaValueException


class Validator:
    """Checks a body or a query against one schema: by a compiled validator first, and by a slow one with better error
    texts if that finds a problem. Both are made when they are first needed.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def body(self, text: bytes) -> Any:
        """Decode and check a body."""
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise bad_request(f"Malformed JSON: {problem}") from None
        # Databases cannot store this character.
        if b"\\u0000" in text:
            _check_nul(value)
        self.check(value, len(text))
        return value

    def check(self, value: object, size: int = 0) -> None:
        """Check a value that is decoded already."""
        if (problem := self._problem(value)) is not None:
            raise self._refusal(value, problem, _BODY, size)

    def query(self, query: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Check a query; returns its keys and values. If a key is repeated, its last value counts."""
        value = dict(query)
        for key, text in query:
            if "\0" in key or "\0" in text:
                raise bad_request(f"{_QUERY}: {key!r} is {text!r}; the character NUL is not allowed")
        if (problem := self._problem(value)) is not None:
            raise self._refusal(value, problem, _QUERY, sum(len(text) for _, text in query))
        return value

    def allows(self, value: object) -> bool:
        return self._problem(value) is None

    def _problem(self, value: object) -> _Problem | RecursionError | None:
        try:
            self._judge(value)
        except (_Problem, RecursionError) as problem:
            # Without its traceback: that refers to this frame, and the frame to the problem. Such a cycle would keep megabytes
            # until the garbage collector runs, which counts objects and comes only after thousands of requests.
            return problem.with_traceback(None)
        return None

    def _refusal(self, value: object, problem: _Problem | RecursionError, saying: str, size: int) -> ApiError:
        try:
            said = (
                str(next(self._explainer.iter_errors(value), _AT_ITS_END))
                if size <= LAID_OUT_BYTES_MAX or isinstance(problem, RecursionError)
                else _briefly(problem)
            )
        except RecursionError:
            return bad_request(f"{saying}: it is nested too deeply")
        return bad_request(f"{saying}: {said}")

    @cached_property
    def _judge(self) -> Callable[[object], object]:
        judge: Callable[[object], object] = fastjsonschema.compile(
            _ending_exactly(self.schema), formats={"uuid": is_uuid}
        )
        return judge

    @cached_property
    def _explainer(self) -> Any:
        return _Explainer(self.schema, format_checker=_FORMATS)


class VersionedValidators:
    """The validators of one kind of body or query, for all versions of the API."""

    def __init__(self, schemas: Schemas) -> None:
        self._newest_first = tuple(
            (since, Validator(schema)) for since, schema in sorted(schemas.items(), reverse=True)
        )

    def at(self, version: Version) -> Validator:
        """The validator that applies to this version."""
        return next(validator for since, validator in self._newest_first if since <= version)


def _briefly(problem: _Problem) -> str:
    value = problem.value
    if problem.rule == "additionalProperties":
        # The validator's own message lists all properties, in the order of a set.
        return f"{problem.name} has properties that are not allowed"
    match value:
        case list() | dict():
            got = f"{len(value)} of them"
        case str():
            got = repr(value[:SHOWN_CHARACTERS_MAX])
        case _:
            got = repr(value)[:SHOWN_CHARACTERS_MAX]
    return f"{problem.message[:DETAIL_CHARACTERS_MAX]}. Got: {got}"


def uuid_in(text: str) -> UUID | None:
    """Parse a UUID in any case, with hyphens anywhere; None if the text is no UUID."""
    try:
        return UUID(text)
    except ValueError:
        return None


def is_uuid(text: object) -> bool:
    return isinstance(text, str) and uuid_in(text) is not None


def _check_nul(value: object) -> None:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text if "\0" in text:
                raise bad_request(f"{_BODY}: the character NUL is not allowed")
            case list() as items:
                waiting += items
            case dict() as items:
                waiting += [*items, *items.values()]


def _ending_exactly(schema: Any) -> Any:
    r"""A copy of the schema for the compiled validator, in which `\Z` replaces `$` at the end of patterns.

    In Python, `$` also matches before a line break at the end.
    """
    match schema:
        case dict():
            return {
                key: (
                    {_exact(pattern): _ending_exactly(row) for pattern, row in value.items()}
                    if key == "patternProperties"
                    else _ending_exactly(value)
                )
                for key, value in schema.items()
            }
        case list():
            return [_ending_exactly(one) for one in schema]
        case _:
            return schema


def _exact(pattern: str) -> str:
    return pattern.replace("$", r"\Z")


def _matches(_: object, pattern: str, value: object, __: object) -> Iterator[jsonschema.ValidationError]:
    r"""Check a JSON schema's `pattern` with `\Z` in place of `$`, which would also match before a line break at the end."""
    if isinstance(value, str) and not re.search(_exact(pattern), value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


# The message for what the slow validator accepts and the fast one does not.
_AT_ITS_END = jsonschema.ValidationError("one of its keys ends in a line break")
_FORMATS = jsonschema.FormatChecker(())
_FORMATS.checks("uuid")(is_uuid)
_Explainer: Any = extend(jsonschema.Draft202012Validator, {"pattern": _matches})  # type: ignore[no-untyped-call]


# The schemas. Clients of Placement see the constraints' names and patterns in errors, so each is written as Placement's API has it.

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

UUID_TEXT: Schema = {"type": "string", "format": "uuid"}
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
_PARENT = {"parent_provider_uuid": {"anyOf": [UUID_TEXT, {"type": "null"}]}}
NEW_PROVIDER = VersionedValidators(
    {
        (1, 0): record(_PROVIDER | {"uuid": UUID_TEXT}, required=("name",)),
        (1, 14): record(_PROVIDER | {"uuid": UUID_TEXT} | _PARENT, required=("name",)),
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
    "items": UUID_TEXT,
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
        "patternProperties": {f"^({SUFFIX})?$": {"type": "array", "minItems": 1, "items": UUID_TEXT}},
    }
}
_CONSUMER_TYPE = {"consumer_type": {**LABEL, "pattern": NAME}}

_LIST_OF_ALLOCATIONS: Schema = {
    "type": "array",
    "minItems": 1,
    "maxItems": MANY,
    "items": record(
        {"resource_provider": record({"uuid": UUID_TEXT}, required=("uuid",)), "resources": _RESOURCES},
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
