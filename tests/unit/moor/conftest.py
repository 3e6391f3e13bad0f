"""Dashboards to visit."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from moor.dashboard.service import DashboardFlags, dashboard_options
from tests.unit.moor.dashboard_visits import USERS, FakeBrowser, FakeCloud, Visit, Visited


@pytest.fixture
async def visit(tmp_path: Path) -> AsyncIterator[Visit]:
    """Starts dashboards, whose users are in a file if `auth` is basic."""
    async with AsyncExitStack() as stack:

        async def started(cloud: Any = None, auth: str = "basic", more_users: str = "") -> Visited:
            users = tmp_path / "users"
            users.write_text(USERS + more_users)
            flags = DashboardFlags(dashboard_listen="127.0.0.1:0", auth=auth, users=users)  # type: ignore[arg-type]
            visited = Visited(cloud or FakeCloud(), dashboard_options(flags))
            await stack.enter_async_context(visited.running())
            return visited

        yield started


@pytest.fixture
async def visited(visit: Visit) -> Visited:
    return await visit()


@pytest.fixture
async def root(visited: Visited) -> FakeBrowser:
    return await visited.logged_in("root")
