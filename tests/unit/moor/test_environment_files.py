"""Environment files and files of passwords: what is written, what is kept, what is refused, and that several commands change them at once."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import click
import pytest

from bus.addresses import ADDRESSES, Addresses
from kit.urls import read_secret
from moor.broker.broker_command import broker_variables
from moor.secret_files import (
    changes_credentials,
    environment_files,
    files_of_passwords,
    known_passwords,
    write_private,
)
from moor.settings import Settings


def test_another_value_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "b.env").write_text("MOOR_A=by hand\n")
    wanted = {"a": {"MOOR_A": "1"}, "b": {"MOOR_A": "secret"}}

    with pytest.raises(click.BadParameter, match=r"b\.env: MOOR_A.*--replace-env") as refused:
        environment_files(tmp_path, wanted, replace=False)

    assert "secret" not in str(refused.value)
    assert not (tmp_path / "a.env").exists()
    for file in environment_files(tmp_path, wanted, replace=True):
        file.write()
    assert (tmp_path / "b.env").read_text() == "MOOR_A=secret\n"


def test_a_worker_of_a_cell_learns_only_its_own_broker_and_one_above_all_of_them() -> None:
    addresses = Addresses(
        bus_url="amqp://root:r@api/",
        ironic_bus_url="amqp://root:r@metal/",
        ironic_url="http://admin:i@ironic:6385",
        ironic_groups={"rack": "island"},
        cell_bus_urls={"island": "amqp://root:r@isle/"},
        cells=("harbour", "island"),
    )
    users = ("scheduler", "placement", "ironic", "keeper", "operator")
    names = [f"moor-{user}" for user in users]
    names += [f"moor-{role}-{cell}" for role in ("conductor", "compute") for cell in addresses.cells]

    found = broker_variables(
        Settings(addresses=addresses, data=Path("/")), {name: f"of-{name}" for name in names}
    )

    assert sorted(found) == sorted(names)
    assert found["moor-conductor-island"] == {
        "MOOR_BUS_URL": "amqp://moor-conductor-island:of-moor-conductor-island@isle/",
        "MOOR_CELL": "island",
    }
    assert found["moor-compute-harbour"]["MOOR_BUS_URL"].endswith("@api/")
    assert found["moor-scheduler"] == {
        "MOOR_BUS_URL": "amqp://moor-scheduler:of-moor-scheduler@api/",
        "MOOR_CELLS": "harbour,island",
        "MOOR_CELL_BUS_URLS": "island=amqp://moor-scheduler:of-moor-scheduler@isle/",
    }
    assert found["moor-ironic"]["MOOR_IRONIC_BUS_URL"] == "amqp://moor-ironic:of-moor-ironic@metal/"
    assert found["moor-ironic"]["MOOR_IRONIC_GROUPS"] == "rack=island"
    assert "root" not in str(found)


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


MANY = 8


@changes_credentials
def add_user(name: str, *, credentials: Path | None) -> None:
    known = known_passwords(credentials)
    # Others have read the file by now, if they may.
    sleep(0.02)
    if credentials is not None:
        write_private(credentials, {**known, name: "secret"})


def test_no_password_is_lost_when_several_commands_add_one(tmp_path: Path) -> None:
    file = tmp_path / "credentials.toml"
    with ThreadPoolExecutor(MANY) as pool:
        list(pool.map(lambda number: add_user(f"user-{number}", credentials=file), range(MANY)))
    assert known_passwords(file) == {f"user-{number}": "secret" for number in range(MANY)}
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
