"""The reference of the bus, from the code: the site's page bus-reference, and an AsyncAPI document.

`python -m tools.pages.bus_reference` prints the document.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

from bus.message import Envelope, Kind, Message, Scope, type_of
from bus.messages import ALL
from bus.queues import NO_PROJECT, Binding
from bus.topology import QUEUES
from tools.pages import application_rights, authority_table, verdicts
from tools.pages.field_descriptions import FIELD_DESCRIPTIONS
from tools.pages.markdown import docstring_of, table

# The messages that users and their programs send and receive. People's messages are read strictly.
SENT_BY_USERS = tuple(
    kind for kind in ALL if kind.IS_STRICT or (kind.ROUTE.public and kind.ROUTE.kind is not Kind.EVENT)
)
_ANSWERS = {kind.ROUTE.answer for kind in SENT_BY_USERS}
RECEIVED_BY_USERS = tuple(
    kind for kind in ALL if type_of(kind) in _ANSWERS or (kind.ROUTE.public and kind.ROUTE.kind is Kind.EVENT)
)
QUEUES_TEXT = (
    "Declare your own queues without a name: the broker then names them. The following queues are Moorage's own, and only its "
    "workers may read them:"
)
HEAD = """# Messages on the bus: reference

Every message that programs and people send and receive, field by field; the values in them; the verdicts; the queues; the rights of
applications; and with what each name in a message is compared. All of it is made from the code. [asyncapi.json](asyncapi.json) has the schemas of
all messages, also of those between workers. [The guide](bus.md) has programs, [the concepts](bus-concepts.md) the rules."""


def page() -> str:
    values = _values_in((*SENT_BY_USERS, *RECEIVED_BY_USERS))
    sections = (
        HEAD,
        "## Messages that you may send",
        *(_section(kind, _address(kind)) for kind in SENT_BY_USERS),
        "## Messages that you may receive",
        *(_section(kind, _address(kind)) for kind in RECEIVED_BY_USERS),
        "## Values inside these messages",
        *(_section(kind, "") for kind in values),
        verdicts.section(),
        "## Queues",
        QUEUES_TEXT,
        table(("queue", "takes"), ((f"`{queue.name}`", _bindings(queue.bindings)) for queue in QUEUES)),
        application_rights.section(),
        authority_table.section(),
        "",
    )
    return "\n\n".join(sections)


def asyncapi() -> dict[str, Any]:
    """All messages, each with its schema, exchange and routing key."""
    schemas, components = msgspec.json.schema_components(ALL, ref_template="#/components/schemas/{name}")
    names = {kind: schema["$ref"].rpartition("/")[2] for kind, schema in zip(ALL, schemas, strict=True)}
    channels = {type_of(kind): _channel(kind) for kind in ALL}
    sent_by_users = {type_of(kind) for kind in SENT_BY_USERS}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Moorage",
            "version": "1",
            "description": "An AMQP message is one JSON object, or several, one per line (application/x-ndjson). "
            "The page bus-reference of the docs has the same for people.",
        },
        "servers": {
            "broker": {
                "host": "localhost:5672",
                "protocol": "amqp",
                "protocolVersion": "0.9.1",
                "description": "RabbitMQ, prepared by `moor broker declare`; MOOR_BUS_URL names it.",
            }
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": {
            name: {
                "action": "receive" if name in sent_by_users else "send",
                "channel": {"$ref": f"#/channels/{name}"},
            }
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
    """In AsyncAPI a discriminator is only the name of the property; each variant has its value of it as a constant."""
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
    route = kind.ROUTE
    if route.kind is Kind.ANSWER:
        address, parameters = "{replyTo}", {"replyTo": {"description": "the question's reply_to"}}
    elif kind.SCOPE is Scope.CELL:
        address, parameters = f"{name}.{{cell}}", {"cell": {"description": "the name of a cell"}}
    elif kind.SCOPE is Scope.PROJECT:
        project = {"project": {"description": f"the message's project, `{NO_PROJECT}` if it has none"}}
        address, parameters = f"{name}.{{project}}", project
    else:
        address, parameters = name, {}
    exchange = {"name": route.exchange, "type": "topic", "durable": True}
    return {
        "address": address,
        "description": docstring_of(kind),
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        "parameters": parameters,
        "bindings": {"amqp": {"is": "routingKey", "exchange": exchange}},
    }


def _section(kind: type, address: str) -> str:
    """One message: its address, its docstring and its fields."""
    title = f"### `{type_of(kind)}`" if issubclass(kind, Message) else f"### {kind.__name__}"
    rows = [
        (
            f"`{field.encode_name}`",
            _type(field.type),
            _default(field),
            _meaning(kind, field),
        )
        for field in _fields(kind)
    ]
    fields = table(("field", "type", "default", "meaning"), rows)
    return "\n\n".join(part for part in (title, address, docstring_of(kind), fields) if part)


def _meaning(kind: type, field: inspect.Field) -> str:
    """The field's description: the message's own, which is also the help of a command's option, or the one in the table."""
    if isinstance(field.type, inspect.Metadata) and field.type.extra_json_schema:
        return str(field.type.extra_json_schema["description"])
    return FIELD_DESCRIPTIONS[kind.__name__, field.name]


def _address(kind: type[Message]) -> str:
    name = type_of(kind)
    route = kind.ROUTE
    if route.kind is Kind.ANSWER:
        return "An answer, to the key in the question's `reply_to`."
    key = {Scope.CELL: f"{name}.CELL", Scope.PROJECT: f"{name}.PROJECT"}.get(kind.SCOPE, name)
    return f"{route.kind.value.capitalize()}, exchange `{route.exchange}`, key `{key}`."


def _fields(kind: type) -> tuple[inspect.Field, ...]:
    known = inspect.type_info(kind)
    assert isinstance(known, inspect.StructType), f"{kind} has fields"
    return known.fields


def _values_in(kinds: Iterable[type[Message]]) -> tuple[type, ...]:
    """The structs inside messages, each once, in the order of their first use, without the variants of verdicts."""
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
            case inspect.Metadata(type=described):
                yield from within(described)
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
    """The type in words. Only the AsyncAPI document has its bounds."""
    if isinstance(type_, inspect.Metadata):
        type_ = type_.type
    match type_:
        case inspect.StructType(cls=cls):
            return _type_of_struct(cls)
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


def _type_of_struct(kind: type) -> str:
    if issubclass(kind, Message):
        return f"the message `{type_of(kind)}`"
    return kind.__name__ if inspect.type_info(kind).tag_field is None else "a verdict"  # type: ignore[attr-defined]


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty"
    if field.default is msgspec.NODEFAULT:
        # The field is msgspec.UNSET by default, which differs from null.
        return "unchanged"
    return "empty" if field.default in (None, "", ()) else f"`{msgspec.json.encode(field.default).decode()}`"


def _bindings(bindings: Iterable[Binding]) -> str:
    return ", ".join(f"`{each.pattern}` of `{each.exchange}`" for each in bindings)


if __name__ == "__main__":
    print(json.dumps(asyncapi(), indent=2))
