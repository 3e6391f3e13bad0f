"""Messages on the wire today must be readable tomorrow: golden files of every message, and the rules of compatibility."""

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import product
from typing import Any, ClassVar

import msgspec
import msgspec.inspect
import pytest

from bus.codec import (
    CODEC,
    Codec,
    NewerVersion,
    encode,
    known_messages,
    lines_of,
)
from bus.message import LINES, Envelope, Message, Parcel, type_of
from bus.messages import ALL
from bus.unreadable import Unreadable
from tests.unit.examples import EXAMPLES
from tools.pages.golden import FOLDER, enveloped, file_of

RELEASE = next(example for example in EXAMPLES if type_of(example) == "release")

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=type_of)


def plain(line: bytes) -> Any:
    return msgspec.json.decode(line)


def test_every_message_has_an_example_and_a_file_of() -> None:
    assert {type_of(kind) for kind in ALL} == {type_of(example) for example in EXAMPLES}
    assert {path.name for path in FOLDER.iterdir()} >= {file_of(kind).name for kind in ALL}


@each_example
def test_a_message_is_written_as_its_golden_file_says(example: Message) -> None:
    assert plain(encode(enveloped(example))) == plain(file_of(example).read_bytes())


@each_example
def test_a_golden_file_is_read_as_the_message_it_was(example: Message) -> None:
    assert CODEC.decode(file_of(example).read_bytes()) == enveloped(example)


FAR_MOMENTS = (
    *("0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z"),
    *("9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z", "9000-01-01T00:00:00+05:00"),
)


def moments_in(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each timestamp in a golden file, with its path."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        here = f"{path}[{key}]" if isinstance(value, list) else f"{path}.{key}".removeprefix(".")
        if isinstance(each, str) and re.match(r"\d{4}-\d\d-\d\dT", each):
            yield here, value, key
        yield from moments_in(each, here)


@each_example
def test_a_timestamp_out_of_range_is_refused_by_its_name(example: Message) -> None:
    golden = plain(file_of(example).read_bytes())
    places = [("sent_at", golden, "sent_at"), *moments_in(golden["message"])]

    for (path, where, key), far in product(places, FAR_MOMENTS):
        stood, where[key] = where[key], far
        read = CODEC.decode(msgspec.json.encode(golden))
        # In whatever form it is written.
        escaped = CODEC.decode(msgspec.json.encode(golden).replace(far.encode(), b"\\u003" + far.encode()))
        where[key] = stood

        for each in (read, escaped):
            assert isinstance(each, Unreadable), (path, far)
            assert (each.field, each.kind) == (path, type_of(example))
            assert datetime.fromisoformat(each.value) == datetime.fromisoformat(far)
            assert each.reason == f"{path} is {each.value}: must be in the years from 1970 to 8999"


@each_example
def test_an_unknown_field_is_refused_only_where_people_write(example: Message) -> None:
    golden = plain(file_of(example).read_bytes())
    golden["of_the_envelope_too"] = True
    assert CODEC.decode(msgspec.json.encode(golden)) == enveloped(example)

    golden["message"]["a_field_of_next_year"] = {"deep": [1]}
    read = CODEC.decode(msgspec.json.encode(golden))

    if example.IS_STRICT:
        assert isinstance(read, Unreadable)
        assert (read.field, read.value) == ("a_field_of_next_year", '{"deep":[1]}')
        assert "known are" in read.reason
    else:
        assert read == enveloped(example)


def test_clients_and_operators_are_read_strictly_and_workers_are_not() -> None:
    """A worker may be of a later release than its reader, so unknown fields are ignored. A client's misspelt field must
    not make an order that is carried out by half.
    """
    people = {"application", "admin", "operator"}
    # Of workers above all; an operator's tools may send them, too.
    of_workers = {"remove", "destroy", "snapshot", "revisions", "members"}
    written_by_people = {type_of(kind) for kind in ALL if people & {*kind.ROUTE.by}} - of_workers

    assert {type_of(kind) for kind in ALL if kind.IS_STRICT} == written_by_people


def test_an_unknown_type_is_unreadable_and_named() -> None:
    read = CODEC.decode(b'{"message":{"type":"make.coffee"}}')

    assert isinstance(read, Unreadable)
    assert read.reason == "unknown message type 'make.coffee'"


def test_a_higher_version_is_for_a_newer_reader() -> None:
    line = b'{"version":2,"message":{"type":"snapshot","of":"something else"}}'

    assert CODEC.decode(line) == NewerVersion(line, "snapshot", 2)


def test_a_wrong_field_is_named_with_its_value() -> None:
    read = CODEC.decode(b'{"message":{"type":"snapshot","limit":5000}}')

    assert isinstance(read, Unreadable)
    assert read.reason == "Expected `int` <= 1000 - at `$.message.limit`: got 5000"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"message":3}',
        b'{"message":{"type":7}}',
        b"[" * 5000,
        b'"' + b"x" * 99,
    ],
    ids=["empty", "cut", "list", "null", "not utf-8", "number", "number type", "deep", "open string"],
)
def test_anything_else_is_unreadable_and_never_an_exception(line: bytes) -> None:
    read = CODEC.decode(line)

    assert isinstance(read, Unreadable)
    assert read.reason


def test_every_number_that_a_message_can_have_fits_a_column() -> None:
    """No decoder of JSON puts a number of more than 64 bits into a message of ours, so no handler fails to store it."""
    numbers = {
        path: kind
        for message in ALL
        for path, kind in numbers_in(msgspec.inspect.type_info(message), type_of(message))
        # A sum of weights; nobody stores it.
        if path != "candidates.found.verdict.candidates[].preference"
    }

    assert len(numbers) > 500
    assert [path for path, kind in numbers.items() if kind.ge is None and kind.gt is None] == []
    assert [path for path, kind in numbers.items() if kind.le is None or kind.le > 2**63 - 1] == []


# Texts and lists of clients without a bound in their types, and what bounds them: the reading of requests
# (engine/requests/reading.py), which answers with more words; and what an operator alone sends, of which nothing else is made.
OF_REQUESTS = ("extra_specs", "image_properties", "image.properties", "SetImage.properties", "alternatives")
OF_OPERATORS = ("instance.mend.", "instance.adopt.reason", "snapshot.since")


def test_every_text_and_list_that_a_client_can_send_has_a_bound() -> None:
    """What has none is stored, answered, and copied into orders, which may then be too large for a parcel."""
    people = {"application", "admin", "operator"}
    sent = [kind for kind in ALL if people & {*kind.ROUTE.by}]
    found = {
        path
        for kind in (*sent, Envelope[Unreadable])
        for path in unbounded_in(msgspec.inspect.type_info(kind), getattr(kind, "__name__", "envelope"))
    }
    named = {type_of(kind): kind.__name__ for kind in sent}
    known = (
        *OF_REQUESTS,
        *(
            each.replace(name, named[name])
            for each in OF_OPERATORS
            for name in named
            if each.startswith(name)
        ),
        # As many as are asked for: at most 1,000.
        "instance_ids",
        "hosts",
        # Stands for any message.
        "Envelope.message",
    )

    assert len(found) > 20
    assert {path for path in found if not any(each in path for each in known)} == set()


@pytest.mark.parametrize("field", ["id", "cause", "trace"])
@pytest.mark.parametrize("length", [256, 250_000])
def test_a_long_text_in_an_envelope_is_refused_by_name(field: str, length: int) -> None:
    text = "x" * length
    for message in (b'{"type":"instance.query"}', b'{"type":"instance.active"}', b'{"type":"no.such"}'):
        read = CODEC.decode(
            b'{"message":' + message + b',"' + field.encode() + b'":"' + text.encode() + b'"}'
        )

        assert isinstance(read, Unreadable)
        assert len(read.id) <= 255
        if b"instance.query" in message:
            assert (read.field, read.value) == (field, text[:200])
            assert read.reason.startswith("Expected `str` of length <= 255")


def unbounded_in(
    kind: msgspec.inspect.Type, path: str, inside: frozenset[type] = frozenset()
) -> Iterator[str]:
    """The texts, lists and tables in this type that may have any length. A pattern with a last number is a bound."""
    inspect = msgspec.inspect
    match kind:
        case inspect.StrType(max_length=None, pattern=pattern) if not re.search(
            r"\d\}\)?\??\\Z$", pattern or ""
        ):
            yield path
        case inspect.StructType(cls=cls, fields=fields) if cls not in inside:
            for field in fields:
                yield from unbounded_in(field.type, f"{path}.{field.encode_name}", inside | {cls})
        case inspect.Metadata(type=described):
            yield from unbounded_in(described, path, inside)
        case inspect.UnionType(types=types):
            for each in types:
                yield from unbounded_in(each, path, inside)
        case inspect.VarTupleType(item_type=item, max_length=most):
            yield from () if most else (f"{path}[]",)
            yield from unbounded_in(item, f"{path}[]", inside)
        case inspect.DictType(key_type=key, value_type=value, max_length=most):
            yield from () if most else (f"{path}{{}}",)
            yield from unbounded_in(key, f"{path}{{key}}", inside)
            yield from unbounded_in(value, f"{path}{{}}", inside)
        case _:
            return


def numbers_in(
    kind: msgspec.inspect.Type, path: str
) -> Iterator[tuple[str, msgspec.inspect.IntType | msgspec.inspect.FloatType]]:
    match kind:
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            yield path, kind
        case msgspec.inspect.StructType(fields=fields):
            for field in fields:
                yield from numbers_in(field.type, f"{path}.{field.encode_name}")
        case msgspec.inspect.Metadata(type=described):
            yield from numbers_in(described, path)
        case msgspec.inspect.UnionType(types=types):
            for each in types:
                yield from numbers_in(each, path)
        case msgspec.inspect.VarTupleType(item_type=item):
            yield from numbers_in(item, f"{path}[]")
        case msgspec.inspect.DictType(value_type=value):
            yield from numbers_in(value, f"{path}{{}}")


class Lamp(Message, frozen=True, tag="lamp"):
    """The message from version 2 on: brightness in lumen, where version 1 had watts."""

    VERSION: ClassVar[int] = 2
    lumen: int


NEXT_RELEASE = Codec(
    [Lamp], upgrades={("lamp", 1): lambda message: {"type": "lamp", "lumen": message["watts"] * 12}}
)


def test_the_version_before_is_read_by_its_upgrade() -> None:
    read = NEXT_RELEASE.decode(b'{"id":"x","message":{"type":"lamp","watts":40}}')

    assert read == Envelope(message=Lamp(lumen=480), id="x", version=2)


@each_example
def test_no_sender_says_how_often_its_message_was_tried(example: Message) -> None:
    """A worker of 0.1.0 wrote that into the envelope."""
    line = encode(enveloped(example))

    for attempts in (b"20", b"-1", b"1.5", b"null", b'"many"', b"9" * 400, b"[{}]"):
        assert CODEC.decode(line[:-1] + b',"attempts":' + attempts + b"}") == enveloped(example), attempts


def test_a_parcel_of_lines_survives_a_broken_one_among_them() -> None:
    good = encode(Envelope(message=RELEASE))
    parcel = Parcel("e", "k", good + b'\n{"message":{"type":"rel\n\n' + good, content_type=LINES)

    assert len(lines_of(parcel)) == 3  # type: ignore[arg-type]
    assert [type_of(each.message) for each in known_messages(parcel, CODEC)] == ["release", "release"]
