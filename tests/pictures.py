"""Makes the pictures of the dashboard: `python -m tests.pictures [FOLDER]`, by default docs/pictures.

It starts a `moor up` of its own with two cells of 400 hosts and some bare-metal nodes. It builds instances of several sizes, empties hosts
by campaigns, and lets a Chromium take the pages. Look at them before you commit them, and make them smaller
by `pngquant --ext .png --force 128 FILE`.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urljoin

from playwright.async_api import Page, ViewportSize, async_playwright

from bus.messages.keeping import CampaignWork, MoveBudget
from bus.topology import user_of
from moor.client import Client, Flavor
from tests.servers.installed import Software, program_of
from tests.stories.moor.moor_process import Process, started
from tests.waiting import until

CELLS = ("harbour", "island")
# How many instances of each size: some hosts are empty, some full.
SIZES = (
    (127, 65536, 800, 20),
    (100, 65536, 600, 100),
    (64, 32768, 400, 250),
    (24, 16384, 100, 250),
    (8, 4096, 20, 100),
)
DRAINED = ("harbour-host-00007", "harbour-host-00112", "island-host-00056")
BOOTS_AT_ONCE = 5
# The lines of a page need some points: it is open while instances are built.
LOOK_S = 5.0
SHOWN = "harbour-host-00001"


class Picture(NamedTuple):
    """A page of the dashboard and how it is taken. In its path `INSTANCE` stands for the id of an instance."""

    name: str
    path: str
    size: ViewportSize
    scheme: Literal["light", "dark"] = "light"


PICTURES = (
    Picture("dashboard", "/", {"width": 1280, "height": 1130}),
    Picture("dashboard-narrow", "/", {"width": 390, "height": 844}, "dark"),
    Picture("dashboard-keeping", "/keeping", {"width": 1280, "height": 1000}),
    Picture("dashboard-instance", "/instances/INSTANCE", {"width": 1280, "height": 820}),
    Picture("dashboard-nodes", "/nodes", {"width": 1280, "height": 760}),
    Picture("dashboard-order", f"/orders/drain?host=harbour/{SHOWN}", {"width": 820, "height": 580}),
)


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="moor-") as home:
        fleet = ("--cells", ",".join(CELLS), "--hosts", "400", "--nodes", "12")
        async with started("up", *fleet, XDG_STATE_HOME=home) as process:
            url = await _dashboard_of(process)
            async with Client(f"unix://{user_of('operator')}@{home}/moorage/bus.sock") as client:
                await _fill(client)
                (shown, *_) = [each async for each in client.list_instances(host=f"harbour/{SHOWN}")]
                async with _pages(url, str(shown.id)) as pages:
                    building = asyncio.create_task(_build(client, 8, 4096, 20, 30))
                    await asyncio.sleep(LOOK_S + 1)
                    for name, page in pages.items():
                        await page.screenshot(path=folder / f"{name}.png")
                    await building


async def _dashboard_of(process: Process) -> str:
    """The address by which one browser may order, too."""
    line = await process.until_printed("to order by the dashboard")
    await process.until_printed("ready")
    return line.split()[-1]


async def _fill(client: Client) -> None:
    for vcpus, ram_mb, root_gb, count in SIZES:
        await _build(client, vcpus, ram_mb, root_gb, count)
    await client.place_hosts(
        (
            f"{cell}/{cell}-host-{number:05}",
            f"dc1/{cell}/row{(number - 1) // 100 + 1}/rack{(number - 1) // 20 + 1}",
        )
        for cell in CELLS
        for number in range(1, 401)
    )
    await client.set_budget(MoveBudget(name="racks", scope="domain", level=4, side="out", at_once=2))
    await client.set_budget(MoveBudget(name="nights", scope="project", per_hour=400, quiet=("22:00-22:01",)))
    work = CampaignWork(hosts=DRAINED, reason="new memory")
    await client.start_campaign(work, name="memory")
    await _emptied(client)
    row = CampaignWork(place="dc1/island/row2", at_once=6, guests_at_once=2, canary=2, reason="a new kernel")
    await client.start_campaign(row, name="kernel")


async def _emptied(client: Client) -> None:
    await until(
        lambda: client.show_campaign("memory"),
        "hosts are empty",
        lambda found: found.campaign.life == "done",
        within_s=60,
    )


async def _build(client: Client, vcpus: int, ram_mb: int, root_gb: int, count: int) -> None:
    flavor = Flavor(name=f"of-{vcpus}", vcpus=vcpus, ram_mb=ram_mb, root_gb=root_gb)
    for start in range(0, count, BOOTS_AT_ONCE):
        request = await client.boot(flavor, count=min(BOOTS_AT_ONCE, count - start), name="web")
        await request.until_done()


@asynccontextmanager
async def _pages(url: str, instance: str) -> AsyncIterator[dict[str, Page]]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program_of(Software.CHROMIUM), args=["--no-sandbox"]
        )
        # One browser may order. Its pages have what it was given then.
        first = await browser.new_context()
        await (await first.new_page()).goto(url)
        given = await first.storage_state()
        pages = {}
        for each in PICTURES:
            context = await browser.new_context(
                viewport=each.size, color_scheme=each.scheme, storage_state=given
            )
            pages[each.name] = await context.new_page()
            await pages[each.name].goto(urljoin(url, each.path.replace("INSTANCE", instance)))
        await pages["dashboard-order"].get_by_role("textbox").fill("a fan is loud")
        yield pages
        await browser.close()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "pictures"
    asyncio.run(main(target))
