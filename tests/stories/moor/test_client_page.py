"""docs/client.md: its programs do what the page says, as they are printed; and the reference has every method."""

import asyncio
import re
from functools import partial
from pathlib import Path

from bus.messages.build import InstanceState
from moor.client import Client, Flavor
from tests.stories.moor.moor_process import up
from tests.stories.test_examples import programs_of
from tests.stories.test_examples import run as run_of
from tests.stories.test_examples import start as start_of
from tools.pages import client_page

PAGE = Path(__file__).parents[3] / "docs" / "client.md"
HOST = "harbour-host-00001"
start = partial(start_of, page=PAGE)


async def run(program: str, url: str, *arguments: str) -> list[str]:
    """The lines that a program of the page prints."""
    return (await run_of(program, url, *arguments, page=PAGE)).splitlines()


def test_every_method_is_in_the_reference() -> None:
    methods = {name for kind in Client.__mro__ for name in client_page.methods_of(kind)}
    reference = client_page.page()
    assert not {name for name in methods if f"`{name}(" not in reference}


def test_every_program_begins_with_its_name() -> None:
    assert PAGE.read_text().count("```python") == len(programs_of(PAGE))


async def test_the_programs_do_what_the_page_says(home: Path) -> None:
    async with up(home, "--cells", "harbour", "--hosts", "4") as cloud:
        url = cloud.url
        async with Client(url) as moor:

            async def named(prefix: str) -> list[InstanceState]:
                return [each async for each in moor.list_instances() if each.name.startswith(prefix)]

            printed = await run("boot.py", url)
            webs = await named("web-")
            assert {f"{each.name} active {each.host}" for each in webs} <= set(printed)
            assert sorted(each.name for each in webs) == ["web-1", "web-2", "web-3"]

            (line,) = await run("without_asyncio.py", url)
            assert re.fullmatch(r"db runs on harbour-host-0000\d", line)
            assert [each.state for each in await named("db")] == ["deleted"]

            hosts, funnel, plan = await run("why_not.py", url)
            assert (hosts, plan) == ("no host among 4", "of a smaller one would fit: True")
            assert funnel.startswith(f"4 removed by capacity such as {HOST}: VCPU asked 500, free 12")
            assert [each.state for each in await named("giant")] == ["error"]

            assert await run("once.py", url) == ["the same instance: True", "['active']"]
            assert [each.name for each in await named("web")].count("web") == 1

            first, *rest = await run("resize.py", url)
            assert first.startswith("moved to harbour-host-")
            assert rest == ["active 2", "boot active", "resize confirmed"]

            (instance,) = await (await moor.boot(Flavor(vcpus=1), name="reads")).until_done()
            line = f"{instance.host}: the simulated guest of attempt 1 has started"
            reading = await start("console.py", url, "reads")
            assert reading.stdout is not None
            async with asyncio.timeout(60):
                assert await reading.stdout.readline() == f"{len(line) + 1} bytes: {line}\n".encode()
                # It follows until the instance is deleted.
                await moor.delete(instance.id)
                more, _ = await reading.communicate()
            assert more == b""
            assert reading.returncode == 0

            await (await moor.boot(Flavor(vcpus=1), name="moves", hosts=[HOST])).until_done()
            there = [each async for each in moor.list_instances(host=HOST, state="active")]
            assert there
            assert await run("drain.py", url, HOST) == [f"{len(there)} moved", "up"]
            assert [each async for each in moor.list_instances(host=HOST, state="active")] == []

            assert await run("stored.py", url) == [
                "['tiny']",
                "the build has failed in 1 of 1 instances: second: over the quota of project shop: VCPU limit 1, used 1, asked 1",
                "1 of 1",
            ]

            assert await run("errors.py", url) == [
                "flavor.vcpus | -4 | an amount is 0 to 2147483647",
                "host nowhere",
                "NotAllowed",
            ]
