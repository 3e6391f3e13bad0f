"""An operator drains a host and deletes an instance in a real browser, by the keyboard alone; the pages are accessible."""

import pytest
from playwright.async_api import Page

from tests.stories.moor.moor_process import moor_json
from tests.stories.moor.test_dashboard_in_a_browser import a_browser, opened
from tests.stories.moor.test_dashboard_orders_in_a_cloud import HOST, printed_address
from tests.stories.moor.test_moor_dashboard import a_cloud

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
