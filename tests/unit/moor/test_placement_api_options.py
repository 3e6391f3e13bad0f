"""How flags configure the placement API, and the errors for invalid combinations."""

from pathlib import Path

import bcrypt
import pytest
import typer

from moor.placement.placement_api_options import ApiFlags, Auth, serving_of
from placement_worker.api.auth import (
    BasicAuthentication,
    BelievedToken,
    KeystoneAuthentication,
    NoAuthentication,
)

EVERYWHERE = "[::]:8780"


ACCOUNT = {
    "MOOR_OPENSTACK_KEYSTONE_URL": "https://cloud.example.com/identity",
    "MOOR_OPENSTACK_USER": "placement",
    "MOOR_OPENSTACK_PASSWORD": "known to both",
}
BY_KEYSTONE = ApiFlags(listen=EVERYWHERE, auth=Auth.KEYSTONE)


def users(directory: Path) -> Path:
    file = directory / "users"
    file.write_text(f"ann:{bcrypt.hashpw(b'x', bcrypt.gensalt(4)).decode()}\n")
    return file


def test_by_default_anyone_on_this_machine_is_an_administrator() -> None:
    serving = serving_of(ApiFlags())

    assert str(serving.listen) == "127.0.0.1:8780"
    assert isinstance(serving.auth, NoAuthentication)
    assert serving.tls is None


@pytest.mark.parametrize("auth", [Auth.NONE, Auth.NOAUTH2])
@pytest.mark.parametrize("listen", [EVERYWHERE, "192.0.2.7:8780", "cloud.example.com:8780"])
def test_access_for_anyone_from_other_machines_needs_a_flag(auth: Auth, listen: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"lets anyone in.*--allow-anyone"):
        serving_of(ApiFlags(auth=auth, listen=listen))

    assert str(serving_of(ApiFlags(auth=auth, listen=listen, allow_anyone=True)).listen) == listen


def test_each_kind_of_authentication_is_chosen_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(**flags: object) -> object:
        return serving_of(ApiFlags(listen=EVERYWHERE, **flags)).auth  # type: ignore[arg-type]

    assert isinstance(of(auth=Auth.BASIC, users=users(tmp_path)), BasicAuthentication)
    for variable, value in ACCOUNT.items():
        monkeypatch.setenv(variable, value)
    assert isinstance(serving_of(BY_KEYSTONE).auth, KeystoneAuthentication)
    assert isinstance(of(auth=Auth.NOAUTH2, allow_anyone=True), BelievedToken)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (ApiFlags(listen="8780"), "listen is '8780'"),
        (ApiFlags(auth=Auth.BASIC), "needs --users"),
        (ApiFlags(auth=Auth.BASIC, users=Path("/nowhere/users")), "/nowhere/users"),
        (
            BY_KEYSTONE,
            "needs MOOR_OPENSTACK_KEYSTONE_URL, .* MOOR_OPENSTACK_USER and MOOR_OPENSTACK_PASSWORD",
        ),
        (ApiFlags(policy="strict"), "policy is 'strict'"),
        (ApiFlags(prefix="placement"), "prefix is 'placement'"),
        (ApiFlags(tls_cert=Path("chain.pem")), "only one of --tls-cert and --tls-key"),
        (ApiFlags(tls_clients_ca=Path("ca.pem")), "tls-clients-ca is ca.pem, and without --tls-cert"),
        (ApiFlags(tls_cert=Path("/nowhere"), tls_key=Path("/nowhere")), "cannot be used"),
    ],
)
def test_invalid_combinations_are_refused_with_the_flag(flags: ApiFlags, why: str) -> None:
    with pytest.raises(typer.BadParameter, match=why):
        serving_of(flags)


def test_an_account_of_keystone_that_cannot_sign_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in (ACCOUNT | {"MOOR_OPENSTACK_CA_FILE": "/nowhere"}).items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(typer.BadParameter, match=r"openstack\.ca_file is '/nowhere'.*No such file"):
        serving_of(BY_KEYSTONE)

    monkeypatch.delenv("MOOR_OPENSTACK_PASSWORD")
    with pytest.raises(typer.BadParameter, match="this needs MOOR_OPENSTACK_PASSWORD or"):
        serving_of(BY_KEYSTONE)
