"""oslo.messaging's envelope is read as a real Nova wrote it, and what is no envelope is refused by the field that is wrong."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nova_bridge.envelope import BODY_MAX, RefusedError, RpcCall, RpcCaller, RpcVersion, read_envelope
from nova_bridge.serving import NovaCall
from tests.unit.nova.recorded import body_of, enveloped, message_in

ASK: dict[str, Any] = {
    "method": "select_destinations",
    "version": "4.5",
    "args": {},
    "_msg_id": "m1",
    "_reply_q": "reply_1",
}


def test_a_recorded_call_is_read_with_the_address_of_its_answer() -> None:
    request = read_envelope(body_of("select_destinations"))

    assert (request.method, request.version, request.namespace) == (
        "select_destinations",
        RpcVersion(4, 5),
        "",
    )
    assert request.unique_id == "64c06f2bac5240b1a496390939074a99"
    assert request.call == RpcCall(
        "03fbb450c7674314b3347fcc83c18877", "reply_0ba3d21241324e0db0cd04e43d8cb299", heartbeat_s=90
    )
    assert request.caller == RpcCaller(
        request_id="req-ba42960b-ed6f-4041-901f-09cb4088cc75", project_id="p1", user_id="u1"
    )
    assert request.args == message_in(body_of("select_destinations"))["args"]


def test_a_caller_has_given_up_when_two_signs_of_life_have_not_come() -> None:
    request = read_envelope(body_of("select_destinations"))
    assert request.call is not None
    began = datetime(2026, 1, 1, tzinfo=UTC)
    call = NovaCall(
        request,
        request.call,
        received_at=began,
        heard_at=began + timedelta(seconds=60),
        waits=timedelta(seconds=600),
        is_redelivered=False,
    )
    assert call.ends_by == began + timedelta(seconds=60 + 2 * 90)


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        (b"\xff\xfe", "body", "these bytes are no JSON"),
        (b"", "body", "these bytes are no JSON"),
        (b"[" * 100_000, "body", "nested too deep"),
        (b" " * (BODY_MAX + 1), "body", f"at most {BODY_MAX} bytes"),
        (b"[]", "body", "it must be an object"),
        (b"{}", "oslo.version", "it must be a text"),
        (b'{"oslo.version": "2.0"}', "oslo.message", "it must be a text"),
        (b'{"oslo.version": "2.0", "oslo.message": {}}', "oslo.message", "it must be a text"),
        (b'{"oslo.version": "2.0", "oslo.message": "x"}', "oslo.message", "these bytes are no JSON"),
        (b'{"oslo.version": "2.0", "oslo.message": "\\ud800"}', "body", "these bytes are no JSON"),
        (enveloped([]), "oslo.message", "it must be an object"),
        (enveloped(ASK, "3.0"), "oslo.version", "this version of the envelope is unknown"),
        (enveloped(ASK, "2.1"), "oslo.version", "this version of the envelope is unknown"),
        (enveloped(ASK, "two"), "oslo.version", "it must be a version"),
        (enveloped(ASK, 2), "oslo.version", "it must be a text"),
    ],
)
def test_what_is_no_envelope_is_refused_with_the_field(body: bytes, field: str, reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_envelope(body)

    assert refused.value.field == field
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"method": None}, "method"),
        ({"method": ""}, "method"),
        ({"method": ["x"]}, "method"),
        ({"method": "x" * 256}, "method"),
        ({"version": 4.5}, "version"),
        ({"version": "4"}, "version"),
        ({"version": "-1.0"}, "version"),
        ({"version": "4.5\n"}, "version"),
        ({"args": []}, "args"),
        ({"namespace": 1}, "namespace"),
        ({"_unique_id": {}}, "_unique_id"),
        ({"_msg_id": 7}, "_msg_id"),
        ({"_reply_q": None}, "_reply_q"),
        ({"_reply_q": "conductor"}, "_reply_q"),
        ({"_reply_q": "reply_"}, "_reply_q"),
        ({"_reply_q": "reply_a b"}, "_reply_q"),
        ({"_reply_q": "reply_a\n"}, "_reply_q"),
        ({"_timeout": "180"}, "_timeout"),
        ({"_timeout": True}, "_timeout"),
        ({"_timeout": 0}, "_timeout"),
        ({"_timeout": 10**30}, "_timeout"),
        ({"_context_project_id": 5}, "_context_project_id"),
    ],
)
def test_a_wrong_field_of_a_message_is_refused_by_its_name(change: dict[str, object], field: str) -> None:
    read_envelope(enveloped(ASK))

    with pytest.raises(RefusedError) as refused:
        read_envelope(enveloped(ASK | change))

    assert refused.value.field == f"oslo.message.{field}"


def test_a_message_nested_deeper_than_novas_are_is_refused() -> None:
    deep: object = 1
    for _ in range(100):
        deep = {"a": deep}

    with pytest.raises(RefusedError, match="more than 64 levels deep"):
        read_envelope(enveloped(ASK | {"args": deep}))


@pytest.mark.parametrize(
    ("mine", "asked", "serves"),
    [((4, 5), (4, 5), True), ((4, 5), (4, 0), True), ((4, 5), (4, 6), False), ((4, 5), (3, 0), False)],
)
def test_a_minor_version_up_to_mine_is_served(
    mine: tuple[int, int], asked: tuple[int, int], *, serves: bool
) -> None:
    assert RpcVersion(*mine).can_serve(RpcVersion(*asked)) is serves
