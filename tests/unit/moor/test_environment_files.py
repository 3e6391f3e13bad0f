"""Environment files: what is written, what is kept, and what is refused."""

from pathlib import Path

import click
import pytest

from bus.addresses import Addresses
from moor.broker.broker_command import broker_variables
from moor.secret_files import environment_files
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
