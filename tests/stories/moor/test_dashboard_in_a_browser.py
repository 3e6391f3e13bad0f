"""The dashboard in a real browser: it is drawn, live, fits a narrow screen, and is accessible; nothing is loaded from elsewhere."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Request, async_playwright

from bus import message
from bus.addresses import broker_at
from bus.message import Parcel
from bus.topology import DEAD
from tests.contracts.stage import send
from tests.servers.installed import chromium
from tests.stories.moor.moor_process import moor, moor_json
from tests.stories.moor.test_moor_dashboard import a_cloud

pytestmark = pytest.mark.asyncio

LONG_NAME = "a-name-without-any-space-" * 10
PAGES = (
    *("/", "/workers", "/instances", "/waiting", "/moves", "/hosts", "/hosts/harbour/harbour-host-00001"),
    *("/groups", "/aggregates", "/nodes", "/ring", "/dead", "/why?vcpus=8000", "/nowhere"),
)


@asynccontextmanager
async def a_browser() -> AsyncIterator[Browser]:
    program = chromium()
    assert program is not None, "no Chromium: make test installs it; or apt-get install chromium"
    async with async_playwright() as playwright:
        # Without a sandbox, since tests may run as root. It opens nothing but this machine's pages.
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def opened(
    browser: Browser, url: str, *, width: int = 1280, scheme: str = "light", bypass_csp: bool = False
) -> AsyncIterator[tuple[Page, list[str]]]:
    """A page, and what went wrong on it: errors of scripts, refusals of its policy, requests to elsewhere."""
    context = await browser.new_context(
        base_url=url,
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=bypass_csp,
    )
    page = await context.new_page()
    wrong: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith(url):
            wrong.append(request.url)

    page.on("request", note)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
    yield page, wrong
    await context.close()


async def test_tiles_are_drawn_and_lead_to_their_hosts_and_the_page_is_live() -> None:
    async with (
        a_cloud() as (environment, url, _),
        a_browser() as browser,
        opened(browser, url) as (page, wrong),
    ):
        await page.goto("/")
        tiles = page.locator("canvas.tiles")
        await tiles.wait_for()
        drawn = "canvas => canvas.getContext('2d').getImageData(4, 4, 1, 1).data[3]"
        assert await tiles.evaluate(drawn) == 255

        await moor_json("boot", "--vcpus", "1", "--name", "<img src=x onerror=alert(1)>", **environment)
        await page.get_by_text("1 active").wait_for()
        assert await page.locator("#stream").inner_text() == "live"

        await tiles.click(position={"x": 26, "y": 4})
        await page.get_by_role("heading", name="harbour-host-00003").wait_for()
        await page.goto("/instances")
        await page.locator("tbody a").click()
        await page.get_by_role("heading", name="Timeline").wait_for()
        assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_are_accessible_and_fit_a_narrow_screen(scheme: str) -> None:
    async with a_cloud("--nodes", "2") as (environment, url, _), a_browser() as browser:
        web = await moor_json("boot", "--vcpus", "1", "--name", "web", **environment)
        giant = await moor("boot", "--vcpus", "8000", "--name", "giant", "-o", "json", **environment)
        instances = [booted["instances"][0]["id"] for booted in (web, json.loads(giant.out))]
        await moor("group", "create", LONG_NAME, "--policy", "affinity", **environment)
        await moor("aggregate", "create", LONG_NAME, **environment)
        (group,) = await moor_json("group", "list", **environment)
        node, *_ = await moor_json("node", "list", **environment)
        odd = Parcel(DEAD, "placement.work", b"x" * 1000, headers={message.REASON: LONG_NAME})
        await send(broker_at(f"unix://{environment['XDG_STATE_HOME']}/moorage/bus.sock"), odd)
        (letter,) = await moor_json("dead", "list", **environment)
        more = (
            *(f"/instances/{id_}" for id_ in instances),
            f"/instances/{instances[0]}?now=1",
            f"/groups/{group['id']}",
            f"/aggregates/{LONG_NAME}",
            f"/nodes/{node['id']}",
            f"/dead/api/{letter['handle']}",
        )
        # The checks are a script of their own, which the policy of the pages would refuse.
        async with opened(browser, url, width=390, scheme=scheme, bypass_csp=True) as (page, _):
            for path in (*PAGES, *more):
                answer = await page.goto(path)
                assert answer is not None
                assert (path, answer.status) == (path, 404 if path == "/nowhere" else 200)
                if path == "/":
                    await page.locator("canvas.tiles").wait_for()
                found = (await Axe().run(page)).response["violations"]
                serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
                assert (path, serious) == (path, [])
                wide = await page.evaluate("document.documentElement.scrollWidth")
                assert (path, wide) == (path, 390)
