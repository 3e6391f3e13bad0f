"""The audit finds what keepers have and should not: rows of theirs are damaged, as a bug of theirs would."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from msgspec import structs

from bus.messages.keeping import BudgetsFound, MoveBudget, MovementId, SetBudget
from bus.messages.projects import CreateGroup, GroupsFound
from engine.flavors import JoinedGroup
from engine.inventories import GroupId
from keeper.store_sql import add_movements, save_movements
from moor.client.books.auditing import AuditOptions, AuditResult, audited
from moor.client.books.books_reader import BooksReader
from tests.stories.keeping.test_campaigns import Keeping, keeping
from tests.stories.layouts import EMBEDDED


async def audit_of(here: Keeping) -> AuditResult:
    client = here.cloud.client
    options = AuditOptions(settle=timedelta(0), keepers=True)
    return await audited(BooksReader(client, {"c1": client}, ()), options, clock=lambda: datetime.now(UTC))


@EMBEDDED
async def test_an_audit_finds_movements_of_nothing_and_more_than_a_budget_allows(
    bus: str, books: str
) -> None:
    async with keeping(bus, books, "h1", "h2") as here:
        for number in (1, 2):
            await here.here.booted(number)
        budget = MoveBudget(name="slow", scope="host", side="out", at_once=1)
        await here.cloud.ask(SetBudget(budget=budget), BudgetsFound)
        await here.start("h1")
        ended = await here.until()
        assert ended.campaigns[0].movements == {"done": 2}
        assert (await audit_of(here)).findings == ()

        # Both have left their host by now.
        done = await here.movements()
        async with here.rows.transaction() as transaction:
            again = [structs.replace(each, life="moving", granted_at=datetime.now(UTC)) for each in done]
            await transaction.run(save_movements, again)
        found = await audit_of(here)

        assert sorted(each.fault.kind for each in found.findings) == [
            "budget exceeded",
            *("movement of nothing",) * 2,
        ]
        assert {each.fault.about for each in found.findings} == {None, *(each.instance for each in done)}
        texts = [each.fault.text for each in found.findings]
        assert "budget slow, c1/h1: 2 movements go on, and 1 may" in texts
        assert any("is moving, and it is active on h2 in cell c1" in each for each in texts)


@EMBEDDED
async def test_an_audit_finds_that_too_few_of_a_group_stay(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2") as here:
        group = GroupId(UUID(int=77))
        await here.cloud.ask(CreateGroup(id=group, policy="soft-anti-affinity"), GroupsFound)
        ids = [
            await here.here.booted(number, host, group=JoinedGroup(id=group))
            for number, host in ((1, "h1"), (2, "h2"))
        ]
        budget = MoveBudget(name="alive", scope="group", alive_min=1)
        await here.cloud.ask(SetBudget(budget=budget), BudgetsFound)
        await here.start("h1")
        await here.until()
        assert (await audit_of(here)).findings == ()

        # Both leave now, as far as the rows say.
        (done,) = await here.movements()
        async with here.rows.transaction() as transaction:
            again = [
                structs.replace(
                    done, id=MovementId(uuid4()), instance=each, life="moving", granted_at=datetime.now(UTC)
                )
                for each in ids
            ]
            await transaction.run(add_movements, again)
        found = {each.fault.text for each in (await audit_of(here)).findings}

        assert f"budget alive, {group}: 0 active members of the group stay, and 1 must" in found
