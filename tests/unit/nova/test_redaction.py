"""Bodies of Nova's messages without their secrets, for logs, recordings and dead letters."""

import json

import pytest

from nova_bridge.envelope import RefusedError, read_envelope, redacted
from tests.unit.nova.recorded import an_object, bodies, body_of, enveloped, message_in

# Users name traits, extra specs, resource classes and metadata, and may call them after secrets.
NAMED_BY_USERS = {
    "trait:CUSTOM_SECRET_ENCLAVE": "required",
    "trait:COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST": "forbidden",
    "resources:CUSTOM_TOKEN_RING": "1",
    "aggregate_instance_extra_specs:secret_zone": "blue",
    "capabilities:passwordless": "yes",
}


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


def a_request(**specs: object) -> bytes:
    message = message_in(body_of("select_destinations"))
    message["args"]["spec_obj"]["nova_object.data"]["flavor"]["nova_object.data"]["extra_specs"] = specs
    return enveloped(message | {"_context_auth_token": "HUSH", "_context_service_catalog": ["HUSH"]})


def test_what_users_have_named_after_a_secret_is_read_and_shown_as_it_is() -> None:
    body = a_request(**NAMED_BY_USERS)

    asked = read_envelope(body).args["spec_obj"]

    assert asked == message_in(body)["args"]["spec_obj"]
    assert message_in(redacted(body))["args"]["spec_obj"] == asked
    assert b"HUSH" not in redacted(body)


def test_a_request_keeps_nothing_of_its_context_but_who_asks() -> None:
    assert "HUSH" not in repr(read_envelope(a_request()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transport_url", "rabbit://nova:HUSH@host/"),
        ("database_connection", "mysql://nova:HUSH@host/cell1"),
        ("user_data", "HUSH"),
        ("key_data", "HUSH"),
        ("admin_password", "HUSH"),
        ("injected_files", [["/etc/shadow", "HUSH"]]),
        ("system_metadata", {"password_0": "HUSH"}),
        ("anything", "amqp://nova:HUSH@host/"),
    ],
)
def test_the_fields_in_which_nova_has_secrets_are_hidden_wherever_they_stand(
    field: str, value: object
) -> None:
    body = enveloped({"method": "m", "args": {"cell": an_object("CellMapping", "1.1", **{field: value})}})

    assert b"HUSH" not in redacted(body)
    assert "HUSH" not in str(RefusedError(f"cell.{field}", value, "it is unknown"))
