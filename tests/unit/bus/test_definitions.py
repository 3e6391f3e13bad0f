"""Users and rights for RabbitMQ, as data. Tests with the real broker show that they work."""

import base64
import hashlib
import json
import re

import pytest

from bus.definitions import SALT_BYTES, definitions_of, password_hash, rights_by_user
from bus.topology import objects_of
from tools.pages import rights as golden

CELLS = ("c1", "c2")
EXCHANGES = objects_of(CELLS).exchanges
PASSWORDS = {"moor-conductor-c1": "one", "moor-placement": "two"}


def test_every_role_is_a_user_and_a_cells_role_one_for_each_cell() -> None:
    assert set(rights_by_user(EXCHANGES, CELLS)) == {
        "moor-scheduler",
        "moor-placement",
        "moor-conductor-c1",
        "moor-conductor-c2",
        "moor-compute-c1",
        "moor-compute-c2",
        "moor-ironic",
        "moor-operator",
    }


def test_the_rights_are_those_of_the_golden_file() -> None:
    """Whoever changes rights sees them change there, user by user."""
    assert golden.FILE.read_text() == golden.text(), "python -m tools.pages"


def test_each_password_makes_a_user_with_the_rights_of_its_role() -> None:
    definitions = definitions_of(EXCHANGES, CELLS, PASSWORDS, salt=b"pepper", virtual_host="moor")

    assert [user["name"] for user in definitions["users"]] == ["moor-conductor-c1", "moor-placement"]
    rights = rights_by_user(EXCHANGES, CELLS)["moor-conductor-c1"]
    assert definitions["permissions"][0] == {
        "user": "moor-conductor-c1",
        "vhost": "moor",
        "configure": rights.configure,
        "write": rights.write,
        "read": rights.read,
    }


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


def test_the_same_question_has_the_same_answer() -> None:
    once, again = (definitions_of(EXCHANGES, CELLS, PASSWORDS, salt=b"pepper") for _ in range(2))

    assert once == again


def test_a_password_for_an_unknown_user_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no such user of the topology: moor-conductor-c9"):
        definitions_of(EXCHANGES, CELLS, {"moor-conductor-c9": "x"}, salt=b"pepper")
