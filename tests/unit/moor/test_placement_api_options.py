"""Services over HTTP do not start by flags that contradict each other, or that let in anyone from other machines."""

import pytest
from click.testing import CliRunner

from moor.commands import app

KEYSTONE = {
    "MOOR_OPENSTACK_KEYSTONE_URL": "https://cloud.example.com/identity",
    "MOOR_OPENSTACK_USER": "placement",
    "MOOR_OPENSTACK_PASSWORD": "known to both",
    "MOOR_OPENSTACK_CA_FILE": "/nowhere",
}


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--listen 8780", "listen is '8780'"),
        *(
            (f"--auth {auth} --listen {listen}", "lets anyone in")
            for auth in ("none", "noauth2")
            for listen in ("[::]:8780", "192.0.2.7:8780", "cloud.example.com:8780")
        ),
        ("--auth basic", "needs --users"),
        ("--auth basic --users /nowhere/users", "/nowhere/users"),
        ("--auth keystone", "openstack.ca_file is '/nowhere'"),
        ("--policy strict", "policy is 'strict'"),
        ("--prefix placement", "prefix is 'placement'"),
        ("--tls-cert chain.pem", "only one of --tls-cert and --tls-key"),
        ("--tls-clients-ca ca.pem", "and without --tls-cert"),
        ("--tls-cert /nowhere --tls-key /nowhere", "cannot be used"),
    ],
)
def test_wrong_flags_are_named_before_anything_is_served(flags: str, why: str) -> None:
    words = [
        "run",
        "placement-api",
        "--bus",
        "unix:///nowhere/bus.sock",
        "--db",
        "sqlite:///nowhere",
        *flags.split(),
    ]
    ran = CliRunner(env={**KEYSTONE, "COLUMNS": "300"}).invoke(app, words)

    assert (ran.exit_code, why in " ".join(ran.output.replace("│", " ").split())) == (2, True), ran.output
