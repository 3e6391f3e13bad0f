"""An operator drains a host and deletes an instance in a real browser, by the keyboard alone; the pages are accessible."""

from pathlib import Path

import bcrypt
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from tests.stories.moor.moor_process import moor_json
from tests.stories.moor.test_dashboard_in_a_browser import a_browser, opened
from tests.stories.moor.test_dashboard_orders_in_a_cloud import HOST, printed_address
from tests.stories.moor.test_moor_dashboard import a_cloud, served_beside

pytestmark = pytest.mark.asyncio


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


async def test_a_host_is_drained_and_an_instance_deleted_by_the_keyboard_alone() -> None:
    async with (
        a_cloud() as (environment, url, up),
        a_browser() as browser,
        opened(browser, url) as (page, wrong),
    ):
        booted = await moor_json("boot", "--vcpus", "1", "--count", "6", "--name", "web", **environment)
        id_ = next(each["id"] for each in booted["instances"] if each["host"] == HOST)
        await page.goto(printed_address(up))
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
        # The page looks again by itself until the drain has ended.
        await page.get_by_role("heading", name=f"Drain harbour/{HOST} done").wait_for()
        await page.get_by_text("have left harbour").wait_for()
        assert all(each["host"] != HOST for each in await moor_json("list", **environment))

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


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_what_asks_and_what_tells_is_accessible_and_fits_a_narrow_screen(scheme: str) -> None:
    async with a_cloud() as (environment, url, up), a_browser() as browser:
        booted = await moor_json("boot", "--vcpus", "1", "--name", "web", **environment)
        id_ = booted["instances"][0]["id"]
        # The checks are a script of their own, which the policy of the pages would refuse.
        async with opened(browser, url, width=390, scheme=scheme, bypass_csp=True) as (page, _):
            await page.goto(printed_address(up))
            paths = [f"/orders/set-host?host={HOST}&mode={mode}" for mode in ("draining", "dead")]
            for path in (*paths, f"/orders/delete?instance={id_}", f"/hosts/harbour/{HOST}"):
                await page.goto(path)
                await looks_right(page, path)
            await page.goto(f"/orders/drain?host={HOST}")
            await looks_right(page, "drain")
            await page.locator("main button").click()
            await page.get_by_role("heading", name="done").wait_for()
            await looks_right(page, "done")


async def looks_right(page: Page, what: str) -> None:
    found = (await Axe().run(page)).response["violations"]
    assert (what, [each["id"] for each in found if each["impact"] in ("serious", "critical")]) == (what, [])
    assert (what, await page.evaluate("document.documentElement.scrollWidth")) == (what, 390)


async def test_a_person_logs_in_by_the_keyboard_and_is_told_when_the_password_is_wrong(
    tmp_path: Path,
) -> None:
    users = tmp_path / "users"
    users.write_text(f"root:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    async with (
        a_cloud() as (environment, _, _),
        served_beside(environment, "--auth", "basic", "--users", str(users)) as client,
        a_browser() as browser,
    ):
        url = str(client.base_url).rstrip("/")
        async with opened(browser, url, width=390, bypass_csp=True) as (page, _):
            await page.goto("/hosts?after=x")
            await looks_right(page, "login")
            assert await page.evaluate("document.activeElement.name") == "user"
            for password in ("wrong", "secret"):
                await page.keyboard.type("root")
                await page.keyboard.press("Tab")
                await page.keyboard.type(password)
                await page.keyboard.press("Enter")
                if password == "wrong":  # noqa: S105
                    await page.get_by_role("alert").wait_for()
                    await looks_right(page, "a wrong password")
            await page.get_by_role("heading", name="Hosts").wait_for()
            assert page.url == f"{url}/hosts?after=x"
            (cookie,) = [each for each in await page.context.cookies() if not each["name"].endswith("-form")]
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
            assert await page.evaluate("document.cookie") == ""
