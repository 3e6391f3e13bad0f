"""Answers are what a caller of oslo.messaging reads: the recorded answer has the same keys, and values of the same types."""

import json
from typing import Any

import pytest

from nova_bridge.envelope import (
    OSLO_REPLIES_REASON_MAX,
    RpcCall,
    RpcRequest,
    RpcVersion,
    no_such_method,
    no_valid_host,
    read_envelope,
    unsupported_version,
    write_failure,
    write_heartbeat,
    write_result,
)
from tests.unit.nova.recorded import answer_body, body_of, message_in

CALL = RpcCall("m1", "reply_1")
ASKED = RpcRequest("select_destinations", RpcVersion(4, 9), {})


def test_an_answer_is_the_recorded_one() -> None:
    recorded = message_in(answer_body())
    call = read_envelope(body_of("select_destinations")).call
    assert call is not None

    written = write_result(call, recorded["result"], recorded["_unique_id"])

    assert message_in(written) == recorded
    assert {**json.loads(written), "oslo.message": ""} == {**json.loads(answer_body()), "oslo.message": ""}


def test_a_sign_of_life_is_no_end() -> None:
    assert message_in(write_heartbeat(CALL, "u1")) == {
        "result": None,
        "failure": None,
        "ending": False,
        "_msg_id": "m1",
        "_unique_id": "u1",
    }


def test_a_failure_is_told_as_the_class_the_caller_makes_with_its_arguments() -> None:
    message = message_in(write_failure(CALL, no_valid_host("40 hosts, none with 8 VCPU free"), "u1"))

    assert message | {"failure": None} == message_in(write_result(CALL, None, "u1"))
    assert json.loads(message["failure"]) == {
        "class": "NoValidHost",
        "module": "nova.exception",
        "message": "No valid host was found. 40 hosts, none with 8 VCPU free",
        "tb": [],
        "args": ["No valid host was found. 40 hosts, none with 8 VCPU free"],
        "kwargs": {"reason": "40 hosts, none with 8 VCPU free", "code": 500},
    }


@pytest.mark.parametrize(
    ("failure", "module", "name", "word"),
    [
        (unsupported_version(ASKED, "4.5"), "oslo_messaging.rpc.dispatcher", "UnsupportedVersion", "4.9"),
        (no_such_method(ASKED), "oslo_messaging.rpc.dispatcher", "NoSuchMethod", "'select_destinations'"),
    ],
)
def test_each_failure_has_its_class(failure: Any, module: str, name: str, word: str) -> None:
    told = json.loads(message_in(write_failure(CALL, failure, "u1"))["failure"])

    assert (told["module"], told["class"]) == (module, name)
    assert word in told["message"]


def test_a_reason_is_cut_to_what_a_message_can_bear() -> None:
    assert len(write_failure(CALL, no_valid_host("x" * 10**6), "u1")) < 5 * OSLO_REPLIES_REASON_MAX
