"""`moor nova import` from MariaDB, by a user that may only read. Nova's own migrations make the databases."""

from pathlib import Path

import pytest

from nova_bridge.databases import NovaDatabaseError, open_nova_database
from tests.nova.mariadb import READER, private_mariadb
from tests.nova.rows import SMALL, NovaRows
from tests.nova.schema import sqlite_databases
from tests.stories.moor.moor_process import up

pytestmark = [
    # Nova and Placement are installed first; that takes minutes.
    pytest.mark.timeout(900),
]

HOST = "harbour-host-00001"


async def test_a_host_is_taken_over_and_given_back_by_a_user_that_may_only_read(home: Path) -> None:
    files = sqlite_databases(home / "nova", ("harbour",))
    with NovaRows(files) as nova:
        nova.flavor(SMALL)
        nova.host("harbour", HOST)
        nova.disable("harbour", HOST)
        for number in range(3):
            nova.instance("harbour", HOST, number, display_name=f"größe-{number}")
    with private_mariadb() as server:
        server.fill(files, home)
        addresses = server.addresses_of(("harbour",))
        async with up(home, "--cells", "harbour", "--hosts", "2") as cloud:
            wrong = server.addresses_of(("harbour",), password="not-this-one")  # noqa: S106 - it is wrong
            told = f"Access denied for user '{READER}'"
            refused = await cloud.says(1, told, "nova", "import", *wrong.arguments)
            assert "not-this-one" not in refused.err

            await cloud.says(0, "", "nova", "import", *addresses.arguments)
            assert {each["name"] for each in await cloud.json("list")} == {"größe-0", "größe-1", "größe-2"}
            await cloud.says(0, "", "nova", "import", *addresses.arguments, "--verify")
            await cloud.says(0, "", "nova", "import", *addresses.arguments, "--give-back", HOST)
            await cloud.says(0, "", "audit", "--settle", "0")
        # Even a user that may write everything does not, by this command.
        of_root = server.addresses_of(("harbour",), user="root", password="").api
        database = open_nova_database("--api-db", of_root)
        with pytest.raises(NovaDatabaseError, match="READ ONLY"):
            async with database.reading() as reading:
                await reading.rows("DELETE FROM flavors")
        await database.close()
