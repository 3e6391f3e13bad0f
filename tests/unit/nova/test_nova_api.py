"""Nova's compute API is read page by page, and what it cannot say counts as silence and not as an answer."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from engine.inventories import AggregateId, ConsumerId
from kit.errors import CredentialsRefused, Unavailable, WrongAnswer
from nova_bridge import cloud_reading
from nova_bridge.cloud import CloudAggregate, ServerSeen, services_by_host
from nova_bridge.cloud_reading import CloudReader, NovaCells
from nova_bridge.databases import NovaDatabaseError, open_nova_database
from nova_bridge.importing.reading import nova_databases
from tests.nova.rows import NovaRows
from tests.nova.schema import NovaAddresses, sqlite_databases
from tests.nova.simulated_api import SimulatedNova


def ids(*numbers: int) -> list[ConsumerId]:
    return [ConsumerId(UUID(int=number)) for number in numbers]


async def asked(nova: SimulatedNova, *numbers: int) -> frozenset[ConsumerId]:
    api = nova.api()
    try:
        return await api.unknown(ids(*numbers))
    finally:
        await api.close()


# What Nova knows of instances and migrations


async def test_a_silent_cell_is_told_whether_by_its_hosts_or_by_its_servers() -> None:
    by_hosts, by_servers = SimulatedNova(), SimulatedNova()
    by_hosts.add_host(1, "h1")
    by_hosts.silence("h1")
    by_servers.servers = ids(*range(1, 9))
    by_servers.silent_servers = ids(30)

    for nova in (by_hosts, by_servers):
        with pytest.raises(Unavailable, match="silent"):
            await asked(nova, 50)


@pytest.mark.parametrize(
    ("status", "error"), [(500, Unavailable), (503, Unavailable), (403, CredentialsRefused)]
)
async def test_an_error_is_raised_and_never_read_as_no_servers(status: int, error: type[Exception]) -> None:
    nova = SimulatedNova()
    nova.status = status

    with pytest.raises(error, match=str(status)):
        await asked(nova, 50)


async def test_a_nova_that_knows_hardly_any_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_reading, "UNKNOWN_MAX", 2)

    with pytest.raises(WrongAnswer, match="is this the Nova"):
        await asked(SimulatedNova(), 1, 2, 3)


# What Nova knows of its hosts


@pytest.fixture
def addresses(tmp_path: Path) -> NovaAddresses:
    return sqlite_databases(tmp_path, ("cell1", "cell2"))


def reader_of(nova: SimulatedNova, addresses: NovaAddresses) -> CloudReader:
    cells = NovaCells(open_nova_database("nova_api_db", addresses.api))
    return CloudReader(nova.api(), cells, default_zone="nova")


async def test_all_of_a_nova_is_read(addresses: NovaAddresses) -> None:
    nova = SimulatedNova()
    with NovaRows(addresses) as rows:
        for number in range(1, 6):
            rows.add("api", "host_mappings", cell_id=2 if number < 4 else 3, host=f"h{number}")
    for number in range(1, 7):
        nova.add_host(number, f"H{number}", f"n{number}")
    nova.services[1] |= {
        "status": "disabled",
        "disabled_reason": "new disk",
        "state": "down",
        "forced_down": True,
    }
    nova.aggregates = [
        {
            "id": 1,
            "uuid": str(UUID(int=70)),
            "name": "fast",
            "hosts": ["H1", "H2"],
            "metadata": {"ssd": "true", "availability_zone": "z1"},
            "availability_zone": "z1",
        }
    ]
    reader = reader_of(nova, addresses)

    cloud = await reader.cloud()
    await reader.close()

    assert {each.name: each.zone for each in cloud.nodes.values()} == {
        **dict.fromkeys(("n1", "n2"), "z1"),
        **dict.fromkeys(("n3", "n4", "n5"), "nova"),
    }
    assert cloud.unplaced == ("H6",)
    assert len({each.cell for each in cloud.nodes.values()}) == 2
    assert [cell.name for cell in cloud.cells.values()] == ["cell1", "cell2"]
    disabled = services_by_host(cloud)["h2"]
    assert disabled.unusable_because == "its service is disabled: new disk"
    assert (disabled.is_forced_down, disabled.is_up) == (True, False)
    assert cloud.aggregates[AggregateId(UUID(int=70))] == CloudAggregate(
        id=AggregateId(UUID(int=70)),
        name="fast",
        hosts=("H1", "H2"),
        metadata={"ssd": "true", "availability_zone": "z1"},
    )


async def test_a_database_that_cannot_be_used_is_told_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "nothing.db").touch()
    cells = NovaCells(open_nova_database("nova_api_db", f"sqlite:///{tmp_path}/nothing.db"))

    for _ in range(2):
        with pytest.raises(Unavailable, match="is no Nova API database"):
            await cells.read()
    await cells.close()


UPGRADED = """
UPDATE alembic_version SET version_num = 'of_tomorrow';
ALTER TABLE cell_mappings ADD COLUMN colour TEXT;
ALTER TABLE cell_mappings DROP COLUMN transport_url;
DROP TABLE request_specs;
DROP TABLE flavor_extra_specs;
"""


def changed(addresses: NovaAddresses, script: str) -> None:
    with closing(sqlite3.connect(addresses.api.removeprefix("sqlite:///"))) as connection:
        connection.executescript(script)


@pytest.mark.parametrize("script", [UPGRADED, "DELETE FROM alembic_version;", "DROP TABLE alembic_version;"])
async def test_a_nova_that_was_upgraded_is_read_by_the_columns_that_are_used_and_told_once(
    addresses: NovaAddresses, caplog: pytest.LogCaptureFixture, script: str
) -> None:
    with NovaRows(addresses) as rows:
        rows.add("api", "host_mappings", cell_id=2, host="h1")
    changed(addresses, script)
    cells = NovaCells(open_nova_database("nova_api_db", addresses.api))

    read = [await cells.read() for _ in range(2)]
    await cells.close()

    assert [(each.name, {*once.of_hosts}) for once in read for each in once.cells[:1]] == [
        ("cell1", {"h1"})
    ] * 2
    (told,) = [each.getMessage() for each in caplog.records if "was not tried" in each.getMessage()]
    assert ("of_tomorrow" if script is UPGRADED else "missing") in told


async def test_a_nova_without_a_column_that_is_used_is_refused_by_its_name(addresses: NovaAddresses) -> None:
    changed(addresses, "ALTER TABLE cell_mappings RENAME COLUMN name TO title;")
    cells = NovaCells(open_nova_database("nova_api_db", addresses.api))

    with pytest.raises(Unavailable, match=r"it has no column cell_mappings\.name"):
        await cells.read()
    await cells.close()


async def test_an_import_reads_an_upgraded_nova_and_names_a_column_that_it_lacks(
    addresses: NovaAddresses,
) -> None:
    NovaRows(addresses).close()
    changed(addresses, "UPDATE alembic_version SET version_num = 'x'; DROP TABLE host_mappings;")
    async with nova_databases(addresses.api, addresses.cells.items(), addresses.placement) as databases:
        assert await databases.hosts() == []
    changed(addresses, "ALTER TABLE flavors DROP COLUMN root_gb;")

    with pytest.raises(NovaDatabaseError, match=r"it has no column flavors\.root_gb"):
        async with nova_databases(addresses.api, addresses.cells.items(), addresses.placement):
            pass


async def test_an_import_names_an_instance_that_two_cells_have(addresses: NovaAddresses) -> None:
    with NovaRows(addresses) as rows:
        theirs = rows.instance("cell1", "h1", 2)
        rows.add("cell2", "instances", uuid=theirs, deleted=0)
    async with nova_databases(addresses.api, addresses.cells.items(), addresses.placement) as databases:
        assert await databases.duplicates() == [theirs]


# One instance


async def test_the_fault_of_an_instance_in_error_is_read_with_its_time() -> None:
    nova = SimulatedNova()
    well, failed, odd = ids(1, 2, 3)
    nova.servers = [well, failed, odd]
    nova.faults[failed] = {
        "code": 500,
        "created": "2026-11-25T10:00:00Z",
        "message": "No valid host was found. ",
    }
    nova.faults[odd] = {"code": 500, "created": "yesterday", "message": "broken"}
    api = nova.api()

    assert await api.server(well) == ServerSeen()
    assert await api.server(failed) == ServerSeen(
        "No valid host was found. ", datetime(2026, 11, 25, 10, tzinfo=UTC)
    )
    assert await api.server(UUID(int=4)) is None
    with pytest.raises(WrongAnswer, match=r"server\.fault\.created is 'yesterday': it must be a time"):
        await api.server(odd)
    await api.close()
