"""Dead letters in the dashboard: who looks at them sees why they died and from whom, changes nothing, and sees no secrets."""

import httpx
import pytest

from bus import message
from bus.addresses import broker_at
from bus.message import Parcel
from bus.topology import DEAD
from tests.contracts.stage import send
from tests.stories.moor.moor_process import moor
from tests.stories.moor.test_moor_dashboard import SCRIPT, a_cloud, page_with

pytestmark = pytest.mark.asyncio


async def test_the_pages_escape_what_strangers_sent_and_hide_secrets() -> None:
    async with a_cloud() as (environment, url, _), httpx.AsyncClient(base_url=url, timeout=30) as client:
        assert "No dead letters" in (await client.get("/dead")).text
        odd = Parcel(
            DEAD,
            SCRIPT,
            b'{"user_data": "hush", "name": "' + SCRIPT.encode() + b'"}',
            headers={message.REASON: SCRIPT, message.SENDER: SCRIPT, message.BURIED_AT: "no time"},
        )
        await send(broker_at(f"unix://{environment['XDG_STATE_HOME']}/moorage/bus.sock"), odd, odd)

        listed = await page_with(client, "/dead", "/dead/api/")
        assert SCRIPT not in listed
        handle = listed.partition("/dead/api/")[2].partition('"')[0]
        letter = (await client.get(f"/dead/api/{handle}")).text
        assert "&lt;script&gt;" in letter
        assert (SCRIPT in letter, "hush" in letter) == (False, False)
        for path in (f"/dead/none/{handle}", "/dead/api/none", "/dead/api/%3Cscript%3E"):
            gone = await client.get(path)
            assert (gone.status_code, "may have been replayed or deleted" in gone.text) == (404, True)

        listed = (await moor("dead", "list", "-o", "json", **environment)).out
        assert listed.count('"handle"') == 2
