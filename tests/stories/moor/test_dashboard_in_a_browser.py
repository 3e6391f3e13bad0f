"""The dashboard in a real browser: it is drawn, live, works by the keyboard alone, fits a narrow screen, and is accessible; nothing is
loaded from elsewhere.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Request, async_playwright

from bus import message
from bus.addresses import broker_at
from bus.message import Parcel
from bus.topology import DEAD
from tests.contracts.stage import send
from tests.servers.installed import Software, program_of
from tests.stories.moor.moor_process import Up
from tests.stories.moor.test_moor_dashboard import HOST, a_cloud, printed_address
from tests.waiting import until

LONG_NAME = "a-name-without-any-space-" * 10
PAGES = (
    *("/", "/workers", "/instances", "/waiting", "/moves", "/hosts", "/hosts/harbour/harbour-host-00001"),
    *("/groups", "/aggregates", "/nodes", "/ring", "/dead", "/why?vcpus=8000", "/nowhere"),
    *("/keeping", "/campaigns?ended=1", "/movements?ended=1"),
)


@asynccontextmanager
async def a_browser() -> AsyncIterator[Browser]:
    program = program_of(Software.CHROMIUM)
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


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until the link, button or field with this text has the focus."""
    focused = (
        "(document.activeElement.textContent || '') + (document.activeElement.labels?.[0]?.textContent || '')"
    )
    for _ in range(60):
        await page.keyboard.press("Tab")
        if name in await page.evaluate(focused):
            return
    raise AssertionError(f"{name} is not reached by Tab")


async def test_tiles_are_drawn_the_page_is_live_and_an_operator_orders_by_the_keyboard_alone(
    home: Path,
) -> None:
    async with (
        a_cloud(home) as (cloud, client),
        a_browser() as browser,
        opened(browser, str(client.base_url)) as (page, wrong),
    ):
        await page.goto("/")
        tiles = page.locator("canvas.tiles")
        await tiles.wait_for()
        drawn = "canvas => canvas.getContext('2d').getImageData(4, 4, 1, 1).data[3]"
        assert await tiles.evaluate(drawn) == 255

        await cloud.json("boot", "--vcpus", "1", "--name", "<img src=x onerror=alert(1)>")
        await page.get_by_text("1 active").wait_for()
        assert await page.locator("#stream").inner_text() == "live"

        await tiles.click(position={"x": 26, "y": 4})
        await page.get_by_role("heading", name="harbour-host-00003").wait_for()
        await page.goto("/instances")
        await page.locator("tbody a").click()
        await page.get_by_role("heading", name="Timeline").wait_for()

        booted = await cloud.json("boot", "--vcpus", "1", "--count", "6", "--name", "web")
        id_ = next(each["id"] for each in booted["instances"] if each["host"] == HOST)
        await page.goto(printed_address(cloud))
        await page.get_by_role("button", name="Log out").wait_for()
        assert "token" not in page.url

        await page.goto(f"/hosts/harbour/{HOST}")
        await tab_to(page, "Drain it")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name=f"Drain harbour/{HOST}?").wait_for()
        await tab_to(page, "Why?")
        await page.keyboard.type("a fan is loud")
        await tab_to(page, "Drain it: move")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name=f"Drain harbour/{HOST} done").wait_for()
        await page.get_by_role("link", name="How far it is").wait_for()
        await until(partial(ended, cloud), "the campaign has ended", itemgetter("ended_at"))

        # Back and again: the form that was sent is not sent twice.
        await page.go_back()
        await page.get_by_role("heading", name=f"Drain harbour/{HOST}?").wait_for()
        await page.goto(f"/instances/{id_}")
        await tab_to(page, "Delete it")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Delete web").wait_for()
        await tab_to(page, "Delete it")
        await page.keyboard.press("Enter")
        await page.get_by_text("The instance is delet").wait_for()
        await page.goto(f"/instances/{id_}")
        await page.get_by_text("by moor-operator for admin").first.wait_for()

        await tab_to(page, "Log out")
        await page.keyboard.press("Enter")
        await page.get_by_text("only reads").wait_for()
        await page.goto(f"/hosts/harbour/{HOST}")
        assert await page.get_by_text("Drain it").count() == 0
        assert wrong == []


async def ended(cloud: Up) -> dict[str, Any]:
    campaign: dict[str, Any]
    (campaign,) = await cloud.json("campaign", "list", "--all")
    return campaign


async def test_the_page_of_keeping_is_live_and_a_tile_of_a_domain_opens_its_host(home: Path) -> None:
    async with (
        a_cloud(home) as (cloud, client),
        a_browser() as browser,
        opened(browser, str(client.base_url)) as (page, wrong),
    ):
        await cloud.json("boot", "--vcpus", "1", "--count", "6", "--name", "web")
        await page.goto("/keeping")
        await page.get_by_text("No campaign goes on.").wait_for()
        quiet = ("--quiet", "00:00-12:00", "--quiet", "12:00-00:00")
        await cloud.json("budget", "set", "always", "--scope", "cloud", *quiet)
        await cloud.json("campaign", "start", "drain", HOST, "--name", "kernel", "--reason", "a fan is loud")
        await page.get_by_role("heading", name="kernel").wait_for()
        await page.get_by_text("budget always: quiet until").first.wait_for()
        await cloud.json("budget", "delete", "always")
        campaign = await until(partial(ended, cloud), "it has ended", itemgetter("ended_at"))
        assert campaign["life"] == "done"
        await page.get_by_text("No campaign goes on.").wait_for()
        setting = (await cloud.json("host", "show", HOST))["setting"]
        assert (setting["mode"], setting["reason"]) == ("draining", "a fan is loud (campaign kernel)")
        assert all(each["host"] != HOST for each in await cloud.json("list"))

        # The hosts have no places.
        tiles = page.locator("canvas.tiles")
        await tiles.focus()
        await page.keyboard.press("ArrowRight")
        await page.get_by_text("host 2 of").wait_for()
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="harbour-host-00002").wait_for()
        assert wrong == []


async def test_pages_are_accessible_and_fit_a_narrow_screen(home: Path) -> None:
    async with a_cloud(home, "--nodes", "2") as (cloud, client), a_browser() as browser:
        web = await cloud.json("boot", "--vcpus", "1", "--name", "web")
        giant = await cloud.run("boot", "--vcpus", "8000", "--name", "giant", "-o", "json")
        instances = [booted["instances"][0]["id"] for booted in (web, json.loads(giant.out))]
        await cloud.run("group", "create", LONG_NAME, "--policy", "affinity")
        await cloud.run("aggregate", "create", LONG_NAME)
        (group,) = await cloud.json("group", "list")
        node, *_ = await cloud.json("node", "list")
        await cloud.json("budget", "set", "hosts", "--scope", "host", "--side", "out", "--at-once", "2")
        begun = await cloud.json("campaign", "start", "drain", HOST, "--name", LONG_NAME[:200])
        odd = Parcel(DEAD, "placement.work", b"x" * 1000, headers={message.REASON: LONG_NAME})
        await send(broker_at(cloud.url), odd)
        (letter,) = await cloud.json("dead", "list")
        more = (
            *(f"/instances/{id_}" for id_ in instances),
            f"/instances/{instances[0]}?now=1",
            f"/groups/{group['id']}",
            f"/aggregates/{LONG_NAME}",
            f"/nodes/{node['id']}",
            f"/campaigns/{begun['campaign']['id']}",
            f"/dead/api/{letter['handle']}",
        )
        # The checks are a script of their own, which the policy of the pages would refuse.
        for scheme in ("light", "dark"):
            async with opened(browser, str(client.base_url), width=390, scheme=scheme, bypass_csp=True) as (
                page,
                _,
            ):
                for path in (*PAGES, *more):
                    answer = await page.goto(path)
                    assert answer is not None
                    assert (path, answer.status) == (path, 404 if path == "/nowhere" else 200)
                    if path in ("/", "/keeping"):
                        await page.locator("canvas.tiles").wait_for()
                    found = (await Axe().run(page)).response["violations"]
                    serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
                    assert (path, serious) == (path, [])
                    wide = await page.evaluate("document.documentElement.scrollWidth")
                    assert (path, wide) == (path, 390)
