"""What people see of a dead letter's bytes: readable, and without secrets, whatever the bytes are."""

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
