"""The words on the bus for people and for programs, made from the code: the tables of docs/bus.md, and an AsyncAPI
document. `moor broker reference` and `moor broker asyncapi` print them; a test says when the pages are out of date.
"""

from collections.abc import Iterable, Iterator
from typing import Any, get_args

import msgspec
from msgspec import inspect

from bus.message import Envelope, Message, type_of
from bus.messages import ALL, administration, applications, build, candidates, hosts, placement
from bus.topology import NO_PROJECT, QUEUES, ROUTES, Binding, Kind, Scope
from moor.meanings import MEANINGS

# What people and their programs say and hear, in the order of the page.
SAID: tuple[type[Message], ...] = (
    build.BuildInstance,
    build.DeleteInstance,
    build.RebuildInstance,
    build.AskInstances,
    hosts.AskHosts,
    hosts.SetHost,
    applications.SetApplication,
    applications.AskApplications,
    placement.ReportInventory,
    *get_args(administration.Write),
    administration.AskConsumer,
    administration.AskHolders,
    administration.AskUsages,
    administration.AskNames,
    candidates.AskCandidates,
    candidates.AskMoreCandidates,
)
HEARD: tuple[type[Message], ...] = (
    build.BuildAccepted,
    build.BuildRejected,
    build.InstancePlaced,
    build.InstanceActive,
    build.InstanceFailed,
    build.InstanceDeleted,
    build.InstancesFound,
    hosts.HostsFound,
    hosts.HostSet,
    applications.ApplicationSet,
    applications.ApplicationsFound,
    placement.ReportAnswered,
    placement.InventoryRefused,
    administration.WriteAnswered,
    administration.ConsumerFound,
    administration.HoldersFound,
    administration.UsagesFound,
    administration.NamesFound,
    candidates.CandidatesFound,
)
QUEUES_OF_ONES_OWN = """Yours are made by you, without a name: the broker gives them one. These are Moorage's own; only its workers read them:"""
BEGIN = "<!-- from here on made by `moor broker reference` -->"
END = "<!-- to here -->"


def reference() -> str:
    """Every message that a user may send or hear, field by field, as a part of a Markdown page."""
    values = _values_in((*SAID, *HEARD))
    sections = (
        "## What you may say",
        *(_section(kind, _address(kind)) for kind in SAID),
        "## What you may hear",
        *(_section(kind, _address(kind)) for kind in HEARD),
        "## What these are made of",
        *(_section(kind, "") for kind in values),
        "## Queues",
        QUEUES_OF_ONES_OWN,
        _table(("queue", "takes"), ((f"`{queue.name}`", _bindings(queue.bindings)) for queue in QUEUES)),
    )
    return "\n\n".join((BEGIN, *sections, END))


def asyncapi() -> dict[str, Any]:
    """Every message there is, with its schema, and where it travels."""
    schemas, components = msgspec.json.schema_components(ALL, ref_template="#/components/schemas/{name}")
    names = {kind: schema["$ref"].rpartition("/")[2] for kind, schema in zip(ALL, schemas, strict=True)}
    channels = {type_of(kind): _channel(kind) for kind in ALL}
    said = {type_of(kind) for kind in SAID}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Moorage",
            "version": "1",
            "description": "An AMQP message is one JSON object, or several, one a line (application/x-ndjson). "
            "docs/bus.md says the same for people.",
        },
        "servers": {
            "broker": {
                "host": "localhost:5672",
                "protocol": "amqp",
                "protocolVersion": "0.9.1",
                "description": "RabbitMQ, as `moor broker declare` prepares it; MOOR_BUS_URL names it.",
            }
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": {
            name: {"action": "receive" if name in said else "send", "channel": {"$ref": f"#/channels/{name}"}}
            for name in channels
        },
        "components": {
            "messages": {
                type_of(kind): {
                    "name": type_of(kind),
                    "contentType": "application/json",
                    "payload": _envelope(names[kind], kind.VERSION),
                }
                for kind in ALL
            },
            "schemas": {name: _as_asyncapi(components[name]) for name in sorted(components)},
        },
    }


def _envelope(name: str, version: int) -> dict[str, Any]:
    (_, fields) = msgspec.json.schema_components((Envelope[Message],))
    (around,) = (schema for schema in fields.values() if "message" in schema["properties"])
    properties = around["properties"] | {
        "message": {"$ref": f"#/components/schemas/{name}"},
        "version": {"const": version, "default": 1},
    }
    return {"type": "object", "required": ["message"], "properties": properties}


def _as_asyncapi(schema: Any) -> Any:
    """AsyncAPI says only by which property kinds differ; each kind has its value of it as a constant."""
    if isinstance(schema, list):
        return [_as_asyncapi(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _as_asyncapi(each) for key, each in schema.items()}
    match found.get("discriminator"):
        case {"propertyName": name}:
            return found | {"discriminator": name}
    return found


def _channel(kind: type[Message]) -> dict[str, Any]:
    name = type_of(kind)
    route = ROUTES[name]
    if route.kind is Kind.ANSWER:
        address, parameters = "{replyTo}", {"replyTo": {"description": "as the question's reply_to says"}}
    elif route.scope is Scope.CELL:
        address, parameters = f"{name}.{{cell}}", {"cell": {"description": "the name of a cell"}}
    elif route.scope is Scope.PROJECT:
        what = {"project": {"description": f"the project that it names, `{NO_PROJECT}` if it names none"}}
        address, parameters = f"{name}.{{project}}", what
    else:
        address, parameters = name, {}
    exchange = {"name": route.exchange, "type": "topic", "durable": True}
    return {
        "address": address,
        "description": _words(kind),
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        "parameters": parameters,
        "bindings": {"amqp": {"is": "routingKey", "exchange": exchange}},
    }


def _section(kind: type, address: str) -> str:
    """Where it goes, what it is by its docstring, and its fields."""
    title = f"### `{type_of(kind)}`" if issubclass(kind, Message) else f"### {kind.__name__}"
    rows = [
        (f"`{field.encode_name}`", _type(field.type), _default(field), MEANINGS[kind.__name__, field.name])
        for field in _fields(kind)
    ]
    table = _table(("field", "is", "unless said", "means"), rows)
    return "\n\n".join(part for part in (title, address, _words(kind), table) if part)


def _words(kind: type) -> str:
    """What its docstring says; one that has none was given its signature by msgspec."""
    words = " ".join((kind.__doc__ or "").split())
    return "" if words.startswith(f"{kind.__name__}(") else words


def _address(kind: type[Message]) -> str:
    name = type_of(kind)
    route = ROUTES[name]
    if route.kind is Kind.ANSWER:
        return "An answer, to the key in the question's `reply_to`."
    key = {Scope.CELL: f"{name}.CELL", Scope.PROJECT: f"{name}.PROJECT"}.get(route.scope, name)
    return f"{route.kind.value.capitalize()}, exchange `{route.exchange}`, key `{key}`."


def _fields(kind: type) -> tuple[inspect.Field, ...]:
    known = inspect.type_info(kind)
    assert isinstance(known, inspect.StructType), f"{kind} has fields"
    return known.fields


def _values_in(kinds: Iterable[type[Message]]) -> tuple[type, ...]:
    """What messages are made of, each once, in the order in which they are met; not the variants of verdicts."""
    found: dict[type, None] = {}
    waiting: list[type] = list(kinds)
    while waiting:
        for part in _parts(waiting.pop(0)):
            if part not in found and inspect.type_info(part).tag_field is None:  # type: ignore[attr-defined]
                found[part] = None
                waiting.append(part)
    return tuple(found)


def _parts(kind: type) -> Iterator[type]:
    def within(type_: inspect.Type) -> Iterator[type]:
        match type_:
            case inspect.StructType(cls=cls):
                yield cls
            case inspect.UnionType(types=types):
                for each in types:
                    yield from within(each)
            case inspect.VarTupleType(item_type=item):
                yield from within(item)
            case inspect.DictType(value_type=value):
                yield from within(value)

    for field in _fields(kind):
        yield from within(field.type)


def _type(type_: inspect.Type) -> str:
    """A type in words, its bounds left to the AsyncAPI document."""
    match type_:
        case inspect.StructType(cls=cls):
            return cls.__name__ if inspect.type_info(cls).tag_field is None else "a verdict"  # type: ignore[attr-defined]
        case inspect.UnionType(types=types):
            words = dict.fromkeys(_type(each) for each in types if not isinstance(each, inspect.NoneType))
            return " or ".join(words)
        case inspect.VarTupleType(item_type=item):
            return f"list of {_type(item)}"
        case inspect.DictType(value_type=value):
            return f"object of {_type(value)}"
        case inspect.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
    plain = {"StrType": "text", "IntType": "whole number", "FloatType": "number", "BoolType": "true or false"}
    name = type(type_).__name__
    return plain.get(name, name.removesuffix("Type").lower())


def _default(field: inspect.Field) -> str:
    if field.required:
        return "must be given"
    if field.default_factory is not msgspec.NODEFAULT:
        return "nothing"
    if field.default is msgspec.NODEFAULT:
        # Not even null: to leave it out says something else.
        return "left as it is"
    return (
        "nothing" if field.default in (None, "", ()) else f"`{msgspec.json.encode(field.default).decode()}`"
    )


def _bindings(bindings: Iterable[Binding]) -> str:
    return ", ".join(f"`{each.pattern}` of `{each.exchange}`" for each in bindings)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
