"""Environment files: what is written, what is kept, and what is refused."""

import stat
import subprocess
from pathlib import Path

import pytest
import typer

from bus.addresses import Addresses
from moor.broker.broker_command import broker_variables
from moor.secret_files import EnvironmentFile, environment_files, with_login
from moor.settings import Settings


def test_a_new_file_is_private_and_has_the_variables_in_order(tmp_path: Path) -> None:
    file = EnvironmentFile(tmp_path / "a.env", {"MOOR_B": "1", "MOOR_A": "2", "MOOR_C": ""})

    assert file.write() == "written: MOOR_B, MOOR_A"
    assert file.path.read_text() == "MOOR_B=1\nMOOR_A=2\n"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.write() == "as it was"
    assert [each.name for each in tmp_path.iterdir()] == ["a.env"]


def test_other_variables_comments_and_the_order_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.env"
    path.write_text("# mine\nMOOR_LOG_FORMAT=json\nMOOR_A=1\n\nMOOR_A=2\nMOOR_GONE=x")

    done = EnvironmentFile(path, {"MOOR_A": "3", "MOOR_NEW": "4", "MOOR_GONE": ""}).write()

    assert done == "changed: MOOR_A, MOOR_NEW, MOOR_GONE"
    assert path.read_text() == "# mine\nMOOR_LOG_FORMAT=json\n\nMOOR_A=3\nMOOR_NEW=4\n"


@pytest.mark.parametrize(
    "value", ["amqps://u:p@h/?cafile=/a/ca.pem&x=1", "a b", "a$HOME", "a#b", "~x;y", "%s"]
)
def test_a_shell_reads_the_value_that_was_written(value: str, tmp_path: Path) -> None:
    file = EnvironmentFile(tmp_path / "a.env", {"MOOR_A": value})
    file.write()

    read = subprocess.run(
        ["sh", "-c", '. "$1"; printf %s "$MOOR_A"', "sh", str(file.path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert read.stdout == value
    assert file.differing() == []


def test_another_value_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "b.env").write_text("MOOR_A=by hand\n")
    wanted = {"a": {"MOOR_A": "1"}, "b": {"MOOR_A": "secret"}}

    with pytest.raises(typer.BadParameter, match=r"b\.env: MOOR_A.*--replace-env") as refused:
        environment_files(tmp_path, wanted, replace=False)

    assert "secret" not in str(refused.value)
    assert not (tmp_path / "a.env").exists()
    for file in environment_files(tmp_path, wanted, replace=True):
        file.write()
    assert (tmp_path / "b.env").read_text() == "MOOR_A=secret\n"


def test_a_link_that_a_stranger_put_beside_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "a.env.new").symlink_to(elsewhere)

    EnvironmentFile(tmp_path / "a.env", {"MOOR_A": "1"}).write()

    assert not elsewhere.exists()


def test_a_place_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(typer.BadParameter, match=r"--env-dir is .*file"):
        environment_files(tmp_path / "file", {"a": {"MOOR_A": "1"}}, replace=False)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("amqp://h/", "amqp://moor-a:p%40%2F%3A@h/"),
        ("amqps://x:y@h:1/v%2Fh?cafile=/c.pem", "amqps://moor-a:p%40%2F%3A@h:1/v%2Fh?cafile=/c.pem"),
        ("postgresql+asyncpg:///db?host=/run/pg", "postgresql+asyncpg://moor-a:p%40%2F%3A@/db?host=/run/pg"),
        ("postgresql+asyncpg://u@[::1]:5/db", "postgresql+asyncpg://moor-a:p%40%2F%3A@[::1]:5/db"),
    ],
)
def test_a_url_gets_another_login_and_keeps_the_rest(url: str, wanted: str) -> None:
    assert with_login(url, "moor-a", "p@/:") == wanted


def test_a_worker_of_a_cell_learns_only_its_own_broker_and_one_above_all_of_them() -> None:
    addresses = Addresses(
        bus_url="amqp://root:r@api/",
        ironic_bus_url="amqp://root:r@metal/",
        ironic_url="http://admin:i@ironic:6385",
        ironic_groups={"rack": "island"},
        cell_bus_urls={"island": "amqp://root:r@isle/"},
        cells=("harbour", "island"),
    )
    users = ("scheduler", "placement", "ironic", "operator")
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
