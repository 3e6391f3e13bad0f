"""`moor nova import` from MariaDB, by a user that may only read. Nova's own migrations make the databases."""

import tempfile
from pathlib import Path

import pytest
from msgspec import structs

from nova_bridge.databases import NovaDatabaseError, open_nova_database
from tests.nova.mariadb import READER, private_mariadb
from tests.nova.rows import SMALL, NovaRows
from tests.nova.schema import sqlite_databases
from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = [
    pytest.mark.asyncio,
    # Nova and Placement are installed first; that takes minutes.
    pytest.mark.timeout(900),
]

HOST = "harbour-host-00001"


async def test_a_host_is_taken_over_and_given_back_by_a_user_that_may_only_read() -> None:
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        home = Path(place)
        files = sqlite_databases(home / "nova", ("harbour",))
        with NovaRows(files) as nova:
            nova.flavor(SMALL)
            nova.host("harbour", HOST)
            nova.disable("harbour", HOST)
            for number in range(3):
                nova.instance("harbour", HOST, number, display_name=f"größe-{number}")
        environment = {"XDG_STATE_HOME": place}
        with private_mariadb() as server:
            server.fill(files, home)
            addresses = server.addresses_of(("harbour",))
            async with started("up", "--cells", "harbour", "--hosts", "2", **environment) as up:
                await up.until_printed("ready")
                wrong = server.addresses_of(("harbour",), password="not-this-one")  # noqa: S106 - it is wrong
                refused = await moor("nova", "import", *wrong.arguments, **environment)
                assert (refused.code, "not-this-one" in refused.err) == (1, False)
                assert f"Access denied for user '{READER}'" in " ".join(refused.err.split())

                ran = await moor("nova", "import", *addresses.arguments, **environment)
                assert ran.code == 0, ran.out + ran.err
                names = {each["name"] for each in await moor_json("list", **environment)}
                assert names == {"größe-0", "größe-1", "größe-2"}
                verified = await moor("nova", "import", *addresses.arguments, "--verify", **environment)
                assert verified.code == 0, verified.out
                back = await moor("nova", "import", *addresses.arguments, "--give-back", HOST, **environment)
                assert back.code == 0, back.out
                assert (await moor("audit", "--settle", "0", **environment)).code == 0
            # Even a user that may write everything does not, by this command.
            of_root = server.addresses_of(("harbour",), user="root", password="")
            database = open_nova_database("--api-db", structs.replace(of_root).api)
            with pytest.raises(NovaDatabaseError, match="READ ONLY"):
                async with database.reading() as reading:
                    await reading.rows("DELETE FROM flavors")
            await database.close()
