"""Answers are what a caller of oslo.messaging reads: the recorded answer has the same keys, and values of the same types."""

import json

from nova_bridge.envelope import (
    RpcCall,
    no_valid_host,
    read_envelope,
    write_failure,
    write_result,
)
from tests.unit.nova.recorded import answer_body, body_of, message_in

CALL = RpcCall("m1", "reply_1")


def test_an_answer_is_the_recorded_one() -> None:
    recorded = message_in(answer_body())
    call = read_envelope(body_of("select_destinations")).call
    assert call is not None

    written = write_result(call, recorded["result"], recorded["_unique_id"])

    assert message_in(written) == recorded
    assert {**json.loads(written), "oslo.message": ""} == {**json.loads(answer_body()), "oslo.message": ""}


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
