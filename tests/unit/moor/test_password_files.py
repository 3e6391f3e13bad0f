"""Files of one password each, and new passwords."""

import os
import stat
from pathlib import Path

import pytest
import typer

from bus.addresses import ADDRESSES, Addresses
from kit.urls import read_secret
from moor.broker.broker_command import broker_variables
from moor.secret_files import ALL, PasswordFiles, files_of_passwords, passwords_of, with_login
from moor.settings import Settings

KNOWN = {"moor-a": "old a", "moor-b": "old b"}


def test_known_passwords_stay_and_new_users_get_one() -> None:
    made = passwords_of({"moor-a", "moor-c"}, KNOWN, None)

    assert made["moor-a"] == "old a"
    assert len(made["moor-c"]) == 32
    assert [*made] == ["moor-a", "moor-c"]


def test_new_passwords_are_for_the_named_users_or_for_all() -> None:
    one = passwords_of(KNOWN, KNOWN, ["moor-b"])
    everybody = passwords_of(KNOWN, KNOWN, [ALL])

    assert (one["moor-a"], one["moor-b"] == "old b") == ("old a", False)
    assert len({*everybody.values(), *KNOWN.values()}) == 4


def test_a_user_that_there_is_not_is_named_with_what_may_be_meant() -> None:
    with pytest.raises(typer.BadParameter, match=r"--rotate is 'moor-bb': .* did you mean moor-b"):
        passwords_of(KNOWN, KNOWN, ["moor-a", "moor-bb"])


def test_a_url_names_the_file_and_the_file_has_the_password(tmp_path: Path) -> None:
    files = files_of_passwords(tmp_path / "made here, too", "broker")
    url = files.login("amqps://root:r@h:1/v?cafile=/ca.pem&auth=external", "moor-a", "p@/:")

    assert url == (
        f"amqps://moor-a@h:1/v?cafile=/ca.pem&passwordfile={tmp_path}/made%20here%2C%20too/moor-a.broker"
    )
    assert ADDRESSES.read({"MOOR_BUS_URL": url}).bus_url == url
    assert files.write({"moor-a": "p@/:"}).endswith("written: moor-a")
    assert files.write({"moor-a": "p@/:"}).endswith("as it was")
    file = tmp_path / "made here, too" / "moor-a.broker"
    assert read_secret(str(file)) == "p@/:"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert files.write({"moor-a": "new", "moor-b": "x"}).endswith("written: moor-a, moor-b")
    assert read_secret(str(file)) == "new"


def test_a_url_with_a_file_gets_a_password_in_its_place() -> None:
    url = with_login("postgresql://u@h/d?passwordfile=/p&sslrootcert=/c", "moor", "x")

    assert url == "postgresql://moor:x@h/d?sslrootcert=/c"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_files_belong_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 12_345, 23_456)
    PasswordFiles(tmp_path, "database").write({"moor_a": "x"})

    written = (tmp_path / "moor_a.database").stat()
    assert (written.st_uid, written.st_gid) == (12_345, 23_456)


def test_a_place_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(typer.BadParameter, match=r"--password-dir is .*file"):
        files_of_passwords(tmp_path / "file", "broker")


def test_environment_files_then_have_no_password() -> None:
    addresses = Addresses(
        bus_url="amqp://root:r@api/", cell_bus_urls={"island": "amqp://root:r@isle/"}, cells=("island",)
    )
    roles = ("scheduler", "placement", "ironic", "operator")
    names = [f"moor-{each}" for each in roles]
    names += ["moor-conductor-island", "moor-compute-island"]
    found = broker_variables(
        Settings(addresses=addresses, data=Path("/")),
        {name: f"of-{name}" for name in names},
        PasswordFiles(Path("/p"), "broker"),
    )

    assert found["moor-scheduler"]["MOOR_CELL_BUS_URLS"] == (
        "island=amqp://moor-scheduler@isle/?passwordfile=/p/moor-scheduler.broker"
    )
    assert "of-moor" not in str(found)
