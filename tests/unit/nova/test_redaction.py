"""Bodies of Nova's messages without their secrets, for logs, recordings and dead letters."""

import json

import pytest

from nova_bridge.envelope import redacted
from tests.unit.nova.recorded import bodies, message_in


@pytest.mark.parametrize("number", range(4))
def test_a_recorded_message_keeps_everything_but_its_secrets(number: int) -> None:
    body = bodies()[number]

    plain = message_in(redacted(body))

    assert b"TOKEN" not in redacted(body)
    assert b"PASSWORD" not in redacted(body)
    assert plain.get("method") == message_in(body).get("method")
    assert {*plain.get("args", {})} == {*message_in(body).get("args", {})}
    assert {key for key in plain if key.startswith("_context_")} <= {
        "_context_request_id",
        "_context_global_request_id",
        "_context_project_id",
        "_context_user_id",
        "_context_timestamp",
    }


@pytest.mark.parametrize("body", [b"SECRET", b'{"oslo.message": "SECRET"}', b"[" * 100_000, b"\xff"])
def test_of_what_cannot_be_read_only_the_length_is_told(body: bytes) -> None:
    assert json.loads(redacted(body)) == {"unreadable": len(body)}
