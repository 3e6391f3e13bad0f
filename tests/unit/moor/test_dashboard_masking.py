"""What people see of a dead letter's bytes: readable, and without secrets, whatever the bytes are."""

import json

import pytest

from moor.dashboard.letters import masked


@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "web", "user_data": "hush \\" hush", "cut',
        b'{"name": "web", "admin_password": "hush hu',
        b'{"name": "web",\n "secret" : 77hush, "x": 1',
        b'{"url": "amqp://user:hush@host/"}',
        b'broken: amqp://user:hush@host/ "name": "web"',
    ],
)
def test_secrets_of_a_broken_body_are_hidden_too(body: bytes) -> None:
    assert "hush" not in masked(body)


@pytest.mark.parametrize(
    "field",
    [
        *("password", "admin_password", "adminPass", "admin_pass", "os_auth_token", "auth-token", "secret"),
        *("clientSecret", "credentials", "private_key", "user_data", "userData", "config_drive", "TOKEN"),
    ],
)
def test_the_value_of_a_secret_field_is_hidden(field: str) -> None:
    assert "hush" not in masked(json.dumps({"build": [{field: ["hush"]}]}).encode())
    assert "hush" not in masked(b'{"%s": "hush", "cut' % field.encode())


def test_names_that_users_give_are_shown_also_if_they_are_called_after_a_secret() -> None:
    named = {
        "trait:CUSTOM_SECRET_ENCLAVE": "required",
        "trait:COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST": "forbidden",
        "resources:CUSTOM_TOKEN_RING": "1",
        "CUSTOM_TOKEN": 2,
        "secret_zone": "blue",
        "passengers": "7",
    }
    body = json.dumps({"flavor": {"extra_specs": named}})

    assert json.loads(masked(body.encode())) == json.loads(body)
    assert masked(body[:-2].encode()) == body[:-2]
