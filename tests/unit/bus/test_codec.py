"""Messages on the wire today must be readable tomorrow: golden files of every message, and the rules of compatibility."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar

import msgspec
import msgspec.inspect
import pytest
from msgspec import Meta, structs

from bus.codec import (
    CODEC,
    Codec,
    NewerVersion,
    attempts_of,
    encode,
    known_messages,
    lines_of,
    with_attempt_counted,
    with_attempts,
)
from bus.message import LINES, PLAIN, Envelope, Message, Parcel, StrictMessage, type_of
from bus.messages import ALL
from bus.messages.build import BuildRejected, InstancesFound
from bus.messages.cloud import ClassUse, Overview, WorkerHeard
from bus.messages.placement import ReleaseClaim
from bus.unreadable import Unreadable, unread_key
from engine.flavors import Flavor
from tests.unit.examples import CONSUMER, EXAMPLES, WHEN
from tests.unit.examples.hosts import BEAT
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
@pytest.mark.parametrize("far", FAR_MOMENTS)
def test_a_timestamp_out_of_range_is_refused_by_its_name(example: Message, far: str) -> None:
    golden = plain(file_of(example).read_bytes())
    places = [("sent_at", golden, "sent_at"), *moments_in(golden["message"])]

    for path, where, key in places:
        stood, where[key] = where[key], far
        read = CODEC.decode(msgspec.json.encode(golden))
        # In whatever form it is written.
        escaped = CODEC.decode(msgspec.json.encode(golden).replace(far.encode(), b"\\u003" + far.encode()))
        where[key] = stood

        for each in (read, escaped):
            assert isinstance(each, Unreadable), path
            assert (each.field, each.kind) == (path, type_of(example))
            assert datetime.fromisoformat(each.value) == datetime.fromisoformat(far)
            assert each.reason == f"{path} is {each.value}: must be in the years from 1970 to 8999"


def test_timestamps_inside_lists_of_a_message_are_checked() -> None:
    found = next(example for example in EXAMPLES if isinstance(example, InstancesFound))
    golden = plain(file_of(found).read_bytes())
    golden["message"]["instances"][-1]["changed_at"] = FAR_MOMENTS[0]

    read = CODEC.decode(msgspec.json.encode(golden))

    assert isinstance(read, Unreadable)
    assert read.field == f"instances[{len(golden['message']['instances']) - 1}].changed_at"


@pytest.mark.parametrize("near", ["1970-01-01T00:00:00+14:00", "8999-12-31T23:59:59-12:00"])
def test_any_year_from_1970_to_8999_is_accepted(near: str) -> None:
    golden = plain(file_of(RELEASE).read_bytes())
    golden["message"]["issued_at"] = near

    read = CODEC.decode(msgspec.json.encode(golden))

    assert isinstance(read, Envelope)
    assert isinstance(read.message, ReleaseClaim)
    moment = read.message.issued_at
    assert moment.astimezone(UTC) - timedelta(days=300) < moment.astimezone(UTC) + timedelta(days=300)


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


def test_an_unknown_field_is_found_inside_a_field_that_has_a_description() -> None:
    class Described(StrictMessage, frozen=True, tag="test.described"):
        size: Annotated[Flavor | None, Meta(description="the size")] = None
        sizes: Annotated[tuple[Flavor, ...], Meta(description="other sizes")] = ()

    for field, inside in (("size", '{"vcpu":1}'), ("sizes", '[{"vcpu":1}]')):
        found = unread_key(
            f'{{"message":{{"type":"test.described","{field}":{inside}}}}}'.encode(), Described
        )

        assert found is not None
        assert found.field.endswith(".vcpu")


def test_clients_and_operators_are_read_strictly_and_workers_are_not() -> None:
    """A worker may be of a later release than its reader, so unknown fields are ignored. A client's misspelt field must
    not make an order that is carried out by half.
    """
    people = {"application", "admin", "operator"}
    # Of workers above all; an operator's tools may send them, too.
    of_workers = {"remove", "destroy", "snapshot", "revisions", "members"}
    written_by_people = {type_of(kind) for kind in ALL if people & {*kind.ROUTE.by}} - of_workers

    assert {type_of(kind) for kind in ALL if kind.IS_STRICT} == written_by_people


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        ({"falvor": {}}, "falvor", "{}"),
        ({"flavor": {"vcpu": 4}}, "flavor.vcpu", "4"),
        ({"group": {"id": str(CONSUMER), "policy": "affinity", "max": 2}}, "group.max", "2"),
        ({"flavor": {"vcpus": "four"}}, "flavor.vcpus", "four"),
        ({"flavor": {"vcpus": 1.5}}, "flavor.vcpus", "1.5"),
        ({"flavor": {"vcpus": None}}, "flavor.vcpus", "null"),
        ({"flavor": []}, "flavor", "[]"),
        ({"request_id": "7"}, "request_id", "7"),
        ({"request_id": 7}, "request_id", "7"),
        ({"instance_ids": ["x"]}, "instance_ids[0]", "x"),
        ({"group": {"policy": "affinity"}}, "group.id", ""),
        ({"group": {"id": str(CONSUMER), "policy": "near"}}, "group.policy", "near"),
    ],
    ids=str,
)
def test_the_error_in_a_request_is_named(message: dict[str, object], field: str, value: str) -> None:
    given = {"request_id": str(CONSUMER), "type": "build.request"} | message
    read = CODEC.decode(msgspec.json.encode({"id": "mine", "message": given}))

    assert isinstance(read, Unreadable)
    assert (read.kind, read.id, read.field, read.value) == ("build.request", "mine", field, value)
    assert read.request_id == (None if field == "request_id" else CONSUMER)


def test_values_of_open_vocabularies_pass() -> None:
    golden = plain((FOLDER / "inventory.report.v1.json").read_bytes())
    golden["message"]["providers"][0]["traits"] = ["HW_CPU_OF_NEXT_YEAR"]
    golden["message"]["providers"][0]["inventories"] = {"QUBIT": {"total": 3}}

    assert isinstance(CODEC.decode(msgspec.json.encode(golden)), Envelope)


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


@pytest.mark.parametrize(
    ("line", "reason", "field", "value"),
    [
        (
            b'{"message":{"type":"instance.delete","instance":"%s"},"x":"a\xffb"}' % str(CONSUMER).encode(),
            "no UTF-8: byte 0xff at 94",
            "x",
            "a\ufffdb",
        ),
        (b'{"message":{"type":"snapshot"},"id":"\xff"}', "no UTF-8: byte 0xff at 37", "id", "\ufffd"),
        (b'{"message":{"type":"host.query","\xff":1}}', "no UTF-8: byte 0xff at 33", "\ufffd", "\ufffd"),
        (
            b'{"message":{"type":"host.query","name":"a\\u0000b"}}',
            "'name' contains the character NUL, which is not allowed",
            "name",
            r"a\0b",
        ),
        (
            b'{"message":{"type":"snapshot"},"id":"\\u0000"}',
            "'id' contains the character NUL, which is not allowed",
            "id",
            r"\0",
        ),
        (
            b'{"message":{"type":"host.query","x":{"\\u0000":1}}}',
            "'x.\\x00' contains the character NUL, which is not allowed",
            r"x.\0",
            r"\0",
        ),
        (
            b'{"message":{"type":"snapshot"},"attempts":1%s}' % (b"0" * 30),
            "Expected `int` <= 2147483647 - at `$.attempts`",
            "attempts",
            "1" + "0" * 30,
        ),
        (
            b'{"message":{"type":"snapshot"},"version":99999999999999999999}',
            "Expected `int` <= 2147483647 - at `$.version`",
            "version",
            "99999999999999999999",
        ),
        (
            b'{"message":{"type":"snapshot"},"sent_at":"2026-01-01T00:00:00"}',
            "Expected `datetime` with a timezone component - at `$.sent_at`",
            "sent_at",
            "2026-01-01T00:00:00",
        ),
        (b'{"message":{"type":"snapshot","x":%s}}' % (b"[" * 5_000), "nested too deep to be read", "", ""),
        (b'{"message":{"type":"snapshot","limit":1e999}}', "Number out of range", "limit", ""),
        (b'{"message":{"type":"snapshot","limit":"\\ud800 and so on"}}', "JSON is malformed", "", ""),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_impossible_texts_and_numbers_are_named(line: bytes, reason: str, field: str, value: str) -> None:
    read = CODEC.decode(line)

    assert isinstance(read, Unreadable)
    assert read.reason.startswith(reason)
    assert (read.field, read.value) == (field, value)
    answer = BuildRejected(request_id=None, field=read.field, value=read.value, reason=read.reason)
    assert isinstance(CODEC.decode(encode(Envelope(message=answer))), Envelope)


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


def test_a_backslash_before_what_looks_like_nul_is_only_a_backslash() -> None:
    read = CODEC.decode(b'{"message":{"type":"host.query","name":"a\\\\u0000"}}')

    assert isinstance(read, Envelope)


def test_an_error_is_described_briefly_however_large_the_value_is() -> None:
    much = b"x" * 200_000
    for line in (
        b'{"message":{"type":"' + much + b'"}}',
        b'{"message":{"type":"host.query","' + much + b'":1}}',
        b'{"message":{"type":"host.query","name":["' + much + b'"]}}',
        b'{"message":{"type":"snapshot"},"id":"\xff' + much + b'"}',
    ):
        read = CODEC.decode(line)

        assert isinstance(read, Unreadable)
        assert len(read.reason) + len(read.field) + len(read.value) + len(read.kind) < 3_000


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


def test_the_version_before_that_is_no_longer_read() -> None:
    read = NEXT_RELEASE.decode(b'{"version":0,"message":{"type":"lamp","candles":4}}')

    assert isinstance(read, Unreadable)
    assert "version 0 of 'lamp' is no longer read: the version now is 2" in read.reason


@pytest.mark.parametrize(
    "line",
    [
        b'{"message":{"type":"lamp"}}',
        b'{"message":{"type":"lamp","watts":{}}}',
        b'{"message":{"type":"lamp","watts":null}}',
        b'{"message":{"type":"lamp","watts":40},"x":"\xff"}',
        b'{"message":{"type":"lamp","watts":40},"id":"\\u0000"}',
        b'{"message":{"type":"lamp","watts":40,"x":%s1%s}}' % (b"[" * 2_000, b"]" * 2_000),
    ],
)
def test_an_upgrade_that_fails_makes_an_unreadable_message(line: bytes) -> None:
    assert isinstance(NEXT_RELEASE.decode(line), Unreadable)


def test_of_two_types_the_last_one_is_reported() -> None:
    """The codec looks for a message's type first, and JSON parsers take the last of two keys."""
    two = Codec([Lamp, type(RELEASE)])

    read = two.decode(b'{"version":1,"message":{"type":"lamp","lumen":3,"type":"release"}}')

    assert isinstance(read, Unreadable)


def test_a_message_that_is_put_back_keeps_its_unknown_fields() -> None:
    line = b'{"message":{"type":"snapshot","hint":[1,2]},"id":"a","attempts":2}'

    assert plain(with_attempt_counted(line)) == plain(line) | {"attempts": 3}
    assert attempts_of(with_attempt_counted(with_attempt_counted(line))) == 4
    assert attempts_of(with_attempts(line, 0)) == 0


def test_invalid_attempts_in_a_header_count_as_none() -> None:
    line = b'{"message":{"type":"snapshot"},"attempts":1%s}' % (b"0" * 30)

    assert (attempts_of(line), with_attempt_counted(line), with_attempts(line, 0)) == (0, line, line)


def test_a_line_that_cannot_be_read_goes_back_as_it_is() -> None:
    assert with_attempt_counted(b"{broken") == b"{broken"
    assert attempts_of(b"{broken") == 0


def test_a_parcel_of_lines_survives_a_broken_one_among_them() -> None:
    good = encode(Envelope(message=RELEASE))
    parcel = Parcel("e", "k", good + b'\n{"message":{"type":"rel\n\n' + good, content_type=LINES)

    assert len(lines_of(parcel)) == 3  # type: ignore[arg-type]
    assert [type_of(each.message) for each in known_messages(parcel, CODEC)] == ["release", "release"]


def test_one_plain_message_may_be_written_over_several_lines() -> None:
    pretty = msgspec.json.format(encode(Envelope(message=RELEASE)), indent=4)

    (message,) = known_messages(Parcel("e", "k", pretty, content_type=PLAIN), CODEC)
    assert message.message == RELEASE


def test_a_client_needs_nothing_but_the_message() -> None:
    line = (
        b'{"message":{"type":"release","cell":"c1","attempt":1,"issued_at":"2026-11-20T08:30:00Z",'
        b'"consumer":"' + str(CONSUMER).encode() + b'"}}'
    )

    assert isinstance(CODEC.decode(line), Envelope)


def test_counts_of_a_large_cloud_and_of_workers_that_run_for_long_outgrow_32_bits() -> None:
    many = 2**40
    beat = structs.replace(
        BEAT, handled={"q": many}, counts={"claims.claimed": many}, buried=many, stages={"boot": (many,)}
    )
    use = ClassUse(resource_class="MEMORY_MB", cell="c1", used=many, capacity=many)
    large = Overview(
        made_at=WHEN,
        scheduler="scheduler-1",
        workers=(WorkerHeard(beat=beat, heard_at=WHEN, life="up"),),
        uses=(use,),
    )

    assert CODEC.decode(encode(enveloped(large))) == enveloped(large)
