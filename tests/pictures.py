"""Makes the pictures of the dashboard's overview: `python -m tests.pictures [FOLDER]`, by default docs/pictures.

It starts a `moor up` of its own with two cells of 400 hosts and some bare-metal nodes, builds instances of several sizes, drains three
hosts, and lets a Chromium take the page: wide and light, narrow and dark. Look at them before you commit them, and make them smaller
by `pngquant --ext .png --force 128 FILE`.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from playwright.async_api import Page, ViewportSize, async_playwright

from bus.topology import user_of
from moor.client import Client, Flavor
from tests.servers.installed import Software, program_of
from tests.stories.moor.moor_process import Process, started

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
Scheme = Literal["light", "dark"]
PICTURES: tuple[tuple[str, ViewportSize, Scheme], ...] = (
    ("dashboard", {"width": 1280, "height": 1130}, "light"),
    ("dashboard-narrow", {"width": 390, "height": 844}, "dark"),
)


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="moor-") as home:
        fleet = ("--cells", ",".join(CELLS), "--hosts", "400", "--nodes", "12")
        async with started("up", *fleet, XDG_STATE_HOME=home) as process:
            url = await _dashboard_of(process)
            async with (
                Client(f"unix://{user_of('operator')}@{home}/moorage/bus.sock") as client,
                _pages(url) as pages,
            ):
                await _fill(client)
                for name, page in pages.items():
                    building = asyncio.create_task(_build(client, 8, 4096, 20, 30))
                    await page.wait_for_timeout(1000 * (LOOK_S + 1))
                    await page.screenshot(path=folder / f"{name}.png")
                    await building


async def _dashboard_of(process: Process) -> str:
    line = await process.until_printed("http://127.0.0.1")
    await process.until_printed("ready")
    return next(word.strip("<>.,") for word in line.split() if word.startswith("http://"))


async def _fill(client: Client) -> None:
    for vcpus, ram_mb, root_gb, count in SIZES:
        await _build(client, vcpus, ram_mb, root_gb, count)
    for host in DRAINED:
        await client.set_host(host, "draining", reason="new memory")


async def _build(client: Client, vcpus: int, ram_mb: int, root_gb: int, count: int) -> None:
    flavor = Flavor(name=f"of-{vcpus}", vcpus=vcpus, ram_mb=ram_mb, root_gb=root_gb)
    for start in range(0, count, BOOTS_AT_ONCE):
        request = await client.boot(flavor, count=min(BOOTS_AT_ONCE, count - start), name="web")
        await request.until_done()


@asynccontextmanager
async def _pages(url: str) -> AsyncIterator[dict[str, Page]]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program_of(Software.CHROMIUM), args=["--no-sandbox"]
        )
        pages = {}
        for name, size, scheme in PICTURES:
            context = await browser.new_context(viewport=size, color_scheme=scheme)
            pages[name] = await context.new_page()
            await pages[name].goto(url)
        yield pages
        await browser.close()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "pictures"
    asyncio.run(main(target))
