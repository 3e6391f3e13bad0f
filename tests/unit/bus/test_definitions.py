"""Users and rights for RabbitMQ, as data. Tests with the real broker show that they work."""

import base64
import hashlib
import json
import re

import pytest

from bus.definitions import SALT_BYTES, definitions_of, password_hash
from bus.topology import objects_of
from tools.pages import rights as golden

CELLS = ("c1", "c2")
EXCHANGES = objects_of(CELLS).exchanges
PASSWORDS = {"moor-conductor-c1": "one", "moor-placement": "two"}


def test_the_rights_are_those_of_the_golden_file() -> None:
    """Whoever changes rights sees them change there, user by user."""
    assert golden.FILE.read_text() == golden.text(), "python -m tools.pages"


def test_every_exchange_has_topic_rights_for_every_user_since_without_them_any_key_is_allowed() -> None:
    definitions = definitions_of(EXCHANGES, CELLS, PASSWORDS, salt=b"pepper")

    judged = {(entry["user"], entry["exchange"]) for entry in definitions["topic_permissions"]}
    assert judged == {(user, exchange.name) for user in PASSWORDS for exchange in EXCHANGES}


def test_queues_that_users_declare_for_themselves_are_bounded_and_no_others() -> None:
    (policy,) = definitions_of(EXCHANGES, CELLS, PASSWORDS, salt=b"pepper", virtual_host="moor")["policies"]

    assert (policy["vhost"], policy["apply-to"]) == ("moor", "queues")
    assert set(policy["definition"]) == {"max-length", "max-length-bytes", "overflow", "expires"}
    assert re.search(policy["pattern"], "amq.gen-8Fb0aBcD")
    for queue in objects_of(CELLS).queues:
        assert not re.search(policy["pattern"], queue.name)


def test_a_password_is_kept_as_a_salted_hash_and_equal_ones_do_not_look_equal() -> None:
    stored = base64.b64decode(password_hash("moor-placement", "two", b"pepper"))

    salt, digest = stored[:SALT_BYTES], stored[SALT_BYTES:]
    assert digest == hashlib.sha256(salt + b"two").digest()
    assert password_hash("moor-scheduler", "two", b"pepper") != password_hash(
        "moor-placement", "two", b"pepper"
    )
    assert "two" not in json.dumps(definitions_of(EXCHANGES, CELLS, PASSWORDS, salt=b"pepper"))


def test_a_password_for_an_unknown_user_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no such user of the topology: moor-conductor-c9"):
        definitions_of(EXCHANGES, CELLS, {"moor-conductor-c9": "x"}, salt=b"pepper")
