"""The hosts of an import are taken some at a time: what refuses one keeps back that one, and what fails for all ends the command."""

import asyncio

import pytest

from moor.client.errors import Rejected
from nova_bridge.databases import CONNECTIONS_MAX, NovaDatabaseError
from nova_bridge.importing.command import of_all
from nova_bridge.importing.handing_over import HostReport
from nova_bridge.importing.reading import HostRow

pytestmark = pytest.mark.asyncio

ROWS = [HostRow("c1", f"h{number}", 3) for number in range(20)]


async def test_one_that_is_refused_is_kept_back_and_the_others_go_on() -> None:
    at_once = most = 0

    async def step(row: HostRow) -> HostReport:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        if row.name == "h7":
            raise Rejected("add_hosts", "h7", "it is in zone 'n'", None)
        return HostReport(row.cell, row.name, "here", 3, 3)

    reports = await of_all(ROWS, step)

    assert [each.host for each in reports] == [row.name for row in ROWS]
    assert [(each.host, each.reasons) for each in reports if each.stage != "here"] == [
        ("h7", ("add_hosts is h7: it is in zone 'n'",))
    ]
    assert most == CONNECTIONS_MAX


async def test_a_database_that_fails_ends_the_command_with_its_own_error() -> None:
    async def step(row: HostRow) -> HostReport:
        await asyncio.sleep(0)
        raise NovaDatabaseError(f"gone at {row.name}")

    with pytest.raises(NovaDatabaseError, match="gone at h0"):
        await of_all(ROWS, step)
