"""What is on the wire today is read tomorrow: golden files of every message, and the rules of compatibility."""

import pathlib
from typing import Any, ClassVar

import msgspec
import pytest

from bus.broker import LINES, PLAIN, Parcel
from bus.codec import (
    CODEC,
    Codec,
    FromNewer,
    attempts_of,
    encode,
    known_messages,
    lines_of,
    put_back,
    revived,
)
from bus.message import Envelope, Message, type_of
from bus.messages import ALL
from bus.topology import BOOK_QUESTIONS, BOOK_SEARCHES, BOOK_WRITES
from bus.unreadable import Unreadable
from tests.unit.examples import CONSUMER, EXAMPLES, WHEN

RELEASE = next(example for example in EXAMPLES if type_of(example) == "release")
GOLDEN = pathlib.Path(__file__).parents[1] / "golden"

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=type_of)


def golden_file(message: Message | type[Message]) -> pathlib.Path:
    return GOLDEN / f"{type_of(message)}.v{message.VERSION}.json"


def enveloped(message: Message) -> Envelope[Message]:
    return Envelope(
        message=message,
        id="scheduler-1-17",
        version=message.VERSION,
        sent_at=WHEN,
        cause="client-1-3",
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        attempts=1,
    )


def plain(line: bytes) -> Any:
    return msgspec.json.decode(line)


def test_every_message_has_an_example_and_a_golden_file() -> None:
    assert {type_of(kind) for kind in ALL} == {type_of(example) for example in EXAMPLES}
    assert {path.name for path in GOLDEN.iterdir()} >= {golden_file(kind).name for kind in ALL}


@each_example
def test_a_message_is_written_as_its_golden_file_says(example: Message) -> None:
    assert plain(encode(enveloped(example))) == plain(golden_file(example).read_bytes())


@each_example
def test_a_golden_file_is_read_as_the_message_it_was(example: Message) -> None:
    assert CODEC.decode(golden_file(example).read_bytes()) == enveloped(example)


@each_example
def test_a_field_that_we_do_not_know_matters_only_where_people_write(example: Message) -> None:
    golden = plain(golden_file(example).read_bytes())
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
    """A worker may be of a later release than its reader; what a person misspells must not be an order half obeyed."""
    written_by_people = {
        *("build.request", "instance.delete", "instance.query", "host.query", "host.set"),
        *("application.query", "application.set"),
        *BOOK_WRITES,
        *BOOK_SEARCHES,
        *(key.removesuffix(".*") for key in BOOK_QUESTIONS),
    }

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
def test_what_is_wrong_in_a_request_is_named(message: dict[str, object], field: str, value: str) -> None:
    given = {"request_id": str(CONSUMER), "type": "build.request"} | message
    read = CODEC.decode(msgspec.json.encode({"id": "mine", "message": given}))

    assert isinstance(read, Unreadable)
    assert (read.kind, read.id, read.field, read.value) == ("build.request", "mine", field, value)
    assert read.request_id == (None if field == "request_id" else CONSUMER)


def test_values_of_open_vocabularies_pass() -> None:
    golden = plain((GOLDEN / "inventory.report.v1.json").read_bytes())
    golden["message"]["providers"][0]["traits"] = ["HW_CPU_OF_NEXT_YEAR"]
    golden["message"]["providers"][0]["inventories"] = {"QUBIT": {"total": 3}}

    assert isinstance(CODEC.decode(msgspec.json.encode(golden)), Envelope)


def test_an_unknown_type_is_unreadable_and_named() -> None:
    read = CODEC.decode(b'{"message":{"type":"make.coffee"}}')

    assert isinstance(read, Unreadable)
    assert read.reason == "unknown message type 'make.coffee'"


def test_a_higher_version_is_for_a_newer_reader() -> None:
    line = b'{"version":2,"message":{"type":"snapshot","of":"something else"}}'

    assert CODEC.decode(line) == FromNewer(line, "snapshot", 2)


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


class Lamp(Message, frozen=True, tag="lamp"):
    """As it is from version 2 on: brightness in lumen, where version 1 said watts."""

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


def test_an_upgrade_that_fails_makes_an_unreadable_message() -> None:
    assert isinstance(NEXT_RELEASE.decode(b'{"message":{"type":"lamp"}}'), Unreadable)


def test_a_message_that_is_put_back_keeps_what_we_do_not_know_of_it() -> None:
    line = b'{"message":{"type":"snapshot","hint":[1,2]},"id":"a","attempts":2}'

    assert plain(put_back(line)) == plain(line) | {"attempts": 3}
    assert attempts_of(put_back(put_back(line))) == 4
    assert attempts_of(revived(line)) == 0


def test_a_line_that_cannot_be_read_goes_back_as_it_is() -> None:
    assert put_back(b"{broken") == b"{broken"
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
